"""The rules of several agents, seen at each of them: who is asked for what, and for how long.

Rules
- A client asks an agent for a sign of life only if it has been asked for something since it was heard last.
- A client that renews a session leaves an agent that does not serve within ``LEFT_WITHIN`` seconds: none of
  its queries waits there any more, while another agent serves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from consul_coord.http.messages import Request
    from consul_coord.testing.simulation.judge import Judge
    from consul_coord.testing.simulation.process import Process
    from consul_coord.testing.simulation.ways import SimAgent

LEFT_WITHIN = 8.0
"""Seconds, as documented."""
FORGOTTEN = 15.0
"""Seconds after an agent has come back for which clients may wonder about each."""
_SIGN = "/v1/status/leader"


class WayRules:
    """The view of all ways in."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._failed_at: dict[SimAgent, float] = {}
        self._back_at: dict[SimAgent, float] = {}
        self._wonders: set[tuple[str, SimAgent]] = set()
        """The clients that have asked an agent for something since it was heard last."""

    def fails(self, agent: SimAgent, seconds: float) -> None:
        """Take note that an agent does not serve for a while."""
        self._failed_at[agent] = self._judge.now
        self._back_at[agent] = self._judge.now + seconds

    def sent(self, process: Process, agent: SimAgent, request: Request) -> None:
        """Judge a request to an agent."""
        mark, now = (process.name, agent), self._judge.now
        if request.path != _SIGN:
            self._wonders.update(() if request.hold_open else (mark,))
        elif mark not in self._wonders and now > max(self._back_at.values(), default=0.0) + FORGOTTEN:
            text = f"{process.name} asks {agent.address} for a sign of life, and it has answered everything"
            self._judge.convict("ways in", text)

    def heard(self, process: Process, agent: SimAgent) -> None:
        """Take note of an answer."""
        self._wonders.discard((process.name, agent))

    def look(self) -> None:
        """Judge for how long clients wait at agents that do not serve."""
        now = self._judge.now
        for agent, since in self._failed_at.items():
            for exchange in () if agent.serves else [each for each in agent.exchanges if each.is_query]:
                process = self._judge.process(exchange.link.who)
                if process is None or not process.able or not self._renews(process):
                    continue
                if now > max(since, process.awake_since) + LEFT_WITHIN * self._judge.stretch:
                    text = f"{process.name} waits at {agent.address}, which fails since {now - since:.2f} s"
                    self._judge.convict("ways in", f"{text}: {exchange}")

    def _renews(self, process: Process) -> bool:
        """Return whether a process has renewed a session for long enough to be at it."""
        now, longest = process.clock.now(), self._judge.ttl
        kept = (self._judge.promises.confirmed(process, one.id) for one in process.core.sessions)
        return any(at is not None and at > now - 2 * longest for at in kept)
