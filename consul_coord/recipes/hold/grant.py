"""Is it still mine? One small state machine per hold, which answers that without any I/O.

=============  =======================================  ==========
from           what                                     to
=============  =======================================  ==========
HELD           the session's renewal fails              JEOPARDY
JEOPARDY       a renewal succeeds                       HELD
HELD/JEOPARDY  the deadline passes                      LOST (EXPIRED)
HELD/JEOPARDY  the session ends, or evidence of a loss  LOST (reason)
HELD/JEOPARDY  ``begin_release``                        RELEASED
=============  =======================================  ==========

Rules
- HELD and JEOPARDY are read off the session's lease at each look, so a process that was paused past its
  deadline reads LOST at its first look, before any timer or reply tells it.
- The end is settled once, by whoever comes first, and never undone. Whoever settles it also tells everybody
  else.
- The fence is taken once, from the granting reply, and never changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.errors import LockLost
from consul_coord.io import Once, Signal
from consul_coord.models import HoldState, LossReason, Sequencer, TxnOp

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.models import KVPair, ReleaseOutcome
    from consul_coord.recipes.contend.tickets import Ticket
    from consul_coord.recipes.hold.kind import HoldKind
    from consul_coord.recipes.session.lease import Lease


class Grant:
    """One grant of one key to one session, as far as this client knows."""

    __slots__ = (
        "__weakref__",
        "_end",
        "_lost_callbacks",
        "_on_end",
        "_on_forgotten",
        "_source",
        "depth",
        "fence",
        "flags",
        "granted_at",
        "key",
        "kind",
        "last_index",
        "lease",
        "lock_index",
        "loss_found",
        "lost",
        "outcome",
        "over",
        "overwritten_at",
        "session",
        "settled",
        "ticket",
        "value",
        "writing",
    )

    def __init__(
        self,
        granted: KVPair,
        *,
        session: str,
        lease: Lease,
        value: bytes,
        flags: int,
        ticket: Ticket,
        kind: HoldKind,
        now: float,
        source: object = None,
        on_end: Callable[[Grant], object],
        on_forgotten: Callable[[Grant], object],
    ) -> None:
        self.key = granted.key
        self.session = session
        self.fence = granted.modify_index
        self.last_index = granted.modify_index
        """ModifyIndex of this hold's own last write to the key."""
        self.lock_index = granted.lock_index
        self.value = value
        self.flags = flags
        self.lease = lease
        self.ticket = ticket
        self.kind = kind
        """How it is watched, guarded and given back."""
        self._source = source
        self.depth = 1
        """How many acquires it stands for: more with a re-entrant lock, none once it was lost and left."""
        self.granted_at = now
        self.lost = Signal()
        """Raised at a loss, never at a release."""
        self.settled = Signal()
        """Raised when the release has an outcome."""
        self.outcome: Once[ReleaseOutcome] = Once()
        self._end: Once[tuple[HoldState, LossReason | None]] = Once()
        self.over = Signal()
        """Raised at the end, whichever it is, being forgotten included."""
        self.loss_found: LossReason | None = None
        """What the release found had happened before, unnoticed."""
        self.writing = False
        """Whether a write by this hold is under way."""
        self.overwritten_at = 0
        """ModifyIndex of the last write by somebody else that was reported."""
        self._on_end = on_end
        self._on_forgotten = on_forgotten
        self._lost_callbacks: dict[object, Callable[[LossReason], object]] = {}

    def __del__(self) -> None:
        end = getattr(self, "_end", None)
        if end is not None and end.value is None:
            self.over.set()
            self._on_forgotten(self)

    def look(self, now: float) -> tuple[HoldState, LossReason | None]:
        """Return the state at ``now`` and, when it is LOST, why.

        Settles the loss if this is the first to see it.
        """
        if self._end.value is None and not self.lease.is_valid(now):
            self.lose(self.lease.ended_by or LossReason.EXPIRED)
        end = self._end.value
        if end is not None:
            return end
        return (HoldState.HELD if self.lease.in_contact else HoldState.JEOPARDY), None

    def loss(self, now: float) -> LossReason | None:
        """Return why the hold was lost, also where only its release found that; None when it was not."""
        ended_by = self.look(now)[1]
        return self.loss_found or ended_by

    def is_lost(self, now: float) -> bool:
        """Return whether the hold is lost at ``now``."""
        return self.look(now)[0] is HoldState.LOST

    def is_held(self, now: float) -> bool:
        """Return whether the hold may be relied on at ``now``."""
        return self.look(now)[1] is None and self._end.value is None

    @property
    def ended(self) -> bool:
        """Whether it was released or lost, as settled so far; does not look at the time."""
        return self._end.value is not None

    @property
    def released(self) -> bool:
        """Whether it was given up, rather than lost or still held."""
        end = self._end.value
        return end is not None and end[0] is HoldState.RELEASED

    @property
    def left(self) -> bool:
        """Whether its owner is done with it: it was released, or lost and given up as often as acquired."""
        return self.released or self.depth == 0

    def lose(self, reason: LossReason) -> bool:
        """End the hold as lost; returns whether this call did it."""
        lost = self.settle_loss(reason)
        if lost:
            self.announce_end()
        return lost

    def settle_loss(self, reason: LossReason) -> bool:
        """End the hold as lost, telling only those who wait for it; ``announce_end`` has to follow.

        Returns whether this call did it. Where many are lost at once, all are settled before any is
        announced.
        """
        if not self._end.settle((HoldState.LOST, reason)):
            return False
        self._disown_tickets()
        self.lost.set()
        self.over.set()
        return True

    def announce_end(self) -> None:
        """Tell everybody else, once."""
        self._on_end(self)

    def begin_release(self) -> bool:
        """End the hold as given up; returns False when it had ended before."""
        if not self._end.settle((HoldState.RELEASED, None)):
            return False
        self._disown_tickets()
        self.over.set()
        self._on_end(self)
        return True

    def _disown_tickets(self) -> None:
        """Let the owner, who may hear of the end before the tickets are given up, queue behind them."""
        for ticket in self.kind.tickets(self):
            ticket.disown()

    def finish_release(self, outcome: ReleaseOutcome, loss: LossReason | None = None) -> ReleaseOutcome:
        """Settle what the release came to, with the loss it found; returns the first such outcome."""
        if self.outcome.settle(outcome):
            self.loss_found = loss
        self.settled.set()
        return self.outcome.value or outcome

    def written(self, pair: KVPair, value: bytes) -> None:
        """Take note of an own write to the key that succeeded."""
        self.last_index = pair.modify_index
        self.lock_index = pair.lock_index
        self.value = value

    @property
    def sequencer(self) -> Sequencer:
        """Return what a resource server can check the hold by."""
        return Sequencer(self.key, self.lock_index, self.session)

    def guard(self) -> tuple[TxnOp, ...]:
        """Return the operations that let a transaction succeed only while this very hold lasts."""
        return (
            TxnOp.check_session(self.key, self.session),
            TxnOp.check_index(self.key, self.last_index),
            *self.kind.guard(self),
        )

    def on_lost(self, function: Callable[[LossReason], object]) -> None:
        """Keep a callback for ``take_lost_callbacks``."""
        self._lost_callbacks[object()] = function

    def take_lost_callbacks(self) -> list[Callable[[LossReason], object]]:
        """Return the callbacks not taken so far, each to exactly one caller."""
        taken: list[Callable[[LossReason], object]] = []
        while self._lost_callbacks:
            try:
                _, function = self._lost_callbacks.popitem()
            except KeyError:
                break
            taken.append(function)
        return taken[::-1]


def reason_of(pair: KVPair | None) -> LossReason:
    """Return what must have happened to a key that its holder's living session does not hold any more."""
    if pair is None:
        return LossReason.KEY_DELETED
    return LossReason.RELEASED_BY_OTHER if pair.session is None else LossReason.TAKEN_OVER


def lost_error(hold: Grant, reason: LossReason) -> LockLost:
    """Return the error that tells of a lost hold."""
    words = hold.kind.words_for(reason) or _TOLD[reason]
    message = f"the hold of {hold.key!r} (fence {hold.fence}) was lost: {words}"
    return LockLost(message, key=hold.key, session=hold.session, fence=hold.fence, reason=reason)


def error_at_exit(hold: Grant, now: float, raised: BaseException | None) -> LockLost | None:
    """Return what leaving a ``with`` block raises, after the release, besides what its body raised.

    A loss outranks an ordinary exception of the body, which becomes its cause. It never replaces a
    KeyboardInterrupt, a SystemExit or a cancellation, nor the news of this very loss.
    """
    reason = hold.loss(now)
    if reason is None or (raised is not None and not isinstance(raised, Exception)):
        return None
    if isinstance(raised, LockLost) and raised.fence == hold.fence and raised.key == hold.key:
        return None
    return lost_error(hold, reason)


_TOLD = {
    LossReason.EXPIRED: "its session could not be renewed in time",
    LossReason.SESSION_GONE: "its session was destroyed, or ended by a health check or the server",
    LossReason.RELEASED_BY_OTHER: "somebody else released the key",
    LossReason.KEY_DELETED: "somebody deleted the key",
    LossReason.TAKEN_OVER: "another session holds the key now",
    LossReason.SLOT_REMOVED: "the semaphore's record does not name it any more",
    LossReason.FORKED: "this is a forked child, and the hold is its parent's",
    LossReason.CLIENT_CLOSED: "the client was closed",
    LossReason.RESIGNED: "it was resigned",
}
