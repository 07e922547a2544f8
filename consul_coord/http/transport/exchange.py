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

import select
import time
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from consul_coord.errors import ClientClosed
from consul_coord.http.transport.attempt import Attempt
from consul_coord.http.transport.base import DEFAULT_LIMITS
from consul_coord.http.transport.incoming import Garbled, ReplyReader
from consul_coord.http.transport.outgoing import Outgoing

if TYPE_CHECKING:
    import socket
    import ssl

    from consul_coord.config import Settings
    from consul_coord.http.messages import Request, Response
    from consul_coord.http.transport.base import Limits

MAX_IDLE = 16
"""How many connections are kept, of each kind."""
KEEP = 4.0
"""How long one is kept after its last use, in seconds."""
READ_SIZE = 64 * 1024


class Link(ABC):
    """One open connection."""

    __slots__ = ("_poll", "idle_since", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.idle_since = 0.0
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def has_input(self) -> bool:
        """Return whether there is something to read, an end or an error included."""
        return bool(self._poll.poll(0))

    @abstractmethod
    async def write(self, attempt: Attempt) -> bool:
        """Send it all; False when the agent stopped listening midway: it may have answered already."""

    @abstractmethod
    async def read(self, attempt: Attempt) -> bytes:
        """Return the next bytes, or ``b""`` at the end."""

    @abstractmethod
    async def close(self) -> None:
        """Close without a goodbye."""

    async def exchange(self, attempt: Attempt, limits: Limits) -> ReplyReader:
        """Send a request and return its whole reply, still in its reader."""
        brake, reader = attempt.brake, ReplyReader(attempt.request.method, limits)
        if brake is not None:
            brake.hold(self.sock)
        whole, done = await self.write(attempt), False
        while not done:
            received = await self.read(attempt)
            attempt.answered = attempt.answered or received != b""
            done = reader.feed(received)
        if brake is not None:
            brake.hold(None)
        reader.reusable = reader.reusable and whole and not attempt.cancelled
        return reader


L = TypeVar("L", bound=Link)


class Lane(Generic[L]):
    """The kept connections of one kind of requests."""

    __slots__ = ("idle", "keep")

    def __init__(self, keep: float = KEEP) -> None:
        self.keep = keep
        self.idle: deque[L] = deque()

    @property
    def crowded(self) -> bool:
        """Whether a request waits for a connection."""
        return False

    def pop_oldest(self) -> L | None:
        """Take out the connection that was used longest ago."""
        try:
            return self.idle.popleft()
        except IndexError:
            return None


class Engine(ABC, Generic[L]):
    """Sends each request over a connection of its own, and keeps a few for the next ones."""

    lost: ClassVar[tuple[type[Exception], ...]] = (OSError, Garbled)
    """What ends a connection before its reply is whole."""

    def __init__(
        self, settings: Settings, *, limits: Limits = DEFAULT_LIMITS, max_idle: int = MAX_IDLE
    ) -> None:
        self._settings = settings
        self._limits = limits
        self._max_idle = max_idle
        self._outgoing = Outgoing(settings)
        self._context: ssl.SSLContext | None = None
        self._open: set[L] = set()
        self._lanes: tuple[Lane[L], ...] = ()
        self._closed = False

    @abstractmethod
    async def _connect(self, attempt: Attempt) -> L:
        """Open a connection, within the attempt's time."""

    def _begin(self, request: Request, timeout: float) -> Attempt:
        if self._closed:
            raise ClientClosed("the client is closed")
        attempt = Attempt(request, address=self._settings.address, timeout=timeout)
        attempt.data = self._outgoing.encode(request, attempt.began)
        return attempt

    async def _exchange(self, lane: Lane[L], attempt: Attempt) -> Response:
        while lane.idle:
            try:
                link = lane.idle.pop()
            except IndexError:  # another thread was quicker
                break
            if attempt.began - link.idle_since >= lane.keep or link.has_input():
                await self._drop(link)
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
        self._open.add(link)
        return link

    async def _use(self, lane: Lane[L], link: L, attempt: Attempt) -> Response:
        try:
            reader = await link.exchange(attempt, self._limits)
        except BaseException:
            await self._drop(link)
            raise
        if not reader.reusable or link not in self._open:
            await self._drop(link)
            return reader.response
        link.idle_since = time.monotonic()
        lane.idle.append(link)
        while self._closed or (len(lane.idle) > self._max_idle and not lane.crowded):
            if (oldest := lane.pop_oldest()) is None:
                break
            await self._drop(oldest)
        return reader.response

    async def _drop(self, link: L) -> None:
        self._open.discard(link)
        await link.close()

    async def _sweep(self) -> float:
        """Close what was not used for too long; return the seconds until there may be more."""
        now, wait = time.monotonic(), KEEP
        for lane in self._lanes:
            while (oldest := lane.pop_oldest()) is not None:
                left = 0.0 if self._closed else oldest.idle_since + lane.keep - now
                if left > 0:
                    lane.idle.appendleft(oldest)
                    wait = min(wait, left)
                    break
                await self._drop(oldest)
        return wait

    def _tls_context(self) -> ssl.SSLContext | None:
        if self._context is None and self._settings.scheme == "https":
            from consul_coord.http.transport.tls import client_context

            self._context = client_context(self._settings.tls)
        return self._context
