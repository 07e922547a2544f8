"""The common part of the blocking and the async fakes: holds, holders, and the calls of tests. Nothing waits.

Rules
- A hold is HELD, then LOST or RELEASED for good.
- A fake refuses the arguments that the real object refuses, so that a test finds them.
- Whatever changes calls ``changed``, with which a fake wakes those that wait.
"""

from __future__ import annotations

import math
import time
import uuid
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from consul_coord.errors import (
    AcquireCancelled,
    AcquireTimeout,
    AlreadyHeld,
    InvalidArgument,
    LeadershipLost,
    LockLost,
    NotHeld,
)
from consul_coord.http.endpoints._keys import check_parent
from consul_coord.models import Blocker, HoldState, LeaderInfo, LossReason, ReleaseOutcome, _validate
from consul_coord.recipes.contend.recipe import check_max_hold
from consul_coord.threads import Mutex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

H = TypeVar("H", bound="BaseHold")
L = TypeVar("L", bound="BaseLeadership")


class Place(Protocol):
    """The object that a hold belongs to."""

    @property
    def mutex(self) -> AbstractContextManager[object]:
        """The mutex of its state and of its holds."""
        ...

    @property
    def key(self) -> str:
        """Its name."""
        ...

    def left(self, hold: BaseHold) -> None:
        """Forget a hold that has ended."""
        ...


LOOK = 0.02
"""Seconds between two looks at a user's event."""


def check_call(*, timeout: object = None, max_hold: float | None = None, cancel: object = None) -> None:
    """Refuse what a real call would refuse. Raises InvalidArgument."""
    _validate.patience(timeout)
    check_max_hold(max_hold)
    _validate.has_method("cancel", cancel, "is_set")


def slices(timeout: float | None, *, look: bool) -> Iterator[float | None]:
    """Yield how long to wait until the timeout is over: in short pieces, if something is to be looked at."""
    ends = math.inf if timeout is None else time.monotonic() + timeout
    yield LOOK if look and timeout != 0 else timeout
    while look and time.monotonic() < ends:
        yield min(LOOK, max(0.0, ends - time.monotonic()))


class BaseHold:
    """A hold's facts, and how it ends."""

    _kind: type[LockLost] = LockLost

    permits = 1
    """How many slots it holds; more than one only of a semaphore's."""

    def __init__(self, slots: Place, fence: int, owner: object) -> None:
        self._slots = slots
        self._fence = fence
        self._session = str(uuid.uuid4())
        self._state = HoldState.HELD
        self._loss: LossReason | None = None
        self._callbacks: list[Callable[[LossReason], object]] = []
        self.owner = owner
        """The thread or task that took it."""

    @property
    def key(self) -> str:
        """The fake's key."""
        return self._slots.key

    @property
    def session(self) -> str:
        """A made-up session id, another one for each hold."""
        return self._session

    @property
    def fence(self) -> int:
        """Its number: 1 for the first hold of the fake, then one more for each."""
        return self._fence

    @property
    def state(self) -> HoldState:
        """HELD, LOST or RELEASED."""
        return self._state

    @property
    def reason(self) -> LossReason | None:
        """The reason given to ``lose``, or None."""
        return self._loss

    @property
    def is_held(self) -> bool:
        """Whether it was neither lost nor released."""
        return self._state is HoldState.HELD

    def remaining(self) -> float:
        """Return ``inf`` while it is held, then 0."""
        return math.inf if self.is_held else 0.0

    def check(self) -> None:
        """Raise LockLost if it was lost, NotHeld if it was released."""
        if self.reason is not None:
            raise self._error(self.reason)
        if not self.is_held:
            message = f"the hold of {self.key!r} (fence {self.fence}) was released: acquire it again"
            raise NotHeld(message, key=self.key, session=self.session)

    def beat(self, within: float) -> None:
        """Raise what ``check`` raises; a test ends the hold by ``lose(LossReason.STALLED)``."""
        _validate.span("within", within, positive=True)
        self.check()

    def on_lost(self, fn: Callable[[LossReason], object]) -> None:
        """Call ``fn`` with the reason when it is lost, by whoever loses it; at once if it is."""
        if not callable(fn):
            _validate.refuse_kind("fn", fn, "a function")
        with self._slots.mutex:
            reason = self.reason
            if reason is None:
                self._callbacks.append(fn)
        if reason is not None:
            fn(reason)

    def error_at_exit(self, raised: BaseException | None) -> LockLost | None:
        """Return what leaving a ``with`` block raises besides what its body raised, as of a real hold."""
        if self._loss is None or (raised is not None and not isinstance(raised, Exception)):
            return None
        same = isinstance(raised, LockLost) and (raised.key, raised.fence) == (self.key, self.fence)
        return None if same else self._error(self._loss)

    def lose(self, reason: LossReason) -> None:
        """Make it lost, if it is held."""
        self._end(HoldState.LOST, reason)

    def give_up(self) -> ReleaseOutcome:
        """Make it released, if it is held."""
        self._end(HoldState.RELEASED, None)
        return ReleaseOutcome.RELEASED if self._loss is None else ReleaseOutcome.ALREADY_LOST

    def _end(self, state: HoldState, loss: LossReason | None) -> None:
        with self._slots.mutex:
            if not self.is_held:
                return
            self._state, self._loss = state, loss
            reason = self.reason
            self._slots.left(self)
        if reason is not None:
            for fn in self._callbacks:
                fn(reason)

    def _error(self, reason: LossReason) -> LockLost:
        message = f"{self.key!r} was lost: {reason}"
        return self._kind(message, key=self.key, session=self.session, fence=self.fence, reason=reason)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.key!r}: {self.state}, fence {self.fence}>"


class BaseLeadership(BaseHold):
    """A hold that is a leadership: each end of it is reported, also a resignation."""

    _kind = LeadershipLost

    @property
    def term(self) -> int:
        """The term: the hold's fence."""
        return self.fence

    @property
    def reason(self) -> LossReason | None:
        """Why it has ended, RESIGNED when it was given up; None while it lasts."""
        return LossReason.RESIGNED if self._state is HoldState.RELEASED else self._loss


class Slots(Generic[H]):
    """The holds of one fake, at most ``limit`` at a time."""

    def __init__(self, key: str, *, limit: int, changed: Callable[[], None]) -> None:
        """Begin empty; ``changed`` is called, with ``mutex`` held, when something has."""
        if type(limit) is not int or limit < 1:
            message = f"limit must be an integer of 1 or more, not {limit!r}"
            raise InvalidArgument(message)
        self.mutex = Mutex()
        self._key = check_parent(key)
        self._limit = limit
        self._changed = changed
        self._holds: list[H] = []
        self._fence = 0
        self.cancelled = 0
        """How often waiting calls were cancelled."""

    @property
    def key(self) -> str:
        """The fake's name."""
        return self._key

    def holds(self) -> list[H]:
        """Return what is held, the latest last."""
        return list(self._holds)

    def take(self, make: Callable[[int], H], *, permits: int = 1) -> H | None:
        """Make and return a hold if there is room. Raises InvalidArgument if there never is."""
        if type(permits) is not int or not 1 <= permits <= self._limit:
            message = f"permits must be an integer from 1 to {self._limit}, not {permits!r}"
            raise InvalidArgument(message)
        with self.mutex:
            if sum(hold.permits for hold in self._holds) + permits > self._limit:
                return None
            self._fence += 1
            hold = make(self._fence)
            hold.permits = permits
            self._holds.append(hold)
            return hold

    def left(self, hold: BaseHold) -> None:
        """Forget a hold that has ended."""
        self._holds = [each for each in self._holds if each is not hold]
        self._changed()

    def cancel(self) -> None:
        """Tell those that wait to give up."""
        with self.mutex:
            self.cancelled += 1
            self._changed()

    def own(self, owner: object) -> H:
        """Return the owner's latest hold. Raises NotHeld."""
        with self.mutex:
            for hold in reversed(self._holds):
                if hold.owner == owner:
                    return hold
        message = f"this thread or task does not hold {self.key!r}"
        raise NotHeld(message, key=self.key)

    def refuse_second(self, owner: object) -> None:
        """Raise AlreadyHeld if the owner has a hold."""
        if any(hold.owner == owner for hold in self._holds):
            message = f"this thread or task holds {self.key!r} already"
            raise AlreadyHeld(message, key=self.key)

    def timeout(self) -> AcquireTimeout:
        """Make the error that tells who has it."""
        session = self._holds[-1].session if self._holds else None
        message = f"{self.key!r} was not acquired in time"
        return AcquireTimeout(message, key=self.key, blocker=Blocker("held", session))

    def stopped(self) -> AcquireCancelled:
        """Make the error of a wait that was ended."""
        return AcquireCancelled(f"the wait for {self.key!r} was cancelled", key=self.key)


class BaseLock(Generic[H]):
    """A lock's or a semaphore's name, its holds, and how they are lost."""

    def __init__(self, key: str, *, limit: int, changed: Callable[[], None]) -> None:
        self._slots: Slots[H] = Slots(key, limit=limit, changed=changed)

    @property
    def key(self) -> str:
        """The name it was given."""
        return self._slots.key

    @property
    def holds(self) -> tuple[H, ...]:
        """The present holds, the latest last."""
        return tuple(self._slots.holds())

    def lose(self, reason: LossReason = LossReason.EXPIRED) -> None:
        """Let all present holds be lost, for this reason; it is free then."""
        for hold in self._slots.holds():
            hold.lose(reason)

    def cancel(self) -> None:
        """End all calls that wait, with AcquireCancelled."""
        self._slots.cancel()


class BaseElection(ABC, Generic[L]):
    """Whether a candidate stands and leads, and how a test has it elected."""

    def __init__(self, key: str, *, leads: bool, changed: Callable[[], None]) -> None:
        self._slots: Slots[L] = Slots(key, limit=1, changed=changed)
        self._tell = changed
        self._leads = leads
        self._started = False
        self._latest: L | None = None
        self._seen: LeaderInfo | None = None
        self._problem: Exception | None = None

    @abstractmethod
    def _made(self, fence: int) -> L:
        """Make a leadership."""

    @property
    def key(self) -> str:
        """The name it was given."""
        return self._slots.key

    def elect(self) -> L:
        """Make it the leader, in a new term. Raises NotHeld unless it is a candidate that does not lead."""
        taken = self._slots.take(self._made) if self._started else None
        if taken is None:
            state = "leads already" if self._started else "was not started"
            message = f"{self.key} can't be elected: it {state}"
            raise NotHeld(message, key=self.key)
        self._latest = taken
        self._tell()
        return taken

    def lose(self, reason: LossReason = LossReason.EXPIRED) -> None:
        """Let the present leadership be lost; nothing if there is none."""
        for leadership in self._slots.holds():
            leadership.lose(reason)

    def see(self, leader: LeaderInfo | None, *, problem: Exception | None = None) -> None:
        """Let it see another leader, or none, and have a ``problem``, or none, while it does not lead."""
        self._seen, self._problem = leader, problem

    @property
    def leader(self) -> LeaderInfo | None:
        """Itself while it leads, else what a test let it see; None when it was not started."""
        leadership = self.leadership
        if leadership is not None:
            return LeaderInfo(b"", leadership.session, term=leadership.fence)
        return self._seen if self._started else None

    @property
    def leader_age(self) -> float | None:
        """0 while it is a candidate, else None: no time passes in a fake."""
        return 0.0 if self._started else None

    @property
    def problem(self) -> Exception | None:
        """The one that a test gave; None while it leads, and when it was not started."""
        return self._problem if self._started and not self.is_leader else None

    @property
    def leadership(self) -> L | None:
        """The present leadership, or None."""
        return next(iter(self._slots.holds()), None)

    @property
    def is_leader(self) -> bool:
        """Whether it leads."""
        return self.leadership is not None

    @property
    def term(self) -> int | None:
        """The term of the present leadership, or None."""
        leadership = self.leadership
        return None if leadership is None else leadership.fence

    def _begin(self) -> None:
        if not self._started:
            self._started = True
            if self._leads:
                self.elect()

    def _end(self) -> None:
        self._started = False
        self._give_up()
        self._slots.cancel()

    def _give_up(self) -> ReleaseOutcome:
        leadership = self.leadership
        return ReleaseOutcome.ALREADY_LOST if leadership is None else leadership.give_up()

    def _is_over(self) -> bool:
        """Return whether a wait for leadership has come to its end."""
        return self.is_leader or not self._started

    def _waited_for(self) -> L:
        """Return what was waited for. Raises AcquireTimeout, AcquireCancelled."""
        leadership = self.leadership
        if leadership is None:
            raise self._slots.timeout() if self._started else self._slots.stopped()
        return leadership

    def _last(self) -> L:
        """Return the latest leadership. Raises NotHeld when there was none."""
        if self._latest is None:
            message = f"{self.key} was never led"
            raise NotHeld(message, key=self.key)
        return self._latest


def raised_within(lost: LeadershipLost) -> bool:
    """Return whether a lost leadership hides another error, of the function that led."""
    return lost.__cause__ is not None and not isinstance(lost.__cause__, LeadershipLost)
