"""Every transport behind one blocking ``send``, so that a test holds all of them to the same rules."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Protocol

import httpx
from anyio.from_thread import start_blocking_portal

from consul_coord.http.transport.build import async_transport, sync_transport

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from anyio.from_thread import BlockingPortal

    from consul_coord.config import Settings
    from consul_coord.http.messages import Request, Response
    from consul_coord.http.transport.base import AsyncTransport, Transport


TRUST_NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients that use no TLS: they need not read the certificates of all authorities."""


class Engine(Protocol):
    def send(self, request: Request, *, timeout: float = 5.0) -> Response: ...

    def close(self) -> None:
        """Close the transport."""

    def end(self) -> None:
        """Close everything around it, too."""


class SyncEngine:
    def __init__(self, transport: Transport, *, client: httpx.Client | None = None) -> None:
        self.transport = transport
        self._client = client

    def send(self, request: Request, *, timeout: float = 5.0) -> Response:
        return self.transport.send(request, timeout=timeout)

    def close(self) -> None:
        self.transport.close()

    def end(self) -> None:
        self.close()
        if self._client is not None:
            self._client.close()


class AsyncEngine:
    """Runs an async transport on an event loop in another thread."""

    def __init__(
        self, make: Callable[[], tuple[AsyncTransport, httpx.AsyncClient | None]], *, backend: str
    ) -> None:
        self._running: AbstractContextManager[BlockingPortal] = start_blocking_portal(backend)
        self._portal = self._running.__enter__()
        self.transport, self._client = self._portal.call(make)

    def send(self, request: Request, *, timeout: float = 5.0) -> Response:
        async def send() -> Response:
            return await self.transport.send(request, timeout=timeout)

        return self._portal.call(send)

    def close(self) -> None:
        self._portal.call(self.transport.aclose)

    def end(self) -> None:
        self.close()
        if self._client is not None:
            self._portal.call(self._client.aclose)
        self._running.__exit__(None, None, None)


def _direct(settings: Settings) -> Engine:
    return SyncEngine(sync_transport(settings))


def _streams(settings: Settings, backend: str) -> Engine:
    return AsyncEngine(lambda: (async_transport(settings), None), backend=backend)


def _httpx(settings: Settings) -> Engine:
    client = httpx.Client(trust_env=False, verify=TRUST_NOBODY)
    return SyncEngine(sync_transport(settings, http_client=client), client=client)


def _async_httpx(settings: Settings, backend: str) -> Engine:
    def make() -> tuple[AsyncTransport, httpx.AsyncClient | None]:
        client = httpx.AsyncClient(trust_env=False, verify=TRUST_NOBODY)
        return async_transport(settings, http_client=client), client

    return AsyncEngine(make, backend=backend)


OWN_ENGINES: dict[str, Callable[[Settings], Engine]] = {
    "direct": _direct,
    "streams-asyncio": lambda settings: _streams(settings, "asyncio"),
    "streams-trio": lambda settings: _streams(settings, "trio"),
}
USER_ENGINES: dict[str, Callable[[Settings], Engine]] = {
    "httpx": _httpx,
    "httpx-asyncio": lambda settings: _async_httpx(settings, "asyncio"),
    "httpx-trio": lambda settings: _async_httpx(settings, "trio"),
}
