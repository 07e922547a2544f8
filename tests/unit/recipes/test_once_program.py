"""A job's program, its requests answered by a script."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest

from consul_coord.errors import AcquireTimeout, ConnectFailed, LockLost, PermissionDenied
from consul_coord.events import Acquired, SlotAhead, Waiting
from consul_coord.models import LOCK_FLAGS, KVPair, LossReason, SessionSpec
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.contend.tickets import Ticket
from consul_coord.recipes.lock.keys import Keys, LockKind
from consul_coord.recipes.once import once
from consul_coord.recipes.once.record import ONCE_FLAGS, Ask, Record, key_of
from tests.support.fake_io import FakeIO
from tests.support.replies import (
    OTHER,
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
    from collections.abc import Callable

    from consul_coord.http.messages import Request, Response

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


def missing(*places: int) -> Response:
    return txn_failed(*[(place, "key doesn't exist") for place in places])


@pytest.mark.parametrize("first", ["the record", "the lock", "both"])
def test_what_is_missing_is_read_no_more_whenever_it_vanishes(first: str) -> None:
    """The record may be forgotten, and the lock's key deleted, between two readings."""
    io = FakeIO()
    core = ClientState(io, spec=SessionSpec(ttl=15.0), timeout=10.0)
    job = once.OnceObject("job", value=None, session=None)
    answers = {"the record": [missing(0), missing(0)], "the lock": [missing(1), missing(0)]}
    io.expect("PUT", "/v1/txn", *answers.get(first, [missing(0, 1)]), txn_done())
    io.expect("PUT", "/v1/session/create", refusal(403, "Permission denied"))
    asked = Ask(job="job", slot="2027-01-15T10:00:00Z", now=NOON)
    with pytest.raises(PermissionDenied):
        io.run(once.begin(io, core, job, asked, timeout=8.0))
    read = [
        {op["KV"]["Key"] for op in json.loads(each.body or b"")}
        for each in io.requests
        if each.path == "/v1/txn"
    ]
    assert read[0] == {job.record, "job", *read[-1]}
    assert read[-1].isdisjoint({job.record, "job"})
    assert len({frozenset(each) for each in read}) == len(read), "nothing is asked again"


def test_the_time_of_a_hold_begins_with_it_and_not_with_its_run() -> None:
    """Its record is read in between, which nobody answers."""
    io = FakeIO()
    core = ClientState(io, spec=SessionSpec(ttl=60.0, lock_delay=60.0), timeout=10.0)
    job = once.OnceObject("job", value=None, session=None)
    io.expect("PUT", "/v1/txn", missing(0, 1), txn_done())
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    io.expect("PUT", "/v1/txn", txn_done(entry("job")))
    io.expect("GET", f"/v1/kv/{job.record}", pairs(), takes=7.0)
    asked = Ask(job="job", slot="2027-01-15T10:00:00Z", now=NOON)
    with pytest.raises(LockLost) as told:
        io.run(once.begin(io, core, job, asked, timeout=30.0, max_hold=5.0))
    assert told.value.reason is LossReason.MAX_HOLD


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


def of_slot(slot: str, *, failed: bool = False, fence: int = 7) -> Record:
    return Record(slot, failed=failed, by="host:1", at=NOON, fence=fence)


@pytest.mark.parametrize(
    "there",
    [
        None,
        of_slot("2027-01-15T11:00:00Z", fence=5),
        of_slot("2027-01-15T12:00:00Z", failed=True),
        of_slot("2027-01-15T12:00:00Z", fence=5),
        of_slot("2027-01-15T12:00:00Z"),
    ],
    ids=["none", "the slot before", "its failure", "another holder's", "its own"],
)
def test_a_record_whose_write_got_no_answer_is_there_only_if_it_is_that_very_one(
    there: Record | None,
) -> None:
    """Somebody else has written the lock's key meanwhile, which closes the guard."""
    io = FakeIO()
    core = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    turn = turn_of(io, core)
    job = once.OnceObject("job", value=None, session=None)
    found = [] if there is None else [entry(job.record, session=None, index=9, value=there.encode())]
    for each in found:
        each["Flags"] = ONCE_FLAGS
    io.expect("PUT", "/v1/txn", lost(), txn_failed((1, "current modify index failed index check")))
    io.expect("GET", f"/v1/kv/{job.record}", pairs(*found))
    wanted = of_slot(turn.slot)
    if there != wanted:
        held = entry("job", index=11)
        io.expect("PUT", "/v1/txn", txn_done(held, held))  # opens the guard
        io.expect("PUT", "/v1/txn", txn_done(held, held, entry(job.record, session=None, index=12)))
    assert io.run(once.finish(io, core, job, turn, at=NOON, failed=False)) == wanted
    assert not io.steps
    if there != wanted:
        last = json.loads(io.requests[-1].body or b"")[-1]["KV"]
        assert (last["Key"], base64.b64decode(last["Value"])) == (job.record, wanted.encode())


class Struck(BaseException):
    """An exception amid a request, as a cancellation or a signal handler raises it."""


def strike(_: Request) -> Response:
    raise Struck


@pytest.mark.parametrize("ends_with", [strike, refusal(403, "Permission denied")], ids=["struck", "refused"])
@pytest.mark.parametrize("failed", [False, True])
def test_a_success_that_may_be_recorded_is_written_again_and_no_failure(
    *, failed: bool, ends_with: Callable[[Request], Response] | Response
) -> None:
    """Other callers may have read it, and have left the slot alone."""
    io = FakeIO()
    core = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    turn = turn_of(io, core)
    job = once.OnceObject("job", value=None, session=None)
    held, wanted = entry("job"), of_slot(turn.slot)
    io.expect("PUT", "/v1/txn", lost(), ends_with)
    with pytest.raises((Struck, PermissionDenied)):
        io.run(once.finish(io, core, job, turn, at=NOON, failed=False))
    io.expect("PUT", "/v1/txn", txn_done(held, held, entry(job.record, session=None, index=12)))
    assert io.run(once.finish(io, core, job, turn, at=NOON + 5.0, failed=failed)) == wanted
    last = json.loads(io.requests[-1].body or b"")[-1]["KV"]
    assert (last["Key"], base64.b64decode(last["Value"])) == (job.record, wanted.encode())


def test_a_late_copy_of_a_failure_is_not_applied_over_the_success_of_its_run() -> None:
    """Its guard names the key as it was, and the key is written again before the success."""
    io = FakeIO()
    core = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    turn = turn_of(io, core)
    job = once.OnceObject("job", value=None, session=None)
    io.expect("PUT", "/v1/txn", strike)
    with pytest.raises(Struck):
        io.run(once.finish(io, core, job, turn, at=NOON, failed=True))
    held = entry("job", index=11)
    io.expect("PUT", "/v1/txn", txn_done(held, held))
    io.expect("PUT", "/v1/txn", txn_done(held, held, entry(job.record, session=None, index=12)))
    assert io.run(once.finish(io, core, job, turn, at=NOON, failed=False)) == of_slot(turn.slot)
    late, _, success = [json.loads(each.body or b"") for each in io.requests[-3:]]
    assert [op["KV"].get("Index") for op in late[:2]] == [None, 7]
    assert [op["KV"].get("Index") for op in success[:2]] == [None, 11]


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
