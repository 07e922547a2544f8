"""Several agents on an event loop. Import it late: anyio is heavy."""

from __future__ import annotations

import socket
import time
from functools import partial
from typing import TYPE_CHECKING

import anyio

from consul_coord.http.agents import LOOK
from consul_coord.http.transport.bounded import call_aside
from consul_coord.http.transport.pool import KEEP
from consul_coord.http.transport.several import Several, find_agents
from consul_coord.http.transport.streams import StreamTransport

if TYPE_CHECKING:
    from consul_coord.config import Settings
    from consul_coord.http.agents import Agent, Agents
    from consul_coord.http.messages import Request, Response
    from consul_coord.http.transport.pool import Pool
    from consul_coord.http.transport.several import Infos


class AsyncSeveralTransport(Several[StreamTransport]):
    """Suspends the calling task for its request; see ``AsyncTransport``."""

    def _make(self, settings: Settings, pool: Pool) -> StreamTransport:
        return StreamTransport(settings, pool=pool)

    async def send(self, request: Request, *, timeout: float) -> Response:
        """Return the whole reply; see ``AsyncTransport.send``."""
        return await self.agents.send(self, request, timeout=timeout)

    async def sweep(self) -> float:
        """Close what lies idle too long, and look after the agents that are not in use."""
        waits = [await engine.sweep() for engine in list(self._engines.values())]
        if len(self.agents.all) > 1:
            waits.append(LOOK)
            await self.agents.look_for_life(self)
            await self.agents.look_after(self)
        return min([KEEP, *waits])

    async def aclose(self) -> None:
        """Close what is idle now and what is in use when it comes back."""
        self._closed = True
        for engine in list(self._engines.values()):
            await engine.aclose()

    # -- how a task's request gets to an agent

    def now(self) -> float:
        """Return a time that bounds waits, and judges no lease."""
        return time.monotonic()

    async def exchange(self, agent: Agent, request: Request, *, timeout: float) -> Response:
        """Return an agent's reply."""
        return await self.engine(agent).send(request, timeout=timeout)

    async def find(self, agents: Agents, *, timeout: float) -> None:
        """Look up the names among the addresses, all within ``timeout`` seconds."""
        deadline = self.now() + timeout

        async def look_up(host: str, port: int) -> Infos:
            with anyio.fail_after(deadline - self.now()):
                return await call_aside(partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM))

        await find_agents(agents, look_up)
