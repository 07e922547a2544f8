"""Clean-up in the background: until answered, one after the other, and never against somebody's ticket."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from consul_coord.events import Cleaned, Failed, Released
from consul_coord.models import LOCK_FLAGS, ReleaseOutcome, SessionSpec
from consul_coord.recipes.cleanup.reaper import LONGEST_PAUSE, SWEEPS, DestroySession, Sweep, Unlock, Withdraw
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.contend.tickets import Ticket
from tests.support.fake_io import FakeIO
from tests.support.replies import (
    SESSION,
    entry,
    lost,
    ok,
    pairs,
    refusal,
    txn_done,
    txn_failed,
    unreachable,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consul_coord.io import IO

CONTENDER = f"/v1/kv/k/.wait/{SESSION}"
DONE = txn_done(entry("k", session=None, index=8), entry("k", session=None, index=8))


class Bench:
    def __init__(self) -> None:
        self.io = FakeIO()
        self.core = ClientState(self.io, spec=SessionSpec(), timeout=10.0)
        self.reaper = self.core.reaper

    def run(self) -> None:
        self.io.run_spawned("reaper")

    def unlock(self) -> Unlock:
        ticket = Ticket("k", "me")
        self.core.queues.join(ticket)
        return Unlock("k", SESSION, 7, b"v", LOCK_FLAGS, ticket, 7)

    def next_turn(self) -> Ticket:
        ticket = Ticket("k", "next")
        self.core.queues.join(ticket)
        return ticket


@pytest.fixture
def bench() -> Bench:
    return Bench()


@dataclass(eq=False)
class Task:
    """A duty that does what it is told, one thing at each step."""

    todo: Sequence[float | Exception | None]
    done_at: list[float] = field(default_factory=list)

    async def step(self, io: IO, core: ClientState, *, deadline: float) -> float | None:
        self.done_at.append(io.now())
        what = self.todo[len(self.done_at) - 1]
        if isinstance(what, Exception):
            raise what
        return what


def test_it_runs_only_while_there_is_something_to_do(bench: Bench) -> None:
    assert bench.io.spawned == []
    bench.reaper.add(Task([None]))
    bench.reaper.add(Task([None]))
    assert [each.name for each in bench.io.spawned] == ["reaper"]
    assert bench.reaper.pending == 2
    bench.run()
    assert bench.reaper.pending == 0
    bench.reaper.add(Task([None]))
    assert [each.name for each in bench.io.spawned] == ["reaper"]


def test_duties_are_done_when_they_are_due(bench: Bench) -> None:
    late, soon = Task([None]), Task([2.0, None])
    bench.reaper.add(late, after=1.0)
    bench.reaper.add(soon)
    bench.run()
    assert soon.done_at == [1000.0, 1002.0]
    assert late.done_at == [1001.0]


def test_a_new_duty_wakes_it(bench: Bench) -> None:
    late, soon = Task([None]), Task([None])
    bench.reaper.add(late, after=50.0)
    bench.io.at(1003.0, lambda: bench.reaper.add(soon))
    bench.run()
    assert soon.done_at == [1003.0]


def test_a_duty_that_fails_comes_again_later_and_later(bench: Bench) -> None:
    task = Task([unreachable()] * 12 + [None])
    bench.reaper.add(task)
    bench.run()
    gaps = [later - earlier for earlier, later in zip(task.done_at, task.done_at[1:], strict=False)]
    assert gaps == pytest.approx(sorted(gaps))
    assert gaps[-1] == pytest.approx(LONGEST_PAUSE / 2)
    assert bench.reaper.pending == 0


def test_a_duty_that_fails_does_not_hold_up_the_others(bench: Bench) -> None:
    failing, other = Task([unreachable()] * 20 + [None]), Task([None])
    bench.reaper.add(failing)
    bench.reaper.add(other)
    bench.run()
    assert other.done_at == [1000.0]


def test_a_bug_in_a_duty_is_reported_and_ends_nothing(bench: Bench) -> None:
    task, other = Task([ZeroDivisionError(), None]), Task([None])
    bench.reaper.add(task)
    bench.reaper.add(other)
    bench.run()
    assert [event.where for event in bench.io.seen(Failed)] == ["reaper"]
    assert len(task.done_at) == 2
    assert len(other.done_at) == 1


def test_a_duty_that_arrives_while_it_chooses_ends_nothing(bench: Bench) -> None:
    late = Task([None])

    class Nosy:
        """An entry at which another thread adds a duty just while it is looked at."""

        duty = Task([None])
        failures = 0

        @property
        def due(self) -> float:
            if not late.done_at and bench.reaper.pending == 2:
                bench.reaper.add(late)
            return 1000.0

    bench.reaper._entries[Nosy()] = None  # type: ignore[index]
    bench.reaper.add(Task([None]))
    bench.run()
    assert late.done_at == [1000.0]


def test_an_unlock_goes_on_until_answered_and_then_passes_the_turn_on(bench: Bench) -> None:
    bench.reaper.add(bench.unlock())
    follower = bench.next_turn()
    bench.io.expect("PUT", "/v1/txn", *[lost()] * 3)
    bench.io.expect("PUT", "/v1/txn", lambda _: DONE if not follower.ready.is_set() else lost())
    bench.run()
    assert follower.ready.is_set()
    assert bench.reaper.pending == 0
    assert [event.outcome for event in bench.io.seen(Released)] == [ReleaseOutcome.RELEASED]


def test_an_unlock_that_finds_the_key_gone_is_done(bench: Bench) -> None:
    bench.reaper.add(bench.unlock())
    follower = bench.next_turn()
    bench.io.expect("PUT", "/v1/txn", txn_failed((0, 'key "k" doesn\'t exist')))
    bench.io.expect("GET", "/v1/kv/k", pairs())
    bench.run()
    assert follower.ready.is_set()


def test_who_gave_up_may_queue_behind_the_clean_up(bench: Bench) -> None:
    for duty in (Unlock, Withdraw):
        ticket, again = Ticket(duty.__name__, "me"), Ticket(duty.__name__, "me")
        bench.core.queues.join(ticket)
        if duty is Unlock:
            Unlock(ticket.key, SESSION, 7, b"v", LOCK_FLAGS, ticket, 7)
        else:
            Withdraw(ticket.key, SESSION, LOCK_FLAGS, ticket)
        bench.core.queues.join(again)
        assert not again.ready.is_set()


def sweep(bench: Bench) -> None:
    bench.reaper.add(Sweep("k", SESSION, LOCK_FLAGS), after=SWEEPS[0])


def test_a_sweep_looks_four_times(bench: Bench) -> None:
    sweep(bench)
    for _ in SWEEPS:
        bench.io.expect("GET", CONTENDER, pairs())
        bench.io.expect("GET", "/v1/kv/k", pairs())
    bench.run()
    looks = [time for time, path in zip(bench.io.sent_at, bench.io.paths, strict=True) if path == "/v1/kv/k"]
    assert looks == pytest.approx([1001.0, 1005.0, 1015.0, 1060.0])
    assert [event.found for event in bench.io.seen(Cleaned)] == [False] * 4


def test_a_sweep_removes_what_came_late(bench: Bench) -> None:
    bench.reaper.add(Sweep("k", SESSION, LOCK_FLAGS, pauses=[]))
    bench.io.expect("GET", CONTENDER, pairs(entry(f"k/.wait/{SESSION}", index=31)))
    bench.io.expect("DELETE", CONTENDER, ok(value=True))
    bench.io.expect("GET", "/v1/kv/k", pairs(entry("k", index=32)))
    bench.io.expect("PUT", "/v1/txn", DONE)
    bench.run()
    assert bench.io.requests[1].params == (("cas", "31"),)
    assert [event.found for event in bench.io.seen(Cleaned)] == [True]
    assert bench.next_turn().ready.is_set()


def test_a_sweep_that_fails_counts_as_none(bench: Bench) -> None:
    sweep(bench)
    bench.io.expect("GET", CONTENDER, refusal(403), refusal(403))
    for _ in SWEEPS:
        bench.io.expect("GET", CONTENDER, pairs())
        bench.io.expect("GET", "/v1/kv/k", pairs())
    bench.run()
    assert len(bench.io.seen(Cleaned)) == 4
    assert bench.next_turn().ready.is_set()


def test_a_sweep_leaves_a_key_alone_on_which_somebody_acts(bench: Bench) -> None:
    holder = bench.next_turn()
    sweep(bench)
    bench.io.at(1030.0, lambda: bench.core.queues.leave(holder))
    bench.io.expect("GET", CONTENDER, pairs())
    bench.io.expect("GET", "/v1/kv/k", pairs())
    bench.run()
    assert len(bench.io.seen(Cleaned)) == 1
    assert bench.io.sent_at[0] == pytest.approx(1060.0)


def test_closing_tries_each_duty_once_sessions_last_and_no_sweep(bench: Bench) -> None:
    bench.reaper.add(DestroySession(SESSION))
    sweep(bench)
    bench.reaper.add(bench.unlock())
    bench.io.expect("PUT", "/v1/txn", DONE)
    bench.io.expect("PUT", "/v1/session/destroy/", ok(value=True))
    bench.io.run(bench.reaper.finish(bench.io, deadline=1005.0))
    assert bench.reaper.pending == 0


def test_what_closing_could_not_do_stays_counted(bench: Bench) -> None:
    bench.reaper.add(DestroySession(SESSION))
    bench.io.expect("PUT", "/v1/session/destroy/", unreachable())
    bench.io.run(bench.reaper.finish(bench.io, deadline=1005.0))
    assert bench.reaper.pending == 1
    bench.reaper.add(Task([None]))
    bench.io.run(bench.reaper.finish(bench.io, deadline=999.0))
    assert bench.reaper.pending == 2
