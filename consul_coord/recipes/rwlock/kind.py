"""The kind of a place in a read-write lock that is in: its contender, held by a session of its own.

Rules
- Given back by deleting the contender; the session is kept for the next attempt.
- Where the contender was written by somebody else, or there is no answer, the session is destroyed: that ends
  the contender in any case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.errors import TxnFailed
from consul_coord.http.endpoints import kv, txn
from consul_coord.http.endpoints import session as session_endpoint
from consul_coord.http.retry import perform, send_once
from consul_coord.models import LossReason, ReadOptions, ReleaseOutcome, TxnOp
from consul_coord.recipes.hold.kind import Ending, KeyWatch
from consul_coord.recipes.lock.kind import watch_of
from consul_coord.recipes.rwlock import queue as rwqueue

if TYPE_CHECKING:
    from consul_coord.io import IO
    from consul_coord.recipes.client import ClientState
    from consul_coord.recipes.contend.tickets import Ticket
    from consul_coord.recipes.hold.grant import Grant
    from consul_coord.recipes.rwlock.queue import Mode
    from consul_coord.recipes.session.pool import PooledSession, SessionPool

_CONSISTENT = ReadOptions(consistency="consistent")


class RwKind:
    """The kind of a place in the queue that is in: its contender, held by a session of its own."""

    sole = True

    def __init__(self, sessions: SessionPool, session: PooledSession, mode: Mode) -> None:
        self._sessions = sessions
        self._session = session
        self._mode: Mode = mode

    def watches(self, hold: Grant) -> tuple[KeyWatch, ...]:
        """Return the watch on the contender."""
        return (watch_of(hold),)

    def guard(self, hold: Grant) -> tuple[TxnOp, ...]:  # noqa: ARG002 - a HoldKind's
        """Return nothing: the place stands and falls with the contender."""
        return ()

    def words_for(self, loss: LossReason) -> str | None:  # noqa: ARG002 - a HoldKind's
        """Return nothing: a loss means what it means for any hold."""
        return None

    def tickets(self, hold: Grant) -> tuple[Ticket, ...]:
        """Return the one ticket at its key."""
        return (hold.ticket,)

    def kept_as(self, value: bytes) -> bytes:
        """Return the value with the mode's mark."""
        return rwqueue.marked(self._mode, value)

    async def give_back(self, io: IO, core: ClientState, hold: Grant, *, deadline: float) -> Ending:
        """Delete the contender; the session is kept for the next attempt."""
        ops = (TxnOp.check_session(hold.key, hold.session), TxnOp.delete_cas(hold.key, hold.last_index))
        try:
            await send_once(io, txn.txn(*ops), deadline=deadline)
        except TxnFailed:
            loss = await self._loss(io, core, hold, deadline)
            if loss is not None:
                core.discard_session(self._session.kept)
                return Ending(ReleaseOutcome.ALREADY_LOST, loss)
            # Somebody has written its value: it ends with its session.
            kept = self._session.kept
            destroy = session_endpoint.destroy(kept.id)
            await perform(io, destroy, deadline=deadline, attempt=core.timeout)
            core.end_session(kept, LossReason.CLIENT_CLOSED)
            return Ending(ReleaseOutcome.RELEASED)
        self._sessions.put_back(self._session)
        return Ending(ReleaseOutcome.RELEASED)

    async def _loss(self, io: IO, core: ClientState, hold: Grant, deadline: float) -> LossReason | None:
        call = kv.get(hold.key, options=_CONSISTENT)
        pair = (await perform(io, call, deadline=deadline, attempt=core.timeout)).value
        return watch_of(hold).loss(pair)

    def abandon(self, core: ClientState, hold: Grant) -> None:  # noqa: ARG002 - a HoldKind's
        """Leave the destroying of the session to the reaper: that ends the contender."""
        core.discard_session(self._session.kept)

    lost = abandon
