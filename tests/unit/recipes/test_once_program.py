"""A job's program, its requests answered by a script."""

from __future__ import annotations

import base64

import pytest

from consul_coord.errors import AcquireTimeout, ConnectFailed
from consul_coord.events import Acquired, SlotAhead, Waiting
from consul_coord.models import LOCK_FLAGS, KVPair, SessionSpec
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.contend.tickets import Ticket
from consul_coord.recipes.lock.keys import Keys, LockKind
from consul_coord.recipes.once import once
from consul_coord.recipes.once.record import ONCE_FLAGS, Ask, Record, key_of
from tests.support.fake_io import FakeIO
from tests.support.replies import OTHER, SESSION, entry, ok, pairs, txn_done, txn_failed, unreachable

HOUR = 3600
NOON = 1_800_014_400.0  # 2027-01-15, 12:00 in UTC


@pytest.mark.parametrize(("takes", "ahead"), [(0.0, 2.0), (1.5, 2.0), (2.5, 0.0), (9.0, 0.0)])
def test_a_clock_is_reported_as_ahead_only_by_the_time_at_which_the_record_is_read(
    takes: float, ahead: float
) -> None:
    """A caller two seconds before 11 o'clock meets the record of 12 o'clock."""
    io = FakeIO()
    core = ClientState(io, spec=SessionSpec(ttl=15.0), timeout=10.0)
    record = Record("2027-01-15T12:00:00Z", failed=False, by="host:1", at=NOON, fence=17)
    read = {
        "Key": key_of("job"),
        "Value": base64.b64encode(record.encode()).decode(),
        "Flags": ONCE_FLAGS,
        "CreateIndex": 5,
        "ModifyIndex": 9,
        "LockIndex": 0,
    }
    io.expect("PUT", "/v1/txn", ok({"Results": [{"KV": read}], "Errors": None}), takes=takes)
    job = once.OnceObject("job", value=None, session=None)
    asked = Ask(job="job", slot="2027-01-15T10:00:00Z", now=NOON - HOUR - 2.0, period=HOUR)
    assert io.run(once.begin(io, core, job, asked, timeout=10.0)) == record
    told = io.seen(SlotAhead)
    assert [event.seconds for event in told] == ([HOUR + 2.0 - takes] if ahead else [])


@pytest.mark.usefixtures("more_than_asked")
def test_a_caller_without_an_answer_is_told_how_long_it_waited() -> None:
    io = FakeIO()
    core = ClientState(io, spec=SessionSpec(ttl=15.0), timeout=10.0)
    io.expect("PUT", "/v1/txn", *[unreachable()] * 100)
    job = once.OnceObject("job", value=None, session=None)
    asked = Ask(job="job", slot="2027-01-15T10:00:00Z", now=NOON, period=HOUR)
    with pytest.raises(AcquireTimeout) as caught:
        io.run(once.begin(io, core, job, asked, timeout=7.0))
    assert caught.value.blocker.kind == "unreachable"
    assert caught.value.waited == pytest.approx(io.time - 1000.0)
    assert caught.value.waited == pytest.approx(7.0, abs=0.5)
    assert len(io.seen(Waiting)) == 1


def test_who_began_to_wait_while_a_caller_was_in_line_here_is_let_go_first() -> None:
    """Its look at the queue was made before it waited for another thread, so it looks again."""
    io = FakeIO()
    core = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    job = once.OnceObject("job", value=None, session=None)
    ahead = Ticket(core.tickets, "job", "another thread")
    core.tickets.join(ahead)
    io.at(1005.0, ahead.leave)
    nothing = [(place, f'key "{key}" doesn\'t exist') for place, key in enumerate((job.record, "job"))]
    io.expect("PUT", "/v1/txn", txn_failed(*nothing), txn_done())
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    own, other = (entry(f"job/.wait/{each}", session=each) for each in (SESSION, OTHER))
    other["CreateIndex"] = 4
    free = entry("job", session=None)
    io.expect("PUT", "/v1/txn", txn_done(free, other), txn_done(own, free, own, other))
    io.expect("GET", f"/v1/kv/{other['Key']}", pairs(other), takes=50.0)
    io.expect("PUT", "/v1/txn", txn_done(free, own, other))
    io.expect("GET", f"/v1/kv/{other['Key']}", pairs(other), takes=50.0)
    io.expect("GET", f"/v1/kv/{own['Key']}", pairs())  # it withdraws
    io.expect("GET", "/v1/kv/job", pairs(free))
    asked = Ask(job="job", slot="2027-01-15T10:00:00Z", now=NOON)
    with pytest.raises(AcquireTimeout) as told:
        io.run(once.begin(io, core, job, asked, timeout=8.0))
    blocker = told.value.blocker
    assert (blocker.kind, blocker.session, blocker.position) == ("queued", OTHER, 2)
    assert not io.seen(Acquired)
    assert not io.steps


def turn_of(io: FakeIO, core: ClientState) -> once.Turn:
    """Return the right to run, as the lock's hold gives it."""
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    kept = io.run(core.sessions.shared.live(io, deadline=io.time + 10))
    pair = KVPair("job", session=SESSION, modify_index=7, lock_index=1)
    kind = LockKind(Keys(core, ["job"], LOCK_FLAGS, "me"))
    handle = core.holds.grant(pair, kept=kept, value=b"", flags=LOCK_FLAGS, kind=kind)
    return once.Turn(handle, "2027-01-15T12:00:00Z", "host:1")


@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.usefixtures("more_than_asked")
def test_the_record_of_a_run_is_worth_the_whole_lease_and_that_of_a_failure_one_timeout(
    *, failed: bool
) -> None:
    io = FakeIO()
    core = ClientState(io, spec=SessionSpec(ttl=60.0, lock_delay=60.0), timeout=10.0)
    turn = turn_of(io, core)
    job = once.OnceObject("job", value=None, session=None)
    held = entry("job")
    io.expect("PUT", "/v1/txn", *[unreachable()] * 60, txn_done(held, held, entry(job.record)))
    began = io.time
    ending = once.finish(io, core, job, turn, at=NOON, failed=failed)
    if failed:
        with pytest.raises(ConnectFailed):
            io.run(ending)
        assert io.time - began == pytest.approx(10.0, abs=1.0)
    else:
        assert io.run(ending) == Record(turn.slot, failed=False, by="host:1", at=NOON, fence=7)
        assert io.time - began > 20.0


def test_a_record_is_forgotten_only_as_it_was_read() -> None:
    io = FakeIO()
    core = ClientState(io, spec=SessionSpec(ttl=15.0), timeout=10.0)
    job = once.OnceObject("job", value=None, session=None)
    record = Record("2027-01-15T12:00:00Z", failed=False, by="host:1", at=NOON, fence=17)
    found = entry(job.record, session=None, index=9, value=record.encode()) | {"Flags": ONCE_FLAGS}
    io.expect("GET", f"/v1/kv/{job.record}", pairs(found))
    io.expect("DELETE", f"/v1/kv/{job.record}", ok(value=False))
    assert io.run(once.forget(io, core, job)) is False, "somebody else has written it meanwhile"
    assert ("cas", "9") in io.requests[-1].params
    io.expect("GET", f"/v1/kv/{job.record}", pairs())
    assert io.run(once.forget(io, core, job)) is False
