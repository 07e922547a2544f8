"""What an attempt at a read-write lock sends while a dead contender is in its way."""

from __future__ import annotations

import pytest

from consul_coord.errors import AcquireTimeout
from consul_coord.models import LOCK_FLAGS, SessionSpec
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.contend import queue, recipe
from consul_coord.recipes.contend.attempt import FIRST_PAUSE
from consul_coord.recipes.rwlock import lock as rwlocks
from consul_coord.recipes.rwlock.queue import base_of, marked
from tests.support.fake_io import FakeIO
from tests.support.replies import OTHER, SESSION, entry, ok, pairs, txn_done, txn_failed

FOLDER = queue.directory(base_of("k"))
OWN = entry(FOLDER + SESSION, index=20, value=marked("read", b"")) | {"CreateIndex": 20}
DEAD = entry(FOLDER + OTHER, session=None, index=9, value=marked("write", b""))
TXN = "/v1/txn"


def test_a_dead_writer_is_removed_once_its_lock_delay_is_over_with_no_other_pause_than_the_watch() -> None:
    io = FakeIO()
    client = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    readers, _ = rwlocks.sides("k", value=b"", flags=LOCK_FLAGS, session=None)
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    io.expect("PUT", TXN, txn_done(OWN, OWN, DEAD))
    tries = 3
    for number in range(tries):
        refused = txn_failed((0, f"failed to lock key {DEAD['Key']!r} due to lock delay"))
        io.expect("PUT", TXN, refused if number < tries - 1 else txn_done(DEAD))
        if number < tries - 1:
            io.expect("GET", f"/v1/kv/{DEAD['Key']}", pairs(DEAD), takes=50.0)
            io.expect("PUT", TXN, txn_done(OWN, DEAD))
    io.expect("PUT", TXN, txn_done(OWN))
    handle = io.run(recipe.acquire(io, client, readers, timeout=30.0))
    assert handle.grant.fence == OWN["CreateIndex"]
    shortest = FIRST_PAUSE / 2
    assert io.time == 1000.0 + shortest + 2 * shortest
    assert not io.steps
    watched = [dict(request.params)["index"] for request in io.requests if request.hold_open]
    assert watched == ["9", "9"], "any older index is answered at once"


def test_a_writer_that_has_written_its_value_is_waited_for_from_that_write_on() -> None:
    """From any index before it, each query would be answered at once."""
    io = FakeIO()
    client = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    readers, _ = rwlocks.sides("k", value=b"", flags=LOCK_FLAGS, session=None)
    live = DEAD | {"Session": OTHER}
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    io.expect("PUT", TXN, txn_done(OWN, OWN, live))
    io.expect("GET", f"/v1/kv/{live['Key']}", pairs(live), takes=50.0)
    io.expect("PUT", TXN, txn_done(OWN, live))  # a last look, before the time is up
    io.expect("GET", f"/v1/session/info/{OTHER}", ok([]))
    io.expect("GET", f"/v1/kv/{live['Key']}", pairs(live), takes=50.0)
    io.expect("PUT", TXN, txn_done())  # it takes its own away
    with pytest.raises(AcquireTimeout):
        io.run(recipe.acquire(io, client, readers, timeout=5.0))
    watched = [dict(request.params)["index"] for request in io.requests if request.hold_open]
    assert watched == ["9", "9"]
    assert not io.steps


def test_a_dead_contender_that_was_never_in_is_removed_as_it_is_now_and_was_not_when_it_was_made() -> None:
    """Its own client has written to it, or the end of its session has."""
    io = FakeIO()
    client = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    _, writers = rwlocks.sides("k", value=b"", flags=LOCK_FLAGS, session=None)
    first, dead, last = (
        entry(f"{FOLDER}{digit * 8}-0000-0000-0000-000000000000", value=marked("write", b""), index=30)
        | {"CreateIndex": 5 + int(digit)}
        for digit in "345"
    )
    live = [each | {"Session": str(each["Key"]).removeprefix(FOLDER)} for each in (first, last)]
    dead.pop("Session")
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    io.expect("PUT", TXN, txn_done(OWN, OWN, live[0], dead, live[1]))
    io.expect("PUT", TXN, txn_done())  # it takes its own away
    with pytest.raises(AcquireTimeout):
        io.run(recipe.acquire(io, client, writers, timeout=0))
    io.expect("DELETE", f"/v1/kv/{dead['Key']}", ok(value=True))
    io.run_spawned("reaper")
    assert ("cas", "30") in io.requests[-1].params
