"""Transports over several agents of one cluster, blocking and on an event loop; ``agents`` has the rules.

- Each agent has a pool of connections of its own, which callers and the background share.
- A name that has several addresses stands for as many agents. It is looked up at first, and each time that
  another agent is needed. ``localhost`` is one agent, whatever its addresses.
"""

from __future__ import annotations

import functools
import socket
import time
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from consul_coord.errors import ClientClosed
from consul_coord.http.agents import Agents
from consul_coord.http.transport.bounded import call_bounded
from consul_coord.http.transport.dial import is_one
from consul_coord.http.transport.exchange import DirectTransport
from consul_coord.http.transport.limit import nobody
from consul_coord.http.transport.pool import KEEP, Pool
from consul_coord.io import run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from consul_coord.config import Settings
    from consul_coord.http.agents import Agent
    from consul_coord.http.messages import Request, Response
    from consul_coord.http.transport.base import Cancellation
    from consul_coord.http.transport.exchange import Engine

    Infos = Sequence[tuple[object, ...]]
    """The outcome of ``getaddrinfo``."""

E = TypeVar("E", bound="Engine")


class Fleet:
    """The agents of one client, and the connections to each."""

    def __init__(self, settings: Settings) -> None:
        self._pools: dict[str, Pool] = {}
        self.on_refusal: Callable[[], object] = nobody
        """Called at each connection that an agent has no room for, from any thread."""
        self.agents = Agents(settings, cutter=lambda agent: self.pool(agent).cut)

    def pool(self, agent: Settings) -> Pool:
        """Return the connections to one agent."""
        pool = self._pools.get(agent.address)
        if pool is None:
            pool = self._pools.setdefault(agent.address, Pool())
            pool.limit.on_refusal = self._refused
        return pool

    def _refused(self) -> None:
        self.on_refusal()

    def forget(self) -> None:
        """In a forked child: let go of the parent's sockets, the background's too."""
        for pool in self._pools.values():
            pool.forget()


class Several(ABC, Generic[E]):
    """One engine for each agent, made when it is first used."""

    def __init__(self, fleet: Fleet) -> None:
        self.agents = fleet.agents
        self._fleet = fleet
        self._engines: dict[str, E] = {}
        self._closed = False

    @abstractmethod
    def _make(self, settings: Settings, pool: Pool) -> E:
        """Return the engine for one agent."""

    def engine(self, agent: Agent) -> E:
        """Return what sends to an agent."""
        if self._closed:
            raise ClientClosed
        engine = self._engines.get(agent.address)
        if engine is None:
            made = self._make(agent.settings, self._fleet.pool(agent.settings))
            engine = self._engines.setdefault(agent.address, made)
        engine.connect_within = self.agents.connect_within
        return engine

    def listen(self, on_refusal: Callable[[], object]) -> None:
        """Have ``on_refusal`` called at each connection that an agent has no room for, from any thread."""
        self._fleet.on_refusal = on_refusal

    def forget(self) -> None:
        """In a forked child: let go of the parent's sockets, and send nothing on them."""
        self._fleet.forget()
        self._engines.clear()


class SeveralTransport(Several[DirectTransport]):
    """Blocks the caller for its request; see ``Transport``."""

    def _make(self, settings: Settings, pool: Pool) -> DirectTransport:
        return DirectTransport(settings, pool=pool)

    def send(self, request: Request, *, timeout: float, cancel: Cancellation | None = None) -> Response:
        """Return the whole reply; see ``Transport.send``."""
        return run(self.agents.send(_Blocking(self, cancel), request, timeout=timeout))

    def verify(self) -> dict[str, str]:
        """Return, for each agent but the one that serves, what speaks against using it, if anything."""
        way, agents = _Blocking(self, None), self.agents
        others = [agent for agent in agents.all if agent is not agents.current]
        return {agent.address: run(agents.verify(way, agent)) for agent in others}

    def sweep(self) -> float:
        """Close what lies idle too long; see ``Transport.sweep``."""
        return min([KEEP, *[engine.sweep() for engine in list(self._engines.values())]])

    def close(self) -> None:
        """Close what is idle now and what is in use when it comes back."""
        self._closed = True
        for engine in list(self._engines.values()):
            engine.close()


class _Blocking:
    """How one blocking call gets to an agent."""

    def __init__(self, several: SeveralTransport, cancel: Cancellation | None) -> None:
        self._several = several
        self._cancel = cancel

    def now(self) -> float:
        """Return a time that bounds waits, and judges no lease."""
        return time.monotonic()

    async def exchange(self, agent: Agent, request: Request, *, timeout: float) -> Response:
        """Return an agent's reply, on this thread."""
        return self._several.engine(agent).send(request, timeout=timeout, cancel=self._cancel)

    async def find(self, agents: Agents, *, timeout: float) -> None:
        """Look up the names among the addresses, all within ``timeout`` seconds."""
        deadline = self.now() + timeout

        async def look_up(host: str, port: int) -> Infos:
            ask = functools.partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
            left = max(0.0, deadline - self.now())
            return call_bounded(ask, timeout=left, cancel=self._cancel)

        await find_agents(agents, look_up)


async def find_agents(agents: Agents, look_up: Callable[[str, int], Awaitable[Infos]]) -> None:
    """Take the agents that the addresses stand for now; ``look_up`` asks for the IP addresses of one name."""
    found: list[Settings] = []
    for settings in agents.settings.agents:
        if is_one(settings):
            found.append(settings)
            continue
        try:
            infos = await look_up(settings.host, settings.port)
        except OSError:
            found += _known_of(agents, settings)
        else:
            found += _members(settings, _unique(infos))
    agents.update(found)


def _unique(infos: Infos) -> list[str]:
    """Return the IP addresses that a look-up has found, each once."""
    places = (cast("tuple[object, ...]", info[4]) for info in infos if isinstance(info[4], tuple))
    return list(dict.fromkeys(str(place[0]) for place in places))


def _members(settings: Settings, addresses: Sequence[str]) -> list[Settings]:
    """Return the agents that an address stands for."""
    if len(addresses) < 2:  # noqa: PLR2004
        return [settings]
    return [replace(settings, dial=each, address=f"{settings.address} ({each})") for each in addresses]


def _known_of(agents: Agents, settings: Settings) -> list[Settings]:
    """Return the agents that a name stood for when it was looked up last."""
    known = [agent.settings for agent in agents.all]
    return [each for each in known if (each.host, each.port) == (settings.host, settings.port)]
