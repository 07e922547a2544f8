"""Types for the signatures of applications: locks and elections of this package, and stand-ins for them.

A function that is given a ``LockLike`` works with a ``Lock``, ``ReentrantLock``, ``MultiLock``, a side of a
``ReadWriteLock``, a ``Semaphore``, and a test's ``FakeLock``; likewise for the async half.

Rules
- A protocol names the methods that users of a lock call, and nothing that needs Consul: no ``guard()``,
  ``verify()``, ``put()`` or ``holder()``. Code that calls those takes the class itself, and its tests use the
  embedded server.
- All are runtime-checkable; ``isinstance`` then looks at names only, not at signatures.
- A member may be added in a minor version. To implement one elsewhere, derive from the fakes in
  ``consul_coord.testing.fakes``, or pin the version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from datetime import timedelta
    from types import TracebackType
    from typing import Any, Self

    from consul_coord.models import HoldState, LeaderInfo, LossReason, ReleaseOutcome
    from consul_coord.models.once import OnceResult

__all__ = [
    "AsyncElectionLike",
    "AsyncHoldLike",
    "AsyncLockLike",
    "AsyncLossEventLike",
    "AsyncOnceLike",
    "AsyncOnceRunLike",
    "ElectionLike",
    "HoldLike",
    "LockLike",
    "LossEventLike",
    "OnceLike",
    "OnceRunLike",
]

T = TypeVar("T")
P = ParamSpec("P")


class Flag(Protocol):
    """An event: of ``threading``, ``multiprocessing``, ``asyncio`` or ``anyio``, say."""

    def is_set(self) -> bool:
        """Return whether it is set."""
        ...


class _HoldFacts(Protocol):
    """A hold's properties without I/O, blocking and async."""

    @property
    def key(self) -> str:
        """The locked key."""
        ...

    @property
    def session(self) -> str:
        """The id of the session that holds it."""
        ...

    @property
    def fence(self) -> int:
        """The fencing token: higher than that of every earlier hold of this key."""
        ...

    @property
    def state(self) -> HoldState:
        """HELD, JEOPARDY, LOST or RELEASED, at this moment."""
        ...

    @property
    def reason(self) -> LossReason | None:
        """Why it was lost, or None while it was not."""
        ...

    @property
    def is_held(self) -> bool:
        """Whether it may be relied on at this moment."""
        ...

    def remaining(self) -> float:
        """Return the seconds for which it is surely held unless renewed; 0 when it has ended."""
        ...

    def check(self) -> None:
        """Raise LockLost if it was lost, NotHeld if it was released."""
        ...

    def beat(self, within: float) -> None:
        """Promise the next beat within so many seconds. Raises LockLost, NotHeld."""
        ...

    def on_lost(self, fn: Callable[[LossReason], object]) -> None:
        """Call ``fn`` with the reason, once, when it is lost; at once when it is."""
        ...


@runtime_checkable
class LossEventLike(Protocol):
    """Tells of a loss: ``Hold.lost``."""

    def is_set(self) -> bool:
        """Return whether it is lost."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is lost, at most ``timeout`` seconds; return whether it is."""
        ...


@runtime_checkable
class HoldLike(_HoldFacts, Protocol):
    """One grant of a lock: ``Hold``, ``Permit``, ``Leadership``."""

    @property
    def lost(self) -> LossEventLike:
        """The event to wait on for a loss."""
        ...

    def ensure(self, seconds: float) -> None:
        """Make sure that at least ``seconds`` of the lease are left. Raises LockLost."""
        ...

    def release(self) -> ReleaseOutcome:
        """Give it up. Idempotent."""
        ...


@runtime_checkable
class LockLike(Protocol):
    """Something to hold: ``Lock`` and its kinds, ``Semaphore``."""

    def acquire(
        self, *, timeout: float | None = None, max_hold: float | None = None, cancel: Flag | None = None
    ) -> HoldLike:
        """Take it, waiting up to ``timeout`` seconds. Raises AcquireTimeout."""
        ...

    def try_acquire(self, *, max_hold: float | None = None) -> HoldLike | None:
        """Take it if it is free, else return None."""
        ...

    def release(self) -> ReleaseOutcome:
        """Give up the hold of the calling thread. Raises NotHeld."""
        ...

    def cancel(self) -> None:
        """End all calls of this object that wait, with AcquireCancelled."""
        ...

    def hold(
        self,
        *,
        timeout: float | None = None,
        max_hold: float | None = None,
        interrupt: bool = False,
        cancel: Flag | None = None,
    ) -> AbstractContextManager[HoldLike, None]:
        """Return a context manager that takes it and releases it. Leaving raises LockLost after a loss."""
        ...

    def run(
        self,
        fn: Callable[[HoldLike], T],
        *,
        timeout: float | None = None,
        max_hold: float | None = None,
        interrupt: bool = False,
        cancel: Flag | None = None,
    ) -> T:
        """Call ``fn(hold)`` while holding it, and return what it returns."""
        ...

    def wrap(
        self,
        *,
        timeout: float | None = None,
        max_hold: float | None = None,
        interrupt: bool = False,
        cancel: Flag | None = None,
    ) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Return a decorator that makes a function hold it while it runs."""
        ...

    def __enter__(self) -> HoldLike: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


@runtime_checkable
class ElectionLike(Protocol):
    """A candidate for a leadership: ``LeaderElection``."""

    @property
    def key(self) -> str:
        """The key that is led."""
        ...

    @property
    def is_leader(self) -> bool:
        """Whether it leads at this moment."""
        ...

    @property
    def term(self) -> int | None:
        """The term of the present leadership, or None."""
        ...

    @property
    def leadership(self) -> HoldLike | None:
        """The present leadership, or None."""
        ...

    @property
    def leader(self) -> LeaderInfo | None:
        """The leader that it saw last, or None; no I/O."""
        ...

    @property
    def leader_age(self) -> float | None:
        """Seconds since it last saw whether there is a leader; None before its first look."""
        ...

    @property
    def problem(self) -> Exception | None:
        """The reason why it can't lead at present, or None."""
        ...

    def start(self) -> None:
        """Begin to be a candidate."""
        ...

    def stop(self, *, timeout: float = 5.0) -> None:
        """Resign if it leads, and be no candidate any more."""
        ...

    def wait_for_leadership(self, *, timeout: float | None = None) -> HoldLike:
        """Return the leadership, as soon as there is one. Raises AcquireTimeout, AcquireCancelled."""
        ...

    def wait_for_loss(self, *, timeout: float | None = None) -> LossReason:
        """Return why the latest leadership has ended. Raises TimeoutError, NotHeld."""
        ...

    def resign(self, *, pause: float = 0.0) -> ReleaseOutcome:
        """Give the leadership up."""
        ...

    def run(
        self,
        fn: Callable[[HoldLike], object],
        *,
        until: Callable[[], bool] | None = None,
        interrupt: bool = False,
    ) -> None:
        """Call ``fn(leadership)`` whenever elected, until the candidacy is stopped or ``until()`` is true."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


@runtime_checkable
class OnceRunLike(HoldLike, Protocol):
    """The right to run one slot of a job: ``OnceRun``."""

    @property
    def slot(self) -> str:
        """The slot to run."""
        ...

    def record(self, *, failed: bool = False) -> OnceResult[Any]:
        """Record that the run has succeeded, or ``failed``. Raises LockLost, NotHeld."""
        ...


@runtime_checkable
class OnceLike(Protocol):
    """A job that runs once in each slot: ``Once``."""

    @property
    def key(self) -> str:
        """The key of the job."""
        ...

    def run(
        self,
        fn: Callable[[OnceRunLike], T],
        *,
        slot: str | None = None,
        period: float | timedelta | None = None,
        align: bool = True,
        timeout: float | None = None,
        max_hold: float | None = None,
        interrupt: bool = False,
    ) -> OnceResult[T]:
        """Call ``fn(run)`` if no run of this slot, or of a later one, has succeeded yet."""
        ...

    def last(self) -> OnceResult[Any] | None:
        """Return what is recorded of the last run, or None before the first."""
        ...

    def forget(self) -> bool:
        """Delete the record; return whether there was one."""
        ...

    def cancel(self) -> None:
        """End all calls that wait, with AcquireCancelled."""
        ...


@runtime_checkable
class AsyncLossEventLike(Protocol):
    """Tells of a loss: ``AsyncHold.lost``."""

    def is_set(self) -> bool:
        """Return whether it is lost."""
        ...

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is lost, at most ``timeout`` seconds; return whether it is."""
        ...


@runtime_checkable
class AsyncHoldLike(_HoldFacts, Protocol):
    """One grant of a lock: ``AsyncHold``, ``AsyncPermit``, ``AsyncLeadership``."""

    @property
    def lost(self) -> AsyncLossEventLike:
        """The event to wait on for a loss."""
        ...

    async def ensure(self, seconds: float) -> None:
        """Make sure that at least ``seconds`` of the lease are left. Raises LockLost."""
        ...

    async def release(self) -> ReleaseOutcome:
        """Give it up. Idempotent."""
        ...


@runtime_checkable
class AsyncLockLike(Protocol):
    """Something to hold: ``AsyncLock`` and its kinds, ``AsyncSemaphore``."""

    async def acquire(
        self, *, timeout: float | None = None, max_hold: float | None = None, cancel: Flag | None = None
    ) -> AsyncHoldLike:
        """Take it, waiting up to ``timeout`` seconds. Raises AcquireTimeout."""
        ...

    async def try_acquire(self, *, max_hold: float | None = None) -> AsyncHoldLike | None:
        """Take it if it is free, else return None."""
        ...

    async def release(self) -> ReleaseOutcome:
        """Give up the hold of the calling task. Raises NotHeld."""
        ...

    def cancel(self) -> None:
        """End all calls of this object that wait, with AcquireCancelled."""
        ...

    def hold(
        self,
        *,
        timeout: float | None = None,
        max_hold: float | None = None,
        interrupt: bool = False,
        cancel: Flag | None = None,
    ) -> AbstractAsyncContextManager[AsyncHoldLike, None]:
        """Return a context manager that takes it, cancels its block at a loss, and releases it."""
        ...

    async def run(
        self,
        fn: Callable[[AsyncHoldLike], Awaitable[T]],
        *,
        timeout: float | None = None,
        max_hold: float | None = None,
        interrupt: bool = False,
        cancel: Flag | None = None,
    ) -> T:
        """Await ``fn(hold)`` while holding it, and return what it returns."""
        ...

    def wrap(
        self,
        *,
        timeout: float | None = None,
        max_hold: float | None = None,
        interrupt: bool = False,
        cancel: Flag | None = None,
    ) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Coroutine[Any, Any, T]]]:
        """Return a decorator that makes a coroutine function hold it while it runs."""
        ...

    async def __aenter__(self) -> AsyncHoldLike: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


@runtime_checkable
class AsyncElectionLike(Protocol):
    """A candidate for a leadership: ``AsyncLeaderElection``."""

    @property
    def key(self) -> str:
        """The key that is led."""
        ...

    @property
    def is_leader(self) -> bool:
        """Whether it leads at this moment."""
        ...

    @property
    def term(self) -> int | None:
        """The term of the present leadership, or None."""
        ...

    @property
    def leadership(self) -> AsyncHoldLike | None:
        """The present leadership, or None."""
        ...

    @property
    def leader(self) -> LeaderInfo | None:
        """The leader that it saw last, or None; no I/O."""
        ...

    @property
    def leader_age(self) -> float | None:
        """Seconds since it last saw whether there is a leader; None before its first look."""
        ...

    @property
    def problem(self) -> Exception | None:
        """The reason why it can't lead at present, or None."""
        ...

    async def start(self) -> None:
        """Begin to be a candidate."""
        ...

    async def stop(self, *, timeout: float = 5.0) -> None:
        """Resign if it leads, and be no candidate any more."""
        ...

    async def wait_for_leadership(self, *, timeout: float | None = None) -> AsyncHoldLike:
        """Return the leadership, as soon as there is one. Raises AcquireTimeout, AcquireCancelled."""
        ...

    async def wait_for_loss(self, *, timeout: float | None = None) -> LossReason:
        """Return why the latest leadership has ended. Raises TimeoutError, NotHeld."""
        ...

    async def resign(self, *, pause: float = 0.0) -> ReleaseOutcome:
        """Give the leadership up."""
        ...

    async def run(
        self,
        fn: Callable[[AsyncHoldLike], Awaitable[object]],
        *,
        until: Callable[[], bool] | None = None,
        interrupt: bool = False,
    ) -> None:
        """Await ``fn(leadership)`` whenever elected; it is cancelled when the leadership ends."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


@runtime_checkable
class AsyncOnceRunLike(AsyncHoldLike, Protocol):
    """The right to run one slot of a job: ``AsyncOnceRun``."""

    @property
    def slot(self) -> str:
        """The slot to run."""
        ...

    async def record(self, *, failed: bool = False) -> OnceResult[Any]:
        """Record that the run has succeeded, or ``failed``. Raises LockLost, NotHeld."""
        ...


@runtime_checkable
class AsyncOnceLike(Protocol):
    """A job that runs once in each slot: ``AsyncOnce``."""

    @property
    def key(self) -> str:
        """The key of the job."""
        ...

    async def run(
        self,
        fn: Callable[[AsyncOnceRunLike], Awaitable[T]],
        *,
        slot: str | None = None,
        period: float | timedelta | None = None,
        align: bool = True,
        timeout: float | None = None,
        max_hold: float | None = None,
        interrupt: bool = False,
    ) -> OnceResult[T]:
        """Await ``fn(run)`` if no run of this slot, or of a later one, has succeeded yet."""
        ...

    async def last(self) -> OnceResult[Any] | None:
        """Return what is recorded of the last run, or None before the first."""
        ...

    async def forget(self) -> bool:
        """Delete the record; return whether there was one."""
        ...

    def cancel(self) -> None:
        """End all calls that wait, with AcquireCancelled."""
        ...
