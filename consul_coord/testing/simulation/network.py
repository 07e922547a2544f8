"""Between the processes and the agent: every request has a fate, drawn before it is sent.

Rules
- Requests of one process may pass each other: each has a connection of its own, unless the agent has a limit
  on connections (``connections``).
- A client without a reply waits until its own time is over. A connection that breaks says so at once.
- A request is applied up to ``Plan.latest`` seconds after it was sent, as seen with an agent that was stopped
  and went on. Nothing is applied later: that is where the clean-up of real clients ends, too.
- A message for a process that stands still waits for it, and so does a timer that is due then.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlencode

from consul_coord.errors import BrokenReply, ConnectFailed
from consul_coord.http.blocking import JITTER
from consul_coord.http.messages import Response
from consul_coord.server import wire
from consul_coord.testing.simulation.diary import ODD
from consul_coord.testing.simulation.dice import Dice
from consul_coord.testing.simulation.garble import garbled
from consul_coord.testing.simulation.plan import ACTS_AMID_LOOKS, ACTS_BESIDE
from consul_coord.testing.simulation.shapes import LOOKS, TIMELY, shape_of
from consul_coord.testing.simulation.ways import may_ask_anybody

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from consul_coord.errors import TransportError
    from consul_coord.http.messages import Request
    from consul_coord.testing.simulation.cluster import Cluster
    from consul_coord.testing.simulation.connections import Room
    from consul_coord.testing.simulation.judge import Judge
    from consul_coord.testing.simulation.plan import Plan
    from consul_coord.testing.simulation.scheduler import Gate, Scheduler
    from consul_coord.testing.simulation.shapes import Shape
    from consul_coord.testing.simulation.ways import SimAgent

    Fire = Callable[[Callable[[], object]], object]

SLOW = 3.0
FADED = 2.5
"""TTLs for which a link is cut at most."""
_LATENCY = 0.002
"""Seconds one way, on average, when nothing is wrong."""
_LONGEST_LATENCY = 0.02
_HOW = frozenset({"wait", "consistent"})
"""The parameters of a blocking query that do not say what it is for."""
_OK = 200
AMID_LOOKS = 0.005
"""Of so many looks each meets an act on its way, at most: it may be the reason for the next look."""
_LATENESS = (0.3, 1.5, 6.0, math.inf)
"""A request that is late is so by up to one of these many seconds, as far as it may be."""

_NO_LEADER = (500, b"No cluster leader")
_RATE_LIMITED = (429, b"")
_REFUSALS = range(300, 429)
_UNAVAILABLE = (
    503,
    b"request could not be handled by this server: it is not the leader, and it is over its rate limit",
)
_LEADER_GONE = (500, b"rpc error making call: EOF")


@dataclass(frozen=True, slots=True)
class Course:
    """The fate of a request on its way, and of its reply."""

    arrives: bool = True
    answer: Literal["reply", "nothing", "break", "refusal"] = "reply"
    delay: float = 0.0
    """Up to so many seconds more, on the way there; infinite for as many as the plan allows."""
    back: float = 0.0
    """Likewise, on the way back."""
    twice: bool = False
    instead: tuple[int, bytes] | None = None
    """Status and body of the reply, whatever was the agent's."""
    fades: bool = False
    """Whether the link is cut once the reply has passed."""
    garbles: bool = False
    """Whether a part of the reply is replaced by what no agent sends there."""
    index: str | None = None
    """The index of the reply, whatever was the agent's; empty for none."""


COURSES = {
    "served": Course(),
    "request lost": Course(arrives=False, answer="nothing"),
    "request cut off": Course(arrives=False, answer="break"),
    "connection refused": Course(arrives=False, answer="refusal"),
    "reply lost": Course(answer="nothing"),
    "reply cut off": Course(answer="break"),
    "late": Course(answer="nothing", delay=math.inf),
    "late and cut off": Course(answer="break", delay=math.inf),
    "twice": Course(twice=True),
    "slow": Course(delay=SLOW, back=SLOW),
    "fading": Course(back=SLOW, fades=True),
    "no leader": Course(arrives=False, instead=_NO_LEADER),
    "rate limited": Course(arrives=False, instead=_RATE_LIMITED),
    "unavailable": Course(arrives=False, instead=_UNAVAILABLE),
    "failed after": Course(instead=_LEADER_GONE),
    "index back": Course(index="1"),
    "index of 0": Course(index="0"),
    "no index": Course(index=""),
    "garbled": Course(garbles=True),
    **{
        f"{status} by a proxy": Course(arrives=False, instead=(status, b"<html>nginx</html>"))
        for status in (200, 301, 401, 404, 413, 418, 502)
    },
}


class Network:
    """All links, and the dice for what becomes of requests."""

    def __init__(self, scheduler: Scheduler, cluster: Cluster, plan: Plan, rng: Dice, judge: Judge) -> None:
        self.scheduler = scheduler
        self.cluster = cluster
        self.judge = judge
        self.healed = False
        self._delays: dict[str, float] = {}
        self._failed: Counter[tuple[str, str, str]] = Counter()
        self._number = 0
        self.on_strike: Callable[[str], object] = _ignore
        """The place of faults that are no fate of a request."""
        self.on_still: Callable[[str], object] = _ignore
        """Called with a process that is to stand still now."""
        self.latest = plan.latest
        self._plan = plan
        self._amid = Dice(plan.seed, "acts amid")
        self._still = Dice(plan.seed, "still amid")
        self.rng = rng
        self.agents: tuple[SimAgent, ...] = ()
        """Several agents, where a run has them; otherwise there is one, which is the cluster."""
        self.room: Room | None = None
        """The agent's room for connections, where a run has a limit; otherwise each request has its own."""

    def agent(self, address: str) -> SimAgent:
        """Return an agent by its address."""
        return next(agent for agent in self.agents if agent.address == address)

    def latency(self, more: float = 0.0) -> float:
        """Draw the seconds that one way takes."""
        usual = min(self.rng.expovariate(1 / _LATENCY), _LONGEST_LATENCY)
        return usual + (self.rng.uniform(0.0, more) if more else 0.0)

    def fading(self) -> float:
        """Draw for how many seconds a link that has faded is cut."""
        return 0.0 if self.healed else self.rng.uniform(0.1, FADED * (self._plan.spec.ttl or 0.0))

    def delay_next(self, name: str, seconds: float) -> None:
        """Let the next request of a kind come late."""
        self._delays[name] = seconds

    def delay(self, shape: Shape) -> float:
        """Return by how much a request is to come late, besides its fate."""
        return self._delays.pop(shape.name, 0.0)

    def _first(self, who: str, shape: Shape) -> str:
        """Draw what becomes of the first request of a kind by a process, about one thing."""
        mark = who, shape.name, shape.about
        failed = self._failed[mark]
        if shape.name not in self._plan.hot or failed > self._plan.twice:
            return "served"
        self._failed[mark] += 1
        return "connection refused" if failed else self.rng.choice(list(self._plan.fates))

    def fate(self, who: str, shape: Shape) -> str:
        """Draw what becomes of a request."""
        if self._plan.strike is not None:
            return self._strike(*self._plan.strike)
        if self._plan.amid and not self.healed:
            looks = shape.name in LOOKS
            self._act_amid(ACTS_AMID_LOOKS if looks else ACTS_BESIDE, most=AMID_LOOKS if looks else 1.0)
        if (
            self._plan.still
            and not self.healed
            and shape.name in TIMELY
            and self._still.chance(self._plan.still)
        ):
            self.scheduler.after(0.0, partial(self.on_still, who))
        if self.healed or not self._plan.fates:
            return "served"
        if self._plan.once:
            return self._first(who, shape)
        if shape.name in self._plan.hot and self.rng.random() < self._plan.hot_probability:
            return self.rng.choice(list(self._plan.fates))
        dice = self.rng.random()
        for name, part in self._plan.fates.items():
            dice -= part
            if dice < 0:
                return name
        return "served"

    def _act_amid(self, acts: Sequence[str], *, most: float) -> None:
        """Have an operator act while a request is on its way, perhaps: its sender has looked before that."""
        possible = [name for name in acts if name in self._plan.chaos]
        if possible and self._amid.chance(min(most, self._plan.amid)):
            self.scheduler.after(0.0, partial(self.on_strike, self._amid.choice(possible)))

    def _strike(self, number: int, fault: str) -> str:
        """Count a request, and do what is to be done at it."""
        self._number += 1
        if self.healed or self._number != number:
            return "served"
        if fault in COURSES:
            return fault
        self.scheduler.after(0.0, partial(self.on_strike, fault))
        return "served"

    def heal(self) -> None:
        """Let nothing go wrong from now on; what was lost before stays lost."""
        self.healed = True


class Link:
    """One process's part of the network."""

    def __init__(self, network: Network, who: str, gate: Gate) -> None:
        self.network = network
        self.who = who
        self.gate = gate
        self.cut = False
        """Whether nothing passes at present."""
        self.dead = False
        """Whether nothing ever will again."""
        self.parked: dict[Exchange, None] = {}
        """The blocking queries that are under way."""
        self._asked: dict[tuple[Any, ...], Exchange] = {}
        """The last one for each thing, from each index."""

    def asked(self, query: Exchange) -> Exchange | None:
        """Return the last query for the same, if it is under way; the next time that is this one."""
        before = self._asked.get(query.asks_for)
        self._asked[query.asks_for] = query
        return before if before in self.parked else None

    def fade(self) -> None:
        """Let nothing pass for longer than a lease lasts, perhaps."""
        self.cut = True
        self.network.scheduler.after(self.network.fading(), self.mend)

    def mend(self) -> None:
        """Let everything pass."""
        self.cut = self.dead

    def send(self, request: Request, fire: Fire, agent: SimAgent | None = None) -> Callable[[], None]:
        """Send a request; ``fire`` gets what becomes of it. Returns how to close its connection."""
        exchange = Exchange(self, request, fire, agent)
        exchange.begin()
        return exchange.close


class Exchange:
    """One request and its reply."""

    __slots__ = (
        "_agent",
        "_closed",
        "_course",
        "_fate",
        "_fire",
        "_hang_up",
        "_network",
        "_request",
        "_sent_at",
        "_shape",
        "began_at",
        "link",
    )

    def __init__(self, link: Link, request: Request, fire: Fire, agent: SimAgent | None = None) -> None:
        self.link = link
        self._agent = agent
        self._network = link.network
        self._request = request
        self._shape = shape_of(request)
        self._fate = "request lost" if link.cut else link.network.fate(link.who, self._shape)
        self._course = COURSES[self._fate]
        self._fire = fire
        self._closed = False
        self._hang_up: Callable[[], None] | None = None

    def begin(self) -> None:
        """Send it on its way."""
        self.began_at = self._network.scheduler.now
        network, course, agent = self._network, self._course, self._agent
        if self._request.hold_open:
            network.judge.promises.asks(self.link.who, self, beside=self.link.asked(self))
            self.link.parked[self] = None
        if agent is not None:
            agent.exchanges[self] = None
            if agent.gone:
                course = self._course = COURSES["connection refused"]
        process = network.judge.process(self.link.who)
        self._sent_at = 0.0 if process is None else process.clock.now()
        if process is not None:
            network.judge.sent(process, agent, self._request, self._shape)
        if self._fate != "served":
            network.judge.fate(self.link.who, self._shape, self._fate)
        if course.answer == "refusal":
            self._deliver(lambda: self._raise(ConnectFailed))
        elif not course.arrives and course.instead is not None:
            status, body = course.instead
            reply = Response(status, {ODD: "yes"}, body)
            self._deliver(lambda: self._hear_another(reply), after=network.latency())
        elif course.answer == "break" and (course.delay or not course.arrives):
            self._deliver(lambda: self._raise(BrokenReply))
        if course.arrives:
            first = self._arrive_unseen if course.twice else self._arrive
            delay = network.delay(self._shape) + network.latency(self._lateness(course.delay))
            network.scheduler.after(delay, first)

    def _lateness(self, most: float) -> float:
        """Draw how late it comes at most: often just too late, sometimes very late."""
        return min(most, self._network.latest, self._network.rng.choice(_LATENESS))

    @property
    def is_query(self) -> bool:
        """Whether it is a blocking query."""
        return self._request.hold_open > 0

    @property
    def path(self) -> str:
        """The path of the request."""
        return self._request.path

    @property
    def about(self) -> str:
        """The key, folder or session that the request is for."""
        return self._shape.about

    @property
    def asks_for(self) -> tuple[Any, ...]:
        """The thing that a blocking query is for, and the index from which it asks."""
        return (self._request.path, *(one for one in self._request.params if one[0] not in _HOW))

    @property
    def is_consistent(self) -> bool:
        """Whether it asks for a consistent answer."""
        return any(name == "consistent" for name, _ in self._request.params)

    @property
    def due_at(self) -> float:
        """When a blocking query is answered at the latest, as its sender knows."""
        return self.began_at + self._request.hold_open * (1 + JITTER)

    def break_off(self) -> None:
        """Break the connection: whether the request is applied is not known."""
        self._network.scheduler.after(
            self._network.latency(),
            lambda: None if self._closed else self._break(),
            gate=self.link.gate,
        )

    def _break(self) -> None:
        self.link.parked.pop(self, None)
        self._fire(lambda: self._raise(BrokenReply))

    def __str__(self) -> str:
        return str(self._shape)

    def close(self) -> None:
        """Hang up, with or without a reply."""
        process = None if self._closed else self._network.judge.process(self.link.who)
        if process is not None and not self._request.hold_open:
            self._network.judge.promises.waited(process, self._shape, since=self._sent_at)
        self._closed = True
        self.link.parked.pop(self, None)
        if self._agent is not None:
            self._agent.exchanges.pop(self, None)
        if self._hang_up is not None:
            self._hang_up()

    def _arrive_unseen(self) -> None:
        """Be applied for a proxy that hears nothing of it, and tries again."""
        if not self._request.hold_open:
            self._apply(_ignore)
        self._network.scheduler.after(self._network.latency(), self._arrive)

    def _arrive(self) -> None:
        if self._agent is None:
            self._be_served()
        elif not self._agent.gone:
            self._agent.admit(self._be_served, late=self._be_served_late)

    def _be_served_late(self) -> None:
        if self._closed and not self._request.hold_open:
            # Its client looks later for what it has done, and not all the time.
            self._network.judge.promises.failed(self.link.who, silent=False, slow=True)
        self._be_served()

    def _be_served(self) -> None:
        if not (self._closed and self._request.hold_open):
            self._hang_up = self._apply(self._answer)
            if self._closed:
                self._hang_up()

    def _apply(self, receive: Callable[[wire.Reply | None], object]) -> Callable[[], None]:
        request = self._request
        body = request.body or b""
        asked = wire.Request(
            request.method, request.path, urlencode(request.params), body, content_length=len(body)
        )
        if self._agent is not None and self._agent.stray:
            return self._ask_stray(self._agent, asked, receive)
        before = self._network.judge.before(self._shape)

        def received(reply: wire.Reply | None) -> None:
            self._network.judge.served(self.link.who, self._shape, self._fate, before, reply)
            receive(reply)

        return self._network.cluster.serve(asked, received)

    def _ask_stray(
        self, agent: SimAgent, asked: wire.Request, receive: Callable[[wire.Reply | None], object]
    ) -> Callable[[], None]:
        if not may_ask_anybody(asked.path):
            text = f"{self._shape} by {self.link.who} went to the other cluster's {agent.address}"
            self._network.judge.convict("one cluster", text)
        return agent.cluster.serve(asked, receive)

    def _answer(self, reply: wire.Reply | None) -> None:
        course = self._course
        if reply is None or (course.answer == "break" and not course.delay):
            self._deliver(lambda: self._raise(BrokenReply))
        elif course.answer == "reply":
            response = self._response(reply)
            self._deliver(lambda: self._hear(response), more=self._lateness(course.back))

    def _hear(self, response: Response) -> Response:
        judge = self._network.judge
        process = judge.process(self.link.who)
        if process is not None and self._agent is not None:
            judge.ways.heard(process, self._agent, self._request)
            self._agent.has_answered(self.link)
        if process is not None:
            judge.promises.heard(
                process, self._shape, self._sent_at, response, waited=bool(self._request.hold_open)
            )
        return response

    def _hear_another(self, response: Response) -> Response:
        """Take a reply of something in between: nobody can tell its refusal from one of the agent."""
        process = self._network.judge.process(self.link.who)
        if process is not None and response.status in _REFUSALS:
            self._network.judge.promises.answered(process)
        return response

    def _response(self, reply: wire.Reply) -> Response:
        if self._course.instead is not None:
            status, body = self._course.instead
            return Response(status, {}, body)
        headers, body = {name.lower(): value for name, value in reply.headers}, reply.body
        if self._course.index is not None and "x-consul-index" in headers:
            headers["x-consul-index"] = self._course.index
        if self._course.index == "":
            headers.pop("x-consul-index", None)
        if self._course.garbles or self._course.index == "":
            headers[ODD] = "yes"
        if self._course.garbles and reply.status == _OK:
            body = garbled(body, self._network.rng)
        return Response(reply.status, headers, body)

    def _deliver(self, outcome: Callable[[], object], *, after: float = 0.0, more: float = 0.0) -> None:
        def arrive() -> None:
            if not self.link.cut and not self._closed:
                self.link.parked.pop(self, None)
                self._fire(outcome)
                if self._course.fades:
                    self.link.fade()

        def leave() -> None:
            if self._agent is None:
                arrive()
            elif not self._agent.gone or not self._course.arrives:
                self._agent.admit(arrive)

        delay = after + self._network.latency(more)
        self._network.scheduler.after(delay, leave, gate=self.link.gate)

    def _raise(self, kind: type[TransportError]) -> None:
        request, judge = self._request, self._network.judge
        process = judge.process(self.link.who)
        if process is not None:
            judge.sessions.failed(process, self._shape)
            if self._agent is not None:
                judge.ways.broke(process, self._agent)
        raise kind(
            f"{request.method} {request.path}: {self._fate}",
            method=request.method,
            path=request.path,
            outcome_unknown=kind is not ConnectFailed,
        )


def _ignore(what: object) -> None:
    """Take no notice."""
