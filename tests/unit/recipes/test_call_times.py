"""The time that calls take: giving up a hold, verifying it, and what asks for several things."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord.errors import LockLost, RequestTimeout
from consul_coord.io import Signal
from consul_coord.models import (
    LOCK_FLAGS,
    SEMAPHORE_FLAGS,
    KVPair,
    LossReason,
    ReleaseOutcome,
    SessionSpec,
)
from consul_coord.recipes.cleanup.unlock import Locked
from consul_coord.recipes.client import ClientState, close_session
from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.election import asking
from consul_coord.recipes.group import membership
from consul_coord.recipes.hold.asking import put, verify
from consul_coord.recipes.hold.evidence import make_sure
from consul_coord.recipes.hold.holds import BUDGET, release
from consul_coord.recipes.lock import lock as locks
from consul_coord.recipes.lock.keys import Keys, LockKind, MultiLockKind
from consul_coord.recipes.lock.lock import LockObject
from consul_coord.recipes.lock.plan import LockPlan
from consul_coord.recipes.once import once
from consul_coord.recipes.once.once import OnceObject
from consul_coord.recipes.once.record import ONCE_FLAGS
from consul_coord.recipes.partition import partitioning
from consul_coord.recipes.rwlock import lock as rwlocks
from consul_coord.recipes.rwlock.queue import base_of, marked
from consul_coord.recipes.semaphore import semaphore as semaphores
from consul_coord.recipes.semaphore.plan import SemaphorePlan
from consul_coord.recipes.semaphore.semaphore import SemaphoreObject
from tests.support.fake_io import FakeIO, Spawned, Step
from tests.support.plans import GROUP, PARTITIONS
from tests.support.replies import SESSION, entry, ok, pairs, refusal, txn_failed

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from consul_coord.io import IO
    from consul_coord.recipes.hold.grant import Handle

SLOW = 6.0
"""Seconds that a reply takes: two of them take longer than a call may."""


class Bench:
    """A client that holds the key ``k``, and others with it."""

    def __init__(self, others: tuple[Locked, ...] = ()) -> None:
        self.io = FakeIO()
        self.core = ClientState(self.io, spec=SessionSpec(ttl=15.0), timeout=10.0)
        self.io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
        kept = self.io.run(self.core.sessions.shared.live(self.io, deadline=1010.0))
        pair = KVPair("k", session=SESSION, modify_index=7, lock_index=1)
        keys = Keys(self.core, ["k"], LOCK_FLAGS, "me")
        assert self.core.tickets.join(keys.ticket("k"))
        kind = MultiLockKind(keys, others) if others else LockKind(keys)
        self.handle: Handle = self.core.holds.grant(pair, kept=kept, value=b"", flags=LOCK_FLAGS, kind=kind)
        self.hold = self.handle.grant

    def release(self) -> ReleaseOutcome:
        return self.io.run(release(self.io, self.core.holds, self.hold))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_release_while_another_thread_tells_of_the_loss_knows_of_it(bench: Bench) -> None:
    outcomes: list[ReleaseOutcome] = []

    class Telling(Signal):
        """Stands for the moment between the end being settled and everybody being told."""

        def set(self) -> None:
            outcomes.append(bench.release())
            super().set()

    bench.hold.lost = Telling()
    bench.hold.lose(LossReason.TAKEN_OVER)
    assert {*outcomes} == {ReleaseOutcome.ALREADY_LOST}
    assert bench.io.time == 1000.0


def test_a_release_beside_another_one_waits_for_its_outcome_and_no_longer_than_one_may_take(
    bench: Bench,
) -> None:
    assert bench.hold.begin_release("another thread")
    assert bench.release() is ReleaseOutcome.UNKNOWN
    assert bench.io.time == 1000.0 + BUDGET
    bench.io.at(bench.io.time + 3.0, lambda: bench.hold.finish_release(ReleaseOutcome.RELEASED))
    assert bench.release() is ReleaseOutcome.RELEASED
    assert bench.io.time == 1003.0 + BUDGET


def test_a_release_within_that_call_does_not_wait_for_it(bench: Bench) -> None:
    assert bench.hold.begin_release(bench.io.caller)
    assert bench.release() is ReleaseOutcome.UNKNOWN
    assert bench.io.time == 1000.0


def test_a_release_without_an_answer_takes_its_time_and_no_longer(bench: Bench) -> None:
    bench.io.expect("PUT", "/v1/txn", ok({}), takes=100.0)
    bench.io.expect("GET", "/v1/status/leader", ok("10.0.0.1:8300"))
    assert bench.release() is ReleaseOutcome.UNKNOWN
    assert bench.io.time == 1000.0 + BUDGET
    assert bench.core.reaper.pending == 1


def test_a_release_that_is_answered_late_but_in_time_is_one(bench: Bench) -> None:
    unlocked = {"Results": [{"KV": entry("k", session=None, index=8)}] * 2, "Errors": None}
    bench.io.expect("PUT", "/v1/txn", ok(unlocked), takes=BUDGET - 0.5)
    assert bench.release() is ReleaseOutcome.RELEASED
    assert bench.core.reaper.pending == 0


@pytest.mark.usefixtures("more_than_asked")
def test_verifying_a_hold_of_several_keys_takes_the_time_of_one_call() -> None:
    bench = Bench(others=(Locked("l", 9, b""), Locked("m", 9, b"")))
    bench.io.expect("GET", "/v1/kv/k", pairs(entry("k", index=7)), takes=6.0)
    bench.io.expect("GET", "/v1/kv/l", pairs(entry("l", index=9)), takes=100.0)
    bench.io.expect("GET", "/v1/status/leader", ok("10.0.0.1:8300"))
    with pytest.raises(RequestTimeout):
        bench.io.run(verify(bench.io, bench.core.sessions, bench.hold))
    assert bench.io.time == 1000.0 + bench.core.timeout


GONE = txn_failed((0, 'failed to check index, key "k" doesn\'t exist'))


@pytest.mark.parametrize(
    "slow",
    [
        [Step("GET", "/v1/kv/k", pairs())],
        [Step("GET", "/v1/kv/k", pairs()), Step("GET", "/v1/kv/k", pairs())],
        [
            Step("GET", "/v1/kv/k", pairs()),
            Step("GET", "/v1/kv/k", pairs()),
            Step("PUT", f"/v1/session/renew/{SESSION}", ok([])),
        ],
    ],
    ids=["it reads the key", "it makes sure", "it asks for its session"],
)
@pytest.mark.usefixtures("more_than_asked")
def test_a_write_that_is_refused_takes_the_time_of_one_call(bench: Bench, slow: list[Step]) -> None:
    bench.io.expect("PUT", "/v1/txn", GONE, takes=SLOW)
    *quick, last = slow
    for step in quick:
        bench.io.expect(step.method, step.path, step.answer)
    bench.io.expect(last.method, last.path, last.answer, takes=100.0)
    bench.io.expect("GET", "/v1/status/leader", ok("10.0.0.1:8300"))
    with pytest.raises((RequestTimeout, LockLost)):
        bench.io.run(put(bench.io, bench.core.sessions, bench.hold, b"new"))
    assert bench.io.time == 1000.0 + bench.core.timeout


@pytest.mark.parametrize("used", [0.0, 8.0])
def test_looking_for_a_loss_ends_with_the_lease_or_the_time_of_a_call(bench: Bench, used: float) -> None:
    bench.io.time += used
    until = bench.io.time + bench.core.timeout
    ends = min(bench.hold.valid_until, until)
    bench.io.expect("GET", "/v1/kv/k", pairs(entry("k")), takes=100.0)
    bench.io.expect("GET", "/v1/status/leader", ok("10.0.0.1:8300"))
    with suppress(RequestTimeout):
        bench.io.run(make_sure(bench.io, bench.core.sessions, bench.hold, deadline=until))
    assert bench.io.time == pytest.approx(ends)


TWO_KEYS = LockObject(LockPlan(keys=("k", "l"), value=b"me"))
ONE_KEY = LockObject(LockPlan(keys=("k",), value=b"me"))
READERS, _ = rwlocks.sides("k", value=b"", flags=LOCK_FLAGS, session=None)
INSIDE = entry(waitqueue.directory(base_of("k")) + SESSION, value=marked("read", b""))
SEMAPHORE = SemaphoreObject(
    SemaphorePlan(
        prefix="s", value=b"me", flags=SEMAPHORE_FLAGS, accept_flags=frozenset(), fair=False, session=None
    ),
    1,
)
RECORD = {**entry("s/.lock", index=9, session=None), "Flags": SEMAPHORE_FLAGS}
ONCE = OnceObject("job", value=None, session=None)
CALLS: dict[str, tuple[Callable[[IO, ClientState], Coroutine[Any, Any, object]], Step, Step]] = {
    "holder": (
        lambda io, client: locks.holder(io, client, TWO_KEYS),
        Step("GET", "/v1/kv/k", pairs()),
        Step("GET", "/v1/kv/l", pairs()),
    ),
    "holder, whose node is read": (
        lambda io, client: locks.holder(io, client, ONE_KEY),
        Step("GET", "/v1/kv/k", pairs(entry("k"))),
        Step("GET", "/v1/session/info/", ok([])),
    ),
    "holder, perhaps a lock-delay": (
        lambda io, client: locks.holder(io, client, ONE_KEY),
        Step("GET", "/v1/kv/k", pairs()),
        Step("PUT", "/v1/txn", ok({})),
    ),
    "is_locked": (
        lambda io, client: locks.is_locked(io, client, TWO_KEYS),
        Step("GET", "/v1/kv/k", pairs()),
        Step("GET", "/v1/kv/l", pairs()),
    ),
    "destroy": (
        lambda io, client: locks.destroy(io, client, TWO_KEYS),
        Step("GET", "/v1/kv/k", pairs(entry("k", session=None))),
        Step("DELETE", "/v1/kv/k", ok(value=True)),
    ),
    "break_lock": (
        lambda io, client: locks.break_lock(io, client, TWO_KEYS, SESSION, how="release"),
        Step("GET", "/v1/kv/k", pairs(entry("k"))),
        Step("GET", "/v1/kv/l", pairs(entry("l"))),
    ),
    "break_lock, to unlock": (
        lambda io, client: locks.break_lock(io, client, ONE_KEY, SESSION, how="release"),
        Step("GET", "/v1/kv/k", pairs(entry("k"))),
        Step("PUT", "/v1/txn", ok({})),
    ),
    "break_lock, to destroy": (
        lambda io, client: locks.break_lock(io, client, ONE_KEY, SESSION, how="destroy"),
        Step("GET", "/v1/kv/k", pairs(entry("k"))),
        Step("PUT", "/v1/session/destroy/", ok(value=True)),
    ),
    "break_lock of a reader, to unlock": (
        lambda io, client: rwlocks.break_in(io, client, READERS, SESSION, how="release"),
        Step("GET", "/v1/kv/k/", pairs(INSIDE)),
        Step("DELETE", f"/v1/kv/{INSIDE['Key']}", ok(value=True)),
    ),
    "break_lock of a reader, to destroy": (
        lambda io, client: rwlocks.break_in(io, client, READERS, SESSION, how="destroy"),
        Step("GET", "/v1/kv/k/", pairs(INSIDE)),
        Step("PUT", "/v1/session/destroy/", ok(value=True)),
    ),
    "holders of a semaphore": (
        lambda io, client: semaphores.holders(io, client, SEMAPHORE),
        Step("GET", "/v1/kv/s/", pairs(RECORD)),
        Step("GET", "/v1/session/list", ok([])),
    ),
    "destroy a semaphore": (
        lambda io, client: semaphores.destroy(io, client, SEMAPHORE),
        Step("GET", "/v1/kv/s/", pairs(RECORD)),
        Step("DELETE", "/v1/kv/s/.lock", ok(value=True)),
    ),
    "a session on a node that is to be registered": (
        lambda io, client: client.sessions.create(io, SessionSpec.coordination("n")),
        Step("PUT", "/v1/session/create", refusal(500, "Missing node registration")),
        Step("PUT", "/v1/catalog/register", ok(value=True)),
    ),
    "a session on a node that is to be vetted": (
        lambda io, client: client.sessions.create(io, SessionSpec.coordination("n")),
        Step("PUT", "/v1/session/create", ok({"ID": SESSION})),
        Step("GET", "/v1/health/node/n", ok([])),
    ),
    "forget": (
        lambda io, client: once.forget(io, client, ONCE),
        Step("GET", f"/v1/kv/{ONCE.record}", pairs({**entry(ONCE.record), "Flags": ONCE_FLAGS})),
        Step("DELETE", f"/v1/kv/{ONCE.record}", ok(value=True)),
    ),
}
"""Calls that ask several things, with the first two of them."""


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_asks_several_things_takes_the_time_of_one(name: str) -> None:
    io = FakeIO()
    client = ClientState(io, spec=SessionSpec(ttl=15.0), timeout=10.0)
    call, *asked = CALLS[name]
    for step in asked:
        io.expect(step.method, step.path, step.answer, takes=SLOW)
    with pytest.raises(RequestTimeout):
        io.run(call(io, client))
    assert io.time == 1000.0 + client.timeout


LOOKS: dict[str, Callable[[IO, ClientState], Coroutine[Any, Any, object]]] = {
    "a lock's queue": lambda io, client: locks.contenders(io, client, TWO_KEYS),
    "a queue of readers": lambda io, client: rwlocks.contenders(
        io, client, rwlocks.sides("k", value=b"", flags=LOCK_FLAGS, session=None)[0]
    ),
    "members": lambda io, client: membership.members(io, client, GROUP),
    "owners of partitions": lambda io, client: partitioning.holders(io, client, PARTITIONS),
}
"""Calls that ask one thing."""


@pytest.mark.parametrize("name", LOOKS)
def test_a_call_that_is_not_answered_takes_the_time_of_one(name: str) -> None:
    io = FakeIO()
    client = ClientState(io, spec=SessionSpec(ttl=15.0), timeout=10.0)
    io.expect("GET", "/v1/kv/", ok({}), takes=100.0)
    io.expect("GET", "/v1/status/leader", ok("10.0.0.1:8300"))
    with pytest.raises(RequestTimeout):
        io.run(LOOKS[name](io, client))
    assert io.time == 1000.0 + client.timeout


def test_making_sure_of_several_keys_takes_the_time_of_one_call() -> None:
    bench = Bench(others=(Locked("l", 9, b""),))
    bench.io.expect("GET", "/v1/kv/k", pairs(entry("k", index=7)), takes=SLOW)
    bench.io.expect("GET", "/v1/kv/l", pairs(entry("l", index=9)), takes=SLOW)
    with pytest.raises(RequestTimeout):
        bench.io.run(make_sure(bench.io, bench.core.sessions, bench.hold, deadline=1010.0))
    assert bench.io.time == 1000.0 + bench.core.timeout


@pytest.mark.parametrize(("takes", "pending"), [(BUDGET - 0.5, 0), (100.0, 1)])
def test_closing_a_session_waits_for_its_end_and_leaves_the_rest_to_the_background(
    takes: float, pending: int
) -> None:
    bench = Bench()
    bench.hold.begin_release("another call")
    bench.hold.finish_release(ReleaseOutcome.RELEASED)
    bench.io.expect("PUT", "/v1/session/destroy/", ok(value=True), takes=takes)
    if pending:
        bench.io.expect("GET", "/v1/status/leader", ok("10.0.0.1:8300"))
    bench.io.run(close_session(bench.io, bench.core, bench.hold.kept))
    assert bench.io.time == 1000.0 + min(takes, BUDGET)
    assert bench.core.reaper.pending == pending
    assert not bench.io.steps


@pytest.mark.parametrize(("ends", "waits"), [(3.0, 3.0), (100.0, BUDGET)])
def test_closing_a_session_waits_for_a_release_under_way_for_as_long_as_that_may_take(
    bench: Bench, ends: float, waits: float
) -> None:
    bench.hold.begin_release("another call")
    bench.io.at(1000.0 + ends, lambda: bench.hold.finish_release(ReleaseOutcome.RELEASED))
    bench.io.expect("PUT", "/v1/session/destroy/", ok(value=True))
    bench.io.run(close_session(bench.io, bench.core, bench.hold.kept))
    assert bench.io.sent_at[-1] == 1000.0 + waits
    assert not bench.io.steps


@pytest.mark.parametrize("takes", [BUDGET - 0.5, 100.0])
def test_closing_an_exported_session_waits_no_longer_for_what_is_to_be_given_back(takes: float) -> None:
    bench = Bench()
    bench.hold.begin_release()
    bench.hold.kind.abandon(bench.hold)
    bench.hold.finish_release(ReleaseOutcome.UNKNOWN)
    bench.hold.kept.exported = True
    bench.io.expect("GET", "/v1/kv/k/", pairs(), takes=takes)
    if takes > BUDGET:
        bench.io.expect("GET", "/v1/status/leader", ok("10.0.0.1:8300"))
    else:
        bench.io.expect("GET", "/v1/kv/k", pairs())
    bench.io.run(close_session(bench.io, bench.core, bench.hold.kept))
    assert bench.io.time == 1000.0 + min(takes, BUDGET)
    assert bench.core.reaper.tasks == []
    assert not bench.io.steps


class Standing:
    """Stands for a candidacy, or for the sharing of partitions, whose end takes ``seconds``."""

    def __init__(self, io: FakeIO, seconds: float) -> None:
        self.task = Spawned("it", lambda other: other.sleep(seconds))
        self.stopped_at: float | None = None
        self._io = io
        self._seconds = seconds

    def stop(self) -> None:
        self.stopped_at = self._io.time
        self._io.at(self._io.time + self._seconds, self.task.done.set)


@pytest.mark.parametrize("stop", [asking.stop, partitioning.stop], ids=["candidacy", "partitions"])
@pytest.mark.parametrize(("seconds", "takes"), [(1.0, 1.0), (100.0, 3.0)])
def test_stopping_takes_no_longer_than_its_timeout(stop: Any, seconds: float, takes: float) -> None:
    io = FakeIO()
    standing = Standing(io, seconds)
    io.run(stop(io, standing, timeout=3.0))
    assert standing.stopped_at == 1000.0
    assert io.time == 1000.0 + takes
