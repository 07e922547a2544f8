"""The requests of a holder about its hold, and under it.

Rules
- Each answers for this very hold: never for a later one of the same session.
- A refusal that shows the hold to be gone ends it, with its reason, before the error is raised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.errors import ConsulCoordError, InvalidArgument, NotHeld, TxnFailed
from consul_coord.http.endpoints import kv
from consul_coord.http.failures import outcome_unknown
from consul_coord.http.retry import Failures, perform, send_once
from consul_coord.models import _validate
from consul_coord.models.reply import CONSISTENT
from consul_coord.recipes.hold.evidence import make_sure
from consul_coord.recipes.hold.grant import lost_error, rewriting
from consul_coord.recipes.session.keeping import renew

if TYPE_CHECKING:
    from consul_coord.io import IO
    from consul_coord.models import KVPair
    from consul_coord.recipes.hold.grant import Grant
    from consul_coord.recipes.session.keeping import Sessions
    from consul_coord.recipes.session.lease import Losable


def check(hold: Grant, now: float) -> None:
    """Raise LockLost when the hold is lost, NotHeld when it was released; no I/O."""
    reason = hold.loss(now)
    if reason is not None:
        raise lost_error(hold, reason)
    if hold.released:
        message = (
            f"the hold of {hold.kind.named(hold)} (fence {hold.fence}) was released: acquire the lock again"
        )
        raise NotHeld(message, key=hold.key, session=hold.session)


async def ensure(io: IO, sessions: Sessions, hold: Grant, *, seconds: float) -> None:
    """Renew the session when less than ``seconds`` of the lease are left.

    Passing trouble is sat out, for the client's time at most. Raises LockLost when it is lost, NotHeld when
    it was released, InvalidArgument when the lease can never be that long, and what the last renewal raised.
    """
    seconds = _validate.span("seconds", seconds)
    if seconds > hold.lease.longest:
        message = (
            f"ensure({seconds:g}): this session's lease is {hold.lease.longest:g} s at most; set longer ttl "
            "and lock_delay"
        )
        raise InvalidArgument(message)
    check(hold, io.now())
    if seconds > hold.limited_until - io.now():
        left = hold.limited_until - io.now()
        message = (
            f"ensure({seconds:g}): the hold ends in {left:.1f} s, because of its max_hold or a missing beat"
        )
        raise InvalidArgument(message)
    if hold.lease.remaining(io.now()) >= seconds:
        return
    deadline = min(hold.lease.valid_until, io.now() + sessions.timeout)
    failures = Failures(io, deadline)
    for each in hold.all_kept:
        while each.lease.remaining(io.now()) < seconds:
            try:
                await renew(io, sessions, each, deadline=deadline)
                break  # once is all that can be done
            except ConsulCoordError as error:
                check(hold, io.now())
                await failures.pause(error)
    check(hold, io.now())


async def wait_for_loss(io: IO, subject: Losable, *, timeout: float | None) -> bool:
    """Wait until something is lost, ``timeout`` seconds at most; return whether it is.

    Returns False as soon as it was released. Looks again at the deadline: perhaps nobody else does.
    """
    deadline = io.now() + _validate.patience(timeout)
    while not subject.is_lost(io.now()) and not subject.over.is_set() and io.now() < deadline:
        await io.wait(subject.over, deadline=min(deadline, subject.valid_until))
    return subject.is_lost(io.now())


async def verify(io: IO, sessions: Sessions, hold: Grant) -> bool:
    """Return whether the leader, asked now, still has what the hold depends on as it should be."""
    if hold.ended or not hold.is_held(io.now()):
        return False
    deadline = io.now() + sessions.timeout
    for watch in hold.kind.watches(hold):
        call = kv.get(watch.key, options=CONSISTENT)
        pair = (await perform(io, call, deadline=deadline)).value
        if watch.loss(pair) is not None:
            return False
    return hold.is_held(io.now())


async def put(io: IO, sessions: Sessions, hold: Grant, value: bytes) -> None:
    """Write the key's value while holding it.

    The fence stays. Raises LockLost when it was lost, NotHeld when it was released.
    """
    check(hold, io.now())
    kept = hold.kind.kept_as(hold, value)
    deadline = io.now() + sessions.timeout
    this_call, failures = object(), Failures(io, deadline)
    hold.writing[this_call] = kept
    try:
        # Before the announcement ends: a watch in another thread would take the write for a stranger's.
        hold.written(await _write(io, sessions, hold, kept, failures, deadline=deadline), kept)
    except BaseException as error:
        if failures.doubt or outcome_unknown(error):
            hold.doubtful.add(hash(kept))
        raise
    finally:
        del hold.writing[this_call]


async def _write(
    io: IO, sessions: Sessions, hold: Grant, value: bytes, failures: Failures, *, deadline: float
) -> KVPair:
    """Write at the index of the last write known, so that a late copy never writes under a later hold.

    If somebody else has written meanwhile, the key is read, and written at the index found.
    """
    index = hold.last_index
    while True:
        ops = rewriting(hold.key, hold.session, value, index=index, flags=hold.flags)
        try:
            result = await send_once(io, kv.txn(*ops), deadline=deadline)
            return result[1][0]
        except TxnFailed:
            call = kv.get(hold.key, options=CONSISTENT)
            try:
                pair = (await perform(io, call, deadline=deadline)).value
            except ConsulCoordError as error:
                raise failures.with_doubt(error) from error.__cause__
            if pair is None or pair.session != hold.session:
                await make_sure(io, sessions, hold, deadline=deadline)
                check(hold, io.now())
                raise
            # Released meanwhile, perhaps: the session may have the key for a later hold, which this is not.
            check(hold, io.now())
            if failures.doubt and (pair.value, pair.flags) == (value, hold.flags):
                return pair  # an earlier try got through, though not its answer
            if pair.modify_index == index:
                raise  # it is as we left it, and still not to be written
            index = pair.modify_index
            await failures.moved()
        except ConsulCoordError as error:
            await failures.pause(error)
            check(hold, io.now())
