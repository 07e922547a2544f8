"""The kind of a semaphore's slot: a line in the record, and a contender held by a session of its own.

Rules, each with what happens without it
- Lost when the record has gone or does not name the session any more, and when the contender has gone or is
  held by nobody. The contender vanishes with its session, so the session needs no watch of its own.
- A holder never makes its contender again: somebody else may have the slot by then.
- The end of the contender frees the slot. So it is given back by deleting that, in one transaction
  which also tells whether the slot was ours until then. The record goes on naming the session until the next
  take, which leaves it out; a list of holders reads the contenders, too.
- If nobody else was there at the take, and the record has not changed since, the session is taken out of it
  in the same transaction. Under contention that would fail, mostly, and cost a round trip before the slot is
  free. When nobody waits by then, the record as left is remembered: the next take may do without queueing.
- Dead holders stay in the record when one leaves: only a take may remove them (``slots``).
- Any other answer, or none: the contender is deleted in one try, then the session is destroyed, which frees
  the slot in any case. In this order: destroying a session that still holds its contender closes the slot for
  the lock-delay.
- A permit that was lost is not given back, and its session is destroyed as it is: the lock-delay then covers
  what its former holder may still have under way.
- A permit of several slots has a line and a contender for each, by as many sessions. It is lost with any of
  them, and given back whole, in one transaction. The lock-delays of the others cover its former holder then.
  Its first contender has a query; the others are looked at every few seconds, as the record is.
- A session whose permit wrote its value is not used again: a late copy of that write would turn a later
  waiter's mark into a holder's, and nobody would follow it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from consul_coord.errors import ConsulCoordError, DecodeError, TxnFailed
from consul_coord.http.endpoints import kv
from consul_coord.http.retry import send_once
from consul_coord.models import LossReason, ReleaseOutcome, TxnOp
from consul_coord.recipes.cleanup.tasks import delete_once
from consul_coord.recipes.contend.limits import LONGEST, check_value
from consul_coord.recipes.contend.queue import session_of
from consul_coord.recipes.hold.grant import Ending, KeyOfSession, KeyWatch, loss_of, rewriting, watch_of
from consul_coord.recipes.semaphore import slots
from consul_coord.recipes.session.keeping import renew

if TYPE_CHECKING:
    from consul_coord.io import IO
    from consul_coord.models import KVPair
    from consul_coord.recipes.contend.shared import Shared
    from consul_coord.recipes.hold.grant import Grant
    from consul_coord.recipes.semaphore.slots import Listing, Record
    from consul_coord.recipes.session.keeping import KeptSession
    from consul_coord.recipes.session.pool import PooledSession, SessionPool

MOST_SKIPPED = 16
"""Chances that are left out at the most, after failures in a row."""
_RELEASED = Ending(ReleaseOutcome.RELEASED)
_LOST_BY = {"missing": LossReason.KEY_DELETED, "not_holder": LossReason.RELEASED_BY_OTHER}
"""How a contender was lost that is not the session's any more; a missing permission shows nothing."""


class AdaptiveBackoff:
    """Whether something that may fail, at a price, is worth a try: decided by how the last tries went.

    After a failure 1 chance is left out, after the next one in a row 2, then 4, up to 16; a success starts
    again.
    """

    def __init__(self) -> None:
        self._to_skip = 0
        self._penalty = 1

    def worth_a_try(self) -> bool:
        """Return whether to try this time; a no is counted."""
        if not self._to_skip:
            return True
        self._to_skip -= 1
        return False

    def succeeded(self) -> None:
        """Take note of a success."""
        self._penalty = 1

    def failed(self) -> None:
        """Take note of a failure."""
        self._to_skip = self._penalty
        self._penalty = min(2 * self._penalty, MOST_SKIPPED)


class Memory:
    """A semaphore object's memory from one attempt or hold to the next, with one coordinator."""

    def __init__(self, pool: SessionPool, prefix: str, flags: int) -> None:
        self.prefix = prefix
        self.directory = slots.directory(prefix)
        """The prefix of all its keys."""
        self.record_key = slots.record_key(prefix)
        self.flags = flags
        self.sessions = pool
        self.tidy_leave = AdaptiveBackoff()
        self.quick_take = AdaptiveBackoff()
        self._left: list[Record] = []

    def left(self, listing: Listing) -> None:
        """Remember the record as this client left it, if nobody waits."""
        self._left = [] if listing.wanted() else [listing.record]

    def recall(self, permits: int) -> Record | None:
        """Return the record as left last, once, if so many slots were free; None if it is not worth a try."""
        left, self._left = self._left, []
        fits = left and len(left[0].holders) + permits <= left[0].limit
        return left[0] if fits and self.quick_take.worth_a_try() else None

    def read(self, pairs: tuple[KVPair, ...], index: int) -> Listing:
        """Read a listing made after a take, when there is a record. Raises DecodeError."""
        return slots.read(self.prefix, pairs, limit=0, flags=self.flags, index=index)


class PermitKind(KeyOfSession):
    """How a permit is held."""

    def __init__(
        self,
        client: Shared,
        memory: Memory,
        sessions: tuple[PooledSession, ...],
        record: Record,
        *,
        alone: bool,
        further: tuple[KVPair, ...],
    ) -> None:
        self._client = client
        self._memory = memory
        self._sessions = sessions
        """Those that hold a slot each, the hold's own first."""
        self._ids = frozenset([session.id for session in sessions])
        self._further = further
        """The contenders of the others, as the take made them."""
        self._further_checks = tuple(map(_check_of, further))
        self._further_deletes = tuple(map(_delete_of, further))
        self._record = record
        """The record as of the take."""
        self._alone = alone
        """Whether nobody else was there at the take, and the record has not been seen to change since."""
        self._record_deleted = False
        """Whether the record was found to be missing."""

    def watches(self, hold: Grant) -> tuple[KeyWatch, ...]:
        """Return the watches on the contenders and on the record."""
        key = self._memory.record_key
        record = KeyWatch(key, self._record.index, self._record_loss, seldom=True)
        own = replace(watch_of(hold), directory=self._memory.directory)
        return own, record, *map(_watch_further, self._further, hold.all_kept[1:])

    def guard(self, hold: Grant) -> tuple[TxnOp, ...]:  # noqa: ARG002 - a HoldKind's
        """Return the checks of the further contenders."""
        return self._further_checks

    def _record_loss(self, pair: KVPair | None) -> LossReason | None:
        if pair is None:
            self._record_deleted = True
            return LossReason.KEY_DELETED
        self._alone = self._alone and pair.modify_index <= self._record.index
        try:
            record = slots.read_record(pair, limit=0, flags=self._memory.flags)
        except DecodeError:
            return LossReason.SLOT_REMOVED
        self._memory.sessions.saw(record.index, record.holders)
        return None if self._ids <= set(record.holders) else LossReason.SLOT_REMOVED

    def named(self, hold: Grant) -> str:  # noqa: ARG002 - a HoldKind's
        """Return the prefix of the semaphore."""
        return repr(self._memory.prefix)

    def words_for(self, loss: LossReason) -> str | None:
        """Return that it is the record that was deleted, if it was that."""
        if loss is LossReason.KEY_DELETED and self._record_deleted:
            return f"the semaphore's record {self._memory.record_key!r} was deleted"
        return None

    def kept_as(self, hold: Grant, value: bytes) -> bytes:
        """Return the value with a holder's mark. Raises ValueTooLarge."""

        def rewrite(value: bytes) -> tuple[TxnOp, ...]:
            held = slots.holding(value)
            return rewriting(hold.key, hold.session, held, index=LONGEST, flags=hold.flags)

        check_value((self._memory.prefix,), value, (rewrite,))
        self._sessions[0].settled = False
        return slots.holding(value)

    # -- giving back

    async def give_back(self, io: IO, hold: Grant, *, deadline: float) -> Ending:
        """Free the slots; the sessions are kept for the next attempt if they are fit for that."""
        with suppress(ConsulCoordError):
            return await self._leave(io, hold, deadline)
        await self._destroy(io, hold, deadline)
        return _RELEASED

    async def _leave(self, io: IO, hold: Grant, deadline: float) -> Ending:
        if self._alone and self._memory.tidy_leave.worth_a_try():
            try:
                return await self._leave_tidily(io, hold, deadline)
            except TxnFailed:
                self._memory.tidy_leave.failed()
        return await self._withdraw(io, hold, deadline)

    async def _leave_tidily(self, io: IO, hold: Grant, deadline: float) -> Ending:
        """Take the sessions out of the record, too."""
        memory, record = self._memory, self._record.without(self._ids)
        ops = (
            TxnOp.check_session(hold.key, hold.session),
            *self._further_checks,
            TxnOp.cas(memory.record_key, record.encode(), record.index, flags=record.flags),
            TxnOp.delete_cas(hold.key, hold.last_index),
            *self._further_deletes,
            TxnOp.get_tree(memory.directory),
        )
        result = await send_once(io, kv.txn(*ops), deadline=deadline)
        self._memory.tidy_leave.succeeded()
        self._memory.left(self._memory.read(result.entries[-1], result.index))
        self._put_back(taken_at=0)
        return _RELEASED

    def _put_back(self, *, taken_at: int) -> None:
        for session in self._sessions:
            session.taken_at = taken_at
            self._memory.sessions.put_back(session)

    async def _withdraw(self, io: IO, hold: Grant, deadline: float) -> Ending:
        """Delete the contenders alone, and look whether they stood for slots until then."""
        ops = (
            TxnOp.check_session(hold.key, hold.session),
            *self._further_checks,
            TxnOp.get(self._memory.record_key),
            TxnOp.delete_cas(hold.key, hold.last_index),
            *self._further_deletes,
        )
        try:
            result = await send_once(io, kv.txn(*ops), deadline=deadline)
        except TxnFailed as error:
            loss = await self._found(io, error, deadline)
            if loss is None:
                raise
            self.lost(hold)
            return Ending(ReleaseOutcome.ALREADY_LOST, loss)
        self._put_back(taken_at=hold.fence)
        record = result[len(self._sessions)]
        loss = self._record_loss(record[0] if record else None)
        return _RELEASED if loss is None else Ending(ReleaseOutcome.ALREADY_LOST, loss)

    async def _found(self, io: IO, error: TxnFailed, deadline: float) -> LossReason | None:
        """Return what a refused withdrawal shows to have happened to the slot; None when it is still ours."""
        refused = {failure.op_index: failure.kind for failure in error.failures}
        at = min(refused, default=len(self._sessions))
        if at >= len(self._sessions):
            return self._record_loss(None) if refused.get(len(self._sessions)) == "missing" else None
        loss, kept = _LOST_BY.get(refused[at]), self._sessions[at].kept
        if loss is not None:
            with suppress(ConsulCoordError):  # the key itself is evidence enough
                await renew(io, self._client.sessions, kept, deadline=deadline)
        return LossReason.SESSION_GONE if kept.lease.ended_by is LossReason.SESSION_GONE else loss

    async def _destroy(self, io: IO, hold: Grant, deadline: float) -> None:
        await delete_once(io, hold.key, *(pair.key for pair in self._further), deadline=deadline)
        for session in self._sessions:
            await session.destroy(io, deadline=deadline)

    def abandon(self, hold: Grant) -> None:  # noqa: ARG002 - a HoldKind's
        """Leave the deleting of the contenders and the destroying of the sessions to the reaper."""
        for session in self._sessions:
            session.abandon()

    def lost(self, hold: Grant) -> None:
        """Leave the destroying of the sessions to the reaper, with their contenders as they are."""
        for session in self._sessions:
            session.contender = None
        self.abandon(hold)


def _check_of(contender: KVPair) -> TxnOp:
    return TxnOp.check_session(contender.key, session_of(contender))


def _delete_of(contender: KVPair) -> TxnOp:
    return TxnOp.delete_cas(contender.key, contender.modify_index)


def _watch_further(contender: KVPair, kept: KeptSession) -> KeyWatch:
    """Return the watch on a further contender of a permit."""
    loss = partial(loss_of, kept.id)
    return KeyWatch(contender.key, contender.modify_index, loss, kept=kept, seldom=True)
