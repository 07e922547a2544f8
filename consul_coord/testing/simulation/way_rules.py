"""The rules of several agents, seen at each of them: who is asked for what, and for how long.

Rules
- A client stays with the agent that serves it. It leaves that for the next one that serves, in the order in
  which they are named, and reports each change once.
- **An agent is checked before it is used**: it was asked for its servers, and has answered, within a minute
  and since it failed last. One of another cluster is reported soon after the start, and asked again seldom.
- An agent that has failed rests: it is asked for nothing for ``REST`` seconds, as long as another one serves.
- A request that can't be sent fails only if no agent serves.
- A client asks an agent for a sign of life only if it has been asked for something since it was heard last,
  and has had a moment for that.
- A client leaves an agent that does not serve within ``ASKED_WITHIN`` seconds of asking it something, or, if
  it only renews a session, within ``LEFT_WITHIN`` seconds. Nothing of it waits there any more, while another
  agent serves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from consul_coord import events

if TYPE_CHECKING:
    from consul_coord.events import Event
    from consul_coord.http.messages import Request
    from consul_coord.testing.simulation.judge import Judge
    from consul_coord.testing.simulation.network import Exchange
    from consul_coord.testing.simulation.plan import Plan
    from consul_coord.testing.simulation.process import Process
    from consul_coord.testing.simulation.ways import SimAgent

LEFT_WITHIN = 8.0
"""Seconds, as documented."""
ASKED_WITHIN = 2.2
"""Seconds within which a request goes on at another agent, as documented, and the latter answers."""
FORGOTTEN = 15.0
"""Seconds after an agent has come back for which clients may wonder about each."""
REST = 5.0
"""Seconds for which an agent is left alone, as documented."""
CHECK_LASTS = 60.0
REFUSED_FOR = 30.0
"""Seconds for which a check counts, of an agent that may be used and of one that must not be."""
A_MOMENT = 0.5
"""Seconds that an agent has for an answer before its client wonders."""
REPORTED_WITHIN = 3.0
"""Seconds after its first answer within which a client has reported an agent of another cluster."""
JUST = 0.1
"""Seconds for an event to come, or a request to be given up."""
_SIGN = "/v1/status/leader"
_PEERS = "/v1/status/peers"
_OF_A_CHECK = (_SIGN, _PEERS, "/v1/catalog/service/consul")


@dataclass(slots=True)
class Seen:
    """One agent, as one client has found it; in true time."""

    failed_at: float = -math.inf
    silent_at: float = -math.inf
    """When it did not answer something in time."""
    heard_at: float = -math.inf
    checked_at: float = -math.inf
    """When it answered which servers it has."""
    refused_at: float = -math.inf
    """When it answered that, being one of another cluster."""
    wonders_since: float = math.inf
    """When it was first asked for something, since it was heard last; or when that was, beside others."""


@dataclass(slots=True)
class Client:
    """One client, by its requests and its reports."""

    current: SimAgent | None = None
    """The agent that it uses, as it says."""
    first_answer: float = math.inf
    refused: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """Its reports of agents that must not be used."""
    moves: dict[SimAgent, float] = field(default_factory=dict["SimAgent", float])
    """The agents that have answered beside the one that it says it uses, and until when it may not say so."""
    seen: dict[SimAgent, Seen] = field(default_factory=dict["SimAgent", Seen])

    def of(self, agent: SimAgent) -> Seen:
        """Return what it has found of an agent."""
        return self.seen.setdefault(agent, Seen())


class WayRules:
    """The view of all ways in."""

    def __init__(self, judge: Judge, plan: Plan) -> None:
        self._judge = judge
        self._failed_at: dict[SimAgent, float] = {}
        self._first_failure = math.inf
        self._back_at: dict[SimAgent, float] = {}
        self._clients: dict[str, Client] = {}
        self._quick = not plan.fates
        """Whether each agent that serves answers at once."""
        self.agents: tuple[SimAgent, ...] = ()

    def fails(self, agent: SimAgent, seconds: float) -> None:
        """Take note that an agent does not serve for a while."""
        self._failed_at[agent] = self._judge.now
        self._first_failure = min(self._first_failure, self._judge.now)
        self._back_at[agent] = self._judge.now + seconds

    def _served_since(self, agent: SimAgent, since: float) -> bool:
        return agent.serves and self._back_at.get(agent, -math.inf) < since

    def _client(self, process: Process) -> Client:
        return self._clients.setdefault(process.name, Client())

    def _convict(self, process: Process, how: str) -> None:
        self._judge.convict("ways in", f"{process.name} {how}")

    # -- requests

    def asks(self, process: Process, agent: SimAgent, request: Request) -> None:
        """Take note that a client turns to an agent, though the call may end before it has sent anything."""
        if request.path != _SIGN and not request.hold_open:
            seen = self._client(process).of(agent)
            seen.wonders_since = min(seen.wonders_since, self._judge.now)

    def sent(self, process: Process, agent: SimAgent, request: Request) -> None:
        """Judge a request to an agent."""
        client, now = self._client(process), self._judge.now
        seen = client.of(agent)
        is_known = client.first_answer < seen.failed_at
        if is_known and seen.failed_at + JUST < now < seen.failed_at + REST - JUST:
            self._check_rest(process, agent, seen.failed_at)
        if request.path == _SIGN:
            self._check_sign(process, agent, seen)
        if request.path == _PEERS:
            since = now - seen.refused_at
            if 2 * JUST < since < REFUSED_FOR - JUST and client.first_answer < seen.refused_at:
                self._convict(process, f"checks {agent.address}, which it refused {since:.2f} s ago")
            since = now - max(seen.checked_at, client.first_answer)
            again = (
                2 * JUST < since < CHECK_LASTS - JUST
                and max(seen.failed_at, seen.silent_at) == -math.inf < seen.checked_at
            )
            if again and not agent.stray:
                self._convict(process, f"checks {agent.address} again, {since:.2f} s after the last time")
        elif not _is_check(request) and agent is not client.current:
            self._check_move(process, client, agent)

    def _check_rest(self, process: Process, agent: SimAgent, failed_at: float) -> None:
        others = [
            one for one in self.agents if one is not agent and self._served_since(one, failed_at - JUST)
        ]
        if others and self._quick:
            text = f"asks {agent.address} again, which failed {self._judge.now - failed_at:.2f} s ago"
            self._convict(process, f"{text}, and {others[0].address} serves")

    def _check_sign(self, process: Process, agent: SimAgent, seen: Seen) -> None:
        now = self._judge.now
        if now < seen.silent_at + JUST:
            return  # a call that got no answer asks for the reason
        if now <= max(self._back_at.values(), default=0.0) + FORGOTTEN:
            return
        if seen.wonders_since == math.inf:
            self._convict(process, f"asks {agent.address} for a sign of life, and it has answered everything")
        elif now < seen.wonders_since + A_MOMENT - JUST:
            text = f"asks {agent.address} for a sign of life {now - seen.wonders_since:.2f} s after a request"
            self._convict(process, text)

    def _check_move(self, process: Process, client: Client, agent: SimAgent) -> None:
        """Judge that a client uses another agent than before."""
        seen, now, before = client.of(agent), self._judge.now, client.current
        if seen.checked_at < max(now - CHECK_LASTS, seen.failed_at):
            self._convict(process, f"uses {agent.address}, and has not checked it")
        client.moves.setdefault(agent, math.inf)
        if not self._quick or agent.stray:
            return
        if before is not None and self._served_since(before, now - ASKED_WITHIN):
            self._convict(process, f"goes from {before.address}, which serves, to {agent.address}")
        for other in self.agents[: self.agents.index(agent)]:
            known = client.of(other)
            rested = max(known.failed_at, self._back_at.get(other, -math.inf)) + REST + JUST < now
            if other is not before and not other.stray and other.serves and rested:
                self._convict(process, f"goes to {agent.address}, and {other.address} before it serves")

    def heard(self, process: Process, agent: SimAgent, request: Request) -> None:
        """Take note of an answer."""
        client, now = self._client(process), self._judge.now
        seen = client.of(agent)
        own = (one for one in agent.exchanges if one.link.who == process.name)
        waits = any(not one.is_query and one.path != _SIGN for one in own)
        seen.heard_at, seen.wonders_since = now, now if waits else math.inf
        if request.path == _PEERS:
            seen.checked_at = now
            seen.refused_at = now if agent.stray else -math.inf
        if _is_check(request):
            return
        client.first_answer = min(client.first_answer, now)
        client.current = client.current or agent
        if agent is client.current:
            client.moves.pop(agent, None)
        elif agent in client.moves:
            client.moves[agent] = min(client.moves[agent], now + JUST)

    def broke(self, process: Process, agent: SimAgent) -> None:
        """Take note that a request to an agent has failed."""
        self._client(process).of(agent).failed_at = self._judge.now

    def timed_out(self, process: Process, agent: SimAgent) -> None:
        """Take note that a request to an agent got no answer in its time."""
        self._client(process).of(agent).silent_at = self._judge.now

    def not_sent(self, process: Process, *, since: float, deadline: float) -> None:
        """Judge that a call could not be sent to any agent, and says so before its deadline."""
        served = [one for one in self.agents if self._served_since(one, since - JUST)]
        in_time = process.clock.now() < deadline - JUST and self._client(process).first_answer < since
        if served and in_time and self._quick and not process.core.closing.is_set():
            self._convict(process, f"could not send a request, and {served[0].address} served all the time")

    # -- events

    def reported(self, process: Process, event: Event) -> None:
        """Judge the report of a change of the agent, or of one that must not be used."""
        if isinstance(event, events.FailedOver):
            self._moved(process, event)
        elif isinstance(event, events.AgentRefused):
            self._refused(process, event)

    def _moved(self, process: Process, event: events.FailedOver) -> None:
        client = self._client(process)
        before = None if client.current is None else client.current.address
        if before not in {None, event.old} or event.old == event.new:
            text = f"reports that it went from {event.old} to {event.new}, and has used {before}"
            self._judge.convict("told", f"{process.name} {text}")
        client.current = next((one for one in self.agents if one.address == event.new), None)
        client.moves.clear()

    def _refused(self, process: Process, event: events.AgentRefused) -> None:
        client, mark = self._client(process), (event.address, event.reason)
        stray = any(one.stray and one.address == event.address for one in self.agents)
        if not stray or mark in client.refused:
            what = "again" if stray else "and it is one of its cluster"
            text = f"{process.name} says that it must not use {event.address}, {what}: {event.reason}"
            self._judge.convict("told", text)
        client.refused.add(mark)

    # -- at each moment

    def look(self) -> None:
        """Judge for how long clients wait at agents that do not serve, and what they have not reported."""
        now = self._judge.now
        for agent, since in self._failed_at.items():
            for exchange in () if agent.serves else agent.exchanges:
                process = self._judge.process(exchange.link.who)
                if process is not None and process.able:
                    self._check_wait(process, exchange, since, now)
        for name, client in self._clients.items():
            process = self._judge.process(name)
            if process is not None and process.able and not process.core.closing.is_set():
                self._check_reports(process, client, now)

    def _check_wait(self, process: Process, exchange: Exchange, since: float, now: float) -> None:
        # A client whose agent was too slow may just have gone to one that answers nothing.
        within, began = LEFT_WITHIN, max(since, process.awake_since, exchange.began_at)
        if not exchange.is_query:
            if not self._quick:
                return  # it may have answered a sign of life just before
            within = ASKED_WITHIN
        elif not self._renews(process):
            return
        if now > began + within * self._judge.stretch:
            self._convict(process, f"waits at an agent that fails since {now - since:.2f} s: {exchange}")

    def _check_reports(self, process: Process, client: Client, now: float) -> None:
        if any(now > until for until in client.moves.values()):
            names = ", ".join(agent.address for agent in client.moves)
            self._judge.convict("told", f"{process.name} uses {names}, and has not reported that")
        reported = {address for address, _ in client.refused}
        for agent in self.agents if now > client.first_answer + REPORTED_WITHIN and self._quick else ():
            if (
                agent.stray
                and agent.address not in reported
                and self._first_failure > client.first_answer + REPORTED_WITHIN
            ):
                text = f"{process.name} has not reported that it must not use {agent.address}"
                self._judge.convict("told", text)

    def _renews(self, process: Process) -> bool:
        """Return whether a process has renewed a session for long enough to be at it."""
        now, longest = process.clock.now(), self._judge.ttl
        kept = (self._judge.promises.confirmed(process, one.id) for one in process.core.sessions)
        return any(at is not None and at > now - 2 * longest for at in kept)


def _is_check(request: Request) -> bool:
    """Return whether a request only finds out what an agent is, or whether it lives."""
    renews = request.path.startswith("/v1/session/renew/")
    return request.path in _OF_A_CHECK or (renews and request.keep == 0.0)
