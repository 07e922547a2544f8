"""Lock-delays: how long a key refuses to be locked after its holder's session was invalidated.

Rules
- Per key name and in memory only: not replicated in a snapshot, not cleared by writes or by deleting the key.
- The end of a delay is not an event: nothing changes, nobody is woken.
- Capped; a delay of zero or less sets nothing.
"""

from __future__ import annotations

from consul_coord.server.gotext import SECOND

_SWEEP_AT = 1_024


class LockDelays:
    """When each key may be locked again."""

    __slots__ = ("_cap", "_ends", "_sweep_at")

    def __init__(self, cap: float) -> None:
        self._cap = cap
        self._ends: dict[str, float] = {}
        self._sweep_at = _SWEEP_AT

    def start(self, key: str, nanoseconds: int, now: float) -> None:
        """Refuse locks of ``key`` for the given time from ``now``."""
        if nanoseconds <= 0:
            return
        if len(self._ends) >= self._sweep_at:
            self._ends = self.running(now)
            self._sweep_at = max(_SWEEP_AT, 2 * len(self._ends))  # a storm must not sweep at each start
        self._ends[key] = now + min(nanoseconds / SECOND, self._cap)

    def active(self, key: str, now: float) -> bool:
        """Tell whether ``key`` refuses locks at ``now``."""
        end = self._ends.get(key)
        return end is not None and now < end

    def running(self, now: float) -> dict[str, float]:
        """Return the end of every delay that still runs, by key."""
        return {key: end for key, end in self._ends.items() if end > now}

    def clear(self) -> None:
        """Forget every delay."""
        self._ends.clear()
