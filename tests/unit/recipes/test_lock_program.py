"""One attempt at a lock, before it queues: it takes the key past others only if it may."""

from __future__ import annotations

import pytest

from consul_coord.errors import AcquireTimeout
from consul_coord.models import LOCK_FLAGS, SessionSpec
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.contend import queue, recipe
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
