"""Cancel a call where it awaits: at its n-th suspension, in each way in which an event loop cancels.

Rules
- Suspensions are counted where they reach the event loop, whatever library they come from.
- ``again`` cancels at each suspension from the n-th on, as an impatient user does: in clean-up, too.
- ``late`` cancels when what the call awaits has come, and the call has not gone on yet.
- ``scope`` cancels an anyio scope around the call, which cancels until the call has left it.
"""

from __future__ import annotations

import asyncio
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

WAYS = {"asyncio": ("cancel", "late", "again", "scope"), "trio": ("scope",)}


@dataclass(frozen=True, slots=True)
class Strike:
    """What became of one run."""

    places: int
    """How often it was suspended."""
    at: str
    """Where it was cancelled; empty when it was over before."""
    raised: bool
    """Whether the cancellation came out of it."""


class _Count:
    """How often a call was suspended, and where it was cancelled."""

    def __init__(self, at: int | None, way: str, cancel: Callable[[], object]) -> None:
        self.places = 0
        self.struck = ""
        self._at = at
        self._way = way
        self._cancel = cancel

    def suspended(self, call: Coroutine[Any, Any, None], awaited: object) -> None:
        """Count a suspension, and cancel if it is the one."""
        place, self.places = self.places, self.places + 1
        if self._at is None or place < self._at or (place > self._at and self._way != "again"):
            return
        self.struck = self.struck or _told(call)
        if self._way == "late" and isinstance(awaited, asyncio.Future):
            # Called back before the task is, which is about to await it.
            awaited.add_done_callback(lambda _: self._cancel())
        else:
            self._cancel()


@types.coroutine
def _stepped(call: Coroutine[Any, Any, None], count: _Count) -> Generator[Any, Any, None]:
    value: object = None
    error: BaseException | None = None
    while True:
        try:
            awaited = call.send(value) if error is None else call.throw(error)
        except StopIteration:
            return
        count.suspended(call, awaited)
        value, error = None, None
        try:
            value = yield awaited
        except BaseException as thrown:  # noqa: BLE001 - handed on
            error = thrown


def _told(call: object) -> str:
    """Say where a coroutine is suspended, the innermost frame of this package first."""
    frames: list[str] = []
    while call is not None:
        frame = getattr(call, "cr_frame", None) or getattr(call, "gi_frame", None)
        if frame is not None:
            code = frame.f_code
            frames.append(f"{code.co_filename.rpartition('/')[2]}:{frame.f_lineno} {code.co_qualname}")
        call = getattr(call, "cr_await", None) or getattr(call, "gi_yieldfrom", None)
    return " < ".join(reversed(frames))


async def strike(act: Callable[[], Coroutine[Any, Any, None]], at: int | None, way: str) -> Strike:
    """Run ``act`` in this task and cancel it at its ``at``-th suspension, counted from 0; never for None."""
    if way == "scope":
        scope = anyio.CancelScope()
        count = _Count(at, way, scope.cancel)
        with scope:
            await _stepped(act(), count)
        return Strike(count.places, count.struck, scope.cancelled_caught)
    task = asyncio.current_task()
    assert task is not None
    count, raised = _Count(at, way, task.cancel), False
    try:
        await _stepped(act(), count)
    except asyncio.CancelledError:
        raised = True
    while task.cancelling():
        task.uncancel()
    return Strike(count.places, count.struck, raised)
