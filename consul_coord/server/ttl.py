"""The TTLs of sessions: which are allowed, and when each session ends unless it is renewed.

Rules
- A session lives a multiple of its TTL past its last renewal: twice, unless configured otherwise.
- Timers live with the leader and are not replicated. Their keeper stops all of them when the leader goes, and
  starts each one again with the next leader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from consul_coord.server.failures import StateError
from consul_coord.server.gotext import SECOND, GoParseError, format_duration, parse_duration
from consul_coord.server.store import fold

if TYPE_CHECKING:
    from consul_coord.server.config import ServerConfig
    from consul_coord.server.records import SessionRecord
    from consul_coord.server.timers import Timer, TimerQueue

SESSION_TIMER: Final = "session"


class SessionTtls:
    """The sessions' deadlines, among the other timers of a state."""

    __slots__ = ("_config", "_timers")

    def __init__(self, timers: TimerQueue[Timer], config: ServerConfig) -> None:
        self._timers = timers
        self._config = config

    def require_valid(self, ttl: str) -> None:
        """Raise ``StateError`` for a TTL that is invalid, or out of bounds."""
        if not ttl:
            return
        try:
            nanoseconds = parse_duration(ttl)
        except GoParseError as error:
            message = f"Session TTL '{ttl}' invalid: {error}"
            raise StateError(message) from None
        low, high = (
            round(bound * SECOND) for bound in (self._config.session_ttl_min, self._config.session_ttl_max)
        )
        if nanoseconds and not low <= nanoseconds <= high:
            bounds = f"{format_duration(low)}={format_duration(high)}"
            message = f"Invalid Session TTL '{nanoseconds}', must be between [{bounds}]"
            raise StateError(message)

    def start(self, session: SessionRecord, now: float) -> None:
        """Let a session live its full time from ``now``; one without a TTL lives on."""
        if session.ttl and (nanoseconds := parse_duration(session.ttl)):
            lifetime = self._config.session_ttl_factor * nanoseconds / SECOND
            self._timers.set((SESSION_TIMER, session.id), now + lifetime)

    def stop(self, session: str) -> None:
        """Forget a session's deadline; harmless when it has none."""
        self._timers.drop((SESSION_TIMER, session))

    def stop_all(self) -> None:
        """Forget every session's deadline."""
        for timer in self._timers.names():
            if timer[0] == SESSION_TIMER:
                self._timers.drop(timer)

    def deadline(self, session: str) -> float | None:
        """Return when a session ends unless renewed; None when it has no TTL or is unknown."""
        return self._timers.deadline((SESSION_TIMER, fold(session)))
