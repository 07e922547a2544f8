"""The kind of a place in a read-write lock that is in: its contender, held by a session of its own.

Rules
- Given back by deleting the contender; the session is kept for the next attempt.
- Where the contender was written by somebody else, or there is no answer, the contender is deleted in one
  try, then the session is destroyed: that ends the place in any case. Without the delete it would stay closed
  for the lock-delay.
- A lost place stays as it is, behind its lock-delay: that covers what its former holder may have under way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.errors import ConsulCoordError, TxnFailed
from consul_coord.http.endpoints import kv
from consul_coord.http.retry import Failures, send_once
from consul_coord.models import ReleaseOutcome, TxnOp
from consul_coord.recipes.cleanup.tasks import delete_once
from consul_coord.recipes.cleanup.unlock import read
from consul_coord.recipes.contend.limits import LONGEST, check_value
from consul_coord.recipes.hold.grant import Ending, KeyOfSession, loss_of, rewriting
from consul_coord.recipes.rwlock import queue as rwqueue

if TYPE_CHECKING:
    from consul_coord.io import IO
    from consul_coord.recipes.hold.grant import Grant
    from consul_coord.recipes.rwlock.queue import Mode
    from consul_coord.recipes.session.pool import PooledSession, SessionPool


class RwKind(KeyOfSession):
    """The kind of a place in the queue that is in: its contender, held by a session of its own."""

    def __init__(
        self, key: str, pool: SessionPool, pooled: PooledSession, mode: Mode, *, owner: object
    ) -> None:
        self._key = key
        self._pool = pool
        self._pooled = pooled
        self.mode: Mode = mode
        self._owner = owner

    def lets_in(self, key: str, owner: object) -> bool:
        """Return whether by this a thread or task has entered the lock of that key."""
        return self._key == key and self._owner == owner

    def named(self, hold: Grant) -> str:  # noqa: ARG002 - a HoldKind's
        """Return the key of the lock."""
        return repr(self._key)

    def kept_as(self, hold: Grant, value: bytes) -> bytes:
        """Return the value with the mode's mark. Raises ValueTooLarge."""

        def rewrite(value: bytes) -> tuple[TxnOp, ...]:
            kept = rwqueue.marked(self.mode, value)
            return rewriting(hold.key, hold.session, kept, index=LONGEST, flags=hold.flags)

        check_value((self._key,), value, (rewrite,))
        return rwqueue.marked(self.mode, value)

    async def give_back(self, io: IO, hold: Grant, *, deadline: float) -> Ending:
        """Delete the contender; the session is kept for the next attempt."""
        ops = (TxnOp.check_session(hold.key, hold.session), TxnOp.delete_cas(hold.key, hold.last_index))
        failures = Failures(io, deadline)
        while True:
            try:
                await send_once(io, kv.txn(*ops), deadline=deadline)
            except TxnFailed:
                return await self._end(io, hold, deadline, uncertain=failures.doubt)
            except ConsulCoordError as error:
                await failures.pause(error)
            else:
                self._pooled.settled = self._pooled.settled and not failures.doubt
                self._pool.put_back(self._pooled)
                return Ending(ReleaseOutcome.RELEASED)

    async def _end(self, io: IO, hold: Grant, deadline: float, *, uncertain: bool) -> Ending:
        """End the session, with the contender, which an earlier try has deleted or somebody has written."""
        loss = loss_of(hold.session, await read(io, hold.key, deadline))
        if loss is None:
            await delete_once(io, hold.key, deadline=deadline)
            await self._pooled.destroy(io, deadline=deadline)
        else:
            self.lost(hold)
        if loss is None or uncertain:
            return Ending(ReleaseOutcome.RELEASED)
        return Ending(ReleaseOutcome.ALREADY_LOST, loss)

    def abandon(self, hold: Grant) -> None:  # noqa: ARG002 - a HoldKind's
        """Leave the deleting of the contender and the destroying of the session to the reaper."""
        self._pooled.abandon()

    def lost(self, hold: Grant) -> None:
        """Leave the destroying of the session to the reaper, with its contender as it is."""
        self._pooled.contender = None
        self.abandon(hold)
