"""The holds of one client: their owners, granting, giving up, ending, and the reports of that.

Rules
- A *claim* names all that this client has, or may have, on the server. It is entered before the request that
  makes it true is sent, with an object that answers for it: the attempt, then the hold's handle, then the
  call that releases it. If that object is gone and the claim is still entered, the sweep gives it back, in
  the background, every ``SWEEP`` seconds. So whatever interrupts a call, at whichever line, needs no more
  than the end of its frames. There is no finalizer to be interrupted in its turn.
- Entering, passing on and removing are each one atomic operation on a dict: from any thread, and from a
  signal handler.
- A hold is registered from its grant until it is given back, or its loss is announced. One that lasted too
  long is in ``limits`` from then on, until its key is given back.
- The end is settled in the hold; announcing it can be repeated, so that the sweep finishes what an
  interrupted call began.
- A hold that nobody refers to any more is given back. A hold of a session that was exported goes on
  elsewhere.
- When the client closes, its holds end first, and ``close`` gives them back.

Rules of a release
- The hold ends here first, then on the server: no code relies on it while the key is given away.
- How it is given back is its kind's affair.
- RELEASED: it was ours and was given back. ALREADY_LOST: it was not ours any more. UNKNOWN: no answer came in
  time, and the reaper goes on.
- From its first line the call answers for the hold. If it is interrupted, the register finds that out.
"""

from __future__ import annotations

import weakref
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from consul_coord.errors import ConsulCoordError
from consul_coord.events import Acquired, Forgotten, HandedOver, Lost, Released
from consul_coord.io import Signal
from consul_coord.models import LossReason, ReleaseOutcome, _validate
from consul_coord.recipes.hold.asking import check
from consul_coord.recipes.hold.grant import OVERDUE, Ending, Grant, Handle
from consul_coord.recipes.hold.limits import Limits
from consul_coord.recipes.session.keeping import lose_together

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from consul_coord.io import IO, Host
    from consul_coord.models import KVPair
    from consul_coord.recipes.hold.grant import HoldKind
    from consul_coord.recipes.session.keeping import KeptSession

T = TypeVar("T")
V = TypeVar("V")

BUDGET = 8.0
"""Seconds for which a release waits for its answer before it leaves the rest to the reaper.

Where the agent has no room for another connection, the release waits for the end of a blocking query: more
than that lasts.
"""
SWEEP = 0.5
"""Seconds between two sweeps."""
MOST_REMEMBERED = 10_000
"""Of so many keys the latest is remembered; of older ones the server is asked again."""

_UNKNOWN = Ending(ReleaseOutcome.UNKNOWN)


class Claim(Protocol):
    """Something that this client has, or may have, on the server."""

    def abandon(self) -> None:
        """Have it given back in the background: nobody answers for it any more. Repeatable."""
        ...


class Register:
    """The claims of one client, and who answers for each, by weak references."""

    def __init__(self) -> None:
        self._claims: dict[Claim, weakref.ref[object]] = {}

    def enter(self, claim: Claim, answerer: object) -> None:
        """Enter a claim, or pass it on: ``answerer`` answers for it from now on."""
        self._claims[claim] = weakref.ref(answerer)

    def remove(self, claim: Claim) -> None:
        """Remove a claim that is settled; harmless when it is not entered."""
        self._claims.pop(claim, None)

    def all(self, kind: type[T]) -> Iterator[T]:
        """Iterate over the claims of one kind."""
        return (claim for claim in list(self._claims) if isinstance(claim, kind))

    def sweep(self) -> None:
        """Abandon the claims that nobody answers for.

        The newest first: where an acquire was interrupted just after it made a hold, that has ended before
        its keys are given back.
        """
        for claim, answerer in reversed(self._claims.copy().items()):
            if answerer() is None and self._claims.get(claim) is answerer:
                claim.abandon()
                self.remove(claim)

    def __len__(self) -> int:
        return len(self._claims)


class Latest(dict[str, V]):
    """The latest that is known of each key. It is bounded: the oldest is forgotten first."""

    def remember(self, key: str, value: V) -> None:
        """Keep the latest of a key."""
        self.pop(key, None)
        self[key] = value
        while len(self) > MOST_REMEMBERED:
            with suppress(RuntimeError):  # another thread has written between these two calls
                self.pop(next(iter(self)), None)


class Holds:
    """See the module."""

    def __init__(
        self,
        host: Host,
        register: Register,
        watch: Callable[[Grant], object],
        waits: Collection[object],
        end_waits: Callable[[str], object],
    ) -> None:
        self._host = host
        self.register = register
        self.fences: Latest[int] = Latest()
        """The latest fence that this client got for each key: the next one must be above it."""
        self.limits = Limits(host)
        self._watch = watch
        self._waits = waits
        """Those of this client for changes, which ``end_waits`` ends for a key."""
        self._end_waits = end_waits
        self._closing = False
        self._given_up: dict[Grant, None] = {}

    def grant(
        self,
        granted: KVPair,
        *,
        kept: KeptSession,
        value: bytes,
        flags: int,
        kind: HoldKind,
        keeps: object = None,
        fence: int | None = None,
        others: tuple[KeptSession, ...] = (),
        began: float | None = None,
    ) -> Handle:
        """Register a hold that the server has granted, and report it; returns what keeps it.

        ``keeps`` lives as long as the hold does. ``fence`` is the key's ModifyIndex if None. ``others`` are
        the sessions that the hold depends on besides. ``began``: when its attempt began; None for one that
        was reported before.
        """
        hold = Grant(
            granted,
            kept=kept,
            value=value,
            flags=flags,
            kind=kind,
            now=self._host.now(),
            announcer=self,
            others=others,
        )
        hold.fence = granted.modify_index if fence is None else fence
        handle = Handle(hold, keeps)
        self.register.enter(hold, handle)
        if began is not None:
            self._host.emit(Acquired(hold.key, hold.session, hold.fence, hold.granted_at - began))
        hold.reported = True
        # Only now may watches and renewals find its end: that is reported after its beginning.
        for each in hold.all_kept:
            each.dependents[hold] = None
        self._watch(hold)
        self.ended(hold)  # the session may have ended before it had this hold among its dependents
        self.changed(hold.key)
        return handle

    def changed(self, key: str) -> None:
        """End the waits of this client for a key that it has taken or given back itself."""
        if self._waits:
            self._end_waits(key)

    def all(self) -> Iterator[Grant]:
        """Iterate over the holds that have not ended."""
        return (hold for hold in self.register.all(Grant) if not hold.ended)

    # -- the end

    def ended(self, hold: Grant) -> None:
        """Report a loss, once; a release has its outcome instead.

        A hold whose beginning is not reported yet is left to ``grant``, which looks for an end after that.
        Closing gives such a hold back all the same: a signal handler may close the client amid the report.
        """
        reason = hold.look(self._host.now())[1]
        by_closing = reason is LossReason.CLIENT_CLOSED and self._closing and not hold.kept.exported
        if reason is None or not (hold.reported or by_closing):
            return
        hold.wake()
        self.call_back(hold)
        if by_closing:
            if not hold.given_back:
                self._given_up[hold] = None
        else:
            if reason in OVERDUE:
                self.limits.owe(hold)
            else:
                hold.kind.lost(hold)
            if hold.told.settle(reason):
                self._host.emit(self._news_of(hold, reason))
        self.forget(hold)

    def _news_of(self, hold: Grant, reason: LossReason) -> Lost | HandedOver:
        if not hold.kept.exported or reason is not LossReason.CLIENT_CLOSED:
            return Lost(hold.key, hold.session, hold.fence, reason)
        for watch in hold.kind.watches(hold):
            self.fences.pop(watch.key, None)  # somebody else goes on with the hold
        return HandedOver(hold.key, hold.session, hold.fence)

    def forget(self, hold: Grant) -> None:
        """Take a hold out of the register: it is given back, or its loss is announced."""
        for each in hold.all_kept:
            each.dependents.pop(hold, None)
        self.register.remove(hold)

    def abandoned(self, hold: Grant) -> None:
        """Give back a hold that nobody refers to any more."""
        if hold.ended and not hold.released:
            hold.reported = True  # as far as it will be: the call that got it was interrupted
            self.ended(hold)
            return
        ended_by = hold.lease.ended_by
        if not hold.released and (ended_by is not None or hold.kept.exported):
            # The server frees the key with its session, or that goes on elsewhere.
            hold.lose(ended_by or LossReason.CLIENT_CLOSED)
            return
        if hold.begin_release():
            self._host.emit(Forgotten(hold.key, hold.session, hold.fence))
        if hold.released and hold.outcome.value is None:
            hold.wake()
            hold.kind.abandon(hold)
            hold.finish_release(ReleaseOutcome.UNKNOWN)
        self.forget(hold)

    def announce_losses(self) -> None:
        """Finish what another call, perhaps interrupted, has begun to announce."""
        for hold in self.register.all(Grant):
            if hold.ended and not hold.released:
                self.ended(hold)

    # -- what users ask for

    def limit(self, hold: Grant, max_hold: float | None) -> None:
        """Have a hold end as MAX_HOLD in so many seconds, or earlier if that was said before."""
        if max_hold is not None:
            until = self._host.now() + max_hold
            hold.limit(LossReason.MAX_HOLD, min(until, hold.limit_of(LossReason.MAX_HOLD)))
            self.limits.watch(hold)

    def beat(self, hold: Grant, within: float) -> None:
        """Have a hold end as STALLED unless the next call comes within so many seconds.

        Raises LockLost, NotHeld, InvalidArgument.
        """
        _validate.span("within", within, positive=True)
        check(hold, self._host.now())
        hold.limit(LossReason.STALLED, self._host.now() + within)
        self.limits.watch(hold)
        check(hold, self._host.now())  # the time before may have passed just now

    def on_lost(self, hold: Grant, callback: Callable[[LossReason], object]) -> None:
        """Have a callback called at the loss of a hold, at once when it is lost."""
        hold.on_lost(callback)
        if hold.look(self._host.now())[1] is not None:
            self.call_back(hold)

    def call_back(self, hold: Grant) -> None:
        """Have the callbacks called that were not called yet, if the hold is lost."""
        reason = hold.look(self._host.now())[1]
        if reason is not None:
            for callback in hold.take_lost_callbacks():
                self._host.call_back(partial(callback, reason))

    def healthy(self, slack: float) -> bool:
        """Return whether every live hold has at least ``slack`` seconds of its lease left."""
        now, slack = self._host.now(), _validate.span("slack", slack)
        return all(hold.lease.remaining(now) >= slack for hold in self.all())

    # -- closing

    def give_up(self) -> None:
        """End all holds, those too that were granted since the last call: the client closes."""
        self._closing = True
        lose_together(self.all(), LossReason.CLIENT_CLOSED)
        self.announce_losses()  # also those that an interrupted call has ended and not announced

    def given_up(self) -> list[Grant]:
        """Return the holds that closing is to give back, until each is ``given_back``.

        That includes holds that their users have released meanwhile, which were lost for them by then.
        """
        self.give_up()
        return list(self._given_up)

    def given_back(self, hold: Grant) -> None:
        """Take note that a hold was given back, or that the reaper is to do that."""
        hold.given_back = True
        self._given_up.pop(hold, None)

    def releasing(self) -> list[Grant]:
        """Return the holds whose release is under way: a session is not destroyed before it is through."""
        return [hold for hold in self.register.all(Grant) if hold.released]

    def forked(self, host: Host) -> None:
        """Tell of what ends from now on through a forked child's host; the parent gives back what is owed."""
        self._host = host
        self.limits = Limits(host)


async def release(io: IO, holds: Holds, hold: Grant, *, budget: float = BUDGET) -> ReleaseOutcome:
    """Give up a hold, or the latest of several acquires that it stands for, within ``budget`` seconds.

    Idempotent: later calls return the first outcome. Raises nothing of the server's or the network's.
    """
    owner = io.owner()
    if hold.released and hold.released_by.value == owner:
        # By a signal handler perhaps, in the midst of that release: it can't wait for its own thread.
        return hold.outcome.value or ReleaseOutcome.UNKNOWN
    if hold.depth > 1 and hold.is_held(io.now()):
        hold.depth -= 1
        return ReleaseOutcome.RELEASED
    if hold.is_held(io.now()):
        this_call = Signal()
        holds.register.enter(hold, this_call)
        if hold.begin_release(owner):
            return await give_back(io, holds, hold, budget=budget)
    if not hold.released:
        hold.depth, hold.refused_again = max(0, hold.depth - 1), False
        holds.limits.holder_left(hold)
        return hold.finish_release(ReleaseOutcome.ALREADY_LOST)
    async with io.shield(budget) as deadline:
        await io.wait(hold.settled, deadline=deadline)
    return hold.outcome.value or ReleaseOutcome.UNKNOWN


async def give_back(io: IO, holds: Holds, hold: Grant, *, budget: float) -> ReleaseOutcome:
    """Give back on the server what has ended here, within ``budget`` seconds or in the background."""
    ending = _UNKNOWN
    try:
        async with io.shield(budget) as deadline:
            with suppress(ConsulCoordError):
                ending = await hold.kind.give_back(io, hold, deadline=deadline)
    finally:
        # Also after a KeyboardInterrupt: the hold ends one way or the other.
        if ending.outcome is ReleaseOutcome.UNKNOWN:
            hold.kind.abandon(hold)
        outcome = hold.finish_release(ending.outcome, ending.loss)
        if outcome is not ending.outcome and not hold.released:
            outcome = ending.outcome  # of what closing gives back: to its user it was lost
        holds.forget(hold)
        holds.given_back(hold)
        holds.changed(hold.key)
        io.emit(Released(hold.key, hold.session, hold.fence, outcome))
    return outcome
