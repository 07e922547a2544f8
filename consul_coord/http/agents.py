"""Several agents of one cluster: which one carries a request, and what happens when it can't.

Rules
- All requests go to one agent for as long as it serves. Then they go to the next one, in the order in which
  they were named, and stay there.
- A request that could not be sent goes to the next agent at once. One that was sent and not answered is an
  error like any other: its caller knows how to settle it, and asks again, elsewhere.
- An agent is left when it can't be reached, when it breaks the connection, and when it answers nothing at all
  in a request's own time. It is left, too, when it says that it reaches no server or is overloaded. All other
  requests under way there are cut off once another agent serves: they would wait for their whole time, in
  vain.
- An agent that answers nothing to a request that it should answer at once is asked for a sign of life.
  Without one it is left, long before the request's own time is over. So a slow request costs nothing, and a
  release does not wait for an agent that hangs.
- An agent that was left rests: it is tried again after ``REST`` seconds, or when no other one serves.
- **An agent is checked before it is used**, each time that requests move to it. A lock in another cluster
  would be a second lock. It has to see the same servers as the agents that were used before, by their ids, or
  by their addresses where the token may not read the ids; or it knows this client's session. Otherwise it is
  refused, by name, and asked again later. A check that ends with its call says nothing of the agent.
- A new client knows no servers yet. It takes the first address for the right one. While that does not answer,
  it uses another agent only if no further one contradicts it.
- Several agents read the same Raft log, so their indices can be compared. One that lags has older ones, which
  the rules of blocking queries cover.

The rules are carried out in three worlds: ``Way`` is what each of them adds.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from consul_coord.errors import (
    AcquireCancelled,
    CertificateRefused,
    ClientClosed,
    ConnectFailed,
    ConsulCoordError,
    PermissionDenied,
    RequestTimeout,
    ResponseError,
    TransportError,
)
from consul_coord.http.endpoints import catalog, session, status
from consul_coord.http.failures import again, bare
from consul_coord.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from consul_coord.config import Settings
    from consul_coord.http.messages import Call, Request, Response

T = TypeVar("T")

CONNECT_WITHIN: Final = 1.5
"""Seconds that looking up names, or opening a connection, may take where there is another agent."""
CHECK_WITHIN: Final = 1.5
"""Seconds that one request of a check may take."""
CHECK_LASTS: Final = 60.0
"""Seconds for which a check counts, unless the agent is left."""
REST: Final = 5.0
"""Seconds for which an agent that was left is not tried while another one serves."""
REFUSED_FOR: Final = 30.0
"""Seconds until an agent of another cluster is checked again."""
REFRESH: Final = 300.0
"""Seconds after which the servers are read again: they are exchanged one by one, over time."""
LOOK: Final = 0.25
"""Seconds between two looks at whether the agent is silent."""
SILENT_AFTER: Final = 0.5
"""Seconds that an agent may take for a request before it is asked for a sign of life."""
SIGN_WITHIN: Final = 1.0
"""Seconds that it may take for that sign."""
SILENCE: Final = 0.2
"""Seconds. A request that was given less than that says nothing of an agent that did not answer."""

_OUT_OF_SERVICE: Final = ("no cluster leader", "rpc error getting client", "no known consul servers")


class Agent:
    """One agent, as far as this client knows."""

    __slots__ = (
        "asked_at",
        "checked_at",
        "cut",
        "heard_at",
        "left_at",
        "refused",
        "refused_at",
        "settings",
        "waiting",
    )

    def __init__(self, settings: Settings, cut: Callable[[], object]) -> None:
        self.settings = settings
        self.cut = cut
        """Ends what is under way there."""
        self.heard_at = self.left_at = self.checked_at = self.refused_at = -math.inf
        self.asked_at = math.inf
        """When it was first asked, since it was last heard, for anything that it answers at once."""
        self.waiting: dict[object, None] = {}
        """The requests of that kind that are under way."""
        self.refused = ""
        """Why it must not be used; empty when nothing is known against it."""

    @property
    def address(self) -> str:
        """Its address, for messages."""
        return self.settings.address

    def rests(self, now: float) -> bool:
        """Return whether it was left lately."""
        return now < self.left_at + REST

    def leave(self, now: float) -> None:
        """Take note that it does not serve. Requests that wait there go on elsewhere at the next look."""
        self.left_at, self.checked_at = now, -math.inf
        self.asked_at = -math.inf if self.waiting else math.inf

    def hear(self, now: float) -> None:
        """Take note that it has answered something. Requests under way count as sent now."""
        self.heard_at = now
        self.wait_from(now)

    def wait_from(self, now: float) -> None:
        """Count requests under way as sent at this moment."""
        self.asked_at = now if self.waiting else math.inf


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Servers(Value):
    """The servers of a cluster, as far as that tells it from another one."""

    ids: frozenset[str]
    """Node id and address of each; empty where the token may not read them."""
    peers: frozenset[str]
    """Their addresses, which two clusters may have in common."""

    def are_those_of(self, others: Servers) -> bool:
        """Return whether both are of one cluster. Servers are exchanged one by one: some are the same."""
        if self.ids and others.ids:
            return bool(self.ids & others.ids)
        return bool(self.peers & others.peers)

    def beside(self, others: Servers | None) -> str:
        """Return how these differ from other ones."""
        own = ", ".join(sorted(self.peers)) or "unknown"
        if others is not None and self.peers == others.peers:
            return f"its servers, {own}, have other ids than those of the other agents at the same addresses"
        theirs = "unknown" if others is None else ", ".join(sorted(others.peers)) or "unknown"
        return f"its servers are {own}, and those of the other agents {theirs}"


class Way(Protocol):
    """How requests get to an agent, in one world."""

    def now(self) -> float:
        """Return any monotonic time in seconds."""
        ...

    async def exchange(self, agent: Agent, request: Request, *, timeout: float) -> Response:
        """Return an agent's reply. Raises TransportError."""
        ...

    async def find(self, agents: Agents, *, timeout: float) -> None:
        """Look again at which agents there are, if names are to be looked up; calls ``agents.update``."""
        ...


class Agents:
    """The agents of one client; see the module. Any number of threads may share them."""

    def __init__(self, settings: Settings, *, cutter: Callable[[Settings], Callable[[], object]]) -> None:
        self.settings = settings
        self._cutter = cutter
        self.all: tuple[Agent, ...] = ()
        self.update(settings.agents)
        self.current: Agent | None = None
        """The one that serves."""
        self._known: Servers | None = None
        self._known_at = -math.inf
        self.on_move: Callable[[str, str], object] = _ignore
        """Called with the address that was left, and the one that serves now."""
        self.on_refusal: Callable[[str, str], object] = _ignore
        """Called with the address of an agent that must not be used, and the reason."""
        self.session: Callable[[], str | None] = _no_session
        """Returns the id of a live session of this client, if there is one."""

    def update(self, found: Iterable[Settings]) -> None:
        """Take these for the agents; what is known of those that were known stays."""
        known = {agent.address: agent for agent in self.all}
        self.all = tuple(
            known.get(each.address) or Agent(each, self._cutter(each))
            for each in {each.address: each for each in found}.values()
        )

    @property
    def connect_within(self) -> float:
        """Seconds that looking up names, or opening a connection, may take."""
        return CONNECT_WITHIN if len(self.all) > 1 else math.inf

    async def send(self, way: Way, request: Request, *, timeout: float) -> Response:
        """Return the reply of the agent that serves, or of the first that does. Raises TransportError."""
        deadline = way.now() + timeout
        agent, failures = self.current, list[ConnectFailed]()
        if agent is not None and not agent.rests(way.now()):
            try:
                return await self._ask(way, agent, request, deadline)
            except ConnectFailed as error:
                failures.append(bare(error))
        else:
            agent = None
        await way.find(self, timeout=max(0.0, min(self.connect_within, deadline - way.now())))
        for each in self._in_order(way.now(), tried=agent):
            if way.now() >= deadline:
                break
            try:
                if each is not self.current:
                    await self._check(way, each, request, deadline)
                reply = await self._ask(way, each, request, deadline)
            except ConnectFailed as error:
                failures.append(bare(error))
                continue
            self._use(each, way.now())
            return reply
        raise _none_serves(request, failures)

    def _in_order(self, now: float, *, tried: Agent | None) -> Sequence[Agent]:
        places = {agent: place for place, agent in enumerate(self.all)}
        found = {*self.all} if self.current is None else {*self.all, self.current}

        def rank(agent: Agent) -> tuple[float, bool, int]:
            # Of those that rest the one first that has done so for longest.
            since = agent.left_at if agent.rests(now) else -math.inf
            return since, agent is not self.current, places.get(agent, -1)

        return sorted(found - {tried}, key=rank)

    async def _ask(self, way: Way, agent: Agent, request: Request, deadline: float) -> Response:
        began, this = way.now(), object()
        if not request.hold_open:
            agent.waiting[this] = None
            agent.asked_at = min(agent.asked_at, began)
        try:
            reply = await way.exchange(agent, request, timeout=deadline - began)
        except TransportError as error:
            agent.waiting.pop(this, None)
            now = way.now()
            patient = now - began >= SILENCE and agent.heard_at < began
            if patient or not isinstance(error, RequestTimeout):
                agent.leave(now)
            raise
        finally:
            agent.waiting.pop(this, None)
        agent.hear(way.now())
        if _is_out_of_service(reply):
            agent.leave(agent.heard_at)
        return reply

    @property
    def _known_agents(self) -> tuple[Agent, ...]:
        """All agents. The one that serves may not be among those that were looked up last."""
        current = self.current
        return self.all if current is None or current in self.all else (current, *self.all)

    def _use(self, agent: Agent, now: float) -> None:
        """Have requests go to an agent, and end what is under way at those that were left."""
        known, before, self.current = self._known_agents, self.current, agent
        for other in known:
            if other is not agent and (other is before or other.rests(now)):
                other.cut()
        if before is not None and before is not agent:
            self.on_move(before.address, agent.address)

    # -- checking

    async def look_for_life(self, way: Way) -> None:
        """Leave an agent that is silent, so that all that is under way there goes on elsewhere.

        It may have been checked just now, and not be the one that serves yet. A request may have left it
        already, while others wait there. Called every ``LOOK`` seconds where there is another agent.
        """
        agent, now = min(self._known_agents, key=lambda one: one.asked_at), way.now()
        if now < agent.asked_at + SILENT_AFTER:
            return
        asked = replace(status.leader().request, urgent=True, keep=0.0)
        if not agent.rests(now):
            try:
                await way.exchange(agent, asked, timeout=SIGN_WITHIN)
            except TransportError:
                if agent.heard_at >= now:
                    return
                agent.leave(way.now())
            else:
                # It lives, and may fall silent yet. If a request to it fails all the same, that leaves it.
                agent.wait_from(way.now())
                return
        agent.asked_at = math.inf  # once is enough: else what waits there has its own time
        with suppress(ConsulCoordError):
            if self.current is None or self.current.rests(way.now()):
                await self.send(way, asked, timeout=2 * CHECK_WITHIN)
            if self.current is not None:  # the agent before may serve again
                self._use(self.current, way.now())

    async def look_after(self, way: Way) -> None:
        """Check the agents that have not been used yet, and refresh what is known of the servers.

        So a wrong address is reported before it is needed. Called every few seconds.
        """
        current, now = self.current, way.now()
        if current is None or current.rests(now):
            return
        asked = status.leader().request
        if now >= self._known_at + REFRESH:
            try:
                self._learn(way, await self._servers(way, current, now + CHECK_WITHIN))
            except ConsulCoordError:
                return
        for agent in self.all:
            never = agent.checked_at == agent.left_at == -math.inf
            again = agent.refused and now >= agent.refused_at + REFUSED_FOR
            if agent is not current and (never or again):
                with suppress(ConnectFailed, ClientClosed):
                    await self._check(way, agent, asked, way.now() + 2 * CHECK_WITHIN)

    async def verify(self, way: Way, agent: Agent) -> str:
        """Return what speaks against using an agent; nothing when it serves, and belongs to the cluster."""
        asked = status.leader().request
        agent.refused_at = agent.checked_at = -math.inf
        try:
            await self._check(way, agent, asked, way.now() + 2 * CHECK_WITHIN)
        except ConnectFailed as error:
            return str(error).removeprefix(f"{asked.method} {asked.path}: ")
        return ""

    def _learn(self, way: Way, servers: Servers) -> None:
        self._known, self._known_at = servers, way.now()

    async def _check(self, way: Way, agent: Agent, request: Request, deadline: float) -> None:
        """Return if an agent belongs to the cluster. Raises ConnectFailed for ``request``."""
        now = way.now()
        if now < agent.checked_at + CHECK_LASTS or (self._known is None and len(self.all) == 1):
            return
        if now < agent.refused_at + REFUSED_FOR:
            raise _refused(request, agent)
        try:
            servers = await self._servers(way, agent, deadline)
            if self._known is None and agent is not self.all[0]:
                await self._compare_all(way, agent, servers, request, deadline)
            # Only now: another call may have learned meanwhile which cluster is meant.
            same = self._known is None or servers.are_those_of(self._known)
            if (not same or self._known is None) and (own := self.session()) is not None:
                same = await self._knows(way, agent, own, deadline)
        except ConsulCoordError as error:
            if not _is_the_calls_own(error, lasted=way.now() - now):
                agent.leave(way.now())
            elif not isinstance(error, RequestTimeout):
                raise
            why = str(error).removeprefix(f"{request.method} {request.path}: ")
            raise _failed(request, f"{agent.address} could not be checked: {why}") from error
        if not same:
            reason = (
                f"{agent.address} belongs to another cluster or datacenter: {servers.beside(self._known)}"
            )
            known, agent.refused, agent.refused_at = agent.refused, reason, way.now()
            if reason != known:
                self.on_refusal(agent.address, reason)
            raise _refused(request, agent)
        agent.refused, agent.checked_at = "", way.now()
        self._learn(way, servers)

    async def _compare_all(
        self, way: Way, agent: Agent, servers: Servers, request: Request, deadline: float
    ) -> None:
        """Return if no other agent contradicts the first one that serves, where the first address does not.

        Nothing is known yet, so nothing says which of two clusters is meant. Raises ConnectFailed.
        """
        for other in self.all:
            if other is agent or other is self.all[0]:
                continue
            began = way.now()
            try:
                theirs = await self._servers(way, other, deadline)
            except ConsulCoordError as error:
                if _is_the_calls_own(error, lasted=way.now() - began):
                    raise
                continue
            if not servers.are_those_of(theirs):
                why = (
                    f"{agent.address} and {other.address} belong to different clusters or datacenters, and "
                    f"nothing says which one is meant while {self.all[0].address} does not answer"
                )
                raise _failed(request, why)

    async def _servers(self, way: Way, agent: Agent, deadline: float) -> Servers:
        """Return what an agent says of its servers."""
        peers = await self._read(way, agent, status.peers(), deadline)
        ids = frozenset[str]()
        try:
            found = (await self._read(way, agent, catalog.service("consul"), deadline)).value
        except PermissionDenied:
            pass
        else:
            ids = frozenset(f"{each.node.id} {each.node.address}:{each.service.port}" for each in found)
        return Servers(ids, frozenset(peers))

    async def _knows(self, way: Way, agent: Agent, own: str, deadline: float) -> bool:
        """Return whether an agent knows a session of ours. Renewing needs no right that we lack."""
        try:
            await self._read(way, agent, session.renew(own), deadline)
        except ResponseError:
            return False
        return True

    @staticmethod
    async def _read(way: Way, agent: Agent, call: Call[T], deadline: float) -> T:
        request = replace(call.request, urgent=True, keep=0.0)
        timeout = min(CHECK_WITHIN, deadline - way.now())
        reply = await way.exchange(agent, request, timeout=timeout)
        agent.hear(way.now())
        return call.decode(reply)


def _is_out_of_service(reply: Response) -> bool:
    if reply.status < 500:  # noqa: PLR2004
        return reply.status == 429  # noqa: PLR2004
    text = reply.body[:500].decode(errors="replace").lower()
    return any(words in text for words in _OUT_OF_SERVICE)


def _is_the_calls_own(error: ConsulCoordError, *, lasted: float) -> bool:
    """Return whether an exchange ended with its call, so that it says nothing of the agent."""
    if isinstance(error, RequestTimeout):
        return lasted < SILENCE
    return isinstance(error, AcquireCancelled | ClientClosed)


def _failed(request: Request, why: str, kind: type[ConnectFailed] = ConnectFailed) -> ConnectFailed:
    message = f"{request.method} {request.path}: {why}"
    return kind(message, method=request.method, path=request.path, outcome_unknown=False)


def _refused(request: Request, agent: Agent) -> ConnectFailed:
    return _failed(request, f"{agent.refused}. It is not used: two clusters would be two holders")


def _none_serves(request: Request, failures: Sequence[ConnectFailed]) -> ConnectFailed:
    if len(failures) == 1:
        return again(failures[0])
    start = f"{request.method} {request.path}: "
    no_time = "no time was left to try one, and looking up a name may have taken it"
    told = "; ".join(str(error).removeprefix(start) for error in failures) or no_time
    final = bool(failures) and all(isinstance(error, CertificateRefused) for error in failures)
    error = _failed(request, f"no agent serves: {told}", CertificateRefused if final else ConnectFailed)
    error.outcome_unknown = any(each.outcome_unknown for each in failures)
    return error


def _ignore(*_: object) -> None:
    """Do nothing."""


def _no_session() -> None:
    return None
