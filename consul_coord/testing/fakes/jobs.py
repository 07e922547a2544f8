"""Fakes of jobs that run once in each slot: the record stays in memory.

Rules
- The rules of a real ``Once`` judge the record, and name slots and periods.
- A test sets the runs of other hosts (``ran_elsewhere``) and the clock (``wall``).
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from consul_coord.errors import LockLost
from consul_coord.models import LossReason
from consul_coord.models.once import OnceResult
from consul_coord.recipes.once.record import Record, asked, judge
from consul_coord.testing.fakes.blocking import FakeHeld, FakeHold, FakeLock
from consul_coord.testing.fakes.coroutine import AsyncFakeHeld, AsyncFakeHold, AsyncFakeLock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import timedelta

    from consul_coord.recipes.once.record import Ask

T = TypeVar("T")


class BaseOnce:
    """A job's key and record, and what a test makes of them."""

    def __init__(
        self,
        key: str = "fake",
        *,
        value: str = "fake",
        retry_failed: bool = True,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Begin without a record; ``wall`` returns the time of day in seconds since 1970."""
        self._key = key
        self._value = value
        self._retry_failed = retry_failed
        self._wall = wall
        self._record: Record | None = None

    @property
    def key(self) -> str:
        """The name it was given."""
        return self._key

    def ran_elsewhere(self, slot: str, *, by: str = "elsewhere", failed: bool = False) -> None:
        """Record a run of another host, as successful or ``failed``."""
        self._record = Record(slot, failed, by, self._wall(), fence=0)

    def _asked(self, slot: str | None, period: float | timedelta | None, *, align: bool) -> Ask:
        return asked(slot=slot, period=period, align=align, now=self._wall(), retry_failed=self._retry_failed)

    def _verdict(self, ask: Ask) -> str | OnceResult[Any]:
        verdict = judge(ask, self._record)
        return verdict.result() if isinstance(verdict, Record) else verdict

    def _finish(self, slot: str, fence: int, *, failed: bool) -> OnceResult[Any]:
        self._record = Record(slot, failed, self._value, round(self._wall(), 3), fence)
        return self._record.result(ran=True)

    def _last(self) -> OnceResult[Any] | None:
        return None if self._record is None else self._record.result()

    def _forget(self) -> bool:
        there, self._record = self._record is not None, None
        return there


class FakeOnceRun(FakeHold):
    """The right to run one slot of a fake job now: a ``OnceRunLike``."""

    once: FakeOnce
    slot: str = ""
    """The slot to run."""

    def record(self, *, failed: bool = False) -> OnceResult[Any]:
        """Record that the run has succeeded, or ``failed``. Raises LockLost, NotHeld."""
        self.check()
        finish = self.once._finish  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        return finish(self.slot, self.fence, failed=failed)


class _JobLock(FakeLock):
    """The lock of a fake job."""

    def _made(self, fence: int, owner: object) -> FakeOnceRun:
        return FakeOnceRun(self._slots, fence, owner, changed=self._changed)


class FakeOnce(BaseOnce):
    """A job that runs once in each slot, for the threads of this process: a ``OnceLike``."""

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

    def run(
        self,
        fn: Callable[[FakeOnceRun], T],
        *,
        slot: str | None = None,
        period: float | timedelta | None = None,
        align: bool = True,
        timeout: float | None = None,
        max_hold: float | None = None,  # noqa: ARG002 - no time passes in a fake
        interrupt: bool = False,  # noqa: ARG002 - a fake interrupts nothing
    ) -> OnceResult[T]:
        """Call ``fn(run)`` if no run of this slot, or of a later one, has succeeded yet; see ``Once.run``."""
        begun = self.begin(slot=slot, period=period, align=align, timeout=timeout)
        if isinstance(begun, OnceResult):
            return begun
        result: OnceResult[T] | None = None
        try:
            with FakeHeld(lambda: begun):
                try:
                    value = fn(begun)
                except Exception:
                    if begun.is_held:
                        begun.record(failed=True)
                    raise
                result = replace(begun.record(), value=value)
        except LockLost:
            if result is None:
                raise
        return result

    def begin(
        self,
        *,
        slot: str | None = None,
        period: float | timedelta | None = None,
        align: bool = True,
        timeout: float | None = None,
        max_hold: float | None = None,  # noqa: ARG002 - no time passes in a fake
    ) -> FakeOnceRun | OnceResult[Any]:
        """Return the right to run now or, if the slot has had its turn, what is recorded of that."""
        ask = self._asked(slot, period, align=align)
        verdict = self._verdict(ask)
        if isinstance(verdict, OnceResult):
            return verdict
        run = self._lock.acquire(timeout=timeout)
        assert isinstance(run, FakeOnceRun)
        verdict = self._verdict(ask)
        if isinstance(verdict, OnceResult):
            run.release()
            return verdict
        run.once, run.slot = self, verdict
        return run

    def last(self) -> OnceResult[Any] | None:
        """Return what is recorded of the last run, or None before the first."""
        return self._last()

    def forget(self) -> bool:
        """Delete the record; return whether there was one."""
        return self._forget()

    def cancel(self) -> None:
        """End all calls that wait, with AcquireCancelled."""
        self._lock.cancel()

    def lose(self, reason: LossReason = LossReason.EXPIRED) -> None:
        """Let the run that is under way lose its lock."""
        self._lock.lose(reason)


class AsyncFakeOnceRun(AsyncFakeHold):
    """The right to run one slot of a fake job now: an ``AsyncOnceRunLike``."""

    once: AsyncFakeOnce
    slot: str = ""
    """The slot to run."""

    async def record(self, *, failed: bool = False) -> OnceResult[Any]:
        """Record that the run has succeeded, or ``failed``. Raises LockLost, NotHeld."""
        self.check()
        finish = self.once._finish  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        return finish(self.slot, self.fence, failed=failed)


class _AsyncJobLock(AsyncFakeLock):
    """The lock of a fake job."""

    def _made(self, fence: int, owner: object) -> AsyncFakeOnceRun:
        return AsyncFakeOnceRun(self._slots, fence, owner, news=self._news)


class AsyncFakeOnce(BaseOnce):
    """A job that runs once in each slot, for the tasks of this loop: an ``AsyncOnceLike``."""

    def __init__(
        self,
        key: str = "fake",
        *,
        value: str = "fake",
        retry_failed: bool = True,
        wall: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(key, value=value, retry_failed=retry_failed, wall=wall)
        self._lock = _AsyncJobLock(key)

    async def run(
        self,
        fn: Callable[[AsyncFakeOnceRun], Awaitable[T]],
        *,
        slot: str | None = None,
        period: float | timedelta | None = None,
        align: bool = True,
        timeout: float | None = None,
        max_hold: float | None = None,  # noqa: ARG002 - no time passes in a fake
        interrupt: bool = False,  # noqa: ARG002 - a task is cancelled in any case
    ) -> OnceResult[T]:
        """Await ``fn(run)`` if no run of this slot, or of a later one, has succeeded yet; see ``AsyncOnce``.

        A loss cancels ``fn``.
        """
        begun = await self.begin(slot=slot, period=period, align=align, timeout=timeout)
        if isinstance(begun, OnceResult):
            return begun

        async def taken() -> AsyncFakeHold:
            return begun

        result: OnceResult[T] | None = None
        try:
            async with AsyncFakeHeld(taken):
                try:
                    value = await fn(begun)
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
        max_hold: float | None = None,  # noqa: ARG002 - no time passes in a fake
    ) -> AsyncFakeOnceRun | OnceResult[Any]:
        """Return the right to run now or, if the slot has had its turn, what is recorded of that."""
        ask = self._asked(slot, period, align=align)
        verdict = self._verdict(ask)
        if isinstance(verdict, OnceResult):
            return verdict
        run = await self._lock.acquire(timeout=timeout)
        assert isinstance(run, AsyncFakeOnceRun)
        verdict = self._verdict(ask)
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
