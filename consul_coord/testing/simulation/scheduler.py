"""Virtual time: one heap of events, taken out one after the other, and nothing else that moves.

Rules
- Time stands still while an event is handled, and jumps to the next one's.
- Events at the same instant come in an order drawn from the seed, so that no run depends on the one in which
  they were planned.
- An event may belong to somebody who is not able to take it at present: a ``Gate`` keeps it until then.
"""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from consul_coord.testing.simulation.dice import Dice


class Gate(Protocol):
    """An owner of events."""

    def admit(self, event: Event) -> bool:
        """Return whether an event may happen now; if not, it is the gate's from here on."""
        ...


class Event:
    """Something planned, until it happens or is cancelled."""

    __slots__ = ("action", "gate", "thread", "when")

    def __init__(self, when: float, action: Callable[[], object], gate: Gate | None) -> None:
        self.when = when
        self.action: Callable[[], object] | None = action
        self.gate = gate
        self.thread: object = None
        """Which of its owner's threads takes it, if that matters."""

    def cancel(self) -> None:
        """Let it not happen; harmless when it has."""
        self.action = None


class Scheduler:
    """The heap, and the time."""

    def __init__(self, rng: Dice) -> None:
        self.now = 0.0
        """Seconds since the run began."""
        self.happened = 0
        """How many events there were."""
        self._rng = rng
        self._heap: list[tuple[float, float, int, Event]] = []
        self._order = itertools.count()

    def after(self, seconds: float, action: Callable[[], object], *, gate: Gate | None = None) -> Event:
        """Plan an event in so many seconds."""
        return self.at(self.now + seconds, action, gate=gate)

    def at(self, when: float, action: Callable[[], object], *, gate: Gate | None = None) -> Event:
        """Plan an event; one in the past happens now."""
        event = Event(max(when, self.now), action, gate)
        self.push(event)
        return event

    def push(self, event: Event) -> None:
        """Plan an event again that a gate has kept."""
        heapq.heappush(self._heap, (event.when, self._rng.random(), next(self._order), event))

    def due_for(self, gate: Gate, *, within: float) -> Iterator[float]:
        """Yield when an owner's events are due that come within so many seconds."""
        for when, _, _, event in self._heap:
            if event.gate is gate and event.action is not None and when <= self.now + within:
                yield when

    def is_idle(self) -> bool:
        """Return whether nothing is planned any more."""
        return not self._heap

    def step(self, until: float) -> bool:
        """Let the next event happen; returns False, with the time moved on, when none is due by ``until``."""
        while self._heap and self._heap[0][0] <= until:
            when, _, _, event = heapq.heappop(self._heap)
            if event.action is None:
                continue
            self.now = when
            if event.gate is not None and not event.gate.admit(event):
                continue
            action, event.action = event.action, None
            self.happened += 1
            action()
            return True
        self.now = max(self.now, until)
        return False
