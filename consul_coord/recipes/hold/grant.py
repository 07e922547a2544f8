"""Is it still mine? One small state machine per hold, which answers that without any I/O.

=============  =======================================  ===========================================
from           what                                     to
=============  =======================================  ===========================================
HELD           the session's renewal fails              JEOPARDY
JEOPARDY       a renewal succeeds                       HELD
HELD/JEOPARDY  the deadline passes                      LOST (whose it was, of the three below)
HELD/JEOPARDY  the session ends, or evidence of a loss  LOST (reason)
HELD/JEOPARDY  ``begin_release``                        RELEASED
=============  =======================================  ===========================================

Rules
- The deadline is the earliest of three: the end of the lease (EXPIRED), of ``max_hold`` (MAX_HOLD), and of
  the time in which the holder has promised its next beat (STALLED).
- HELD and JEOPARDY are read off the session's lease at each look, so a process that was paused past its
  deadline reads LOST at its first look, before any timer or reply tells it.
- The first one that ends it settles the end, once, and nothing undoes that. The same one also notifies all
  others.
- The fence is taken once, from the granting reply, and never changes.
- A hold may depend on several sessions, as a permit of several slots does. It has the lease of all then.
- Callers have a ``Handle``: when nobody refers to it any more, nobody can release the hold, and the register
  gives it back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from consul_coord.errors import LockLost
from consul_coord.io import Once, Signal
from consul_coord.models import HoldState, LossReason, Sequencer, TxnOp
from consul_coord.recipes.session.lease import AllOf
from consul_coord.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.io import IO
    from consul_coord.models import KVPair, ReleaseOutcome
    from consul_coord.recipes.session.keeping import KeptSession
    from consul_coord.recipes.session.lease import LeaseView


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class KeyWatch(Value):
    """One key whose changes may mean that a hold is lost."""

    key: str
    index: int
    """ModifyIndex to watch from."""
    loss: Callable[[KVPair | None], LossReason | None]
    """Returns what a reading of the key, newer than the fence, says of the hold: None when it goes on."""
    kept: KeptSession | None = None
    """The session that has locked it, if that is not the hold's first."""
    seldom: bool = False
    """Whether it is enough to look at the key every few seconds: a connection for it would be too much."""
    directory: str | None = None
    """The prefix of all keys that the hold depends on, where it has such keys besides this one."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Ending(Value):
    """The outcome of giving back a hold. ``loss`` is why it was not ours any more, where that was found."""

    outcome: ReleaseOutcome
    loss: LossReason | None = None


class HoldKind(Protocol):
    """The object of a hold: its dependencies, how its value is kept, how it is given back.

    A hold brings its kind with it from the grant. Releasing, watching, closing and cleaning up work alike for
    every kind, and a new kind is one more implementation. ``KeyOfSession`` has the answers that most give.
    """

    def watches(self, hold: Grant) -> tuple[KeyWatch, ...]:
        """Return the keys that the hold depends on, its own first."""
        ...

    def guard(self, hold: Grant) -> tuple[TxnOp, ...]:
        """Return the operations that check what the hold depends on besides its own key."""
        ...

    def named(self, hold: Grant) -> str:
        """Return what the hold is of, in the names that its user gave, quoted."""
        ...

    def words_for(self, loss: LossReason) -> str | None:
        """Return what a loss means for this hold, where it is not what it means for any."""
        ...

    def kept_as(self, hold: Grant, value: bytes) -> bytes:
        """Return how a value is kept in the key; asked before each write."""
        ...

    def ended(self, hold: Grant) -> None:
        """Let the holder, who may hear of the end before it is given back, queue behind that."""
        ...

    async def give_back(self, io: IO, hold: Grant, *, deadline: float) -> Ending:
        """Give the hold back on the server; raises ConsulCoordError when that is not known to be done."""
        ...

    def abandon(self, hold: Grant) -> None:
        """Have the hold given back in the background; from any thread, and more than once."""
        ...

    def lost(self, hold: Grant) -> None:
        """Let go of what a lost hold still has; from any thread."""
        ...


class Announcer(Protocol):
    """A listener for a hold's end."""

    def ended(self, hold: Grant, /) -> object:
        """Tell everybody of a loss."""
        ...

    def abandoned(self, hold: Grant, /) -> object:
        """Give back a hold that nobody refers to any more."""
        ...


class KeyOfSession:
    """The answers of a kind whose hold stands and falls with its own key."""

    def watches(self, hold: Grant) -> tuple[KeyWatch, ...]:
        """Return the watch on the key."""
        return (watch_of(hold),)

    def guard(self, hold: Grant) -> tuple[TxnOp, ...]:  # noqa: ARG002 - a HoldKind's
        """Return nothing: there is no other key."""
        return ()

    def named(self, hold: Grant) -> str:
        """Return the key."""
        return repr(hold.key)

    def words_for(self, loss: LossReason) -> str | None:  # noqa: ARG002 - a HoldKind's
        """Return nothing: a loss means what it means for any hold."""
        return None

    def kept_as(self, hold: Grant, value: bytes) -> bytes:  # noqa: ARG002 - a HoldKind's
        """Return the value: it is kept as it is."""
        return value

    def ended(self, hold: Grant) -> None:
        """Do nothing: nobody queues in this client."""


class Grant:
    """One grant of one key to one session, as far as this client knows."""

    __slots__ = (
        "__weakref__",
        "_announcer",
        "_end",
        "_limits",
        "_lost_callbacks",
        "all_kept",
        "depth",
        "doubtful",
        "entered",
        "fence",
        "flags",
        "given_back",
        "granted_at",
        "kept",
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
        "refused_again",
        "released_by",
        "reported",
        "session",
        "settled",
        "told",
        "value",
        "writing",
    )

    def __init__(
        self,
        granted: KVPair,
        *,
        kept: KeptSession,
        value: bytes,
        flags: int,
        kind: HoldKind,
        now: float,
        announcer: Announcer,
        others: tuple[KeptSession, ...],
    ) -> None:
        self.key = granted.key
        self.session = kept.id
        self.kept = kept
        self.all_kept = (kept, *others)
        """All sessions that it depends on."""
        self.fence = granted.modify_index
        self.last_index = granted.modify_index
        """ModifyIndex of this hold's own last write to the key."""
        self.lock_index = granted.lock_index
        self.value = value
        self.flags = flags
        self.lease: LeaseView = AllOf(each.lease for each in self.all_kept) if others else kept.lease
        self.kind = kind
        """How it is watched, guarded and given back."""
        self.depth = 1
        """How many acquires it stands for: more with a re-entrant lock, none once it was lost and left."""
        self.entered = False
        """Whether a block of a leader's work was entered: the leader is at work until that ends."""
        self.refused_again = False
        """Whether a re-entrant acquire has reported the loss.

        The next one, if nothing was released since, takes the lock as if it had not been held.
        """
        self.granted_at = now
        self.lost = Signal()
        """Raised at a loss, never at a release."""
        self.settled = Signal()
        """Raised when the release has an outcome."""
        self.outcome: Once[ReleaseOutcome] = Once()
        self.released_by: Once[object] = Once()
        """The thread or task that was first to release it."""
        self._end: Once[tuple[HoldState, LossReason | None]] = Once()
        self.over = Signal()
        """Raised at the end, whichever it is."""
        self.loss_found: LossReason | None = None
        """The earlier loss that the release found, unnoticed until then."""
        self.writing: dict[object, bytes] = {}
        """The value of each write by this hold that is under way."""
        self.doubtful: set[int] = set()
        """The hashes of the values of writes that ended without an answer, since the last one known to be
        applied. The values may be many and large."""
        self.overwritten_at = 0
        """ModifyIndex of the last write by somebody else that was reported."""
        self._announcer = announcer
        self.reported = False
        """Whether its beginning was reported: its end is reported later than that."""
        self.told: Once[LossReason] = Once()
        """Settled when its loss was reported."""
        self.given_back = False
        """Whether it was given back to the server, or is the reaper's to give back."""
        self._lost_callbacks: dict[object, Callable[[LossReason], object]] = {}
        self._limits: dict[LossReason, float] = {}
        """When it ends at the latest, however long the session lasts, and what that is then."""

    # -- how long

    @property
    def valid_until(self) -> float:
        """The deadline."""
        return min(self.lease.valid_until, self.limited_until) if self._limits else self.lease.valid_until

    @property
    def limited_until(self) -> float:
        """When it ends at the latest, however long the session lasts."""
        return min(list(self._limits.values()), default=math.inf)  # a copy: another thread may add one

    def limit(self, reason: LossReason, until: float) -> None:
        """Have it end at a time, for a reason; what was said before for that reason is replaced."""
        self._limits[reason] = until

    def limit_of(self, reason: LossReason) -> float:
        """Return when it ends for a reason; never if nothing was said."""
        return self._limits.get(reason, math.inf)

    def _over_by(self, now: float) -> LossReason | None:
        """Return what has ended it at ``now``, if anything: of several what came first."""
        if not self._limits and self.lease.is_valid(now):
            return None
        ends = {LossReason.EXPIRED: self.lease.valid_until, **self._limits}
        first = min(ends, key=ends.__getitem__)
        return self.lease.ended_by or (first if now >= ends[first] else None)

    # -- the state

    def look(self, now: float) -> tuple[HoldState, LossReason | None]:
        """Return the state at ``now`` and, when it is LOST, why.

        Settles the loss if this is the first to see it.
        """
        if not self._end and (over_by := self._over_by(now)) is not None:
            self.lose(over_by)
        end = self._end.value if self._end else None
        return end or (HoldState.HELD if self.lease.in_contact else HoldState.JEOPARDY, None)

    def loss(self, now: float) -> LossReason | None:
        """Return why the hold was lost, also where only its release found that; None when it was not."""
        ended_by = self.look(now)[1]
        return self.loss_found or ended_by

    def is_lost(self, now: float) -> bool:
        """Return whether the hold is lost at ``now``."""
        return self.look(now)[0] is HoldState.LOST

    def is_held(self, now: float) -> bool:
        """Return whether the hold may be relied on at ``now``."""
        return self.look(now)[1] is None and not self._end

    @property
    def ended(self) -> bool:
        """Whether it was released or lost, as settled so far; does not look at the time."""
        return bool(self._end)

    @property
    def reason(self) -> LossReason | None:
        """Why it was lost, as settled so far; does not look at the time."""
        end = self._end.value
        return None if end is None else end[1]

    @property
    def released(self) -> bool:
        """Whether it was given up, rather than lost or still held."""
        end = self._end.value if self._end else None
        return end is not None and end[0] is HoldState.RELEASED

    @property
    def left(self) -> bool:
        """Whether its owner is done with it: it was released, or lost and given up as often as acquired."""
        return self.released or self.depth == 0

    def lose(self, reason: LossReason) -> bool:
        """End the hold as lost; returns whether this call did it."""
        lost = self.settle_loss(reason)
        if lost:
            self.wake()
            self.announce_end()
        return lost

    def settle_loss(self, reason: LossReason) -> bool:
        """End the hold as lost; ``wake`` and ``announce_end`` have to follow.

        Returns whether this call did it. Where many are lost at once, see ``lose_together``.
        """
        return self._end.settle((HoldState.LOST, reason))

    def wake(self) -> None:
        """Tell those who wait for the end; again, as an exception may have struck amid that."""
        self.kind.ended(self)
        if self.reason is not None:
            self.lost.set()
        self.over.set()

    def announce_end(self) -> None:
        """Tell everybody else, once."""
        self._announcer.ended(self)

    def begin_release(self, by: object = None) -> bool:
        """End the hold as given up by a thread or task; returns False when it had ended before."""
        self.released_by.settle(by)
        if not self._end.settle((HoldState.RELEASED, None)):
            return False
        self.kind.ended(self)
        self.over.set()
        return True

    def abandon(self) -> None:
        """Have it given back: nobody refers to it any more."""
        self._announcer.abandoned(self)

    def finish_release(self, outcome: ReleaseOutcome, loss: LossReason | None = None) -> ReleaseOutcome:
        """Settle what the release came to, with the loss it found; returns the first such outcome."""
        first = self.outcome.settle(outcome)
        if first:
            self.loss_found = loss
        self.settled.set()
        return outcome if first else self.outcome.value or outcome

    def written(self, pair: KVPair, value: bytes) -> None:
        """Take note of an own write to the key that succeeded; of several the latest counts."""
        if pair.modify_index < self.last_index:
            return
        self.doubtful.clear()  # each was for an index that is gone
        self.last_index = pair.modify_index
        self.lock_index = pair.lock_index
        self.value = value

    def may_have_written(self, value: bytes) -> bool:
        """Return whether an own write of a value may be applied whose index is not known."""
        return hash(value) in self.doubtful or value in list(self.writing.values())

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


class Handle:
    """The handle of a hold: while any code refers to it, the hold is not given back."""

    __slots__ = ("__weakref__", "again", "grant", "keeps")

    def __init__(self, grant: Grant, keeps: object, *, again: bool = False) -> None:
        self.grant = grant
        self.keeps = keeps
        """The object that must live as long: the source of the hold's session, or the handle of an outer
        acquire."""
        self.again = again
        """Whether it stands for a further acquire of a hold; counted once that is surely over."""


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


def lost_error(hold: Grant, reason: LossReason) -> LockLost:
    """Return the error of a lost hold."""
    words = hold.kind.words_for(reason) or _TOLD[reason]
    message = f"the hold of {hold.kind.named(hold)} (fence {hold.fence}) was lost: {words}"
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
    LossReason.SESSION_GONE: "its session was destroyed, or a health check or the server ended it",
    LossReason.RELEASED_BY_OTHER: "another client released the key",
    LossReason.KEY_DELETED: "another client deleted the key",
    LossReason.TAKEN_OVER: "another session holds the key now",
    LossReason.SLOT_REMOVED: "the semaphore's record no longer names it",
    LossReason.FORKED: "this is a forked child, and the hold is its parent's",
    LossReason.CLIENT_CLOSED: "the client was closed, or its session was handed over",
    LossReason.RESIGNED: "it was resigned",
    LossReason.MAX_HOLD: "it had lasted for its max_hold",
    LossReason.STALLED: "its holder showed no progress: no beat, or no health, in the time promised",
}
OVERDUE = frozenset({LossReason.MAX_HOLD, LossReason.STALLED})
"""Losses after which the session goes on, and has the key still: it is given back later."""
