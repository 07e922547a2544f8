"""Sockets for an ASGI app: uvicorn's HTTP protocol, started and stopped without waiting for ticks.

Rules
- Stopping answers what is pending first, then closes; a connection that does not end in time is cut.
- Header names are sent as Consul spells them, because some clients are particular about that.
- A client address beyond its share of connections is closed without a byte, as Consul 1.8.7 does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections import Counter
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from consul_coord.server.app import WIRE

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from consul_coord.server.asgi import Application, Message, Receive, Scope, Send

_KEEP_ALIVE = 3_600
_FRAMING = frozenset({b"connection", b"content-length"})  # uvicorn looks for these
_BACKLOG = 1_024
_LAST_TURNS = 4
_TICK = 0.002
_LINGER_NOT = struct.pack("ii", 1, 0)  # closing sends a reset instead of what is left


class Listener:
    """An app on a listening socket, in the running event loop."""

    def __init__(self, app: Application, *, max_conns_per_client: int) -> None:
        self._config = Config(
            _spelled(app),
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=_KEEP_ALIVE,
            ws="none",
            interface="asgi3",
        )
        self._state = ServerState()
        self._shares = _Shares(max_conns_per_client)
        self._stop_accepting: Callable[[], object] = lambda: None
        self._date: asyncio.TimerHandle | None = None

    async def start(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Serve on a bound socket, which is owned from now on."""
        if not self._config.loaded:
            self._config.load()
        loop = asyncio.get_running_loop()
        self._stamp(loop)
        server = await loop.create_server(self._protocol, sock=listening, ssl=tls, backlog=_BACKLOG)
        self._stop_accepting = server.close

    async def stop(self, dismiss: Callable[[], None], grace: float) -> None:
        """Accept nothing more, let ``dismiss`` answer what is pending, and close within ``grace`` seconds."""
        self._stop_accepting()
        dismiss()
        for connection in list(self._state.connections):
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                while self._state.connections:  # noqa: ASYNC110 - uvicorn has no event for it
                    await asyncio.sleep(_TICK)
        # More than once: an aborted connection is closed at the loop's next turn, and one that was just being
        # accepted shows up only then.
        for _ in range(_LAST_TURNS):
            for connection in list(self._state.connections):
                connection.transport.abort()
            await asyncio.sleep(0)
        if self._date is not None:
            self._date.cancel()

    def _protocol(self) -> _Protocol:
        return _Protocol(self._config, self._state, {}, shares=self._shares)

    def _stamp(self, loop: asyncio.AbstractEventLoop) -> None:
        self._state.default_headers = [(b"Date", formatdate(usegmt=True).encode("ascii"))]
        self._date = loop.call_later(1.0, self._stamp, loop)


class _Name(bytes):
    """A header name that stays as it is spelled, where uvicorn would lower it."""

    __slots__ = ()

    def lower(self) -> _Name:
        return self


def _spelled(app: Application) -> Application:
    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        async def spell(message: Message) -> None:
            if message["type"] == "http.response.start":
                names: list[tuple[bytes, bytes]] = message["headers"]
                message["headers"] = [(k if k.lower() in _FRAMING else _Name(k), v) for k, v in names]
            await send(message)

        await app(scope, receive, spell)

    return run


class _Shares:
    """How many connections each client address has."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: Counter[str] = Counter()

    def take(self, client: str) -> bool:
        if self._limit and self._open[client] >= self._limit:
            return False
        self._open[client] += 1
        return True

    def give_back(self, client: str) -> None:
        self._open[client] -= 1
        if not self._open[client]:
            del self._open[client]


class _Protocol(HttpToolsProtocol):
    """uvicorn's protocol, with a share of connections per client."""

    def __init__(
        self, config: Config, state: ServerState, app_state: dict[str, Any], *, shares: _Shares
    ) -> None:
        super().__init__(config, state, app_state)
        self.logger = _SILENT
        self.access_log = False
        self._shares = shares
        self._share: str | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        client = self.client[0] if self.client else ""
        if client and not self._shares.take(client):
            transport.close()
            return
        self._share = client

    def on_message_begin(self) -> None:
        """Put the wire into the scope of the request that begins."""
        super().on_message_begin()
        self.scope["extensions"] = {WIRE: {"wire": _TransportWire(self.transport)}}

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._share:
            self._shares.give_back(self._share)
            self._share = None


class _TransportWire:
    """The wire of a request: its asyncio transport."""

    __slots__ = ("_transport",)

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def close(self) -> None:
        self._transport.close()

    def reset(self) -> None:
        raw: socket.socket | None = self._transport.get_extra_info("socket")
        if raw is not None and raw.family != socket.AF_UNIX:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        self._transport.abort()


# uvicorn's protocol logs to "uvicorn.error"; an application's own uvicorn must not be mixed up with ours.
_SILENT = logging.getLogger("consul_coord.server")
