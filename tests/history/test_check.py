"""Good histories pass; each planted fault is found by the rule that it breaks, and by no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from consul_coord.testing.history.spans import Span, read
from proof.judge import Entry, check
from tests.history.happenings import happened, held, in_order

if TYPE_CHECKING:
    from consul_coord.testing.history import Record

ONE, TWO, THREE = "p1/a", "p1/b", "p2/a"
QUIET = in_order(held(1, 2, 10), held(2, 3, 12, TWO), held(3.5, 4, 20, THREE))
LIMITS = {"k": 2}
WROTE = in_order(
    held(1, 2, 10),
    [happened(1.1, "write", fence=10, detail="x"), happened(1.2, "write", fence=10, detail="y")],
    held(2, 3, 12, TWO),
    [happened(2.5, "write", TWO, fence=12, detail="z"), happened(2.6, "refused", fence=10, detail="late")],
)
LOG = [Entry(10, "x"), Entry(10, "y"), Entry(10, "unanswered"), Entry(12, "z")]

GOOD: dict[str, tuple[list[Record], dict[str, Any]]] = {
    "holds in turn": (QUIET, {}),
    "a lease that ended before its holder was told": (
        in_order(
            [
                happened(1, "acquired", fence=1, until=5.0),
                happened(9, "lost", fence=1, until=5.0),
            ],
            held(5, 6, 2, TWO),
        ),
        {},
    ),
    "a process that died counts until its lease ended": (
        in_order(
            [
                happened(1, "acquired", fence=1, until=5.0),
                happened(2, "valid", fence=1, until=6.0),
                happened(9, "died", "p1"),
            ],
            held(6, 7, 2, THREE),
        ),
        {},
    ),
    "two slots": (in_order(held(1, 4, 1), held(2, 5, 2, TWO), held(4, 6, 3, THREE)), {"limits": LIMITS}),
    "slots whose grants were told out of order": (
        in_order(held(1, 4, 2), held(2, 5, 1, TWO)),
        {"limits": LIMITS},
    ),
    "an operator ended the session": (
        in_order(
            held(1, 4, 1, session="s"),
            [happened(2, "ended", "agent", session="s", detail="forced")],
            held(2.5, 5, 2, TWO),
        ),
        {},
    ),
    "an overlap inside the bound": (in_order(held(1, 2, 1), held(1.95, 3, 2, TWO)), {"bound": 0.1}),
    "different keys": (in_order(held(1, 3, 2), held(2, 4, 1, TWO, key="other")), {}),
    "writes": (WROTE, {"registers": {"k": LOG}}),
    "a wait given up": ([happened(1, "waiting"), happened(2, "gave_up")], {}),
    "a wait that died": ([happened(1, "waiting"), happened(2, "died", "p1")], {}),
    "nothing left": (QUIET, {"left": {"session": []}}),
}
BAD: dict[str, tuple[str, list[Record], dict[str, Any]]] = {
    "two holders": ("exclusion", in_order(held(1, 3, 1), held(2, 4, 2, TWO)), {}),
    "a short hold within another": ("exclusion", in_order(held(1, 9, 1), held(2, 3, 2, TWO)), {}),
    "the one before the last is not over": (
        "exclusion",
        in_order(held(1, 9, 1), held(2, 3, 2, TWO), held(4, 5, 3, TWO)),
        {},
    ),
    "an overlap beyond the bound": (
        "exclusion",
        in_order(held(1, 2, 1), held(1.8, 3, 2, TWO)),
        {"bound": 0.1},
    ),
    "a third for two slots": (
        "exclusion",
        in_order(held(1, 5, 1), held(2, 5, 2, TWO), held(3, 6, 3, THREE)),
        {"limits": LIMITS},
    ),
    "taken while the dead one's lease ran": (
        "exclusion",
        in_order(
            [happened(1, "acquired", fence=1, until=8.0), happened(9, "died", "p1")], held(6, 7, 2, THREE)
        ),
        {},
    ),
    "a session that ended unforced protects until its holder is told": (
        "exclusion",
        in_order(
            held(1, 4, 1, session="s"), [happened(2, "ended", "agent", session="s")], held(2.5, 5, 2, TWO)
        ),
        {},
    ),
    "an operator ended another session": (
        "exclusion",
        in_order(
            held(1, 4, 1, session="s"),
            [happened(2, "ended", "agent", session="t", detail="forced")],
            held(2.5, 5, 2, TWO),
        ),
        {},
    ),
    "a fence that falls": ("fences", in_order(held(1, 2, 10), held(2, 3, 9, TWO)), {}),
    "a fence twice": ("fences", in_order(held(1, 2, 10), held(2, 3, 10, TWO)), {}),
    "a fence below one before the last": (
        "fences",
        in_order(held(1, 2, 10), held(2, 3, 30, TWO), held(3, 4, 20, THREE)),
        {},
    ),
    "no fence": ("fences", [happened(1, "acquired"), happened(2, "released")], {}),
    "a lost write": ("writes", WROTE, {"registers": {"k": [entry for entry in LOG if entry.name != "y"]}}),
    "a write under another fence": (
        "writes",
        WROTE,
        {"registers": {"k": [Entry(10, "x"), Entry(10, "z"), Entry(12, "y")]}},
    ),
    "a write twice": ("writes", WROTE, {"registers": {"k": [*LOG, Entry(12, "z")]}}),
    "no log of the key": ("writes", WROTE, {"registers": {}}),
    "a register that went back": ("writes", WROTE, {"registers": {"k": [*LOG, Entry(11, "old")]}}),
    "a refused write that is there": ("writes", WROTE, {"registers": {"k": [Entry(10, "late"), *LOG]}}),
    "a write under nobody's fence": (
        "writes",
        [*QUIET, happened(5, "write", fence=99, detail="w")],
        {"registers": {"k": [Entry(99, "w")]}},
    ),
    "a hold without an end": ("ends", [happened(1, "acquired", fence=1)], {}),
    "a wait without an end": ("ends", [happened(1, "waiting")], {}),
    "a session left": ("leftovers", QUIET, {"left": {"session": ["s-1"]}}),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_history_passes(name: str) -> None:
    records, options = GOOD[name]
    assert check(records, **options).findings == ()


@pytest.mark.parametrize("name", BAD)
def test_a_planted_fault_is_found_by_its_rule(name: str) -> None:
    rule, records, options = BAD[name]
    findings = check(records, **options).findings
    assert {finding.rule for finding in findings} == {rule}
    assert str(findings[0]).startswith(rule)


def test_a_verdict_counts_what_it_looked_at() -> None:
    verdict = check(WROTE, registers={"k": LOG})
    assert (verdict.holds, verdict.handovers, verdict.writes, verdict.lost) == (2, 1, 3, 0)
    assert check([]).holds == 0


def test_the_spans_tell_jeopardy_and_a_session_that_ended() -> None:
    (hold,) = read(
        [
            happened(1, "waiting"),
            happened(2, "acquired", fence=1, session="s", until=12.0),
            happened(3, "jeopardy", fence=1),
            happened(4, "recovered", fence=1, until=14.0),
            happened(5, "jeopardy", fence=1),
            happened(6, "ended", "agent", session="s"),
            happened(9, "lost", fence=1, until=8.0),
        ]
    ).holds
    assert hold.relied == Span(2, 8)
    assert hold.told == 9
    assert hold.jeopardy == (Span(3, 4), Span(5, 8))
    assert hold.dead == Span(6, 8)


def test_faults_last_until_healed_and_others_are_moments() -> None:
    faults = read(
        [
            happened(1, "fault", "agent", detail="cut off"),
            happened(2, "fault", "agent", detail="killed"),
            happened(3, "healed", "agent", detail="cut off"),
            happened(4, "healed", "agent", detail="never put on"),
        ]
    ).faults
    assert [(fault.detail, fault.span, fault.lasts) for fault in faults] == [
        ("cut off", Span(1, 3), True),
        ("killed", Span(2, 2), False),
    ]
