"""A clock on which nobody has to wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class HurriedClock:
    """Every pause is over at once, by jumping to its end; the pauses are remembered.

    ``oversleeps``: seconds by which it jumps too far. Not for sessions, whose keepers would never rest.
    """

    def __init__(self, *, oversleeps: float = 0.0) -> None:
        self._now = 1_000.0
        self._oversleeps = oversleeps
        self.pauses: list[float] = []

    def now(self) -> float:
        return self._now

    def alarm(self, when: float, callback: Callable[[], object]) -> HurriedClock:
        self.pauses.append(when - self._now)
        self._now = when + self._oversleeps
        callback()
        return self

    def cancel(self) -> None:
        """Do nothing: an alarm has gone off before it can be cancelled."""
