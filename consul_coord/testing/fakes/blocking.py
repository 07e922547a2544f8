"""Fakes for blocking code; any number of threads may use one."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from consul_coord.errors import AcquireCancelled, LeadershipLost
from consul_coord.models import LossReason, ReleaseOutcome
from consul_coord.testing.fakes.holding import (
    BaseElection,
    BaseHold,
    BaseLeadership,
    BaseLock,
    Place,
    raised_within,
    slices,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from consul_coord.protocols import Flag

T = TypeVar("T")
P = ParamSpec("P")


class FakeLossEvent:
    """Tells of the loss of one fake hold."""

    def __init__(self, hold: FakeHold, changed: threading.Condition) -> None:
        self._hold = hold
        self._changed = changed

    def is_set(self) -> bool:
        """Return whether it is lost."""
        return self._hold.reason is not None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is lost, at most ``timeout`` seconds; return whether it is, also when released."""
        with self._changed:
            self._changed.wait_for(lambda: not self._hold.is_held, timeout)
        return self.is_set()


class FakeHold(BaseHold):
    """A hold of a fake: a ``HoldLike``."""

    def __init__(self, slots: Place, fence: int, owner: object, *, changed: threading.Condition) -> None:
        super().__init__(slots, fence, owner)
        self._changed = changed

    @property
    def lost(self) -> FakeLossEvent:
        """The event to wait on for a loss."""
        return FakeLossEvent(self, self._changed)

    def ensure(self, seconds: float) -> None:  # noqa: ARG002 - any lease is long enough here
        """Raise LockLost if it was lost, NotHeld if it was released."""
        self.check()

    def release(self) -> ReleaseOutcome:
        """Give it up; ALREADY_LOST after a loss."""
        return self.give_up()


class FakeLeadership(BaseLeadership, FakeHold):
    """A leadership of a fake election."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _leave(self, error)


class FakeLock(BaseLock[FakeHold]):
    """A lock that excludes the threads of this process from each other: a ``LockLike``."""

    def __init__(self, key: str = "fake", *, limit: int = 1) -> None:
        super().__init__(key, limit=limit, changed=self._wake)
        self._changed = threading.Condition(self._slots.mutex)
        self._entered: dict[object, list[FakeHold]] = {}

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def acquire(
        self,
        *,
        timeout: float | None = None,
        max_hold: float | None = None,  # noqa: ARG002 - no time passes in a fake
        cancel: Flag | None = None,
    ) -> FakeHold:
        """Take it, waiting up to ``timeout`` seconds: None waits for ever, 0 tries once.

        ``max_hold`` ends nothing: a test does, by ``lose(LossReason.MAX_HOLD)``. Raises AcquireTimeout,
        AcquireCancelled, and AlreadyHeld when this thread has it.
        """
        return self._acquire(1, timeout, cancel)

    def _acquire(self, permits: int, timeout: float | None, cancel: Flag | None) -> FakeHold:
        self._refuse_second()
        if cancel is not None and cancel.is_set():
            raise self._slots.stopped()
        cancelled = self._slots.cancelled
        taken: list[FakeHold] = []

        def over() -> bool:
            hold = self._try(permits)
            taken.extend([] if hold is None else [hold])
            return hold is not None or stopped()

        def stopped() -> bool:
            return self._slots.cancelled != cancelled or (cancel is not None and cancel.is_set())

        with self._changed:
            for seconds in slices(timeout, look=cancel is not None):
                if self._changed.wait_for(over, seconds):
                    break
        if taken:
            return taken[0]
        raise self._slots.stopped() if stopped() else self._slots.timeout()

    def _refuse_second(self) -> None:
        self._slots.refuse_second(threading.current_thread())

    def try_acquire(self, *, max_hold: float | None = None) -> FakeHold | None:  # noqa: ARG002 - no time passes in a fake
        """Take it if it is free, else return None. Raises AlreadyHeld when this thread has it."""
        return self._try(1)

    def _try(self, permits: int) -> FakeHold | None:
        self._refuse_second()
        owner = threading.current_thread()
        return self._slots.take(lambda fence: self._made(fence, owner), permits=permits)

    def _made(self, fence: int, owner: object) -> FakeHold:
        return FakeHold(self._slots, fence, owner, changed=self._changed)

    def release(self) -> ReleaseOutcome:
        """Give up the hold of the calling thread. Raises NotHeld."""
        return self._slots.own(threading.current_thread()).release()

    def hold(
        self,
        *,
        timeout: float | None = None,
        max_hold: float | None = None,  # noqa: ARG002 - no time passes in a fake
        interrupt: bool = False,  # noqa: ARG002 - a fake interrupts nothing
        cancel: Flag | None = None,
    ) -> FakeHeld:
        """Return a context manager that takes it and releases it."""
        return FakeHeld(functools.partial(self._acquire, 1, timeout, cancel))

    def run(
        self,
        fn: Callable[[FakeHold], T],
        *,
        timeout: float | None = None,
        max_hold: float | None = None,  # noqa: ARG002 - no time passes in a fake
        interrupt: bool = False,  # noqa: ARG002 - a fake interrupts nothing
        cancel: Flag | None = None,
    ) -> T:
        """Call ``fn(hold)`` while holding it, and return what it returns."""
        with self.hold(timeout=timeout, cancel=cancel) as hold:
            return fn(hold)

    def wrap(
        self,
        *,
        timeout: float | None = None,
        max_hold: float | None = None,  # noqa: ARG002 - no time passes in a fake
        interrupt: bool = False,  # noqa: ARG002 - a fake interrupts nothing
        cancel: Flag | None = None,
    ) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Return a decorator that makes a function hold it while it runs."""
        return _wrapping(lambda: self.hold(timeout=timeout, cancel=cancel))

    def __enter__(self) -> FakeHold:
        hold = self.acquire()
        self._entered.setdefault(threading.current_thread(), []).append(hold)
        return hold

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entered = self._entered[threading.current_thread()]
        hold = entered.pop()
        if not entered:
            del self._entered[threading.current_thread()]
        _leave(hold, error)


class FakeSemaphore(FakeLock):
    """A semaphore for the threads of this process; one thread may hold several permits."""

    def __init__(self, prefix: str = "fake", limit: int = 1) -> None:
        super().__init__(prefix, limit=limit)

    def acquire(
        self,
        *,
        permits: int = 1,
        timeout: float | None = None,
        max_hold: float | None = None,  # noqa: ARG002 - no time passes in a fake
        cancel: Flag | None = None,
    ) -> FakeHold:
        """Take a slot, or ``permits`` slots at once, as ``FakeLock.acquire`` takes a lock.

        A fake keeps no queue: smaller calls may pass one that waits for many. Raises InvalidArgument for more
        permits than the limit.
        """
        return self._acquire(permits, timeout, cancel)

    def try_acquire(self, *, permits: int = 1, max_hold: float | None = None) -> FakeHold | None:  # noqa: ARG002 - no time passes in a fake
        """Take them if they are free, else return None. Raises InvalidArgument."""
        return self._try(permits)

    def hold(
        self,
        *,
        permits: int = 1,
        timeout: float | None = None,
        max_hold: float | None = None,  # noqa: ARG002 - no time passes in a fake
        interrupt: bool = False,  # noqa: ARG002 - a fake interrupts nothing
        cancel: Flag | None = None,
    ) -> FakeHeld:
        """Return a context manager that takes them and releases them."""
        return FakeHeld(functools.partial(self._acquire, permits, timeout, cancel))

    def run(
        self,
        fn: Callable[[FakeHold], T],
        *,
        permits: int = 1,
        timeout: float | None = None,
        max_hold: float | None = None,  # noqa: ARG002 - no time passes in a fake
        interrupt: bool = False,  # noqa: ARG002 - a fake interrupts nothing
        cancel: Flag | None = None,
    ) -> T:
        """Call ``fn(permit)`` while holding them, and return what it returns."""
        with self.hold(permits=permits, timeout=timeout, cancel=cancel) as hold:
            return fn(hold)

    def wrap(
        self,
        *,
        permits: int = 1,
        timeout: float | None = None,
        max_hold: float | None = None,  # noqa: ARG002 - no time passes in a fake
        interrupt: bool = False,  # noqa: ARG002 - a fake interrupts nothing
        cancel: Flag | None = None,
    ) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Return a decorator that makes a function hold them while it runs."""
        return _wrapping(lambda: self.hold(permits=permits, timeout=timeout, cancel=cancel))

    def _refuse_second(self) -> None:
        """Refuse nothing."""


def _wrapping(hold: Callable[[], FakeHeld]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> T:
            with hold():
                return function(*args, **kwargs)

        return locked

    return decorate


class FakeHeld:
    """The result of ``FakeLock.hold``: a context manager for one block at a time."""

    def __init__(self, take: Callable[[], FakeHold]) -> None:
        self._take = take
        self._held: list[FakeHold] = []

    def __enter__(self) -> FakeHold:
        self._held.append(self._take())
        return self._held[-1]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _leave(self._held.pop(), error)


class FakeElection(BaseElection[FakeLeadership]):
    """A candidate that is elected when the test says so: an ``ElectionLike``.

    ``leads``: whether it is elected as soon as it is started.
    """

    def __init__(self, key: str = "fake", *, leads: bool = True) -> None:
        super().__init__(key, leads=leads, changed=self._wake)
        self._changed = threading.Condition(self._slots.mutex)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _made(self, fence: int) -> FakeLeadership:
        return FakeLeadership(self._slots, fence, self, changed=self._changed)

    def start(self) -> None:
        """Begin to be a candidate; harmless when it is one."""
        self._begin()

    def stop(self, *, timeout: float = 5.0) -> None:  # noqa: ARG002 - as a real one's
        """Resign, and be no candidate any more."""
        self._end()

    def wait_for_leadership(self, *, timeout: float | None = None) -> FakeLeadership:
        """Return the leadership, as soon as there is one.

        Raises AcquireTimeout, and AcquireCancelled when it was not started or is stopped.
        """
        with self._changed:
            self._changed.wait_for(self._is_over, timeout)
        return self._waited_for()

    def wait_for_loss(self, *, timeout: float | None = None) -> LossReason:
        """Return why the latest leadership has ended. Raises TimeoutError, NotHeld when there was none."""
        latest = self._last()
        with self._changed:
            if not self._changed.wait_for(lambda: not latest.is_held, timeout):
                raise TimeoutError
        return latest.reason or LossReason.RESIGNED

    def resign(self, *, pause: float = 0.0) -> ReleaseOutcome:  # noqa: ARG002 - as a real one's
        """Give the leadership up; it leads again when the test says ``elect()``."""
        return self._give_up()

    def run(
        self,
        fn: Callable[[FakeLeadership], object],
        *,
        until: Callable[[], bool] | None = None,
        interrupt: bool = False,  # noqa: ARG002 - a fake interrupts nothing
    ) -> None:
        """Call ``fn(leadership)`` whenever elected, until stopped or ``until()`` is true after a call.

        Unlike a real one it lets an exception of ``fn`` out, so that a test sees it; LeadershipLost ends a
        term.
        """
        if self._started:
            self._run(fn, until)
        else:
            with self:
                self._run(fn, until)

    def _run(self, fn: Callable[[FakeLeadership], object], until: Callable[[], bool] | None) -> None:
        while True:
            try:
                leadership = self.wait_for_leadership()
            except AcquireCancelled:
                return
            try:
                with leadership:
                    fn(leadership)
            except LeadershipLost as lost:
                if raised_within(lost):
                    raise
            if until is not None and until():
                return

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _leave(hold: FakeHold, error: BaseException | None) -> None:
    hold.release()
    lost = hold.error_at_exit(error)
    if lost is not None:
        raise lost from error
