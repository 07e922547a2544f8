"""Sockets for an ASGI app: uvicorn's HTTP protocol, started and stopped without waiting for ticks.

Rules
- Stopping answers what is pending first, then closes; a connection that does not end in time is cut. It is
  over when no connection is left, also none that was just being accepted.
- Header names are sent as Consul spells them, because some clients are particular about that.
- A client address beyond its share of connections is closed without a byte, as Consul 1.8.7 does.
- The kept part of an incomplete request is bounded. This module bounds the head and all other parts, and the
  app bounds the body.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import struct
from collections import Counter, deque
from email.utils import formatdate
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from consul_coord.server.app import WIRE

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from consul_coord.server.asgi import Application

_KEEP_ALIVE = 3_600
_BACKLOG = 1_024
_READ = b"GET "
_AT_ONCE = 20
"""How many reads are looked at in one turn of the event loop."""
_LARGEST_HEAD = 1024 * 1024
"""How many bytes may come in a row that are no body: as in Go's servers, one read from the socket aside."""
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Connection: close\r\n\r\n431 Request Header Fields Too Large"
)
_TOO_MANY = (
    b"HTTP/1.1 429 Too Many Requests\r\nContent-Type: text/plain\r\nContent-Length: 69\r\n"
    b"Connection: close\r\n\r\n"
    b"Your IP is issuing too many concurrent connections, please rate limit"
)
_TURNS_TO_COME_IN = 2
"""An accepted connection gets its transport at the event loop's next turn, and is made at the one after."""
_LINGER_NOT = struct.pack("ii", 1, 0)  # closing sends a reset instead of what is left


class Listener:
    """An app on a listening socket, in the running event loop; ``told`` are those who are one too many."""

    def __init__(self, app: Application, *, max_conns_per_client: int, told: bool = False) -> None:
        self._config = Config(
            app,
            proxy_headers=False,
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=_KEEP_ALIVE,
            ws="none",
            interface="asgi3",
        )
        self._state = ServerState()
        self._door = _Door(max_conns_per_client, self._state.connections, told=told)
        self._queue = _Queue()
        self._listening: tuple[asyncio.Server, socket.socket] | None = None
        self._date: asyncio.TimerHandle | None = None

    async def start(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Serve on a bound socket, which is owned from now on."""
        if not self._config.loaded:
            self._config.load()
        loop = asyncio.get_running_loop()
        self._stamp(loop)
        server = await loop.create_server(self._protocol, sock=listening, ssl=tls, backlog=_BACKLOG)
        self._listening = server, listening

    async def stop(self, dismiss: Callable[[], None], grace: float) -> None:
        """Accept nothing more, let ``dismiss`` answer what is pending, and close within ``grace`` seconds."""
        await self._stop_listening()
        dismiss()
        for connection in list(self._state.connections):
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._door.until_empty()
        for connection in list(self._state.connections):
            connection.transport.abort()
        await self._door.until_empty()
        if self._date is not None:
            self._date.cancel()

    async def _stop_listening(self) -> None:
        if self._listening is None:
            return
        server, listening = self._listening
        self._door.shut()
        # asyncio fails on a connection that is accepted but not made when its server is closed, and leaves it
        # open: so accept nothing more, let what was accepted come in, and close only then.
        asyncio.get_running_loop().remove_reader(listening)
        for _ in range(_TURNS_TO_COME_IN):
            await asyncio.sleep(0)
        server.close()

    def _protocol(self) -> _Protocol:
        return _Protocol(self._config, self._state, {}, door=self._door, queue=self._queue)

    def _stamp(self, loop: asyncio.AbstractEventLoop) -> None:
        self._state.default_headers = [(b"Date", formatdate(usegmt=True).encode("ascii"))]
        self._date = loop.call_later(1.0, self._stamp, loop)


class _Door:
    """Lets connections in: up to a share for each client address, and nobody once it is shut."""

    def __init__(self, share: int, inside: set[Any], *, told: bool) -> None:
        self.told = told
        self._share = share
        self._inside = inside
        self._open: Counter[str] = Counter()
        self._is_shut = False
        self._left = asyncio.Event()

    def admits(self, client: str) -> bool:
        """Count a connection of a client address, and tell whether it may stay."""
        self._open[client] += 1
        within = not (client and self._share) or self._open[client] <= self._share
        return within and not self._is_shut

    def leave(self, client: str) -> None:
        """Count a connection out that is inside no more."""
        self._open[client] -= 1
        if not self._open[client]:
            del self._open[client]
        self._left.set()

    def shut(self) -> None:
        """Let nobody in from now on."""
        self._is_shut = True

    async def until_empty(self) -> None:
        """Wait until all have left."""
        while self._inside:
            self._left.clear()
            await self._left.wait()


class _Queue:
    """Reads that came in and wait to be looked at: a few in each turn of the event loop.

    Thousands may come at once, as when all who watched a key ask again. Other requests (writes, renewals)
    then do not queue behind them, but pass between two turns.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[_Protocol, bytes]] = deque()
        self._is_called = False

    def add(self, protocol: _Protocol, data: bytes) -> None:
        """Add what came in."""
        self._waiting.append((protocol, data))
        self._call()

    def _serve(self) -> None:
        for _ in range(min(_AT_ONCE, len(self._waiting))):
            protocol, data = self._waiting.popleft()
            protocol.take_late(data)
        self._is_called = False
        self._call()

    def _call(self) -> None:
        if self._waiting and not self._is_called:
            self._is_called = True
            asyncio.get_running_loop().call_soon(self._serve)


class _Protocol(HttpToolsProtocol):
    """uvicorn's protocol behind a door."""

    def __init__(
        self, config: Config, state: ServerState, app_state: dict[str, Any], *, door: _Door, queue: _Queue
    ) -> None:
        super().__init__(config, state, app_state)
        self.logger = _SILENT
        self.access_log = False
        self._door = door
        self._queue = queue
        self._is_behind = 0
        self._client = ""
        self._head = 0
        self.gone: Callable[[], object] = _nothing

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._client = self.client[0] if self.client else ""
        if not self._door.admits(self._client):
            if self._door.told:
                transport.write(_TOO_MANY)
            transport.close()

    def data_received(self, data: bytes) -> None:
        """Take what came: at once, unless it begins with a read, which lets everything else pass first."""
        if self._is_behind or data.startswith(_READ):
            self._is_behind += 1
            self._queue.add(self, data)
        else:
            self._take(data)

    def take_late(self, data: bytes) -> None:
        """Take what had to wait."""
        self._is_behind -= 1
        if not self.transport.is_closing():
            self._take(data)

    def _take(self, data: bytes) -> None:
        """Take what came, unless it is a head, or trailers, without end."""
        self._head += len(data)
        super().data_received(data)
        if self._head > _LARGEST_HEAD and not self.transport.is_closing():
            if getattr(self.cycle, "response_complete", True):  # before the first request there is no cycle
                self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_headers_complete(self) -> None:
        """Begin a request; its target may be of any length, and HTTP/1.0 may keep its connection."""
        target, self.url = _target(self.url), b"/"  # uvicorn's parser of targets takes 64 KiB at most
        super().on_headers_complete()
        path, _, query = target.partition(b"?")
        self.scope["path"] = unquote(path.decode("latin-1"))
        self.scope["raw_path"], self.scope["query_string"] = path, query
        self.cycle.send = _Sender(self.cycle)  # type: ignore[method-assign]
        if self.scope["http_version"] == "1.0":
            wishes = b",".join(value for name, value in self.scope["headers"] if name == b"connection")
            self.cycle.keep_alive = b"keep-alive" in wishes.lower()

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        self._head = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note the end of a request."""
        self._head = 0
        super().on_message_complete()

    def on_message_begin(self) -> None:
        """Put the wire into the scope of the request that begins."""
        super().on_message_begin()
        self.scope["extensions"] = {WIRE: {"wire": _TransportWire(self)}}

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._door.leave(self._client)
        self.gone()


def _target(sent: bytes) -> bytes:
    """Return the path and query of a request's target, which may be a whole URL."""
    if not (absolute := _ABSOLUTE.match(sent)):
        return sent
    return b"/" + sent[absolute.end() :].removeprefix(b"/")


_ABSOLUTE = re.compile(rb"(?i)https?://[^/?#]*")


class _Sender:
    """Sends a reply as uvicorn would, but names as they are spelled, and the head with what follows it."""

    __slots__ = ("_cycle", "_has_body", "_head", "_is_chunked")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._head = b""
        self._has_body = cycle.scope["method"] != "HEAD"
        self._is_chunked = False

    async def __call__(self, message: Any) -> None:  # noqa: ANN401 - uvicorn has types of its own for ASGI
        cycle = self._cycle
        if cycle.flow.write_paused and not cycle.disconnected:
            await cycle.flow.drain()
        if cycle.disconnected:
            return
        if message["type"] == "http.response.start":
            cycle.response_started = True
            head = _head(tuple(message["headers"]), has_body=self._has_body, keeps=cycle.keep_alive)
            cycle.keep_alive, self._is_chunked = head.keeps, head.is_chunked
            date = b"".join(b"%b: %b\r\n" % header for header in cycle.default_headers)
            self._head = b"%b%b%b" % (STATUS_LINE[message["status"]], date, head.lines)
        else:
            self._go_on(message.get("body", b""), more=message.get("more_body", False))

    def _go_on(self, body: bytes, *, more: bool) -> None:
        cycle = self._cycle
        if not self._has_body:
            body = b""
        elif self._is_chunked:
            body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"" if more else b"0\r\n\r\n")
        head, self._head = self._head, b""
        cycle.transport.write(head + body)
        if more:
            return
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()


class _Head(NamedTuple):
    """A reply's headers as they are sent, up to the body, and what they say of body and connection."""

    lines: bytes
    is_chunked: bool
    keeps: bool


@lru_cache  # thousands who waited for the same get the same
def _head(headers: tuple[tuple[bytes, bytes], ...], *, has_body: bool, keeps: bool) -> _Head:
    known = {name.lower(): value.lower() for name, value in headers}
    if known.get(b"connection") == b"close":
        keeps = False
    elif not keeps:
        headers = (*headers, (b"Connection", b"close"))
    is_chunked = has_body and b"content-length" not in known
    if is_chunked:
        headers = (*headers, (b"Transfer-Encoding", b"chunked"))
    if any(_CONTROL.search(part) for header in headers for part in header):
        raise RuntimeError("a header of a reply has a control character")
    return _Head(b"".join(b"%b: %b\r\n" % header for header in headers) + b"\r\n", is_chunked, keeps)


_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


class _TransportWire:
    """The wire of a request: its protocol and its asyncio transport."""

    __slots__ = ("_protocol", "_transport")

    def __init__(self, protocol: _Protocol) -> None:
        self._protocol = protocol
        self._transport = protocol.transport

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def close(self) -> None:
        self._give_up()
        self._transport.close()

    def _give_up(self) -> None:
        self._protocol.cycle.disconnected = True  # or uvicorn would log that there is no reply

    def reset(self) -> None:
        self._give_up()
        raw: socket.socket | None = self._transport.get_extra_info("socket")
        if raw is not None and raw.family != socket.AF_UNIX:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        self._transport.abort()

    def when_gone(self, action: Callable[[], object]) -> None:
        if self._transport.is_closing():
            action()
        self._protocol.gone = action
        self._protocol.flow.resume_reading()  # a paused connection would not be seen to end


def _nothing() -> None:
    pass


# uvicorn's protocol logs to "uvicorn.error"; an application's own uvicorn must not be mixed up with ours.
_SILENT = logging.getLogger("consul_coord.server")
