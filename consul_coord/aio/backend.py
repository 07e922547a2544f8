"""The few differences between asyncio and trio that anyio does not hide.

Rules
- A background supervisor is a separate task, not a child of the task that started it. So a client may be
  entered and closed in different tasks, and a failure in the background never cancels the user's code.
- A waker may be called from any thread.
- A task that waits for long keeps little: on asyncio a future, where anyio's event would be ten times that.
- asyncio's own cancellation (``Task.cancel``: a Ctrl-C in ``asyncio.run``, ``asyncio.timeout``) goes through
  every shield of anyio's. Only another task is safe from it.
"""

from __future__ import annotations

import math
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, cast

import anyio

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Coroutine


def _on_asyncio() -> bool:
    # Asking asyncio without importing it: where it runs, it has been imported.
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None  # noqa: SLF001 - documented for this use


def current_task() -> object:
    """Return the running task, as an object that nothing else will ever be equal to."""
    if _on_asyncio():
        import asyncio

        return asyncio.current_task()
    import trio

    return trio.lowlevel.current_task()


def current_loop() -> object:
    """Return what identifies the running loop."""
    if _on_asyncio():
        import asyncio

        return asyncio.get_running_loop()
    import trio

    return trio.lowlevel.current_trio_token()


def is_closed(loop: object) -> bool:
    """Return whether a loop, as ``current_loop`` gave it, is closed; from anywhere.

    trio ends all tasks before; asyncio closes a loop over tasks that have not ended, and never will.
    """
    closed = getattr(loop, "is_closed", None)
    return closed is not None and bool(closed())


def has_ended(task: object) -> bool:
    """Return whether a task, as ``current_task`` gave it, has ended."""
    done = getattr(task, "done", None)
    if done is not None:
        return bool(done())
    return getattr(getattr(task, "coro", None), "cr_frame", None) is None


def is_own(error: BaseException) -> bool:
    """Return whether code of this task made an error by itself.

    It did not if somebody cancels or closes the task, or pressed Ctrl-C while it ran. On asyncio, code that
    awaits something cancelled raises the same as a cancellation of its own task.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_own, cast("BaseExceptionGroup[BaseException]", error).exceptions))
    if _on_asyncio():  # asyncio is asked, not anyio: in a callback of the loop, anyio may know of no loop
        import asyncio

        if isinstance(error, asyncio.CancelledError):
            task = asyncio.current_task()
            return not (task and task.cancelling())
    elif (trio := sys.modules.get("trio")) is not None and isinstance(error, trio.Cancelled):
        return False
    return not isinstance(error, (KeyboardInterrupt, GeneratorExit))


def current_waker() -> Callable[[Callable[[], object]], None]:
    """Return how to have the running loop call a function soon, from any thread.

    Silent once the loop has ended.
    """
    if _on_asyncio():
        import asyncio

        call: Callable[[Callable[[], object]], object] = asyncio.get_running_loop().call_soon_threadsafe
    else:
        import trio

        call = trio.lowlevel.current_trio_token().run_sync_soon

    def wake(function: Callable[[], object]) -> None:
        # Once the loop is closed nobody is left to be woken; trio's RunFinishedError is a RuntimeError too.
        with suppress(RuntimeError):
            call(function)

    return wake


LONGEST_TIMER = 3600.0


class Sleep(Protocol):
    """The wait of one task."""

    def end(self) -> None:
        """Wake the task; from any thread, at any time, also again."""
        ...

    def until_ended(self, seconds: float, /) -> Awaitable[None]:
        """Wait until it was ended, or so many seconds have passed, or for an hour."""
        ...


class _AsyncioSleep:
    __slots__ = ("_future",)

    def __init__(self) -> None:
        import asyncio

        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(self) -> None:
        import asyncio

        loop = self._future.get_loop()
        if asyncio._get_running_loop() is loop:  # noqa: SLF001 - documented for this use
            self._wake()
        else:
            with suppress(RuntimeError):  # closed: nobody is left to be woken
                loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    def until_ended(self, seconds: float, /) -> Awaitable[None]:
        if self._future.done():
            self._future = self._future.get_loop().create_future()
        return self._future if seconds == math.inf else self._for(seconds)

    async def _for(self, seconds: float) -> None:
        timer = self._future.get_loop().call_later(min(seconds, LONGEST_TIMER), self._wake)
        try:
            await self._future
        finally:
            timer.cancel()


class _TrioSleep:
    def __init__(self) -> None:
        self._event = anyio.Event()
        self._thread = threading.get_ident()
        self._wake = current_waker()

    def end(self) -> None:
        if threading.get_ident() == self._thread:
            self._event.set()
        else:
            self._wake(self._event.set)

    async def until_ended(self, seconds: float, /) -> None:
        with anyio.move_on_after(min(seconds, LONGEST_TIMER)):
            await self._event.wait()


def sleep() -> Sleep:
    """Begin a wait of the running task."""
    return _AsyncioSleep() if _on_asyncio() else _TrioSleep()


def start_supervisor(supervise: Callable[[], Coroutine[Any, Any, None]]) -> object:
    """Run a coroutine function as a task of its own; returns what must be kept for as long as it runs."""
    if _on_asyncio():
        import asyncio

        return asyncio.get_running_loop().create_task(supervise())
    import trio

    return trio.lowlevel.spawn_system_task(supervise)


async def uncancelled(program: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a program to its end, whoever cancels the calling task; that is cancelled afterwards then."""
    with anyio.CancelScope(shield=True):
        if _on_asyncio():
            await _in_a_task(program)
        else:
            await program()


async def _in_a_task(program: Callable[[], Coroutine[Any, Any, None]]) -> None:
    import asyncio

    task, cancelled = asyncio.create_task(program()), list[asyncio.CancelledError]()
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = [error]
    task.result()
    if cancelled:
        raise cancelled.pop()  # so that no frame in its traceback refers to it
