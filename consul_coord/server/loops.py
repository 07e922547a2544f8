"""The differences of asyncio and trio for the server: calls from any thread, timers, loose tasks.

Rules
- A call into a loop that has ended is dropped: nobody is left whom it could concern.
- A timer and a task are started and cancelled in their own loop.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from trio.lowlevel import TrioToken

    Action = Callable[[], object]
    Work = Callable[[], Coroutine[object, object, None]]


class Loop(Protocol):
    """A running event loop; equal to another one if it is the same."""

    def call(self, action: Action) -> None:
        """Call ``action`` in the loop, from any thread: at once where this is it, else soon."""
        ...

    def call_later(self, seconds: float, action: Action) -> Action:
        """Call ``action`` in the loop after some seconds; returns what cancels that."""
        ...

    def start(self, work: Work) -> Action:
        """Run a task in the loop that nobody waits for; returns what cancels it."""
        ...


def running_loop() -> Loop | None:
    """Return the event loop that this code runs in, if any."""
    with suppress(RuntimeError):
        return _Asyncio(asyncio.get_running_loop())
    trio = sys.modules.get("trio")  # where it runs, it has been imported
    if trio is not None:
        with suppress(RuntimeError):
            return _Trio(trio.lowlevel.current_trio_token())
    return None


@dataclass(frozen=True, slots=True)
class _Asyncio:
    loop: asyncio.AbstractEventLoop

    def call(self, action: Action) -> None:
        if running_loop() == self:
            action()
            return
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(action)

    def call_later(self, seconds: float, action: Action) -> Action:
        return self.loop.call_later(seconds, action).cancel

    def start(self, work: Work) -> Action:
        return self.loop.create_task(work()).cancel  # the caller keeps it alive through this


@dataclass(frozen=True, slots=True)
class _Trio:
    token: TrioToken

    def call(self, action: Action) -> None:
        if running_loop() == self:
            action()
            return
        with suppress(RuntimeError):  # trio's RunFinishedError is one
            self.token.run_sync_soon(action)

    def call_later(self, seconds: float, action: Action) -> Action:
        async def wait() -> None:
            import trio

            await trio.sleep(seconds)
            action()

        return self.start(wait)

    def start(self, work: Work) -> Action:
        import trio

        scope = trio.CancelScope()

        async def run() -> None:
            with scope:
                await work()

        trio.lowlevel.spawn_system_task(run)
        return scope.cancel
