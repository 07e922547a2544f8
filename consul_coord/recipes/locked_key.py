"""The tenure of a lock: its one key, held by a session that others may share.

Rules
- Given back by unlocking. The key's turn goes on when that is answered, so that no new attempt on the key by
  this client begins before.
- Lost when the key has gone, or another session or none holds it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from consul_coord.recipes.hold import reason_of
from consul_coord.recipes.reaper import Unlock
from consul_coord.recipes.tenure import Ending, KeyWatch
from consul_coord.recipes.unlock import unlock

if TYPE_CHECKING:
    from consul_coord.io import IO
    from consul_coord.models import KVPair, LossReason, TxnOp
    from consul_coord.recipes.coordinator import Coordinator
    from consul_coord.recipes.hold import HoldCore
    from consul_coord.recipes.local_queue import Turn


def watch_of(hold: HoldCore) -> KeyWatch:
    """Return the watch on a hold's own key."""
    return KeyWatch(hold.key, hold.last_index, partial(loss_of, hold.session))


def loss_of(session: str, pair: KVPair | None) -> LossReason | None:
    """Return why a session does not hold a key any more; None when it does."""
    return None if pair is not None and pair.session == session else reason_of(pair)


class LockedKey:
    """How locks are held."""

    sole = False

    def watches(self, hold: HoldCore) -> tuple[KeyWatch, ...]:
        """Return the watch on the key."""
        return (watch_of(hold),)

    def guard(self, hold: HoldCore) -> tuple[TxnOp, ...]:  # noqa: ARG002 - a Tenure's
        """Return nothing: there is no other key."""
        return ()

    def words_for(self, loss: LossReason) -> str | None:  # noqa: ARG002 - a Tenure's
        """Return nothing: a loss means what it means for any hold."""
        return None

    def turns(self, hold: HoldCore) -> tuple[Turn, ...]:
        """Return the one turn at its key."""
        return (hold.turn,)

    def kept_as(self, value: bytes) -> bytes:
        """Return the value: it is kept as it is."""
        return value

    async def give_back(self, io: IO, core: Coordinator, hold: HoldCore, *, deadline: float) -> Ending:
        """Unlock the key, and let the next one have its turn."""
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
        core.queues.leave(hold.turn)
        return Ending(found.outcome, found.loss)

    def abandon(self, core: Coordinator, hold: HoldCore) -> None:
        """Leave the unlocking to the reaper, who has the key's turn until then."""
        core.reaper.add(Unlock.of(hold))

    def lost(self, core: Coordinator, hold: HoldCore) -> None:
        """Let the next one have the key's turn."""
        core.queues.leave(hold.turn)


LOCKED_KEY = LockedKey()
