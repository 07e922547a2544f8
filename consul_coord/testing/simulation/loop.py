"""An asyncio event loop on virtual time: it never waits, the scheduler's next event is there at once.

Rules
- A timer or reply that the loop waits for is an event of the scheduler, or comes of one. When neither
  has anything planned, nothing can ever happen again: that is an error, not a wait.
- Real sockets and threads have no place in it: nothing tells it of them.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from consul_coord.testing.simulation.scheduler import Scheduler


class NothingPlanned(RuntimeError):
    """Everybody waits, and nothing is left that could end a wait."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop of one run."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        super().__init__(_Selector(scheduler))

    def time(self) -> float:
        """Return the true time."""
        return self._scheduler.now


class _Selector(selectors.BaseSelector):
    """Stands where the loop would wait for sockets: lets virtual time pass instead."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:  # noqa: ANN401
        """Take note of a file: the loop's own wake-up pipe, of which there is nothing to be heard."""
        descriptor = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = selectors.SelectorKey(fileobj, descriptor, events, data)
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:  # noqa: ANN401 - as above
        """Forget a file."""
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Let the next event happen, or the time pass until a timer of the loop is due."""
        if timeout is None and self._scheduler.is_idle():
            message = "all tasks wait, and no reply is on its way and no timer set"
            raise NothingPlanned(message)
        if timeout is None or timeout > 0:
            self._scheduler.step(float("inf") if timeout is None else self._scheduler.now + timeout)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        """Return the files."""
        return self._keys
