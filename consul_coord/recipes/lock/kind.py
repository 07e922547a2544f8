"""The kind of a lock: its one key, held by a session that others may share.

Rules
- Given back by unlocking. The key's ticket goes on when that is answered, so that no new attempt on the key
  by this client begins before.
- Lost when the key has gone, or another session or none holds it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from consul_coord.recipes.cleanup.reaper import Unlock
from consul_coord.recipes.cleanup.unlock import unlock
from consul_coord.recipes.hold.grant import reason_of
from consul_coord.recipes.hold.kind import Ending, KeyWatch

if TYPE_CHECKING:
    from consul_coord.io import IO
    from consul_coord.models import KVPair, LossReason, TxnOp
    from consul_coord.recipes.client import ClientState
    from consul_coord.recipes.contend.tickets import Ticket
    from consul_coord.recipes.hold.grant import Grant


def watch_of(hold: Grant) -> KeyWatch:
    """Return the watch on a hold's own key."""
    return KeyWatch(hold.key, hold.last_index, partial(loss_of, hold.session))


def loss_of(session: str, pair: KVPair | None) -> LossReason | None:
    """Return why a session does not hold a key any more; None when it does."""
    return None if pair is not None and pair.session == session else reason_of(pair)


class LockKind:
    """How locks are held."""

    sole = False

    def watches(self, hold: Grant) -> tuple[KeyWatch, ...]:
        """Return the watch on the key."""
        return (watch_of(hold),)

    def guard(self, hold: Grant) -> tuple[TxnOp, ...]:  # noqa: ARG002 - a HoldKind's
        """Return nothing: there is no other key."""
        return ()

    def words_for(self, loss: LossReason) -> str | None:  # noqa: ARG002 - a HoldKind's
        """Return nothing: a loss means what it means for any hold."""
        return None

    def tickets(self, hold: Grant) -> tuple[Ticket, ...]:
        """Return the one ticket at its key."""
        return (hold.ticket,)

    def kept_as(self, value: bytes) -> bytes:
        """Return the value: it is kept as it is."""
        return value

    async def give_back(self, io: IO, core: ClientState, hold: Grant, *, deadline: float) -> Ending:
        """Unlock the key, and let the next one have its ticket."""
        found = await unlock(
            io,
            key=hold.key,
            session=hold.session,
            index=hold.last_index,
            value=hold.value,
            flags=hold.flags,
            deadline=deadline,
            read_queue=hold.key not in core.without_queue,
        )
        core.note_queue(found.queue, hold.session)
        core.queues.leave(hold.ticket)
        return Ending(found.outcome, found.loss)

    def abandon(self, core: ClientState, hold: Grant) -> None:
        """Leave the unlocking to the reaper, who has the key's ticket until then."""
        core.reaper.add(Unlock.of(hold))

    def lost(self, core: ClientState, hold: Grant) -> None:
        """Let the next one have the key's ticket."""
        core.queues.leave(hold.ticket)


LOCK_KIND = LockKind()
