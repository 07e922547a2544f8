"""One attempt at a lock, before it queues: it takes the key past others only if it may."""

from __future__ import annotations

import pytest

from consul_coord.errors import AcquireTimeout
from consul_coord.events import TimedOut, Waiting
from consul_coord.models import LOCK_FLAGS, SessionSpec
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.contend import queue, recipe
from consul_coord.recipes.contend.attempt import NODES_BUDGET
from consul_coord.recipes.lock.lock import LockObject
from consul_coord.recipes.lock.plan import LockPlan
from tests.support.fake_io import FakeIO
from tests.support.replies import OTHER, SESSION, entry, ok, pairs, txn_done, txn_failed

TXN = "/v1/txn"


def tried_once(*, fair: bool, crowded: bool) -> tuple[FakeIO, str]:
    """Try for a key that is free while somebody queues for it; returns what came of it."""
    io = FakeIO()
    core = ClientState(io, spec=SessionSpec(), timeout=10.0)
    plan = LockPlan(keys=("k",), value=b"", flags=LOCK_FLAGS, fair=fair)
    core.queue_memory.saw_waiters("k", waiting=crowded)
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    waiter = entry(queue.directory("k") + OTHER, session=OTHER)
    if fair or crowded:
        io.expect("PUT", TXN, txn_failed((0, 'key "k" doesn\'t exist')))
        io.expect("PUT", TXN, txn_done(waiter))
    else:
        io.expect("GET", "/v1/kv/k", pairs())
        io.expect("PUT", TXN, txn_done(entry("k"), waiter))
    try:
        handle = io.run(recipe.acquire(io, core, LockObject(plan), timeout=0))
    except AcquireTimeout as error:
        return io, error.blocker.kind
    return io, "held" if handle.grant.is_held(io.now()) else "lost"


@pytest.mark.parametrize(
    ("fair", "crowded", "found"),
    [(False, False, "held"), (True, False, "queued"), (False, True, "queued"), (True, True, "queued")],
)
def test_one_try_passes_waiters_only_if_it_may(*, fair: bool, crowded: bool, found: str) -> None:
    io, came_of_it = tried_once(fair=fair, crowded=crowded)
    assert came_of_it == found
    assert io.steps == type(io.steps)()


TIMEOUT = 5.0


OWN = entry(queue.directory("k") + SESSION, index=8)


def waiting(io: FakeIO) -> tuple[ClientState, LockObject]:
    """Return a lock that another session holds, and whose waiter watches it until its last look."""
    core = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    held = entry("k", session=OTHER)
    io.expect("GET", "/v1/kv/k", pairs(held))
    io.expect("PUT", TXN, txn_done(OWN, held, OWN))
    io.expect("GET", "/v1/kv/k", pairs(held), takes=100.0)
    io.expect("PUT", TXN, txn_done(held, OWN))
    return core, LockObject(LockPlan(keys=("k",), value=b"", flags=LOCK_FLAGS))


def test_a_holder_whose_node_is_not_told_takes_no_time_from_the_last_look() -> None:
    io = FakeIO()
    core, lock = waiting(io)
    io.expect("GET", "/v1/session/info/", ok([]), takes=100.0)
    io.expect("GET", "/v1/kv/k", pairs(entry("k", session=None, index=9)))
    io.expect("PUT", TXN, txn_done(OWN, entry("k", index=12)))
    handle = io.run(recipe.acquire(io, core, lock, timeout=TIMEOUT))
    assert handle.grant.is_held(io.now())
    assert io.time < 1000.0 + TIMEOUT - NODES_BUDGET / 2


def test_nothing_is_waited_for_beyond_the_timeout_when_nothing_is_answered() -> None:
    io = FakeIO()
    core, lock = waiting(io)
    io.expect("GET", "/v1/session/info/", ok([]), takes=100.0)
    io.expect("GET", "/v1/kv/k/.wait/", pairs(), takes=100.0)
    with pytest.raises(AcquireTimeout):
        io.run(recipe.acquire(io, core, lock, timeout=0.5))
    assert io.sent_at[-1] == 1000.0 + 0.5


def test_what_is_in_the_way_is_reported_once_and_how_it_ended() -> None:
    io = FakeIO()
    core, lock = waiting(io)
    io.expect("GET", "/v1/session/info/", ok([]))
    io.expect("GET", "/v1/kv/k", pairs(), takes=100.0)
    io.expect("GET", "/v1/kv/k/.wait/", pairs(), takes=100.0)
    with pytest.raises(AcquireTimeout) as raised:
        io.run(recipe.acquire(io, core, lock, timeout=TIMEOUT))
    waits = [(each.key, each.blocker.kind, each.blocker.session) for each in io.seen(Waiting)]
    assert waits == [("k", "held", OTHER)]
    ends = [(each.key, each.blocker.kind, each.waited) for each in io.seen(TimedOut)]
    assert ends == [("k", "held", raised.value.waited)]
