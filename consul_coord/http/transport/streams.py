"""The transport on an event loop, asyncio's or trio's, through anyio. Import it late: anyio is heavy.

Rules
- One connection carries one exchange at a time, and after any failure or cancellation it is closed, never
  pooled.
- Requests of each kind have connections of their own: blocking queries, as many as there are watches; urgent
  ones, which wait for nothing; and all others, which take turns on a few connections, as an agent takes no
  more than a limited number from one address (200 unless told otherwise).
- Connections belong to the loop that opened them. Another loop starts with none.
- The whole exchange runs in one cancel scope with the attempt's deadline.
"""

from __future__ import annotations

import os
import select
import time
from collections import deque
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

import anyio
import anyio.abc
from anyio.lowlevel import RunVar

from consul_coord.errors import ClientClosed
from consul_coord.http.transport.attempt import Attempt, reason
from consul_coord.http.transport.base import DEFAULT_LIMITS
from consul_coord.http.transport.incoming import Garbled, ReplyReader
from consul_coord.http.transport.outgoing import Outgoing, tls_name

if TYPE_CHECKING:
    import ssl

    from consul_coord.config import Settings
    from consul_coord.http.messages import Request, Response
    from consul_coord.http.transport.base import Limits

MAX_IDLE = 16
"""How many connections are kept open for later, of each kind."""
IDLE_LIMIT = 55.0
"""How long one is kept, in seconds: what lies between may have forgotten it after that, without a word."""
MAX_SHORT = 48
"""How many short requests go on at one time; the next wait for their turn, within their own timeout."""
READ_SIZE = 64 * 1024

_LOST = (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, Garbled)
"""What ends a connection before its reply is whole."""

_loop_mark: RunVar[object] = RunVar("consul_coord_loop")


class _Lane:
    """The requests of one kind: how many may go on at one time, and the connections that lie idle."""

    __slots__ = ("idle", "turns")

    def __init__(self, turns: anyio.Semaphore | None = None) -> None:
        self.turns = turns
        self.idle: deque[_Link] = deque()

    @property
    def crowded(self) -> bool:
        """Whether a request waits for its turn."""
        return self.turns is not None and self.turns.statistics().tasks_waiting > 0


class StreamTransport:
    """Sends each request over a connection of its own, and keeps a few open for the next ones."""

    def __init__(
        self,
        settings: Settings,
        *,
        limits: Limits = DEFAULT_LIMITS,
        max_idle: int = MAX_IDLE,
        max_short: int = MAX_SHORT,
    ) -> None:
        self._settings = settings
        self._limits = limits
        self._max_idle = max_idle
        self._max_short = max_short
        self._outgoing = Outgoing(settings)
        self._context: ssl.SSLContext | None = None
        self._start_lanes()
        self._open: set[_Link] = set()
        self._closed = False
        self._owner: tuple[int, object] | None = None

    async def send(self, request: Request, *, timeout: float) -> Response:
        """Return the whole reply; see ``AsyncTransport.send``."""
        if self._closed:
            raise ClientClosed("the client is closed")
        self._check_owner()
        lane = self._lane_of(request)
        attempt = Attempt(request, address=self._settings.address, timeout=timeout)
        attempt.require_time()
        data = self._outgoing.encode(request, attempt.began)
        with anyio.move_on_after(timeout):
            try:
                return await self._in_turn(lane, data, attempt)
            except _LOST as error:
                raise attempt.broken(reason(error)) from error
        raise attempt.timed_out()

    async def aclose(self) -> None:
        """Close what is idle now and what is in use when it comes back."""
        self._closed = True
        for lane in (self._short, self._urgent, self._held_open):
            while lane.idle:
                await self._drop(lane.idle.pop())

    def forget(self) -> None:
        """Let go of the sockets of a parent process or of a loop that is gone, without a word on them."""
        self._start_lanes()
        links, self._open = self._open, set()
        for link in links:
            link.disconnect()

    def _start_lanes(self) -> None:
        self._short = _Lane(anyio.Semaphore(self._max_short, fast_acquire=True))
        self._urgent = _Lane()
        self._held_open = _Lane()

    def _lane_of(self, request: Request) -> _Lane:
        if request.hold_open:
            return self._held_open
        return self._urgent if request.urgent else self._short

    def _check_owner(self) -> None:
        owner = (os.getpid(), _current_loop())
        if owner != self._owner:
            self.forget()
            self._owner = owner

    async def _in_turn(self, lane: _Lane, data: bytes, attempt: Attempt) -> Response:
        async with lane.turns or nullcontext():
            if self._closed:
                raise ClientClosed("the client was closed meanwhile")
            return await self._exchange(lane, data, attempt)

    async def _exchange(self, lane: _Lane, data: bytes, attempt: Attempt) -> Response:
        link = await self._take(lane.idle, attempt.began)
        if link is not None:
            try:
                return await self._use(link, lane, data, attempt)
            except _LOST:
                if not attempt.may_repeat():
                    raise
        return await self._use(await self._open_link(attempt), lane, data, attempt)

    async def _use(self, link: _Link, lane: _Lane, data: bytes, attempt: Attempt) -> Response:
        try:
            reader = await link.exchange(data, attempt, self._limits)
        except BaseException:
            await self._drop(link)
            raise
        if reader.reusable and not self._closed and link in self._open:
            link.idle_since = time.monotonic()
            lane.idle.append(link)
            while len(lane.idle) > self._max_idle and not lane.crowded:
                await self._drop(lane.idle.popleft())
        else:
            await self._drop(link)
        return reader.response

    async def _take(self, idle: deque[_Link], now: float) -> _Link | None:
        while idle:
            link = idle.pop()
            if now - link.idle_since < IDLE_LIMIT and not link.has_input():
                return link
            await self._drop(link)
        return None

    async def _drop(self, link: _Link) -> None:
        self._open.discard(link)
        await link.aclose()

    async def _open_link(self, attempt: Attempt) -> _Link:
        try:
            stream = await self._connect(self._tls_context())
        except (OSError, anyio.BrokenResourceError, anyio.EndOfStream) as error:
            # When every address fails, anyio keeps the reason in the cause.
            cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
            raise attempt.unreachable(cause) from error
        link = _Link(stream)
        self._open.add(link)
        return link

    async def _connect(self, context: ssl.SSLContext | None) -> anyio.abc.ByteStream:
        settings = self._settings
        if settings.uds is not None:
            plain: anyio.abc.SocketStream = await anyio.connect_unix(settings.uds)
        else:
            plain = await anyio.connect_tcp(settings.host, settings.port)
        return plain if context is None else await self._start_tls(plain, context)

    async def _start_tls(
        self, plain: anyio.abc.SocketStream, context: ssl.SSLContext
    ) -> anyio.abc.ByteStream:
        from anyio.streams.tls import TLSStream

        try:
            return await TLSStream.wrap(
                plain, hostname=tls_name(self._settings), ssl_context=context, standard_compatible=False
            )
        except BaseException:
            await anyio.aclose_forcefully(plain)
            raise

    def _tls_context(self) -> ssl.SSLContext | None:
        if self._context is None and self._settings.scheme == "https":
            from consul_coord.http.transport.tls import client_context

            self._context = client_context(self._settings.tls)
        return self._context


class _Link:
    """One open connection."""

    __slots__ = ("_poll", "_stream", "idle_since")

    def __init__(self, stream: anyio.abc.ByteStream) -> None:
        self._stream = stream
        self.idle_since = 0.0
        self._poll = select.poll()
        self._poll.register(self._descriptor(), select.POLLIN)

    def _descriptor(self) -> int:
        return self._stream.extra(anyio.abc.SocketAttribute.raw_socket).fileno()  # noqa: S610 - this is no Django

    def has_input(self) -> bool:
        """Return whether there is something to read, an end or an error included."""
        return bool(self._poll.poll(0))

    async def aclose(self) -> None:
        """Close without a goodbye, also when the task is being cancelled."""
        await anyio.aclose_forcefully(self._stream)

    def disconnect(self) -> None:
        """Put nothing in the descriptor's place, so that its owners, alive or not, can still close it."""
        descriptor = self._descriptor()
        if descriptor >= 0:
            nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            os.dup2(nothing, descriptor, inheritable=False)
            os.close(nothing)

    async def exchange(self, data: bytes, attempt: Attempt, limits: Limits) -> ReplyReader:
        """Send a request and return its whole reply, still in its reader. Raises what ``_LOST`` lists."""
        cut_off = not await self._send(data, attempt)
        reader = ReplyReader(attempt.request.method, limits)
        while True:
            received = await self._receive()
            if received:
                attempt.answered = True
            if reader.feed(received):
                reader.reusable = reader.reusable and not cut_off
                return reader

    async def _send(self, data: bytes, attempt: Attempt) -> bool:
        """Send it all. Return False when the agent stopped listening midway: it may have answered already."""
        attempt.sent = True
        try:
            await self._stream.send(data)
        except (OSError, anyio.BrokenResourceError):
            return False
        return True

    async def _receive(self) -> bytes:
        with suppress(anyio.EndOfStream):
            return await self._stream.receive(READ_SIZE)
        return b""


def _current_loop() -> object:
    """Return something that is the same for as long as the same event loop runs."""
    try:
        return _loop_mark.get()
    except LookupError:
        mark = object()
        _loop_mark.set(mark)
        return mark
