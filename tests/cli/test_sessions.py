"""``sessions``: which are shown, which are destroyed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from consul_coord import Client, SessionSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Call


@pytest.fixture
def two(client: Client, key: str) -> Iterator[list[str]]:
    """Yield two sessions, named after the test's key."""
    specs = [
        SessionSpec(name=f"{key} {which}", ttl=20.0, lock_delay=0.0, allow_unbounded=True)
        for which in ("first", "second")
    ]
    made = [client.session.create(spec) for spec in specs]
    yield made
    for session in made:
        client.session.destroy(session)


def test_all_are_shown_with_their_settings(call: Call, key: str, two: list[str]) -> None:
    outcome = call("sessions")
    assert outcome.code == 0
    head, *lines = outcome.out.splitlines()
    assert head.split() == ["SESSION", "NAME", "NODE", "TTL", "LOCK-DELAY", "BEHAVIOR", "CHECKS"]
    (line,) = [line for line in lines if line.startswith(two[0])]
    assert line.split() == [two[0], key, "first", "node1", "20", "s", "0", "s", "release", "-"]


@pytest.mark.parametrize(("pattern", "places"), [("{} first", [0]), ("{} *", [0, 1]), ("{}", [])])
def test_a_name_selects(call: Call, key: str, two: list[str], pattern: str, places: list[int]) -> None:
    outcome = call("sessions", "--name", pattern.format(key), "--json")
    assert outcome.code == (0 if places else 1)
    found = {json.loads(line)["id"] for line in outcome.out.splitlines()}
    assert found == {two[place] for place in places}


def test_destroy_ends_the_named_ones_only(call: Call, key: str, client: Client, two: list[str]) -> None:
    assert call("sessions", "--name", f"{key} first", "--destroy").code == 0
    assert [client.session.info(session).value is None for session in two] == [True, False]


@pytest.mark.parametrize("typed", ["y\n", "n\n"])
def test_destroy_asks_at_a_terminal(call: Call, key: str, client: Client, two: list[str], typed: str) -> None:
    left = {"y\n": 0, "n\n": 2}[typed]
    assert call("sessions", "--name", f"{key} *", "--destroy", typed=typed).code == (1 if left else 0)
    assert sum(client.session.info(session).value is not None for session in two) == left


def test_yes_asks_nothing_at_a_terminal(call: Call, key: str, client: Client, two: list[str]) -> None:
    assert call("sessions", "--name", f"{key} *", "--destroy", "--yes", typed="n\n").code == 0
    assert [client.session.info(session).value for session in two] == [None, None]


def test_destroy_without_a_name_is_2(call: Call, client: Client, two: list[str]) -> None:
    assert call("sessions", "--destroy", "--yes").code == 2
    assert client.session.info(two[0]).value is not None
