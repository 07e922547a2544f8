"""Fakes for event loops; ``holding`` has what they do, and ``tasks`` how they wait."""

from __future__ import annotations

import functools
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from consul_coord.aio.callbacks import check_work, outcome
from consul_coord.errors import AcquireCancelled, KeyConflict, LeadershipLost, LockLost
from consul_coord.models import LossReason, ReleaseOutcome
from consul_coord.models._validate import span
from consul_coord.models.once import OnceResult
from consul_coord.testing.fakes.holding import (
    BaseElection,
    BaseHold,
    BaseLeadership,
    BaseLock,
    Place,
    check_call,
    raised_within,
    slices,
)
from consul_coord.testing.fakes.jobs import BaseOnce, BaseOnceRun
from consul_coord.testing.fakes.tasks import Block, News, current_owner

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from datetime import timedelta
    from types import TracebackType
    from typing import Self

    from consul_coord.protocols import Flag

T = TypeVar("T")
P = ParamSpec("P")


class AsyncFakeLossEvent:
    """Tells of the loss of one fake hold."""

    def __init__(self, hold: AsyncFakeHold, news: News) -> None:
        self._hold = hold
        self._news = news

    def is_set(self) -> bool:
        """Return whether it is lost."""
        return self._hold.reason is not None

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is lost, at most ``timeout`` seconds; return whether it is, also when released."""
        check_call(timeout=timeout)
        await self._news.wait_for(lambda: not self._hold.is_held, timeout)
        return self.is_set()


class AsyncFakeHold(BaseHold):
    """A hold of a fake: an ``AsyncHoldLike``."""

    def __init__(self, slots: Place, fence: int, owner: object, *, news: News) -> None:
        super().__init__(slots, fence, owner)
        self._news = news

    @property
    def lost(self) -> AsyncFakeLossEvent:
        """The event to wait on for a loss."""
        return AsyncFakeLossEvent(self, self._news)

    async def ensure(self, seconds: float) -> None:
        """Raise LockLost if it was lost, NotHeld if it was released. Any lease is long enough here."""
        span("seconds", seconds)
        self.check()

    async def release(self) -> ReleaseOutcome:
        """Give it up; ALREADY_LOST after a loss."""
        return self.give_up()


class AsyncFakeLeadership(BaseLeadership, AsyncFakeHold):
    """A leadership of a fake election."""

    _block: Block

    async def __aenter__(self) -> Self:
        self._block = Block(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self._block.leave(kind, error, trace)


class AsyncFakeLock(BaseLock[AsyncFakeHold]):
    """A lock that excludes the threads or tasks of this process from each other: an ``AsyncLockLike``."""

    def __init__(self, key: str = "fake", *, limit: int = 1) -> None:
        self._news = News()
        super().__init__(key, limit=limit, changed=self._news.tell)
        self._entered: dict[object, list[Block]] = {}

    async def acquire(
        self,
        *,
        timeout: float | None = None,
        max_hold: float | None = None,
        cancel: Flag | None = None,
    ) -> AsyncFakeHold:
        """Take it, waiting up to ``timeout`` seconds: None waits for ever, 0 tries once.

        ``max_hold`` ends nothing: a test does, by ``lose(LossReason.MAX_HOLD)``. Raises AcquireTimeout,
        AcquireCancelled, and AlreadyHeld when this thread or task has it.
        """
        return await self._acquire(1, timeout, max_hold, cancel)

    async def _acquire(
        self, permits: int, timeout: float | None, max_hold: float | None, cancel: Flag | None
    ) -> AsyncFakeHold:
        check_call(timeout=timeout, max_hold=max_hold, cancel=cancel)
        self._refuse_second()
        if cancel is not None and cancel.is_set():
            raise self._slots.stopped()
        cancelled = self._slots.cancelled
        taken: list[AsyncFakeHold] = []

        def over() -> bool:
            hold = self._take(permits)
            taken.extend([] if hold is None else [hold])
            return hold is not None or stopped()

        def stopped() -> bool:
            return self._slots.cancelled != cancelled or (cancel is not None and cancel.is_set())

        for seconds in slices(timeout, look=cancel is not None):
            if over() or await self._news.wait_for(over, seconds):
                break
        if taken:
            return taken[0]
        raise self._slots.stopped() if stopped() else self._slots.timeout()

    def _refuse_second(self) -> None:
        self._slots.refuse_second(current_owner())

    def _take(self, permits: int) -> AsyncFakeHold | None:
        owner = current_owner()
        return self._slots.take(lambda fence: self._made(fence, owner), permits=permits)

    def _made(self, fence: int, owner: object) -> AsyncFakeHold:
        return AsyncFakeHold(self._slots, fence, owner, news=self._news)

    async def try_acquire(self, *, max_hold: float | None = None) -> AsyncFakeHold | None:
        """Take it if it is free, else return None. Raises AlreadyHeld when this thread or task has it."""
        check_call(max_hold=max_hold)
        self._refuse_second()
        return self._take(1)

    async def release(self) -> ReleaseOutcome:
        """Give up the hold of the calling thread or task. Raises NotHeld."""
        return await self._slots.own(current_owner()).release()

    def hold(
        self,
        *,
        timeout: float | None = None,
        max_hold: float | None = None,
        interrupt: bool = False,  # noqa: ARG002 - a fake interrupts nothing
        cancel: Flag | None = None,
    ) -> AsyncFakeHeld:
        """Return a context manager that takes it and releases it.

        On an event loop, a loss cancels the block.
        """
        return AsyncFakeHeld(functools.partial(self._acquire, 1, timeout, max_hold, cancel))

    async def run(
        self,
        fn: Callable[[AsyncFakeHold], Awaitable[T]],
        *,
        timeout: float | None = None,
        max_hold: float | None = None,
        interrupt: bool = False,  # noqa: ARG002 - a fake interrupts nothing
        cancel: Flag | None = None,
    ) -> T:
        """Await ``fn(hold)`` while holding it, and return what it returns."""
        check_work("fn", fn)
        async with self.hold(timeout=timeout, max_hold=max_hold, cancel=cancel) as hold:
            return await outcome("fn", fn(hold))

    def wrap(
        self,
        *,
        timeout: float | None = None,
        max_hold: float | None = None,
        interrupt: bool = False,  # noqa: ARG002 - a fake interrupts nothing
        cancel: Flag | None = None,
    ) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Coroutine[Any, Any, T]]]:
        """Return a decorator that makes a function hold it while it runs."""
        return _wrapping(lambda: self.hold(timeout=timeout, max_hold=max_hold, cancel=cancel))

    async def __aenter__(self) -> AsyncFakeHold:
        hold = await self.acquire()
        self._entered.setdefault(current_owner(), []).append(Block(hold))
        return hold

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entered = self._entered[current_owner()]
        block = entered.pop()
        if not entered:
            del self._entered[current_owner()]
        block.leave(kind, error, trace)


class AsyncFakeSemaphore(AsyncFakeLock):
    """A semaphore for the threads or tasks of this process; each may hold several permits."""

    def __init__(self, prefix: str = "fake", limit: int = 1) -> None:
        super().__init__(prefix, limit=limit)

    async def acquire(
        self,
        *,
        permits: int = 1,
        timeout: float | None = None,
        max_hold: float | None = None,
        cancel: Flag | None = None,
    ) -> AsyncFakeHold:
        """Take a slot, or ``permits`` slots at once, as ``AsyncFakeLock.acquire`` takes a lock.

        A fake keeps no queue: smaller calls may pass one that waits for many. Raises InvalidArgument for more
        permits than the limit.
        """
        return await self._acquire(permits, timeout, max_hold, cancel)

    async def try_acquire(
        self,
        *,
        permits: int = 1,
        max_hold: float | None = None,
    ) -> AsyncFakeHold | None:
        """Take them if they are free, else return None. Raises InvalidArgument."""
        check_call(max_hold=max_hold)
        return self._take(permits)

    def hold(
        self,
        *,
        permits: int = 1,
        timeout: float | None = None,
        max_hold: float | None = None,
        interrupt: bool = False,  # noqa: ARG002 - a fake interrupts nothing
        cancel: Flag | None = None,
    ) -> AsyncFakeHeld:
        """Return a context manager that takes them and releases them.

        On an event loop, a loss cancels the block.
        """
        return AsyncFakeHeld(functools.partial(self._acquire, permits, timeout, max_hold, cancel))

    async def run(
        self,
        fn: Callable[[AsyncFakeHold], Awaitable[T]],
        *,
        permits: int = 1,
        timeout: float | None = None,
        max_hold: float | None = None,
        interrupt: bool = False,  # noqa: ARG002 - a fake interrupts nothing
        cancel: Flag | None = None,
    ) -> T:
        """Await ``fn(permit)`` while holding them, and return what it returns."""
        check_work("fn", fn)
        async with self.hold(permits=permits, timeout=timeout, max_hold=max_hold, cancel=cancel) as hold:
            return await outcome("fn", fn(hold))

    def wrap(
        self,
        *,
        permits: int = 1,
        timeout: float | None = None,
        max_hold: float | None = None,
        interrupt: bool = False,  # noqa: ARG002 - a fake interrupts nothing
        cancel: Flag | None = None,
    ) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Coroutine[Any, Any, T]]]:
        """Return a decorator that makes a function hold them while it runs."""
        return _wrapping(
            lambda: self.hold(permits=permits, timeout=timeout, max_hold=max_hold, cancel=cancel)
        )

    def _refuse_second(self) -> None:
        """Refuse nothing."""


def _wrapping(
    hold: Callable[[], AsyncFakeHeld],
) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Coroutine[Any, Any, T]]]:
    def decorate(function: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        check_work("function", function)

        @functools.wraps(function)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> T:
            async with hold():
                return await outcome("function", function(*args, **kwargs))

        return locked

    return decorate


class AsyncFakeHeld:
    """The result of ``AsyncFakeLock.hold``: a context manager for one block at a time."""

    def __init__(self, take: Callable[[], Awaitable[AsyncFakeHold]]) -> None:
        self._take = take
        self._blocks: list[Block] = []

    async def __aenter__(self) -> AsyncFakeHold:
        hold = await self._take()
        self._blocks.append(Block(hold))
        return hold

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._blocks.pop().leave(kind, error, trace)


class AsyncFakeElection(BaseElection[AsyncFakeLeadership]):
    """A candidate that is elected when the test says so: an ``AsyncElectionLike``.

    ``leads``: whether it is elected as soon as it is started.
    """

    def __init__(self, key: str = "fake", *, leads: bool = True) -> None:
        self._news = News()
        super().__init__(key, leads=leads, changed=self._news.tell)

    def _made(self, fence: int) -> AsyncFakeLeadership:
        return AsyncFakeLeadership(self._slots, fence, self, news=self._news)

    async def start(self) -> None:
        """Begin to be a candidate; harmless when it is one."""
        self._begin()

    async def stop(self, *, timeout: float = 5.0) -> None:  # noqa: ARG002 - as a real one's
        """Resign, and be no candidate any more."""
        self._end()

    async def wait_for_leadership(self, *, timeout: float | None = None) -> AsyncFakeLeadership:
        """Return the leadership, as soon as there is one.

        Raises AcquireTimeout, and AcquireCancelled when it was not started or is stopped.
        """
        check_call(timeout=timeout)
        await self._news.wait_for(self._is_over, timeout)
        return self._waited_for()

    async def wait_for_loss(self, *, timeout: float | None = None) -> LossReason:
        """Return why the latest leadership has ended. Raises TimeoutError, NotHeld when there was none."""
        latest = self._last()
        check_call(timeout=timeout)
        if not await self._news.wait_for(lambda: not latest.is_held, timeout):
            raise TimeoutError
        return latest.reason or LossReason.RESIGNED

    async def resign(self, *, pause: float = 0.0) -> ReleaseOutcome:
        """Give the leadership up; it leads again when the test says ``elect()``, whatever the ``pause``."""
        span("pause", pause)
        return self._give_up()

    async def run(
        self,
        fn: Callable[[AsyncFakeLeadership], Awaitable[object]],
        *,
        until: Callable[[], bool] | None = None,
        interrupt: bool = False,  # noqa: ARG002 - as a real one's
    ) -> None:
        """Await ``fn(leadership)`` whenever elected, until stopped or ``until()`` is true after a call.

        LeadershipLost ends a term; on an event loop, a loss cancels ``fn``. Unlike a real one it lets an
        exception of ``fn`` out, so that a test sees it.
        """
        check_work("fn", fn)
        if self._started:
            await self._run(fn, until)
        else:
            async with self:
                await self._run(fn, until)

    async def _run(
        self, fn: Callable[[AsyncFakeLeadership], Awaitable[object]], until: Callable[[], bool] | None
    ) -> None:
        while True:
            try:
                leadership = await self.wait_for_leadership()
            except AcquireCancelled:
                return
            try:
                async with leadership:
                    await outcome("fn", fn(leadership))
            except LeadershipLost as lost:
                if raised_within(lost):
                    raise
            if until is not None and until():
                return

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


class AsyncFakeOnceRun(BaseOnceRun, AsyncFakeHold):
    """The right to run one slot of a fake job now: an ``AsyncOnceRunLike``."""

    async def record(self, *, failed: bool = False) -> OnceResult[Any]:
        """Record that the run has succeeded, or ``failed``; a success is final. Raises LockLost, NotHeld."""
        return self._recorded(failed=failed)


class _JobLock(AsyncFakeLock):
    """The lock of a fake job."""

    def _made(self, fence: int, owner: object) -> AsyncFakeOnceRun:
        return AsyncFakeOnceRun(self._slots, fence, owner, news=self._news)


class AsyncFakeOnce(BaseOnce):
    """A job that runs once in each slot, for the threads or tasks of this process: an ``AsyncOnceLike``."""

    def __init__(
        self,
        key: str = "fake",
        *,
        value: str = "fake",
        retry_failed: bool = True,
        wall: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(key, value=value, retry_failed=retry_failed, wall=wall)
        self._lock = _JobLock(key)

    async def run(
        self,
        fn: Callable[[AsyncFakeOnceRun], Awaitable[T]],
        *,
        slot: str | None = None,
        period: float | timedelta | None = None,
        align: bool = True,
        timeout: float | None = None,
        max_hold: float | None = None,
        interrupt: bool = False,  # noqa: ARG002 - a fake interrupts nothing
    ) -> OnceResult[T]:
        """Await ``fn(run)`` if no run of this slot, or of a later one, has succeeded yet; see ``AsyncOnce``.

        On an event loop, a loss cancels ``fn``.
        """
        check_work("fn", fn)
        begun = await self.begin(slot=slot, period=period, align=align, timeout=timeout, max_hold=max_hold)
        if isinstance(begun, OnceResult):
            return begun

        async def taken() -> AsyncFakeHold:
            return begun

        result: OnceResult[T] | None = None
        try:
            async with AsyncFakeHeld(taken):
                try:
                    value = await outcome("fn", fn(begun))
                except Exception:
                    if begun.is_held:
                        await begun.record(failed=True)
                    raise
                result = replace(await begun.record(), value=value)
        except LockLost:
            if result is None:
                raise
        assert result is not None, "a block whose body was cut short raises"
        return result

    async def begin(
        self,
        *,
        slot: str | None = None,
        period: float | timedelta | None = None,
        align: bool = True,
        timeout: float | None = None,
        max_hold: float | None = None,
    ) -> AsyncFakeOnceRun | OnceResult[Any]:
        """Return the right to run now or, if the slot has had its turn, what is recorded of that."""
        check_call(timeout=timeout, max_hold=max_hold)
        ask = self._asked(slot, period, align=align)
        verdict = self._verdict(ask)
        if isinstance(verdict, OnceResult):
            return verdict
        run = await self._lock.acquire(timeout=timeout)
        assert isinstance(run, AsyncFakeOnceRun)
        try:
            verdict = self._verdict(ask)
        except KeyConflict:
            await run.release()
            raise
        if isinstance(verdict, OnceResult):
            await run.release()
            return verdict
        run.once, run.slot = self, verdict
        return run

    async def last(self) -> OnceResult[Any] | None:
        """Return what is recorded of the last run, or None before the first."""
        return self._last()

    async def forget(self) -> bool:
        """Delete the record; return whether there was one."""
        return self._forget()

    def cancel(self) -> None:
        """End all calls that wait, with AcquireCancelled."""
        self._lock.cancel()

    def lose(self, reason: LossReason = LossReason.EXPIRED) -> None:
        """Let the run that is under way lose its lock."""
        self._lock.lose(reason)
