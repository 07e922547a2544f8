"""A process's own clock: it runs at a rate of its own, from a start of its own."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from consul_coord.clock import WALL_AT_ZERO

if TYPE_CHECKING:
    from consul_coord.testing.simulation.scheduler import Scheduler


class LocalClock:
    """Seconds as one process counts them: ``rate`` of its seconds pass in one true one."""

    __slots__ = ("_offset", "_rate", "_scheduler")

    def __init__(self, scheduler: Scheduler, *, rate: float = 1.0, offset: float = 0.0) -> None:
        self._scheduler = scheduler
        self._rate = rate
        self._offset = offset

    def now(self) -> float:
        """Return the process's time."""
        return self._offset + self._rate * self._scheduler.now

    def wall(self) -> float:
        """Return the process's time of day."""
        return WALL_AT_ZERO + self.now()

    def true(self, local: float) -> float:
        """Return the true time at which this clock shows ``local``, or just has."""
        when = (local - self._offset) / self._rate
        while math.isfinite(when) and self._offset + self._rate * when < local:
            when = math.nextafter(when, math.inf)
        return when
