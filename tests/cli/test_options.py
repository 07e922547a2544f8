"""Options that several verbs share: times, the agent to talk to, and what an empty answer exits with."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click
import pytest

from consul_coord import Client, Lock, Semaphore
from consul_coord.cli.options import DURATION, Duration

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Call


@pytest.mark.parametrize(
    ("typed", "seconds"),
    [
        ("0", 0),
        ("90", 90),
        ("1.5", 1.5),
        ("500ms", 0.5),
        ("90s", 90),
        ("5m", 300),
        ("1h30m", 5400),
        ("2h", 7200),
    ],
)
def test_a_time_is_seconds_or_has_units(typed: str, seconds: float) -> None:
    assert DURATION.convert(typed, None, None) == seconds


@pytest.mark.parametrize("typed", ["", "soon", "-1", "-5m", "5x", "m", "nan", "inf", "1e999", "5 m"])
def test_what_is_no_time_is_refused_with_examples(typed: str) -> None:
    with pytest.raises(click.BadParameter, match="90s or 5m"):
        DURATION.convert(typed, None, None)


def test_a_time_may_have_a_minimum_which_the_refusal_names() -> None:
    with pytest.raises(click.BadParameter, match=r"at least 0\.5 s"):
        Duration(minimum=0.5).convert("400ms", None, None)


def test_a_lock_takes_times_with_units(call: Call, key: str, client: Client) -> None:
    with Lock(client, key).hold():
        refused = call("lock", key, "--timeout", "2s", "--ttl", "1m", "--", "true")
    assert refused.code == 75


def test_the_datacenter_is_the_one_asked_for(call: Call, key: str) -> None:
    refused = call("holders", key, "--datacenter", "elsewhere")
    assert refused.code == 78
    assert "no datacenter 'elsewhere', only 'dc1'" in refused.err
    assert call("sessions", "--datacenter", "dc1").code in {0, 1}


def test_a_namespace_is_refused_by_name_where_there_are_none(call: Call, key: str) -> None:
    refused = call("holders", key, "--namespace", "team", "--partition", "")
    assert refused.code == 78
    assert "namespace" in refused.err


def test_a_certificate_file_that_is_missing_is_named(call: Call, key: str, tmp_path: Path) -> None:
    missing = tmp_path / "ca.pem"
    refused = call("holders", key, "--ca-cert", str(missing), "--address", "https://127.0.0.1:1")
    assert refused.code == 78
    assert str(missing) in refused.err


def test_a_certificate_file_for_plain_http_is_refused(call: Call, key: str, tmp_path: Path) -> None:
    refused = call("holders", key, "--ca-cert", str(tmp_path / "ca.pem"), "--address", "http://127.0.0.1:1")
    assert refused.code == 78
    assert "give https://host:port" in refused.err


@pytest.mark.parametrize("options", [(), ("--json",)])
@pytest.mark.parametrize(
    "arguments", [("holders", "tests/cli/nothing"), ("sessions", "--name", "nobody's"), ("leader", "nobody")]
)
def test_an_empty_answer_is_1(call: Call, arguments: tuple[str, ...], options: tuple[str, ...]) -> None:
    assert call(*arguments, *options).code == 1


def test_a_semaphore_is_resized(call: Call, key: str, client: Client) -> None:
    with Semaphore(client, key, 1).hold():
        resized = call("resize", key, "3", "--json")
        assert resized.code == 0
        told = json.loads(resized.err)
        assert (told["limit"], told["held"]) == (3, 1)
        with Semaphore(client, key, 3).hold(timeout=5):
            assert call("resize", key, "1").code == 0


def test_a_semaphore_that_is_not_there_is_not_made(call: Call, key: str, client: Client) -> None:
    assert call("resize", key, "3").code == 1
    assert client.kv.keys(key).value == ()
