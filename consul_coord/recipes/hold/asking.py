"""What a holder can ask the server about its hold, or do under it.

Rules
- Each answers for this very hold: never for a later one of the same session.
- A refusal that shows the hold to be gone ends it, with its reason, before the error is raised.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from consul_coord.errors import ConsulCoordError, InvalidArgument, NotHeld, TxnFailed
from consul_coord.http.backoff import delay
from consul_coord.http.endpoints import kv, txn
from consul_coord.http.failures import outcome_unknown, retryable
from consul_coord.http.retry import perform, send_once
from consul_coord.models import ReadOptions, TxnOp
from consul_coord.recipes.cleanup.unlock import check_value
from consul_coord.recipes.hold.grant import lost_error
from consul_coord.recipes.session import keeping as sessions

if TYPE_CHECKING:
    from consul_coord.io import IO
    from consul_coord.models import KVPair
    from consul_coord.recipes.client import ClientState
    from consul_coord.recipes.hold.grant import Grant
    from consul_coord.recipes.hold.view import Losable

_CONSISTENT = ReadOptions(consistency="consistent")


def check(hold: Grant, now: float) -> None:
    """Raise LockLost when the hold is lost, NotHeld when it was released; no I/O."""
    reason = hold.loss(now)
    if reason is not None:
        raise lost_error(hold, reason)
    if hold.released:
        message = f"the hold of {hold.key!r} (fence {hold.fence}) was released: acquire the lock anew"
        raise NotHeld(message, key=hold.key, session=hold.session)


async def ensure(io: IO, core: ClientState, hold: Grant, *, seconds: float) -> None:
    """Renew the session when less than ``seconds`` of the lease are left.

    Raises LockLost when it is lost, NotHeld when it was released, InvalidArgument when the lease can never be
    that long, and what a failing renewal raises.
    """
    if seconds > hold.lease.longest:
        message = (
            f"ensure({seconds:g}): this session's lease is {hold.lease.longest:g} s at most; use a longer ttl"
        )
        raise InvalidArgument(message)
    check(hold, io.now())
    if hold.lease.remaining(io.now()) >= seconds:
        return
    kept = core.session_of(hold)
    if kept is not None:
        try:
            await sessions.renew(io, core, kept, deadline=hold.lease.valid_until)
        except ConsulCoordError:
            check(hold, io.now())
            raise
    check(hold, io.now())


async def wait_for_loss(io: IO, subject: Losable, *, timeout: float | None) -> bool:
    """Wait until something is lost, ``timeout`` seconds at most; return whether it is.

    Returns False as soon as it was released. Looks at the lease when it ends: perhaps nobody else does.
    """
    deadline = math.inf if timeout is None else io.now() + timeout
    while not subject.is_lost(io.now()) and not subject.over.is_set() and io.now() < deadline:
        await io.wait(subject.over, deadline=min(deadline, subject.lease.valid_until))
    return subject.is_lost(io.now())


async def verify(io: IO, core: ClientState, hold: Grant) -> bool:
    """Return whether the leader, asked now, still has what the hold depends on as it should be."""
    if hold.ended or not hold.is_held(io.now()):
        return False
    for watch in hold.kind.watches(hold):
        call = kv.get(watch.key, options=_CONSISTENT)
        pair = (await perform(io, call, deadline=io.now() + core.timeout, attempt=core.timeout)).value
        if watch.loss(pair) is not None:
            return False
    return hold.is_held(io.now())


async def put(io: IO, core: ClientState, hold: Grant, value: bytes) -> None:
    """Write the key's value while holding it.

    The fence stays. Raises LockLost when it was lost, NotHeld when it was released.
    """
    check(hold, io.now())
    check_value((hold.key,), value)
    kept = hold.kind.kept_as(value)
    hold.writing = True
    try:
        # Before the announcement ends: a watch in another thread would take the write for a stranger's.
        hold.written(await _write(io, core, hold, kept), kept)
    finally:
        hold.writing = False


async def _write(io: IO, core: ClientState, hold: Grant, value: bytes) -> KVPair:
    """Write at the index of the last write known, so that a late copy never writes under a later hold.

    If somebody else has written meanwhile, the key is read, and written at the index found.
    """
    deadline = io.now() + core.timeout
    index, failures, moved, uncertain = hold.last_index, 0, 0, False
    while True:
        # "lock" by the holder replaces the value and keeps the LockIndex, which "set" would reset.
        lock = TxnOp.lock(hold.key, hold.session, value=value, flags=hold.flags)
        try:
            result = await send_once(io, txn.txn(TxnOp.check_index(hold.key, index), lock), deadline=deadline)
            return result[1][0]
        except TxnFailed:
            call = kv.get(hold.key, options=_CONSISTENT)
            pair = (await perform(io, call, deadline=deadline, attempt=core.timeout)).value
            if pair is None or pair.session != hold.session:
                await core.monitor.make_sure(io, hold)
                check(hold, io.now())
                raise
            if uncertain and (pair.value, pair.flags) == (value, hold.flags):
                return pair  # an earlier try got through, though not its answer
            if pair.modify_index == index:
                raise  # it is as we left it, and still not to be written
            index = pair.modify_index
            moved += 1
            if moved > 1:  # once is somebody's write, more is a writer at work
                await io.sleep(delay(moved, io.random()))
        except ConsulCoordError as error:
            failures += 1
            pause = delay(failures, io.random())
            if not retryable(error) or io.now() + pause >= deadline:
                raise
            uncertain = uncertain or outcome_unknown(error)
            await io.sleep(pause)
