"""How many may go on at one time: first come, first served. For the tasks of one event loop.

Rules
- Who leaves hands the place to the first who waits, so that nobody overtakes.
- Who is cancelled while waiting gives up nothing of others': a place handed over meanwhile goes to the next.
"""

from __future__ import annotations

from collections import deque

import anyio


class Gate:
    """So many places; ``enter`` before, ``leave`` after, whatever happens between."""

    __slots__ = ("_free", "_waiting")

    def __init__(self, places: float) -> None:
        self._free = places
        self._waiting: deque[anyio.Event] = deque()

    @property
    def crowded(self) -> bool:
        """Whether somebody waits for a place."""
        return bool(self._waiting)

    async def enter(self) -> None:
        """Take a place, waiting for one if need be. Suspends only then."""
        if self._free:
            self._free -= 1
            return
        handed = anyio.Event()
        self._waiting.append(handed)
        try:
            await handed.wait()
        except BaseException:
            if handed.is_set():
                self.leave()
            else:
                self._waiting.remove(handed)
            raise

    def leave(self) -> None:
        """Give the place to the first who waits, or back."""
        if self._waiting:
            self._waiting.popleft().set()
        else:
            self._free += 1
