"""An agent and an event loop in virtual time, for fleets of clients that no machine here could run.

- ``VirtualLoop``: asyncio's loop, but when all tasks wait, time jumps to the next timer instead of passing.
- ``VirtualAgent``: the reference server's pure service, behind a transport of httpx.

Rules
- The clients are the product as it ships, over a client of httpx that the user brings; the server is the
  reference server's state. Only time and the network are made up: one way takes ``LATENCY``, and what is
  written ``COMMIT`` more, for three servers to agree on it.
- What is counted is what arrives: requests, bytes of replies, and the Raft entries that they made.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import selectors
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

from consul_coord.server.config import ServerConfig
from consul_coord.server.service import Service
from consul_coord.server.state import ConsulState
from consul_coord.server.wire import Blocked, Reply, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

LATENCY = 0.0005
"""Seconds one way, between client and server in one data centre."""
COMMIT = 0.002
"""Seconds until a majority of the servers has an entry on disk."""
OK = 200
_LISTING = "get-tree"


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while nothing else can happen."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        """Return the virtual time."""
        return self._now

    def now(self) -> float:
        """Return the virtual time, as a lease clock."""
        return self._now

    def jump(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds


class _Jumping(selectors.SelectSelector):
    """Waits for nothing: no socket here but the loop's own, and time is the loop's."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            message = "everybody waits for what can never come"
            raise RuntimeError(message)
        self._loop.jump(max(0.0, timeout))
        return []


@dataclass(frozen=True, slots=True)
class Counted:
    """What has arrived so far."""

    requests: int
    read: int
    """Bytes of the replies' bodies."""
    entries: int
    """The last Raft index."""
    listings: int
    """Replies that listed the queue."""
    time: float

    def since(self, before: Counted) -> Counted:
        """Return what has been added since."""
        return Counted(
            self.requests - before.requests,
            self.read - before.read,
            self.entries - before.entries,
            self.listings - before.listings,
            self.time - before.time,
        )


class VirtualAgent(httpx.AsyncBaseTransport):
    """The transport that a client's ``httpx.AsyncClient`` is made with, and the agent behind it."""

    def __init__(self, loop: VirtualLoop, *, seed: int = 1) -> None:
        self._loop = loop
        dice = random.Random(seed)  # noqa: S311 - spreads load, protects nothing
        numbers = itertools.count(1)
        self._state = ConsulState(
            now=loop.time(),
            new_id=lambda: f"{next(numbers):08x}-0000-4000-8000-{dice.getrandbits(48):012x}",
            config=ServerConfig(http_max_conns_per_client=0, gzip=False),
        )
        self._service = Service(self._state, random=dice.random)
        self._late: dict[int, asyncio.Future[Reply]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._requests = self._read = self._listings = 0

    def counted(self) -> Counted:
        """Return what has arrived so far."""
        return Counted(
            self._requests, self._read, self._state.store.raft_index, self._listings, self._loop.time()
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Carry one request there and its reply back."""
        body = await request.aread()
        await asyncio.sleep(LATENCY)
        before = self._state.store.raft_index
        reply = await self.serve(request.method, request.url.raw_path.decode(), body, request.headers)
        self._requests += 1
        self._read += len(reply.body)
        self._listings += _LISTING.encode() in body and reply.status == OK
        await asyncio.sleep(LATENCY + (COMMIT if self._state.store.raft_index > before and body else 0.0))
        return httpx.Response(reply.status, headers=list(reply.headers), content=reply.body)

    async def serve(
        self, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Answer a request as soon as its reply is due; uncounted, and without a network."""
        outcome = self._service.handle(Request.make(method, target, body, headers), self._loop.time())
        if isinstance(outcome, Reply):
            self._settle()
            return outcome
        return await self._wait(outcome)

    async def _wait(self, blocked: Blocked) -> Reply:
        late = self._late[blocked.ticket] = self._loop.create_future()
        self._settle()
        try:
            reply: Reply = await late
            return reply
        finally:
            if self._late.pop(blocked.ticket, None) is not None:
                self._service.cancel(blocked.ticket)

    def _settle(self) -> None:
        for ticket, reply in self._service.ready():
            late = self._late.get(ticket)
            if late is not None and not late.done():
                late.set_result(reply)
        when = self._service.next_timer()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if when is None else self._loop.call_at(when, self._run_timers)

    def _run_timers(self) -> None:
        self._service.run_timers(self._loop.time())
        self._settle()
