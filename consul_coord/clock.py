"""The lease clock: the one source of "now" for every deadline.

Rules
- Leases are measured on a clock that never steps and that counts the time a machine is suspended: a laptop
  that slept through its lease must not wake up as the holder. Wall-clock time names the periods of jobs, and
  no promise rests on it.
- A ``Clock`` only tells the time; waiting for it is then done by real timers. A ``SteppedClock`` also owns
  the passing of time: who waits on it sets an alarm, and is woken when somebody advances the clock, not by a
  timer.
"""

from __future__ import annotations

import heapq
import itertools
import math
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from consul_coord.threads import Mutex

if TYPE_CHECKING:
    from collections.abc import Callable


class Clock(Protocol):
    """Tell the time in seconds from an arbitrary start; never goes backwards."""

    def now(self) -> float:
        """Return the current time in seconds."""
        ...


class Alarm(Protocol):
    """A callback waiting for its time on a stepped clock."""

    def cancel(self) -> None:
        """Withdraw the alarm; harmless when it has gone off."""
        ...


@runtime_checkable
class SteppedClock(Clock, Protocol):
    """A clock that moves only when told to, and calls back those who wait for it."""

    def alarm(self, when: float, callback: Callable[[], object]) -> Alarm:
        """Call ``callback`` once, from whichever thread moves the clock to ``when`` or past it.

        At once if it is past.
        """
        ...


# CLOCK_BOOTTIME goes on during suspend on Linux; on macOS CLOCK_MONOTONIC does, while time.monotonic() does
# not.
_SUSPEND_AWARE = {"linux": "CLOCK_BOOTTIME", "darwin": "CLOCK_MONOTONIC"}


def _suspend_aware_clock() -> Callable[[], float]:
    name = _SUSPEND_AWARE.get(sys.platform)
    clock = getattr(time, name, None) if name else None
    return time.monotonic if clock is None else partial(time.clock_gettime, clock)


class SystemClock:
    """The machine's suspend-aware monotonic clock, or ``time.monotonic`` where there is none."""

    now = staticmethod(_suspend_aware_clock())
    """Returns seconds since an arbitrary start, suspended time included where the system tells it."""

    def __repr__(self) -> str:
        return "SystemClock()"


WALL_AT_ZERO = 1_800_000_000.0
"""The time of day at which virtual clocks show 0: 2027-01-15, 08:00 in UTC."""


class VirtualClock:
    """A clock for tests: it stands still until ``advance`` moves it, for everybody bound to it at once.

    A server and its clients that share one see the same instant, so a TTL or a lock-delay expires in no real
    time. Alarms go off in order of their time, each with ``now()`` at its own time, in the thread that
    advances the clock. A client whose clock stands still waits for ever before it tries again what failed.
    """

    def __init__(self, start: float = 1_000.0) -> None:
        self._now = start
        self._order = itertools.count()
        self._alarms: list[tuple[float, int, _VirtualAlarm]] = []
        self._lock = Mutex()

    def now(self) -> float:
        """Return the virtual time in seconds."""
        return self._now

    def wall(self) -> float:
        """Return the time of day that goes with it, in seconds since 1970; another one than today's."""
        return WALL_AT_ZERO + self._now

    def alarm(self, when: float, callback: Callable[[], object]) -> Alarm:
        """Call ``callback`` once when the clock reaches ``when``; at once if it already has."""
        alarm = _VirtualAlarm(callback)
        with self._lock:
            if when > self._now:
                heapq.heappush(self._alarms, (when, next(self._order), alarm))
                return alarm
        alarm.go_off()
        return alarm

    def advance(self, seconds: float) -> None:
        """Move the clock by ``seconds`` (0 or more), setting off every alarm that falls due, in order."""
        if not 0 <= seconds < math.inf:
            message = f"a clock moves by a finite time, and cannot go back: advance({seconds!r})"
            raise ValueError(message)
        target = self._now + seconds
        while (due := self._next_due(target)) is not None:
            due.go_off()
        with self._lock:
            self._now = max(self._now, target)

    def next_alarm(self) -> float | None:
        """Return the time of the earliest alarm, or None when nobody waits."""
        with self._lock:
            return next((when for when, _, alarm in sorted(self._alarms) if alarm.is_set), None)

    def _next_due(self, target: float) -> _VirtualAlarm | None:
        with self._lock:
            while self._alarms and self._alarms[0][0] <= target:
                when, _, alarm = heapq.heappop(self._alarms)
                if alarm.is_set:
                    self._now = max(self._now, when)
                    return alarm
            return None

    def __repr__(self) -> str:
        return f"VirtualClock(now={self._now:.3f})"


class _VirtualAlarm:
    """One alarm of a virtual clock; cleared when it is cancelled or has gone off."""

    __slots__ = ("_callback",)

    def __init__(self, callback: Callable[[], object]) -> None:
        self._callback: Callable[[], object] | None = callback

    @property
    def is_set(self) -> bool:
        return self._callback is not None

    def cancel(self) -> None:
        self._callback = None

    def go_off(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()
