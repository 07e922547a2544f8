"""The kind of hold that a lock gives: its keys, held by a session that others may share.

Rules
- The hold stands on all its keys: the loss of one is its loss, and what is still locked is then given back.
- Given back in one transaction; where one of several keys has changed, each by itself.
- The keys' tickets go on when that is answered, so that no new attempt on a key by this client begins before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.models import LossReason, ReleaseOutcome, TxnOp
from consul_coord.recipes.cleanup.unlock import Locked, unlock, unlock_together
from consul_coord.recipes.contend.limits import check_value
from consul_coord.recipes.hold.grant import OVERDUE, Ending, KeyWatch
from consul_coord.recipes.hold.kind import KeyOfSession, loss_of, watch_of

if TYPE_CHECKING:
    from consul_coord.io import IO
    from consul_coord.recipes.cleanup.unlock import Unlocked
    from consul_coord.recipes.hold.grant import Grant
    from consul_coord.recipes.lock.keys import Keys

_OF_ONE_KEY = {LossReason.KEY_DELETED, LossReason.RELEASED_BY_OTHER, LossReason.TAKEN_OVER}
"""Losses after which the session may still hold other keys."""


class LockKind(KeyOfSession):
    """One key."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def kept_as(self, value: bytes) -> bytes:
        """Return the value, which is kept as it is. Raises ValueTooLarge."""
        return check_value(self._keys.names, value)

    def ended(self, hold: Grant) -> None:  # noqa: ARG002 - a HoldKind's
        """Let the holder queue behind what is still to be given back."""
        self._keys.disown()

    async def give_back(self, io: IO, hold: Grant, *, deadline: float) -> Ending:
        """Unlock the key, and see who waits for it."""
        found = await unlock(
            io,
            self._own(hold),
            session=hold.session,
            flags=hold.flags,
            deadline=deadline,
            tree=self._keys.queue_to_read(hold.key),
        )
        self._keys.saw_queue(hold.key, hold.session, found.tree)
        self._keys.leave()
        return _ending(hold, found)

    def _own(self, hold: Grant) -> Locked:
        return Locked(hold.key, hold.last_index, hold.value, remove=bool(self._keys.remove))

    def abandon(self, hold: Grant) -> None:
        """Leave the unlocking to the reaper, which has the tickets until then."""
        fence = None if hold.reason in OVERDUE else hold.fence  # which is told to be released
        self._keys.give_back(hold.session, fence=fence, value=hold.value)

    def lost(self, hold: Grant) -> None:  # noqa: ARG002 - a HoldKind's
        """Let the next one have the key."""
        self._keys.leave()


class MultiLockKind(LockKind):
    """Several keys, held as one: the hold's own, which is the first, and others as they were granted."""

    def __init__(self, keys: Keys, others: tuple[Locked, ...]) -> None:
        super().__init__(keys)
        self._others = others

    def watches(self, hold: Grant) -> tuple[KeyWatch, ...]:
        """Return a watch on every key."""
        own = watch_of(hold)
        return (own, *(KeyWatch(other.key, other.index, own.loss) for other in self._others))

    def guard(self, hold: Grant) -> tuple[TxnOp, ...]:
        """Return the checks of the other keys."""
        return tuple(
            op
            for other in self._others
            for op in (
                TxnOp.check_session(other.key, hold.session),
                TxnOp.check_index(other.key, other.index),
            )
        )

    async def give_back(self, io: IO, hold: Grant, *, deadline: float) -> Ending:
        """Unlock all keys."""
        found = await unlock_together(
            io,
            (self._own(hold), *self._others),
            session=hold.session,
            flags=hold.flags,
            deadline=deadline,
        )
        self._keys.leave()
        lost = next((one for one in found if not one.ours), found[0])
        return _ending(hold, lost)

    def lost(self, hold: Grant) -> None:
        """Let others have the keys: at once, or when the reaper has unlocked what is still locked."""
        if hold.reason in _OF_ONE_KEY:
            self._keys.give_back(hold.session)
        else:
            self._keys.leave()


def _ending(hold: Grant, found: Unlocked) -> Ending:
    if found.ours:
        return Ending(ReleaseOutcome.RELEASED)
    return Ending(ReleaseOutcome.ALREADY_LOST, loss_of(hold.session, found.pair))
