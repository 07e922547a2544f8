"""How the tasks of an event loop wait in a fake, and hold one: asyncio's or trio's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
from anyio import CancelScope, get_current_task

from consul_coord.recipes.contend.changes import Changes

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from consul_coord.models import LossReason
    from consul_coord.testing.fakes.holding import BaseHold


def current_owner() -> object:
    """Return what identifies the running task."""
    return get_current_task().id


class News:
    """Wakes all tasks that wait when something has changed."""

    def __init__(self) -> None:
        self._changes = Changes()
        self.tell = self._changes.tell
        """Wakes them."""

    async def wait_for(self, look: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until ``look()`` is true, at most ``timeout`` seconds; return whether it is."""
        with anyio.move_on_after(timeout):
            while True:
                with self._changes.watching() as changed:
                    if look():
                        return True
                    event = anyio.Event()
                    changed.subscribe(event.set)
                    await event.wait()
        return look()


class Block:
    """The body of an ``async with``: cancelled at the loss of its hold, as a real one's."""

    def __init__(self, hold: BaseHold) -> None:
        self._hold = hold
        self._scope = CancelScope()
        self._scope.__enter__()
        self._leaving = False
        hold.on_lost(self._cancel)

    def _cancel(self, _reason: LossReason) -> None:
        if not self._leaving:
            self._scope.cancel()

    def leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Release, then raise LockLost if that is due; return whether our own cancellation ends here."""
        self._leaving = True
        self._hold.give_up()
        swallowed = bool(self._scope.__exit__(kind, error, trace))
        raised = None if swallowed else error
        lost = self._hold.error_at_exit(raised)
        if lost is not None:
            raise lost from raised
        return swallowed
