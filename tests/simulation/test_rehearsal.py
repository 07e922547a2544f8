"""A user's own code in the simulator: what is right passes, what is wrong is told with its seed."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord import AsyncLeaderElection, AsyncLock, AsyncSemaphore, SessionSpec
from consul_coord.testing import Rehearsal, SimulationFailed, Stage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

KEY = "jobs/import"
QUICK = SessionSpec(ttl=10.0, lock_delay=1.0)


async def careful(stage: Stage) -> None:
    async with AsyncLock(stage.client, KEY).hold() as hold:
        with stage.working(KEY):
            await asyncio.sleep(1.0)
            stage.write(KEY, fence=hold.fence)


async def careless(stage: Stage) -> None:
    """Work on, whatever becomes of the hold."""
    hold = await AsyncLock(stage.client, KEY).acquire()
    with stage.working(KEY):
        await asyncio.sleep(30.0)
    await hold.release()


async def leader(stage: Stage) -> None:
    async with AsyncLeaderElection(stage.client, "service/leader") as election:
        leadership = await election.wait_for_leadership()
        async with leadership:
            with stage.working("service"):
                await asyncio.sleep(5.0)


async def one_of_two(stage: Stage) -> None:
    async with AsyncSemaphore(stage.client, "api/slots", 2).hold():
        with stage.working(stage.name):
            await asyncio.sleep(2.0)


@pytest.mark.parametrize("program", [careful, leader, one_of_two])
@pytest.mark.parametrize("seed", range(2))
def test_what_is_right_passes(program: Callable[[Stage], Awaitable[None]], seed: int) -> None:
    outcome = Rehearsal(program, seed=seed, seconds=40.0, session=QUICK).run()
    assert outcome.seconds > 40.0
    assert " begins to work on " in outcome.trace.text()


def test_work_without_a_look_at_the_hold_is_found() -> None:
    def look_for_it() -> None:
        for seed in range(50):
            Rehearsal(careless, seed=seed, session=QUICK).run()

    with pytest.raises(SimulationFailed, match="both at work") as failed:
        look_for_it()
    assert failed.value.violation is not None
    assert failed.value.violation.rule == "exclusion"
    assert f"seed {failed.value.seed}: " in str(failed.value)


def test_an_old_fence_is_found() -> None:
    fences: list[int] = []

    async def program(stage: Stage) -> None:
        async with AsyncLock(stage.client, KEY).hold() as hold:
            fences.append(hold.fence)
            with stage.working(KEY):
                stage.write(KEY, fence=fences[-1])
                stage.write(KEY, fence=fences[0])

    with pytest.raises(SimulationFailed, match="is old"):
        Rehearsal(program, seed=1, faults=False).run()


def test_a_bug_of_the_program_is_told() -> None:
    async def program(stage: Stage) -> None:
        raise ZeroDivisionError(stage.name)

    with pytest.raises(SimulationFailed, match="ZeroDivisionError: p"):
        Rehearsal(program, seed=1).run()


def test_a_program_that_never_works_is_told() -> None:
    async def program(stage: Stage) -> None:
        await asyncio.sleep(1.0)
        stage.note("did nothing")

    with pytest.raises(SimulationFailed, match="nobody got to work"):
        Rehearsal(program, seed=1, seconds=5.0).run()


def test_a_session_that_is_left_behind_is_told() -> None:
    async def program(stage: Stage) -> None:
        await stage.client.session.create(SessionSpec(ttl=3600.0))
        with stage.working(KEY):
            await asyncio.sleep(10.0)

    with pytest.raises(SimulationFailed, match="never ends"):
        Rehearsal(program, seed=1, processes=1, seconds=20.0, faults=False).run()


def test_the_same_seed_is_the_same_run() -> None:
    first, second = (Rehearsal(careful, seed=7).run() for _ in range(2))
    assert first.trace.digest() == second.trace.digest()
    assert (first.events, first.seconds) == (second.events, second.seconds)


def on_stage(count: int) -> tuple[Rehearsal, list[Stage]]:
    """Return a run that has not begun, and some of its processes, for what they may say."""
    rehearsal = Rehearsal(careful, seed=1, faults=False)
    nothing: Any = None
    return rehearsal, [Stage(rehearsal, f"p{number}", nothing, nothing) for number in range(1, count + 1)]


@pytest.mark.parametrize(
    ("first_crashed", "what", "told"),
    [
        (False, KEY, f"p2 and p1 are both at work on {KEY}"),
        (True, KEY, None),
        (False, "other", None),
        (True, "other", None),
    ],
)
def test_only_two_live_processes_at_the_same_work_are_a_fault(
    first_crashed: bool, what: str, told: str | None
) -> None:
    rehearsal, (one, two) = on_stage(2)
    with one.working(KEY):
        one.crashed = first_crashed
        with two.working(what):
            pass
    violation = rehearsal.judge.violation
    assert (None if violation is None else (violation.rule, violation.how)) == (
        None if told is None else ("exclusion", told)
    )


def test_work_after_work_is_no_fault_and_is_in_the_story() -> None:
    rehearsal, (one, two) = on_stage(2)
    for stage in (one, two, two):
        with stage.working(KEY):
            stage.note("half way")
    assert rehearsal.judge.violation is None
    story = rehearsal.judge.trace.text()
    for name, times in (("p1", 1), ("p2", 2)):
        for said in (f"begins to work on {KEY}", "half way", f"stops working on {KEY}"):
            assert len(re.findall(rf"{name}\b.*{said}", story)) == times


def test_a_write_is_taken_unless_its_fence_is_old_or_its_process_is_gone() -> None:
    rehearsal, (one, two) = on_stage(2)
    taken = [
        one.write(KEY, fence=7),
        two.write(KEY, fence=7),
        one.write(KEY, fence=6),
        one.write("b", fence=1),
    ]
    assert taken == [True, True, False, True]
    two.crashed = True
    assert not two.write(KEY, fence=9)
    assert one.write(KEY, fence=8), "what a process writes after its crash does not count"
    before = rehearsal.judge.violation
    with one.working(KEY):
        assert not one.write(KEY, fence=7)
    violation = rehearsal.judge.violation
    assert before is None, "nobody who writes is at work"
    assert violation is not None
    assert (violation.rule, violation.how) == ("fences", f"p1 is at work on {KEY}, and its fence 7 is old")
    story = rehearsal.judge.trace.text()
    assert f"writes {KEY} under fence 8: taken" in story
    assert f"writes {KEY} under fence 6: refused" in story


@pytest.mark.parametrize("faults", [True, False])
def test_a_run_is_planned_as_it_was_asked_for(faults: bool) -> None:
    plan = Rehearsal(careful, seed=5, processes=4, seconds=33.0, session=QUICK, faults=faults).plan
    assert (plan.seed, plan.processes, plan.chaos_seconds, plan.spec) == (5, 4, 33.0, QUICK)
    assert bool(plan.fates or plan.chaos) is faults
