"""The body of an ``async with``: cancelled when its hold is lost, and left with the truth about that.

Rules
- The cancellation is the body's own affair: it ends with the block, where ``LockLost`` takes its place. A
  cancellation from outside goes on unchanged.
- A cancel scope belongs to one task and to properly nested code. Leaving it elsewhere is refused with an
  error that says so, after the release: nothing stays locked by a misuse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from consul_coord.aio import backend
from consul_coord.recipes.election.leadership import resigned, told_as_leadership
from consul_coord.recipes.hold.view import error_at_exit, grant_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from consul_coord.aio.hold import AsyncHold
    from consul_coord.io import Signal


class Body:
    """One pass through an ``async with`` block."""

    def __init__(self, hold: AsyncHold) -> None:
        self._hold = hold
        self.owner = backend.current_task()
        """The task that entered."""
        self._scope = anyio.CancelScope()
        self._scope.__enter__()
        self._wake = backend.current_waker()
        self._unsubscribe = self._end_of(hold).subscribe(lambda: self._wake(self._scope.cancel))

    def _end_of(self, hold: AsyncHold) -> Signal:
        """Return what cancels the body."""
        return grant_of(hold).lost

    def interrupt_at_loss(self, entered: Callable[[Body], bool]) -> None:
        """Do nothing: it is cancelled at its loss."""

    def is_mine(self) -> bool:
        """Return whether the running task entered."""
        return self.owner is backend.current_task()

    def is_orphan(self) -> bool:
        """Return whether the task that entered has ended."""
        return backend.has_ended(self.owner)

    async def leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release, then raise LockLost if that is due; always in the place of the body's own cancellation."""
        self._unsubscribe()
        try:
            swallowed = self._close_scope(kind, error, trace)
        finally:
            await self._hold.release()
        raised = None if swallowed else error
        lost = error_at_exit(self._hold, raised)
        if lost is not None:
            try:
                raise lost from raised
            finally:
                del lost, raised, error  # the traceback keeps this frame, which would keep them: a circle

    def _close_scope(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not self.is_mine():
            raise misused(self._hold.key) from error
        try:
            return bool(self._scope.__exit__(kind, error, trace))
        except RuntimeError as misuse:
            raise misused(self._hold.key) from misuse


class LeaderBody(Body):
    """A block that is cancelled also when its leadership is given up elsewhere."""

    def __init__(self, hold: AsyncHold) -> None:
        grant_of(hold).entered = True
        super().__init__(hold)

    def _end_of(self, hold: AsyncHold) -> Signal:
        return grant_of(hold).over

    async def leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Resign, then raise LeadershipLost in the place of the block's own cancellation."""
        given_up = grant_of(self._hold).released
        with told_as_leadership(grant_of(self._hold)):
            await super().leave(kind, error, trace)
        if given_up and self._scope.cancelled_caught:
            raise resigned(grant_of(self._hold))


def require_interruptible() -> None:
    """Return: each block is cancelled at its loss."""


def misused(key: str) -> RuntimeError:
    """Return the error for a block that was not left where it was entered."""
    return RuntimeError(
        f"the 'async with' block on {key!r} was left in another task than it was entered in, or not in order "
        "(around a 'yield', perhaps): its cancellation at a loss can't work there. "
        "Use 'hold = await lock.acquire()' and 'await hold.release()' instead"
    )
