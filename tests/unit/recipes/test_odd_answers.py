"""Answers that come seldom: each has a meaning of its own, and none is swallowed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord.errors import TxnFailed
from consul_coord.events import Acquired, Lost
from consul_coord.models import LOCK_FLAGS, KVPair, LossReason, ReleaseOutcome, SessionSpec
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.contend import queue, recipe
from consul_coord.recipes.election import asking, heirs
from consul_coord.recipes.election.leader import leader
from consul_coord.recipes.election.term import Term
from consul_coord.recipes.lock import lock as locks
from consul_coord.recipes.lock.keys import Keys, LockKind
from consul_coord.recipes.lock.lock import LockObject
from consul_coord.recipes.lock.plan import LockPlan
from consul_coord.recipes.once import once
from consul_coord.recipes.once.record import Ask
from consul_coord.recipes.rwlock import lock as rwlocks
from consul_coord.recipes.rwlock.queue import base_of, marked
from consul_coord.recipes.semaphore.plan import SemaphorePlan
from consul_coord.recipes.semaphore.semaphore import SemaphoreObject
from consul_coord.recipes.watch.batch import read_together
from tests.support.fake_io import FakeIO
from tests.support.replies import OTHER, SESSION, entry, lost, ok, pairs, refusal, txn_done, txn_failed
from tests.unit.recipes.test_heirs import leading

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.events import Event

CREATE, TXN, KEY = "/v1/session/create", "/v1/txn", "/v1/kv/k"
NEW = txn_failed((0, "a reason that Consul gives from some release on"))


class Bench:
    def __init__(self, spec: SessionSpec | None = None) -> None:
        self.io = FakeIO()
        self.core = ClientState(self.io, spec=spec or SessionSpec(ttl=60.0), timeout=10.0)

    def makes(self, *sessions: str) -> None:
        self.io.expect("PUT", CREATE, *(ok({"ID": session}) for session in sessions))

    def acquire(self, what: Any) -> Any:
        return self.io.run(recipe.acquire(self.io, self.core, what, timeout=30.0)).grant


@pytest.fixture
def bench() -> Bench:
    return Bench()


LOCK = LockObject(LockPlan(keys=("k",), value=b"", flags=LOCK_FLAGS))


# -- refusals for a reason that nobody foresaw


def a_lock(bench: Bench) -> object:
    bench.makes(SESSION)
    bench.io.expect("GET", KEY, pairs())
    bench.io.expect("PUT", TXN, NEW)
    return bench.acquire(LOCK)


def a_semaphore(bench: Bench) -> object:
    bench.makes(SESSION)
    bench.io.expect("PUT", TXN, NEW)
    plan = SemaphorePlan(prefix="k", value=b"", flags=3, accept_flags=frozenset(), fair=True, session=None)
    return bench.acquire(SemaphoreObject(plan, 1).of(1))


def a_read_write_lock(bench: Bench) -> object:
    bench.makes(SESSION)
    bench.io.expect("PUT", TXN, NEW)
    return bench.acquire(rwlocks.sides("k", value=b"", flags=LOCK_FLAGS, session=None)[0])


def many_keys(bench: Bench) -> object:
    bench.io.expect("PUT", TXN, NEW)
    return bench.io.run(read_together(bench.io, ["a", "b"], deadline=1010.0))


def who_leads(bench: Bench) -> object:
    bench.io.expect("PUT", TXN, NEW)
    return bench.io.run(leader(bench.io, bench.core, "k"))


def a_job(bench: Bench) -> object:
    bench.io.expect("PUT", TXN, NEW)
    return begun(bench)


def begun(bench: Bench) -> object:
    job = once.OnceObject("job", value=None, session=None)
    asked = Ask(job="job", slot="2027-01-15T10:00:00Z", now=1_800_014_400.0, period=3600)
    return bench.io.run(once.begin(bench.io, bench.core, job, asked, timeout=10.0))


@pytest.mark.parametrize("what", [a_lock, a_semaphore, a_read_write_lock, a_job, many_keys, who_leads])
def test_an_unknown_refusal_comes_to_the_caller(bench: Bench, what: Callable[[Bench], object]) -> None:
    with pytest.raises(TxnFailed, match="from some release on"):
        what(bench)
    assert not bench.io.steps


def test_an_unknown_refusal_of_a_leaders_write_comes_to_it_if_it_still_leads() -> None:
    io = FakeIO()
    core, handle = leading(io)
    io.expect("PUT", TXN, txn_done(*[entry("k", index=7)] * 2, entry("k/.wait/term", index=9)), NEW)
    io.expect("GET", KEY, pairs(entry("k", index=7)))
    candidacy: Any = SimpleNamespace(term=Term(core), client=core)
    with pytest.raises(TxnFailed, match="from some release on"):
        io.run(asking.proclaim(io, candidacy, handle.grant, b"v"))
    assert not io.steps


def test_an_unknown_refusal_of_an_heir_comes_to_the_leader() -> None:
    io = FakeIO()
    core, handle = leading(io)
    directory = queue.directory("k")
    io.expect("GET", f"/v1/kv/{directory}", pairs(entry(directory + OTHER, session=OTHER)))
    io.expect("PUT", TXN, NEW)
    io.expect("GET", KEY, pairs(entry("k", index=7)))
    with pytest.raises(TxnFailed, match="from some release on"):
        io.run(heirs.name(io, core, handle.grant, OTHER))


# -- answers to what is asked beside


@pytest.mark.parametrize(
    ("answer", "delayed"),
    [
        (txn_failed((0, "failed to lock key 'k' due to lock delay")), True),
        (txn_failed((0, 'invalid session "00000000"')), False),
        (refusal(403, "Permission denied"), False),
    ],
)
def test_a_free_key_is_in_its_lock_delay_if_that_can_be_known(
    bench: Bench, answer: Any, *, delayed: bool
) -> None:
    bench.io.expect("GET", KEY, pairs(entry("k", session=None)))
    bench.io.expect("PUT", TXN, answer)
    found = bench.io.run(locks.holder(bench.io, bench.core, LOCK))
    assert (found is not None and found.lock_delay_active) is delayed
    assert not bench.io.steps


def test_who_has_not_stood_has_nothing_to_resign_from(bench: Bench) -> None:
    assert bench.io.run(asking.resign(bench.io, None, pause=0.0)) is ReleaseOutcome.ALREADY_LOST


# -- read-write locks


def rw_entry(session: str, *, at: int) -> dict[str, object]:
    folder = queue.directory(base_of("k"))
    return entry(folder + session, session=session, index=at, value=marked("read", b"")) | {"CreateIndex": at}


def test_a_reader_whose_session_is_unknown_as_it_joins_takes_another_one(bench: Bench) -> None:
    bench.makes(SESSION)
    bench.io.expect("PUT", TXN, txn_failed((0, f'invalid session "{SESSION}"')))
    bench.makes(OTHER)
    own = rw_entry(OTHER, at=20)
    bench.io.expect("PUT", TXN, txn_done(own, own))
    grant = bench.acquire(rwlocks.sides("k", value=b"", flags=LOCK_FLAGS, session=None)[0])
    assert grant.session == OTHER


def test_a_reader_whose_lease_is_over_by_the_answer_takes_another_session() -> None:
    bench = Bench(SessionSpec(ttl=9.0, lock_delay=9.0))
    bench.makes(SESSION)
    own, other = rw_entry(SESSION, at=20), rw_entry(OTHER, at=30)
    bench.io.expect("PUT", TXN, txn_done(own, own), takes=8.9)
    bench.makes(OTHER)
    bench.io.expect("PUT", TXN, txn_done(other, other))
    grant = bench.acquire(rwlocks.sides("k", value=b"", flags=LOCK_FLAGS, session=None)[0])
    assert grant.session == OTHER
    assert grant.is_held(bench.io.now())


@pytest.mark.parametrize(
    "places", [(), (rw_entry(OTHER, at=20),), (rw_entry(OTHER, at=20) | {"Session": ""},)]
)
def test_a_read_write_lock_is_unused_if_nobody_is_in_or_waits_dead_or_alive(
    bench: Bench, places: tuple[dict[str, object], ...]
) -> None:
    side = rwlocks.sides("k", value=b"", flags=LOCK_FLAGS, session=None)[0]
    bench.io.expect("GET", f"/v1/kv/{queue.directory(base_of('k'))}", pairs(*places))
    assert bench.io.run(rwlocks.is_unused(bench.io, bench.core, side)) is (not places)


# -- losses amid something else


class Amid(FakeIO):
    """One in which something happens as a hold is reported."""

    happens: Callable[[], object] = staticmethod(lambda: None)

    def emit(self, event: Event, *, cause: BaseException | None = None) -> None:
        super().emit(event, cause=cause)
        if isinstance(event, Acquired):
            self.happens()


def granted(io: FakeIO) -> tuple[ClientState, Callable[[], Any]]:
    core = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    io.expect("PUT", CREATE, ok({"ID": SESSION}))
    kept = io.run(core.sessions.shared.live(io, deadline=io.time + 10))
    pair = KVPair("k", session=SESSION, modify_index=7, lock_index=1)
    keys = Keys(core, ["k"], LOCK_FLAGS, "me")
    core.tickets.join(keys.ticket("k"))
    kind = LockKind(keys)
    return core, lambda: core.holds.grant(
        pair, kept=kept, value=b"", flags=LOCK_FLAGS, kind=kind, began=io.time
    )


def test_a_loss_amid_the_report_of_the_grant_is_reported_after_it_and_once() -> None:
    io = Amid()
    core, grant = granted(io)
    io.happens = lambda: [hold.lose(LossReason.KEY_DELETED) for hold in core.holds.all()]
    handle = grant()
    assert [type(event) for event in io.events] == [Acquired, Lost]
    assert handle.grant.reason is LossReason.KEY_DELETED


def test_a_loss_is_reported_although_the_report_of_the_grant_was_interrupted() -> None:
    io = Amid()
    core, grant = granted(io)

    def interrupt() -> None:
        for hold in core.holds.all():
            hold.lose(LossReason.KEY_DELETED)
        raise KeyboardInterrupt

    io.happens = interrupt
    with pytest.raises(KeyboardInterrupt):
        grant()
    core.register.sweep()
    assert [type(event) for event in io.events] == [Acquired, Lost]


def test_a_key_is_given_back_at_once_after_max_hold_if_its_holder_has_left_before() -> None:
    io = FakeIO()
    core, grant = granted(io)
    handle = grant()
    core.holds.limit(handle.grant, 5.0)
    handle.grant.depth = 0
    io.time += 6.0
    handle.grant.look(io.now())
    assert handle.grant.reason is LossReason.MAX_HOLD
    assert len(core.holds.limits) == 0
    assert core.reaper.owes_unlocks(SESSION)


# -- what a lost reply had granted, and has gone again


def test_a_key_that_is_ours_no_more_as_it_is_adopted_is_taken_in_its_turn(bench: Bench) -> None:
    """Its unlock came late, or an operator's: until then the key looked as if it had been granted."""
    free, own = entry("k", session=None, index=6), entry(queue.directory("k") + SESSION, index=10)
    bench.makes(SESSION)
    for answer in (lost(), txn_done(own, entry("k", index=12), own)):
        bench.io.expect("GET", KEY, pairs(free))
        bench.io.expect("PUT", TXN, answer)
    bench.io.expect("PUT", TXN, txn_failed((0, "failed session check for key")))
    bench.io.expect("PUT", TXN, txn_done(free | {"ModifyIndex": 20}, own))
    bench.io.expect("PUT", TXN, txn_done(own, entry("k", index=22)))
    assert bench.acquire(LOCK).fence == 22
    assert not bench.io.steps
