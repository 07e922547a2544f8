"""Each option of a verb that runs a command gets to the hold, to its session, or to the running."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord.cli import holding, main

if TYPE_CHECKING:
    from collections.abc import Callable

OPTIONS: dict[tuple[str, ...], tuple[str, object]] = {
    ("--timeout", "7"): ("errand timeout", 7.0),
    ("--max-hold", "70"): ("errand max_hold", 70.0),
    ("--not-acquired-code", "9"): ("errand not_acquired_code", 9),
    ("--quiet",): ("errand quiet", True),
    ("--json",): ("errand as_json", True),
    ("--ttl", "21"): ("session ttl", 21.0),
    ("--lock-delay", "4"): ("session lock_delay", 4.0),
    ("--value", "me"): ("value", b"me"),
}
FAIR: dict[tuple[str, ...], tuple[str, object]] = {("--fair",): ("fair", True)}
VERBS: dict[
    str, tuple[tuple[str, ...], str, tuple[object, ...], dict[tuple[str, ...], tuple[str, object]]]
] = {
    "lock": ((), "Lock", ("a/key",), OPTIONS | FAIR),
    "semaphore": (("--limit", "3"), "Semaphore", ("a/key", 3), OPTIONS | FAIR),
    "once": (
        ("--slot", "s"),
        "Once",
        ("a/key",),
        OPTIONS
        | {
            ("--leave-failed",): ("retry_failed", False),
            ("--ran-elsewhere-code", "8"): ("job _ran_elsewhere", 8),
        },
    ),
}
"""By verb: options it needs besides, the class it makes, the arguments, and where each option arrives."""


def asked(monkeypatch: pytest.MonkeyPatch, verb: str, *options: str) -> dict[str, object]:
    """Run a verb, and return all that comes of what it was given."""
    needed, kind, _, _ = VERBS[verb]
    found: dict[str, Any] = {}

    def made(client: object, *args: object, **given: object) -> object:
        found.update(given, args=args, client=client)
        return made

    def run(errand: dict[str, Any], *, session: Any, wanted: Callable[[object], object], **_: object) -> int:
        found.update({f"errand {name}": value for name, value in errand.items()})
        found.update({f"session {name}": value for name, value in session.items()})
        found.update({f"job {name}": value for name, value in vars(wanted("client")).items()})
        return 0

    monkeypatch.setattr(importlib.import_module(f"consul_coord.cli.{verb}"), kind, made)
    monkeypatch.setattr(holding, "run", run)
    assert main([verb, "a/key", *needed, *options, "--", "run", "it"]) == 0
    return found


@pytest.mark.parametrize(("verb", "option"), [(verb, option) for verb in VERBS for option in VERBS[verb][3]])
def test_an_option_gets_where_it_counts_and_changes_nothing_else(
    monkeypatch: pytest.MonkeyPatch, verb: str, option: tuple[str, ...]
) -> None:
    name, value = VERBS[verb][3][option]
    without, given = asked(monkeypatch, verb), asked(monkeypatch, verb, *option)
    assert given[name] == value != without[name]
    ignored = {name, "errand agent", "job _once"}
    assert {each for each in given if each not in ignored and given[each] != without[each]} == set()


@pytest.mark.parametrize("verb", VERBS)
def test_the_hold_is_of_its_key_and_the_session_is_named_after_the_verb(
    monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    found = asked(monkeypatch, verb)
    assert found["args"] == VERBS[verb][2]
    assert found["client"] == "client"
    assert found["errand command"] == ("run", "it")
    assert found["session name"] == f"consul-coord {verb} a/key"
