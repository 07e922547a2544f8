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
from consul_coord.recipes.hold.grant import error_at_exit
from consul_coord.recipes.hold.release import release

if TYPE_CHECKING:
    from types import TracebackType

    from consul_coord.aio.client import AsyncClient
    from consul_coord.recipes.client import ClientState
    from consul_coord.recipes.hold.grant import Grant


class Body:
    """One pass through an ``async with`` block."""

    def __init__(self, client: AsyncClient, core: ClientState, hold: Grant) -> None:
        self._client = client
        self._core = core
        self._hold = hold
        self._task = backend.current_task()
        self._scope = anyio.CancelScope()
        self._scope.__enter__()
        wake = backend.current_waker()
        self._unsubscribe = hold.lost.subscribe(lambda: wake(self._scope.cancel))

    async def leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release, then raise LockLost if that is due; always in the place of the body's own cancellation."""
        self._unsubscribe()
        try:
            swallowed = self._close_scope(kind, error, trace)
        finally:
            await self._client.call(lambda io: release(io, self._core, self._hold), closing=True)
        raised = None if swallowed else error
        lost = error_at_exit(self._hold, self._client.now(), raised)
        if lost is not None:
            raise lost from raised

    def _close_scope(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if backend.current_task() is not self._task:
            raise misused(self._hold.key) from error
        try:
            return bool(self._scope.__exit__(kind, error, trace))
        except RuntimeError as misuse:
            raise misused(self._hold.key) from misuse


class Blocks:
    """The blocks of one object that have been entered, by task; those of one task nest."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._entered: dict[object, list[Body]] = {}

    def enter(self, body: Body) -> None:
        """Take note of the running task's block."""
        self._entered.setdefault(backend.current_task(), []).append(body)

    def latest(self) -> Body:
        """Return the block that is left now, and forget it. Raises RuntimeError when it can't be told."""
        owner = self._owner()
        entered = self._entered[owner]
        body = entered.pop()
        if not entered:
            del self._entered[owner]
        return body

    def _owner(self) -> object:
        """Return whose block is left here: this task's or, by misuse, that of the task which entered it.

        That one has ended, or is the only one.
        """
        task = backend.current_task()
        if task in self._entered:
            return task
        ended = [owner for owner in self._entered if backend.has_ended(owner)]
        owners = ended or list(self._entered)
        if len(owners) == 1:
            return owners[0]
        raise misused(self._key)


def misused(key: str) -> RuntimeError:
    """Return the error for a block that was not left where it was entered."""
    return RuntimeError(
        f"the 'async with' block on {key!r} was left in another task than it was entered in, or not in order "
        "(around a 'yield', perhaps): its cancellation at a loss can't work there. "
        "Use 'hold = await lock.acquire()' and 'await hold.release()' instead"
    )
