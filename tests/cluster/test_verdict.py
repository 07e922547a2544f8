"""The judge of a chaos run: a good history, and one for each thing that can be wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from consul_coord.testing.history import Record
from proof.chaos.diary import BUG, CLOSED
from proof.chaos.force import Force, restore, save
from proof.chaos.plan import Plan
from proof.chaos.verdict import Evidence, judge
from proof.judge import Entry

if TYPE_CHECKING:
    from pathlib import Path

PLAN = Plan(processes=2)
LOCK = "chaos/lock/a"
SLOT = "chaos/slots/two"
HEALED = 100.0


def hold(
    at: float, *, key: str = LOCK, fence: int, of: int = 0, lasts: float = 1.0, session: str = "s"
) -> list[Record]:
    """Return the records of one hold, from its grant to its end."""
    name = f"worker{of}"
    grant = Record(
        at=at, process=name, actor="w", kind="acquired", key=key, session=session, fence=fence, until=at + 9
    )
    return [grant, replace(grant, at=at + lasts, kind="released")]


def evidence(*more: list[Record], **changes: object) -> Evidence:
    """Return a good run with something more in it."""
    turns = [hold(HEALED + place, key=key, fence=900 + place) for place, key in enumerate(PLAN.keys)]
    turns.append(hold(HEALED + 8, fence=990, of=1))
    ends = [
        Record(at=HEALED + 20, process=f"worker{place}", kind="note", detail=CLOSED)
        for place in range(PLAN.processes)
    ]
    records = sorted((each for part in (*turns, *more, ends) for each in part), key=lambda each: each.at)
    good = Evidence(
        records=records,
        forces=(),
        registers={},
        left={},
        healed=HEALED,
        codes={"worker0-1": 0, "worker1-1": 0},
    )
    return replace(good, **changes)  # type: ignore[arg-type]


def rules(found: Evidence) -> list[str]:
    return [finding.rule for finding in judge(PLAN, found).verdict.findings]


OVERLAP = (hold(10, fence=10, lasts=5, session="one"), hold(12, fence=12, of=1, session="two"))


def test_a_good_run_has_no_finding() -> None:
    verdict = judge(PLAN, evidence(hold(10, fence=10), hold(12, fence=12, of=1))).verdict
    assert verdict.findings == ()
    assert verdict.holds == len(PLAN.keys) + 3


def test_two_holds_at_once_are_found() -> None:
    assert rules(evidence(*OVERLAP)) == ["exclusion"]


@pytest.mark.parametrize(
    "force",
    [
        Force(at=11, done=11.5, session="one"),
        Force(at=11, key=LOCK, upto=10),
        Force(at=11, done=11.5, processes=("worker0",)),
    ],
    ids=["session", "key", "node"],
)
def test_two_at_once_by_force_are_none(force: Force) -> None:
    found = evidence(*OVERLAP, forces=[force])
    assert rules(found) == []
    assert judge(PLAN, found).forced == 1


@pytest.mark.parametrize(
    "force",
    [
        Force(at=11, done=11.5, session="other"),
        Force(at=11, key=LOCK, upto=9),
        Force(at=11, key="chaos/lock/b", upto=10),
        Force(at=8, done=9, session="one"),
        Force(at=14, done=15, session="one"),
    ],
    ids=["another session", "an older hold", "another key", "before", "after"],
)
def test_force_excuses_only_what_it_has_hit(force: Force) -> None:
    assert rules(evidence(*OVERLAP, forces=[force])) == ["exclusion"]


def test_as_many_as_there_are_slots_may_hold_at_once() -> None:
    slots = [hold(10 + each, key=SLOT, fence=10 + each, lasts=5, session=str(each)) for each in range(3)]
    for number, slot in enumerate(slots):
        slot[:] = [replace(record, actor=str(number)) for record in slot]
    assert rules(evidence(*slots[:2])) == []
    assert rules(evidence(*slots)) == ["exclusion"]


def test_fences_that_fall_or_repeat_are_found() -> None:
    assert rules(evidence(hold(10, fence=12), hold(12, fence=10, of=1))) == ["fences"]
    assert "fences" in rules(evidence(hold(10, fence=12), hold(12, fence=12, of=1)))
    assert "fences" in rules(evidence(hold(10, key=SLOT, fence=5), hold(12, key=SLOT, fence=5, of=1)))


def test_a_write_that_was_acknowledged_and_is_not_there_is_found() -> None:
    turn = hold(10, fence=10)
    turn.insert(1, replace(turn[0], at=10.5, kind="write", detail="w-1"))
    assert rules(evidence(turn, registers={LOCK: [Entry(10, "w-1")]})) == []
    assert rules(evidence(turn, registers={LOCK: []})) == ["writes"]


def test_what_is_left_at_the_servers_is_found() -> None:
    assert rules(evidence(left={"session": ["s"], "place": []})) == ["leftovers"]


def test_a_key_and_a_process_without_a_turn_after_the_healing_are_found() -> None:
    found = evidence()
    later = [each for each in found.records if each.key != SLOT and each.process != "worker1"]
    assert rules(replace(found, records=later, codes={"worker0-1": 0})) == ["progress", "progress"]


def test_processes_that_err_or_do_not_end_are_found() -> None:
    bug = Record(at=50, process="worker0", kind="note", detail=f"{BUG}KeyError()")
    assert rules(evidence([bug])) == ["bugs"]
    assert rules(evidence(codes={"worker0-1": 0, "worker1-1": -9})) == ["bugs"]
    assert rules(evidence(codes={"worker0-1": 0, "worker1-1": 0, "worker2-1": 0})) == ["bugs"]


def test_acts_of_force_are_kept(tmp_path: Path) -> None:
    forces = [Force(at=1.0, done=2.0, processes=("worker0",)), Force(at=3.0, key=LOCK, session="s", upto=4)]
    save(forces, tmp_path / "forces")
    assert restore(tmp_path / "forces") == forces
    assert restore(tmp_path / "none") == []
