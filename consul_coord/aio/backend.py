"""The few differences between asyncio and trio that anyio does not hide.

Rules
- A background supervisor is a separate task, not a child of the task that started it. So a client may be
  entered and closed in different tasks, and a failure in the background never cancels the user's code.
- A waker may be called from any thread.
- asyncio's own cancellation (``Task.cancel``: a Ctrl-C in ``asyncio.run``, ``asyncio.timeout``) goes through
  every shield of anyio's. Only another task is safe from it.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


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


def has_ended(task: object) -> bool:
    """Return whether a task, as ``current_task`` gave it, has ended."""
    done = getattr(task, "done", None)
    if done is not None:
        return bool(done())
    return getattr(getattr(task, "coro", None), "cr_frame", None) is None


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

    task, cancelled = asyncio.create_task(program()), None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled
