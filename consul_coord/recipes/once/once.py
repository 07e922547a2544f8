"""Running something once in each slot: begun under the lock, and recorded under its guard.

Rules, each with what happens without it
- The record is read twice: before the lock, so that whoever comes too late sends one request; and in the very
  transaction that grants the lock. Between the two readings another caller may have run the slot.
- Callers that wait are let go first. A newcomer comes from a later slot, perhaps, and would pass over that of
  those who wait.
- The record is written before the lock is released, in a transaction with the hold's guard: whoever has lost
  the lock records nothing. Two callers can both have done the work; only one of them has run it.
- A success that is recorded, or may be, is final, whatever the run does afterwards: its record is written
  again, and no failure. Otherwise the next caller would run a slot that others have read as done.
- A success after a recorded failure of the same run moves the guard first. A late copy of the failure would
  otherwise be applied over the success.
- A record whose write got no answer is written again, the same, until the hold is over. It can be applied
  only while the hold lasts, so the next holder's reading is final.
- Somebody else's write to the lock's key is no loss, but closes the guard. The hold writes its value again,
  and opens it.
- A transaction shows nothing of a key that the token may not read. So when it shows no record, the record's
  key is read by itself, which is refused instead.
- The timeout is for all until the run begins. A caller that has the lock, but not the record when its time is
  up, gives the lock back: in the background if that is not answered at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from consul_coord.errors import AcquireTimeout, ConsulCoordError, DecodeError, TxnFailed
from consul_coord.events import SlotAhead
from consul_coord.http.endpoints import kv
from consul_coord.http.endpoints._keys import check_parent
from consul_coord.http.failures import raise_if_denied
from consul_coord.http.retry import Failures, perform, send_once
from consul_coord.io import Once
from consul_coord.models import TxnOp
from consul_coord.models.once import LONGEST_SLOT
from consul_coord.models.reply import CONSISTENT
from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.contend.attempt import let_go
from consul_coord.recipes.contend.limits import ANY_SESSION, LONGEST, check_value
from consul_coord.recipes.contend.recipe import Cancellable, check_max_hold
from consul_coord.recipes.hold.asking import check, put
from consul_coord.recipes.lock.attempt import LockAttempt
from consul_coord.recipes.lock.lock import LockObject
from consul_coord.recipes.lock.plan import LockPlan
from consul_coord.recipes.once.record import LATEST, ONCE_FLAGS, Record, judge, key_of, read, seconds_ahead
from consul_coord.value import Value

if TYPE_CHECKING:
    from consul_coord.http.messages import Call
    from consul_coord.io import IO
    from consul_coord.models import KVPair, Result, SessionSpec
    from consul_coord.recipes.contend.shared import Shared
    from consul_coord.recipes.hold.grant import Grant, Handle
    from consul_coord.recipes.once.record import Ask

_GUARD_CLOSED = {"stale_index", "not_holder", "missing"}


class OnceObject(Cancellable):
    """One job: a lock and a record."""

    def __init__(self, key: str, *, value: bytes | None, session: SessionSpec | str | None) -> None:
        super().__init__(check_parent(key))
        self.record = key_of(key)
        reads = (TxnOp.get_tree(self.record),)
        plan = LockPlan(keys=(key,), value=value, session=session, polite=True, reads=reads)

        def longest_record(value: bytes) -> tuple[TxnOp, ...]:
            record = Record("\0" * LONGEST_SLOT, failed=True, by=_named(value), at=LATEST, fence=LONGEST)
            guard = TxnOp.check_session(key, ANY_SESSION), TxnOp.check_index(key, LONGEST)
            return *guard, _recording(self.record, record)

        check_value(plan.keys, value or b"", (longest_record, *plan.carriers()))
        self.lock = LockObject(plan)

    @property
    def key(self) -> str:
        """The key of the lock."""
        return self.lock.plan.key


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Turn(Value):
    """The right to run a slot now."""

    handle: Handle
    slot: str
    by: str
    failure: Once[Record] = field(default_factory=Once[Record])
    """The record of its failure, from before that is first sent: a copy may be applied late."""
    success: Once[Record] = field(default_factory=Once[Record])
    """The record of its success, from before that is sent: it may be written though no answer comes."""
    done: Once[Record] = field(default_factory=Once[Record])
    """The same, once it is known to be written."""


async def begin(
    io: IO,
    client: Shared,
    once: OnceObject,
    ask: Ask,
    *,
    timeout: float | None,
    max_hold: float | None = None,
) -> Turn | Record:
    """Get the turn to run, or return the record of the run that makes it needless.

    Takes ``timeout`` seconds at most, all requests before the run included, and has the lock for ``max_hold``
    at most. Raises what an acquire raises, and LockLost when the lock was lost again before the run began.
    """
    check_max_hold(max_hold)
    attempt = LockAttempt(io, client, once.lock.plan, once.lock.with_client(client), timeout=timeout)
    seen = await _look(attempt, once)
    verdict = judge(ask, read(seen.pop(once.record, None)))
    if isinstance(verdict, Record):
        return _told(io, once, ask, verdict, attempt.began)
    attempt.begin_from(seen.values())
    handle = await attempt.run()
    client.holds.limit(handle.grant, max_hold)
    try:
        seen = {pair.key: pair for pair in attempt.read}
        verdict = judge(ask, read(seen.get(once.record) or await _alone(attempt, once, handle.grant)))
        check(handle.grant, io.now())
    except ConsulCoordError as error:
        time_is_up = isinstance(error, AcquireTimeout)  # a single try's at its first failure
        until = io.now() if time_is_up else attempt.deadline
        await let_go(io, client.holds, handle.grant, until=until)
        raise
    if isinstance(verdict, str):
        return Turn(handle, verdict, _named(attempt.value))
    await let_go(io, client.holds, handle.grant, until=attempt.deadline)
    return _told(io, once, ask, verdict, attempt.began)


async def _look(attempt: LockAttempt, once: OnceObject) -> dict[str, KVPair]:
    """Read the record, the lock and its queue as they are at one moment."""
    tree = TxnOp.get_tree(waitqueue.directory(once.key))
    ops = [TxnOp.get(once.record), TxnOp.get(once.key), tree]
    while True:
        try:
            result = await attempt.until_answered(kv.txn(*ops))
        except TxnFailed as error:
            raise_if_denied(once.record, error)
            missing = {failure.op_index for failure in error.failures if failure.kind == "missing"}
            if len(missing) < len(error.failures):
                raise
            ops = [op for at, op in enumerate(ops) if at not in missing]
        except DecodeError:
            await _alone(attempt, once)  # the token may not read it, which this says
            raise
        else:
            return {pair.key: pair for pairs in result for pair in pairs}


async def _alone(attempt: LockAttempt, once: OnceObject, hold: Grant | None = None) -> KVPair | None:
    """Read the record by itself in an attempt's time. Raises PermissionDenied."""
    return (await attempt.until_answered(_reading(once), hold)).value


def _named(value: bytes) -> str:
    """Return how a record names the client of a value."""
    return value.decode(errors="replace")


def _recording(key: str, record: Record) -> TxnOp:
    return TxnOp.set(key, record.encode(), flags=ONCE_FLAGS)


def _reading(once: OnceObject) -> Call[Result[KVPair | None]]:
    """Return the call that reads the record by itself, as the leader has it."""
    return kv.get(once.record, options=CONSISTENT)


async def _read(io: IO, client: Shared, once: OnceObject) -> KVPair | None:
    """Read the record by itself. Raises PermissionDenied."""
    return (await perform(io, _reading(once), deadline=io.now() + client.timeout)).value


def _told(io: IO, once: OnceObject, ask: Ask, record: Record, started: float) -> Record:
    ahead = seconds_ahead(ask, record, waited=io.now() - started)
    if ahead:
        io.emit(SlotAhead(once.key, record.slot, record.by, ahead))
    return record


async def last(io: IO, client: Shared, once: OnceObject) -> Record | None:
    """Return the record of the last run; None before the first."""
    return read(await _read(io, client, once))


async def forget(io: IO, client: Shared, once: OnceObject) -> bool:
    """Delete the record; returns whether there was one."""
    deadline = io.now() + client.timeout
    pair = await _read(io, client, once)
    if pair is not None and pair.flags != ONCE_FLAGS:
        read(pair)
    delete = kv.delete(once.record, cas=0 if pair is None else pair.modify_index)
    return pair is not None and await perform(io, delete, deadline=deadline)


async def finish(io: IO, client: Shared, once: OnceObject, turn: Turn, *, at: float, failed: bool) -> Record:
    """Record how the run ended, under its hold. Raises LockLost when that was lost before."""
    hold, done = turn.handle.grant, turn.done.value
    if done is not None and not hold.released:
        return done
    record = Record(turn.slot, failed, turn.by, round(at, 3), hold.fence)
    if turn.success.value is None:
        (turn.failure if failed else turn.success).settle(record)
    record = turn.success.value or record
    moves_guard = not record.failed and turn.failure.value is not None
    # The work is done: nothing is worth more patience than its record. A failure may stay without one.
    failures = Failures(io, io.now() + client.timeout if failed else math.inf)
    while True:
        check(hold, io.now())
        try:
            if moves_guard:
                await put(io, client.sessions, hold, hold.value)
                moves_guard = False
            if await _record(io, client, once, hold, record, doubt=failures.doubt):
                if not record.failed:
                    turn.done.settle(record)
                return record
            await failures.moved()
        except ConsulCoordError as error:
            await failures.pause(error)


async def _record(
    io: IO, client: Shared, once: OnceObject, hold: Grant, record: Record, *, doubt: bool
) -> bool:
    """Write a record, or open the guard that is closed; returns whether it is written.

    ``doubt``: an earlier try may have written it.
    """
    write = _recording(once.record, record)
    try:
        await send_once(io, kv.txn(*hold.guard(), write), deadline=io.now() + client.timeout)
    except TxnFailed as error:
        raise_if_denied(once.record, error)
        if not {failure.kind for failure in error.failures} <= _GUARD_CLOSED:
            raise
        if doubt and read(await _read(io, client, once)) == record:
            return True  # though its answer was lost
        await put(io, client.sessions, hold, hold.value)
        return False
    return True
