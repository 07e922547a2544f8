"""Another thread stops, releases or joins at each line of a program: the program takes note of it."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

import pytest

from consul_coord.errors import AcquireCancelled, AcquireTimeout
from consul_coord.events import Waiting
from consul_coord.io import Signal
from consul_coord.models import LOCK_FLAGS, KVPair, SessionSpec
from consul_coord.recipes.cleanup import reaper
from consul_coord.recipes.cleanup.tasks import RemoveKey
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.contend.tickets import Ticket
from consul_coord.recipes.election import asking, candidacy, following
from consul_coord.recipes.group import membership
from consul_coord.recipes.hold import grant, holds
from consul_coord.recipes.lock import attempt
from consul_coord.recipes.lock.keys import Keys, LockKind
from consul_coord.recipes.lock.lock import LockObject
from consul_coord.recipes.lock.plan import LockPlan
from consul_coord.recipes.partition import partitioning
from consul_coord.recipes.watch import places
from tests.support.amid import each_line
from tests.support.fake_io import FakeIO, run_at_once
from tests.support.replies import SESSION, ok
from tests.unit.recipes.test_candidacy import Scripted
from tests.unit.recipes.test_following import Seen
from tests.unit.recipes.test_membership_program import member_of
from tests.unit.recipes.test_partitioning_program import partitioning as partitioner

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import ModuleType

    from consul_coord.recipes.group.membership import Membership
    from consul_coord.recipes.hold.grant import Handle
    from consul_coord.recipes.lock.attempt import LockAttempt
    from tests.support.amid import Line

LATE = 60.0
"""Seconds after which it is stopped in any case."""


def stopped_at(
    line: Line, io: FakeIO, program: Coroutine[Any, Any, object], stop: Callable[[], object]
) -> None:
    """Run a program, and stop it at one line."""
    stopped: list[float] = []

    def act() -> None:
        stopped.append(io.time)
        stop()

    io.at(io.time + LATE, stop)
    line.run(partial(io.run, program), act=act)
    assert not stopped or io.time == stopped[0], (
        f"stopped at {line.reached}, it goes on for {io.time - stopped[0]} s"
    )


def test_a_partitioner_with_nothing_to_do() -> None:
    for line in each_line(partitioning):
        io = FakeIO()
        sharing = partitioner(io)
        sharing._members = sharing._acted_on = ()
        stopped_at(line, io, sharing.run(io), sharing.stop)


def test_a_partitioner_whose_group_settles() -> None:
    for line in each_line(partitioning):
        io = FakeIO()
        sharing = partitioner(io)
        stopped_at(line, io, sharing._settle(io), sharing.stop)


@pytest.mark.parametrize(("healthy", "aside"), [(False, 0.0), (False, 90.0), (True, 90.0)])
def test_a_candidate_that_is_kept_aside(*, healthy: bool, aside: float) -> None:
    for line in each_line(candidacy):
        io = FakeIO()
        candidate = Scripted(io)
        candidate._healthy = healthy
        candidate.stand_aside(aside)
        stopped_at(line, io, candidate.run(io), candidate.stop)


def test_who_waits_for_the_leadership() -> None:
    for line in each_line(asking):
        io = FakeIO()
        candidate = Scripted(io)
        program = asking.wait_for_leadership(io, candidate, timeout=None)

        async def wait(program: Coroutine[Any, Any, object] = program) -> None:
            with suppress(AcquireCancelled):
                await program

        stopped_at(line, io, wait(), candidate.stop)


def test_a_follower_of_the_leader() -> None:
    for line in each_line(following):
        seen = Seen()

        def stop(seen: Seen = seen) -> None:
            seen.stopping.set()
            seen.changes.tell()

        stopped_at(line, seen.io, seen.following._watch_age(seen.io), stop)


@pytest.mark.usefixtures("more_than_asked")
def test_a_reaper_whose_last_task_is_taken_out() -> None:
    for line in each_line(reaper):
        io = FakeIO()
        core = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
        core.reaper.add(RemoveKey(f"k/.wait/{SESSION}"), after=5.0)
        io.expect("DELETE", f"/v1/kv/k/.wait/{SESSION}", ok(True))

        def drop(core: ClientState = core) -> None:
            core.reaper.drop(SESSION)
            core.reaper._more.set()  # as the next task does

        stopped_at(line, io, core.reaper._run(io), drop)


def test_a_join_returns_if_that_of_another_thread_has_just_made_it_a_member() -> None:
    for line in each_line(membership):
        io = FakeIO()
        member = member_of(io)
        joined, member._handle = member._handle, None
        mutex = member._mutex = Lock()
        made: list[float] = []

        def make(
            io: FakeIO = io,
            member: Membership = member,
            joined: Handle | None = joined,
            made: list[float] = made,
            mutex: Any = mutex,
        ) -> None:
            if not (mutex.locked() or member._is_tried()):  # one of them at a time makes an attempt
                member._handle = joined
                member._changes.tell()
                made.append(io.time)

        with suppress(AcquireTimeout):  # where it makes its own attempt, the other one's hold is in its way
            line.run(partial(io.run, member.join(io, timeout=5.0)), act=make)
        assert not made or io.time == made[0], line.reached


def test_a_caller_whose_turn_comes_is_told_no_place_in_the_queue() -> None:
    for line in each_line(attempt):
        io = FakeIO()
        core = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
        first = Ticket(core.tickets, "k", "another thread")
        core.tickets.join(first)
        lock = LockObject(LockPlan(keys=("k",), value=b"", flags=LOCK_FLAGS))
        waiting = cast("LockAttempt", lock.attempt(io, core, timeout=None))
        stopped_at(line, io, waiting._wait_for_ticket("k"), first.leave)
        assert all(told.blocker.position for told in io.seen(Waiting)), line.reached


@pytest.mark.parametrize("module", [holds, grant])
def test_a_hold_that_is_released_as_its_client_closes_is_given_back(module: ModuleType) -> None:
    for line in each_line(module):
        io = FakeIO()
        core = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
        io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
        kept = io.run(core.sessions.shared.live(io, deadline=io.time + 10))
        pair = KVPair("k", session=SESSION, modify_index=7, lock_index=1)
        kind = LockKind(Keys(core, ["k"], LOCK_FLAGS, "me"))
        handle = core.holds.grant(pair, kept=kept, value=b"", flags=LOCK_FLAGS, kind=kind)
        hold = handle.grant

        def release(io: FakeIO = io, core: ClientState = core, hold: grant.Grant = hold) -> None:
            if hold.ended:
                run_at_once(holds.release(io, core.holds, hold))

        line.run(core.begin_close, act=release)
        assert core.holds.given_up() == [hold], f"released at {line.reached}"


def test_a_follower_that_comes_back_as_somebody_looks_whether_it_is_away() -> None:
    for line in each_line(places):
        folder, signal = places.Folder("g/members"), Signal()
        line.run(partial(folder.is_left, 1000.0), act=partial(folder.await_with, signal))
        assert folder.is_left(1000.0 + 2 * places.LINGER) is not folder.is_waited_for
