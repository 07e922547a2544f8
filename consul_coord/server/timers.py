"""A queue of named deadlines: set, moved and dropped in O(log n), asked for the earliest.

Rules
- One deadline per name; setting it again replaces it. Names falling due at the same time come out in the
  order they were set.
- Moved and dropped deadlines stay in the heap until they surface, so a renewal storm costs no search; the
  heap is rebuilt when such leftovers outnumber the living.
"""

from __future__ import annotations

import heapq
import itertools
from typing import Generic, TypeVar

Name = TypeVar("Name")
Timer = tuple[str, str]
"""The name of one of a state's timers: its kind, and whose it is."""

_SLACK = 64


class TimerQueue(Generic[Name]):
    """Deadlines by name."""

    __slots__ = ("_deadlines", "_heap", "_order")

    def __init__(self) -> None:
        self._deadlines: dict[Name, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, Name]] = []
        self._order = itertools.count()

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, name: Name) -> bool:
        return name in self._deadlines

    def set(self, name: Name, when: float) -> None:
        """Let ``name`` fall due at ``when``, instead of any earlier setting."""
        stamp = next(self._order)
        self._deadlines[name] = (when, stamp)
        heapq.heappush(self._heap, (when, stamp, name))
        if len(self._heap) > 2 * len(self._deadlines) + _SLACK:
            self._rebuild()

    def drop(self, name: Name) -> None:
        """Forget ``name``; harmless when it is not set."""
        self._deadlines.pop(name, None)

    def clear(self) -> None:
        """Forget everything."""
        self._deadlines.clear()
        self._heap.clear()

    def names(self) -> tuple[Name, ...]:
        """Return every name that has a deadline."""
        return tuple(self._deadlines)

    def deadline(self, name: Name) -> float | None:
        """Return when ``name`` falls due."""
        found = self._deadlines.get(name)
        return found[0] if found else None

    def earliest(self) -> float | None:
        """Return the earliest deadline, or None when there is none."""
        while self._heap:
            when, stamp, name = self._heap[0]
            if self._deadlines.get(name) == (when, stamp):
                return when
            heapq.heappop(self._heap)
        return None

    def pop(self, now: float) -> tuple[float, Name] | None:
        """Take out and return the earliest (deadline, name) that is not after ``now``."""
        when = self.earliest()
        if when is None or when > now:
            return None
        _, _, name = heapq.heappop(self._heap)
        del self._deadlines[name]
        return when, name

    def _rebuild(self) -> None:
        self._heap = [(when, stamp, name) for name, (when, stamp) in self._deadlines.items()]
        heapq.heapify(self._heap)
