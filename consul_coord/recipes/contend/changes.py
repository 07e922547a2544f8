"""Telling any number of waiters that something has changed; from any thread, without a lock.

Rules
- A waiter begins to watch first, and looks then: so it misses no change between the look and the wait.
- Each watcher of that moment is notified of a change once.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from consul_coord.io import Signal

if TYPE_CHECKING:
    from collections.abc import Generator


class Changes:
    """A source of changes."""

    __slots__ = ("_watchers",)

    def __init__(self) -> None:
        self._watchers: dict[Signal, None] = {}

    @contextmanager
    def watching(self) -> Generator[Signal]:
        """Give a signal that the next change raises."""
        signal = Signal()
        self._watchers[signal] = None
        try:
            yield signal
        finally:
            self._watchers.pop(signal, None)

    def tell(self) -> None:
        """Raise the signal of everybody who watches."""
        for signal in list(self._watchers):
            signal.set()
