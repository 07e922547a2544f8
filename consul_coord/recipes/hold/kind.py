"""The common part of the kinds of hold: most stand and fall with one key that their session has locked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.models import LossReason, TxnOp
from consul_coord.recipes.hold.grant import KeyWatch

if TYPE_CHECKING:
    from consul_coord.models import KVPair
    from consul_coord.recipes.hold.grant import Grant


class KeyOfSession:
    """The answers of a kind whose hold stands and falls with its own key."""

    def watches(self, hold: Grant) -> tuple[KeyWatch, ...]:
        """Return the watch on the key."""
        return (watch_of(hold),)

    def guard(self, hold: Grant) -> tuple[TxnOp, ...]:  # noqa: ARG002 - a HoldKind's
        """Return nothing: there is no other key."""
        return ()

    def words_for(self, loss: LossReason) -> str | None:  # noqa: ARG002 - a HoldKind's
        """Return nothing: a loss means what it means for any hold."""
        return None

    def kept_as(self, hold: Grant, value: bytes) -> bytes:  # noqa: ARG002 - a HoldKind's
        """Return the value: it is kept as it is."""
        return value

    def ended(self, hold: Grant) -> None:
        """Do nothing: nobody queues in this client."""


def rewriting(key: str, session: str, value: bytes, *, index: int, flags: int) -> tuple[TxnOp, ...]:
    """Return the operations by which a session replaces the value of a key that it holds, at an index.

    "lock" by the holder keeps the LockIndex, which "set" would reset.
    """
    return TxnOp.check_index(key, index), TxnOp.lock(key, session, value=value, flags=flags)


def watch_of(hold: Grant) -> KeyWatch:
    """Return the watch on a hold's own key."""
    session = hold.session
    return KeyWatch(hold.key, hold.last_index, lambda pair: loss_of(session, pair))


def loss_of(session: str, pair: KVPair | None) -> LossReason | None:
    """Return why a session does not hold a key any more, by a reading of it; None when it does.

    The session itself is taken to live on.
    """
    if pair is None:
        return LossReason.KEY_DELETED
    if pair.session == session:
        return None
    return LossReason.RELEASED_BY_OTHER if pair.session is None else LossReason.TAKEN_OVER
