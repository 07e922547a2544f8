"""Exchange a request for its reply over a connection that is kept or new: what both engines have in common.

Rules
- One connection carries one exchange at a time. It is kept only after a whole reply; after anything else it
  is closed.
- Kept connections lie in a deque whose ends are popped and pushed atomically: there is no lock, and the last
  used one is used first. One on which there is something to read has ended, or gone mad: it is not used.
- Connections are scarce: an agent takes 200 from one address. A kept one is closed within seconds of its last
  use, by ``sweep``, which a client's background calls, or at the latest when the next request looks for one.
- Over blocking connections nothing here ever suspends.
"""

from __future__ import annotations

import math
import select
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from consul_coord.errors import ClientClosed
from consul_coord.http.transport.base import DEFAULT_LIMITS
from consul_coord.http.transport.incoming import Garbled, ReplyReader
from consul_coord.http.transport.outgoing import Attempt, Outgoing

if TYPE_CHECKING:
    import socket
    import ssl

    import anyio

    from consul_coord.config import Settings
    from consul_coord.http.messages import Request, Response
    from consul_coord.http.transport.base import Cancellation, Limits

MAX_IDLE = 16
"""How many connections are kept, of each kind."""
KEEP = 4.0
"""How long one is kept after its last use, in seconds."""
READ_SIZE = 64 * 1024


class Link(ABC):
    """One open connection."""

    __slots__ = ("__weakref__", "has_input", "home", "idle_since", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.idle_since = 0.0
        self.home: object = None
        """The set of open connections that it is one of: another one when it was let go of."""
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        self.has_input = poll.poll
        """Called with 0: whether there is something to read, an end or an error included."""

    @abstractmethod
    async def write(self, attempt: Attempt) -> bool:
        """Send it all; False when the agent stopped listening midway: it may have answered already."""

    @abstractmethod
    async def read(self, attempt: Attempt) -> bytes:
        """Return the next bytes, or ``b""`` at the end."""

    @abstractmethod
    async def close(self) -> None:
        """Close without a goodbye."""


L = TypeVar("L", bound=Link)


class Lane(Generic[L]):
    """The kept connections of one kind of requests, which may have to take turns."""

    __slots__ = ("idle", "keep", "turns")

    def __init__(self, keep: float = KEEP, turns: anyio.Semaphore | None = None) -> None:
        self.keep = keep
        self.turns = turns
        self.idle: deque[L] = deque()

    def pop_superfluous(self, now: float, most: int) -> L | float:
        """Take out a connection that is too much or was kept too long, or return when there may be one."""
        try:
            oldest = self.idle.popleft()
        except IndexError:
            return KEEP
        left = oldest.idle_since + self.keep - now
        crowded = self.turns is not None and self.turns.statistics().tasks_waiting > 0
        if left <= 0 or (len(self.idle) >= most and not crowded):
            return oldest
        self.idle.appendleft(oldest)
        return left


class Engine(ABC, Generic[L]):
    """Sends each request over a connection of its own, and keeps a few for the next ones."""

    lost: ClassVar[tuple[type[Exception], ...]] = (OSError, Garbled)
    """What ends a connection before its reply is whole."""

    def __init__(self, settings: Settings, *, limits: Limits = DEFAULT_LIMITS) -> None:
        self._settings = settings
        self._limits = limits
        self._outgoing = Outgoing(settings)
        self._context: ssl.SSLContext | None = None
        self._open: weakref.WeakSet[L] = weakref.WeakSet()
        """All of them, to be let go of in a forked child."""
        self._lanes: tuple[Lane[L], ...] = ()
        self._closed = False

    @abstractmethod
    async def _connect(self, attempt: Attempt) -> L:
        """Open a connection, within the attempt's time."""

    def _begin(self, request: Request, timeout: float, cancellation: Cancellation | None = None) -> Attempt:
        if self._closed:
            raise ClientClosed("the client is closed")
        address = self._settings.address
        attempt = Attempt(request, address=address, timeout=timeout, cancellation=cancellation)
        attempt.data = self._outgoing.encode(request, attempt.began)
        return attempt

    async def _exchange(self, lane: Lane[L], attempt: Attempt) -> Response:
        while lane.idle:
            try:
                link = lane.idle.pop()
            except IndexError:  # another thread was quicker
                break
            if attempt.began - link.idle_since >= lane.keep or link.has_input(0):
                await link.close()
                continue
            try:
                return await self._use(lane, link, attempt)
            except self.lost as error:
                if not attempt.may_repeat(error):
                    raise
                break
        return await self._use(lane, await self._open_link(attempt), attempt)

    async def _open_link(self, attempt: Attempt) -> L:
        try:
            link = await self._connect(attempt)
        except TimeoutError:
            raise
        except self.lost as error:
            if attempt.cancelled:
                raise
            # When every address fails, anyio keeps the reason in the cause.
            cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
            raise attempt.unreachable(cause) from error
        link.home = self._open
        self._open.add(link)
        return link

    async def _use(self, lane: Lane[L], link: L, attempt: Attempt) -> Response:
        reader, done = ReplyReader(attempt.request.method, self._limits), False
        try:
            attempt.hold(link.sock)
            whole = await link.write(attempt)
            while not done:
                received = await link.read(attempt)
                attempt.answered = attempt.answered or received != b""
                done = reader.feed(received)
            link.idle_since = time.monotonic()
            fit = attempt.let_go() and whole and reader.reusable and link.home is self._open
        except BaseException:
            attempt.let_go()
            await link.close()
            raise
        # With nothing called in between, no signal handler comes before the lane has it.
        if not fit:
            await link.close()
            return reader.response
        lane.idle.append(link)
        if self._closed or len(lane.idle) > MAX_IDLE:
            await self._trim(lane)
        return reader.response

    async def _trim(self, lane: Lane[L]) -> float:
        """Close what is superfluous; return the seconds until there may be more."""
        now = math.inf if self._closed else time.monotonic()
        while isinstance(found := lane.pop_superfluous(now, MAX_IDLE), Link):
            await found.close()
        return found

    async def _sweep(self) -> float:
        return min([KEEP, *[await self._trim(lane) for lane in self._lanes]])

    def _tls_context(self) -> ssl.SSLContext | None:
        if self._context is None and self._settings.scheme == "https":
            from consul_coord.http.transport.tls import client_context

            self._context = client_context(self._settings.tls)
        return self._context
