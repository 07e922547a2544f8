"""What an attempt at a read-write lock sends while a dead contender is in its way."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from consul_coord.errors import AcquireTimeout, AlreadyHeld, PermissionDenied
from consul_coord.models import LOCK_FLAGS, LossReason, ReleaseOutcome, SessionSpec
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.contend import queue, recipe
from consul_coord.recipes.contend.attempt import FIRST_PAUSE
from consul_coord.recipes.hold.holds import BUDGET, release
from consul_coord.recipes.rwlock import lock as rwlocks
from consul_coord.recipes.rwlock.queue import base_of, marked
from tests.support.fake_io import FakeIO, Step
from tests.support.replies import OTHER, SESSION, entry, lost, ok, pairs, txn_done, txn_failed

if TYPE_CHECKING:
    from consul_coord.http.messages import Request, Response
    from consul_coord.recipes.hold.grant import Handle

FOLDER = queue.directory(base_of("k"))
OWN = entry(FOLDER + SESSION, index=20, value=marked("read", b"")) | {"CreateIndex": 20}
DEAD = entry(FOLDER + OTHER, session=None, index=9, value=marked("write", b""))
REPLACEMENT = "33333333-3333-3333-3333-333333333333"
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


def test_the_end_of_a_lock_delay_is_waited_for_no_longer_than_the_call_may() -> None:
    """The pauses between its tries grow: one of them would end after the call."""
    io, timeout = FakeIO(), 0.12
    client = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    readers, _ = rwlocks.sides("k", value=b"", flags=LOCK_FLAGS, session=None)
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    io.expect("PUT", TXN, txn_done(OWN, OWN, DEAD))
    for number in range(2):
        io.expect("PUT", TXN, txn_failed((0, f"failed to lock key {DEAD['Key']!r} due to lock delay")))
        io.expect("GET", f"/v1/kv/{DEAD['Key']}", pairs(DEAD), takes=50.0)
        io.expect("PUT", TXN, txn_done(OWN, DEAD) if not number else txn_done())  # the last one withdraws
    with pytest.raises(AcquireTimeout) as told:
        io.run(recipe.acquire(io, client, readers, timeout=timeout))
    assert told.value.blocker.kind == "lock_delay"
    assert io.time == pytest.approx(1000.0 + timeout)


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


def test_the_fence_is_the_place_in_the_queue_also_where_somebody_has_written_to_it() -> None:
    """That of whoever comes next must be above it. Another object of the same key knows of the hold."""
    io = FakeIO()
    client = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    readers, _ = rwlocks.sides("k", value=b"", flags=LOCK_FLAGS, session=None)
    written = OWN | {"ModifyIndex": 50}
    writer = DEAD | {"Session": OTHER}
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    io.expect("PUT", TXN, txn_done(OWN, OWN, writer))
    io.expect("GET", f"/v1/kv/{writer['Key']}", pairs())
    io.expect("PUT", TXN, txn_done(written))
    handle = io.run(recipe.acquire(io, client, readers, timeout=30.0))
    assert (handle.grant.fence, handle.grant.last_index) == (20, 50)
    _, others = rwlocks.sides("k", value=b"", flags=LOCK_FLAGS, session=None)
    with pytest.raises(AlreadyHeld):
        io.run(recipe.acquire(io, client, others, timeout=30.0))


def test_a_waiter_that_had_to_join_twice_keeps_its_place() -> None:
    """The reply to its first join was lost, so the second one has written to what the first one made."""
    io = FakeIO()
    client = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    readers, _ = rwlocks.sides("k", value=b"", flags=LOCK_FLAGS, session=None)
    again, writer = OWN | {"ModifyIndex": 25}, DEAD | {"Session": OTHER}
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    io.expect("PUT", TXN, lost())
    io.expect("PUT", TXN, txn_done(again, again, writer))
    io.expect("GET", f"/v1/kv/{writer['Key']}", pairs())
    io.expect("PUT", TXN, txn_done(again))
    assert io.run(recipe.acquire(io, client, readers, timeout=30.0)).grant.fence == OWN["CreateIndex"]
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


def test_a_waiter_whose_contender_an_operator_has_removed_queues_again_as_somebody_new() -> None:
    io = FakeIO()
    client = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    readers, _ = rwlocks.sides("k", value=b"", flags=LOCK_FLAGS, session=None)
    writer = DEAD | {"Session": OTHER}
    rejoined = entry(FOLDER + REPLACEMENT, session=REPLACEMENT, index=40, value=marked("read", b"")) | {
        "CreateIndex": 40
    }
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    io.expect("PUT", TXN, txn_done(OWN, OWN, writer))
    io.expect("GET", f"/v1/kv/{writer['Key']}", pairs(writer | {"ModifyIndex": 30}))
    io.expect("PUT", TXN, txn_done(writer | {"ModifyIndex": 30}))
    io.expect("PUT", "/v1/session/create", ok({"ID": REPLACEMENT}))
    io.expect("PUT", TXN, txn_done(rejoined, rejoined))
    handle = io.run(recipe.acquire(io, client, readers, timeout=30.0))
    assert (handle.grant.session, handle.grant.fence) == (REPLACEMENT, 40)
    assert not io.steps
    assert client.reaper.pending == 1, "the session that it had is destroyed"


STALE = txn_failed((1, f"failed to delete key {OWN['Key']!r}, index is stale"))
GONE = txn_failed((0, f"failed to check session, key {OWN['Key']!r} doesn't exist"))
RELEASES: dict[str, tuple[ReleaseOutcome, LossReason | None, list[Step]]] = {
    "ours": (ReleaseOutcome.RELEASED, None, [Step("PUT", TXN, txn_done(OWN))]),
    "written by somebody": (
        ReleaseOutcome.RELEASED,
        None,
        [
            Step("PUT", TXN, STALE),
            Step("GET", f"/v1/kv/{OWN['Key']}", pairs(OWN | {"ModifyIndex": 30})),
            Step("DELETE", f"/v1/kv/{OWN['Key']}", ok(value=True)),
            Step("PUT", f"/v1/session/destroy/{SESSION}", ok(value=True)),
        ],
    ),
    "deleted by somebody": (
        ReleaseOutcome.ALREADY_LOST,
        LossReason.KEY_DELETED,
        [Step("PUT", TXN, GONE), Step("GET", f"/v1/kv/{OWN['Key']}", pairs())],
    ),
    "deleted, perhaps by a try without an answer": (
        ReleaseOutcome.RELEASED,
        None,
        [
            Step("PUT", TXN, lost()),
            Step("PUT", TXN, GONE),
            Step("GET", f"/v1/kv/{OWN['Key']}", pairs()),
        ],
    ),
}


def entered(io: FakeIO) -> tuple[ClientState, Handle]:
    """Return a client, and what keeps its place in the lock."""
    client = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    readers, _ = rwlocks.sides("k", value=b"", flags=LOCK_FLAGS, session=None)
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    io.expect("PUT", TXN, txn_done(OWN, OWN))
    return client, io.run(recipe.acquire(io, client, readers, timeout=30.0))


@pytest.mark.parametrize("name", RELEASES)
def test_a_place_is_given_back_however_its_contender_is_found(name: str) -> None:
    outcome, loss, steps = RELEASES[name]
    io = FakeIO()
    client, handle = entered(io)
    io.steps.extend(steps)
    assert io.run(release(io, client.holds, handle.grant)) is outcome
    assert handle.grant.loss(io.now()) is loss
    assert not io.steps


def test_a_place_whose_session_is_destroyed_leaves_nothing_to_clean_up() -> None:
    io = FakeIO()
    client, handle = entered(io)
    io.steps.extend(RELEASES["written by somebody"][2])
    io.run(release(io, client.holds, handle.grant))
    assert client.reaper.pending == 0
    assert handle.grant.kept.lease.ended_by is LossReason.CLIENT_CLOSED


STUCK = [
    (name, number)
    for name, (_, _, steps) in RELEASES.items()
    for number, step in enumerate(steps)
    if step.method != "DELETE"  # that has a part of the time, and the end of the session does as well
]


@pytest.mark.parametrize(("name", "stuck"), STUCK)
def test_a_release_takes_its_time_and_no_longer_whichever_answer_does_not_come(name: str, stuck: int) -> None:
    io = FakeIO()
    client, handle = entered(io)
    began = io.time
    steps = RELEASES[name][2][: stuck + 1]
    io.steps.extend([*steps[:-1], replace(steps[-1], takes=100.0)])
    io.expect("GET", "/v1/status/leader", ok("10.0.0.1:8300"))
    assert io.run(release(io, client.holds, handle.grant)) is ReleaseOutcome.UNKNOWN
    assert io.time == pytest.approx(began + BUDGET)
    assert not io.steps
    assert client.reaper.pending, "the rest is done in the background"


def test_a_dead_writer_that_somebody_else_has_removed_meanwhile_is_waited_for_no_more() -> None:
    io = FakeIO()
    client = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    readers, _ = rwlocks.sides("k", value=b"", flags=LOCK_FLAGS, session=None)
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    io.expect("PUT", TXN, txn_done(OWN, OWN, DEAD))
    io.expect("PUT", TXN, txn_failed((0, f"key {DEAD['Key']!r} doesn't exist")))
    io.expect("PUT", TXN, txn_done(OWN))
    handle = io.run(recipe.acquire(io, client, readers, timeout=30.0))
    assert handle.grant.is_held(io.now())
    assert not io.steps


def test_who_may_not_remove_a_dead_writer_is_told_so() -> None:
    io = FakeIO()
    client = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    readers, _ = rwlocks.sides("k", value=b"", flags=LOCK_FLAGS, session=None)
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    io.expect("PUT", TXN, txn_done(OWN, OWN, DEAD))
    io.expect("PUT", TXN, txn_failed((0, "Permission denied")), txn_done())
    with pytest.raises(PermissionDenied, match="key:write"):
        io.run(recipe.acquire(io, client, readers, timeout=30.0))
    assert not io.steps


@pytest.mark.parametrize(("value", "shown"), [(None, b"host:1"), (b"mine", b"mine"), (b"", b"")])
@pytest.mark.parametrize("side", [0, 1])
def test_a_place_shows_the_value_that_was_given_or_the_clients_name(
    side: int, value: bytes | None, shown: bytes
) -> None:
    io = FakeIO()
    client = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0, name=b"host:1")
    what = rwlocks.sides("k", value=value, flags=LOCK_FLAGS, session=None)[side]
    written: list[bytes] = []

    def joined(request: Request) -> Response:
        (op, *_) = [each["KV"] for each in json.loads(request.body or b"")]
        written.append(base64.b64decode(op["Value"]))
        own = OWN | {"Value": op["Value"]}
        return txn_done(own, own)

    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    io.expect("PUT", TXN, joined)
    handle = io.run(recipe.acquire(io, client, what, timeout=30.0))
    assert written == [marked(("read", "write")[side], shown)]
    assert handle.grant.is_held(io.now())
