"""Transports over an ``httpx`` client that the user brings: proxies, instrumentation, ``MockTransport``.

The only module that imports httpx, and that only while a request is sent.

Rules
- The client stays the user's: it is never closed here, and its headers, proxies and hooks apply. The address,
  the token and the default parameters are ours; its ``base_url`` and ``follow_redirects`` are not used.
- httpx bounds single reads and writes. So that the whole exchange is bounded, and can be cancelled, a sync
  one runs on another thread (see ``bounded``). The thread is left behind when time is up, and ends with the
  single read it is in.
- Nothing was sent only if httpx failed to connect, or says that it is still connecting.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Generic, TypeVar

from consul_coord.errors import ClientClosed, TransportError
from consul_coord.http.messages import Response
from consul_coord.http.transport import errors
from consul_coord.http.transport.base import DEFAULT_LIMITS, Abandoned
from consul_coord.http.transport.bounded import call_bounded
from consul_coord.http.transport.exchange import Attempt
from consul_coord.http.transport.pool import READ_SIZE
from consul_coord.http.transport.wire import Garbled, Outgoing, kept_of, refuse_compression

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

    import httpx

    from consul_coord.config import Settings
    from consul_coord.http.messages import Request
    from consul_coord.http.transport.base import Cancellation, Limits


C = TypeVar("C", "httpx.Client", "httpx.AsyncClient")


class _OverClient(Generic[C]):
    """The common part of both: our requests as httpx takes them, and its errors as ours."""

    def __init__(self, settings: Settings, client: C, *, limits: Limits = DEFAULT_LIMITS) -> None:
        self._outgoing = Outgoing(settings)
        self._address, self._origin = settings.address, settings.origin
        self._root = f"{settings.scheme}://{settings.authority}"
        self._client: C = client
        self._limits = limits
        self._closed = False

    def listen(self, on_refusal: Callable[[], object]) -> None:
        """Do nothing: the client's connections are its owner's."""

    def forget(self) -> None:
        """Do nothing: in a forked child, the client's sockets are its owner's to care for."""

    def _begin(self, request: Request, timeout: float) -> Attempt:
        if self._closed or self._client.is_closed:
            raise ClientClosed
        return Attempt(request, address=self._address, origin=self._origin, timeout=timeout)

    def _build(self, attempt: Attempt, trace: Callable[..., object]) -> httpx.Request:
        request = attempt.request
        attempt.sent = True
        built = self._client.build_request(
            request.method,
            _url(self._root + self._outgoing.target(request)),
            headers=self._outgoing.headers(attempt.began),
            # Empty content makes httpx say "Content-Length: 0" on a PUT.
            content=request.body or b"",
            timeout=attempt.deadline - attempt.began,
        )
        built.extensions["trace"] = partial(trace, attempt, built.extensions)
        return built

    def _kept(self, incoming: httpx.Response, body: bytearray) -> int:
        return kept_of(len(body), incoming.status_code, self._limits)


@lru_cache(maxsize=64)
def _url(text: str) -> httpx.URL:
    """Parse a URL: that takes httpx longer than all else about a request."""
    import httpx

    return httpx.URL(text)


class UserClientTransport(_OverClient["httpx.Client"]):
    """Sends over a user's ``httpx.Client``, from any thread."""

    def send(self, request: Request, *, timeout: float, cancel: Cancellation | None = None) -> Response:
        """Return the whole reply; see ``Transport.send``."""
        attempt = self._begin(request, timeout)
        try:
            return call_bounded(lambda: self._fetch(attempt), timeout=timeout, cancel=cancel)
        except TransportError:
            raise
        except (Abandoned, TimeoutError) as error:
            raise errors.failed(attempt, error) from error

    def sweep(self) -> float:
        """Do nothing: the client's connections are its owner's."""
        return math.inf

    def close(self) -> None:
        """Send no more. The client stays open."""
        self._closed = True

    def _fetch(self, attempt: Attempt) -> Response:
        with _translating(attempt):
            outgoing = self._build(attempt, _note)
            incoming = self._client.send(outgoing, stream=True, follow_redirects=False)
            try:
                headers, body = _headers(incoming), bytearray()
                for piece in incoming.iter_bytes(READ_SIZE):
                    attempt.remaining()
                    body += piece
                    if self._kept(incoming, body) < len(body):
                        break
                return Response(incoming.status_code, headers, bytes(body[: self._kept(incoming, body)]))
            finally:
                incoming.close()


class AsyncUserClientTransport(_OverClient["httpx.AsyncClient"]):
    """Sends over a user's ``httpx.AsyncClient``."""

    async def send(self, request: Request, *, timeout: float) -> Response:
        """Return the whole reply; see ``AsyncTransport.send``."""
        import anyio

        attempt = self._begin(request, timeout)
        with anyio.move_on_after(timeout), _translating(attempt):
            return await self._fetch(attempt)
        raise errors.failed(attempt, TimeoutError())

    async def sweep(self) -> float:
        """Do nothing: the client's connections are its owner's."""
        return math.inf

    async def aclose(self) -> None:
        """Send no more. The client stays open."""
        self._closed = True

    async def _fetch(self, attempt: Attempt) -> Response:
        outgoing = self._build(attempt, _anote)
        incoming = await self._client.send(outgoing, stream=True, follow_redirects=False)
        try:
            headers, body = _headers(incoming), bytearray()
            async for piece in incoming.aiter_bytes(READ_SIZE):
                body += piece
                if self._kept(incoming, body) < len(body):
                    break
            return Response(incoming.status_code, headers, bytes(body[: self._kept(incoming, body)]))
        finally:
            await incoming.aclose()


def _note(attempt: Attempt, extensions: dict[str, Any], event: str, _details: object) -> None:
    """Follow httpcore's trace, to know whether anything has left. Unless it denies that, something may."""
    if event.startswith("connection.connect_"):
        attempt.sent = False
    elif event.endswith(".send_request_headers.started"):
        attempt.sent = True
        extensions.pop("trace", None)  # the rest tells nothing more, and each event costs


async def _anote(attempt: Attempt, extensions: dict[str, Any], event: str, details: object) -> None:
    _note(attempt, extensions, event, details)


def _headers(incoming: httpx.Response) -> dict[str, str]:
    headers = {name.lower(): value for name, value in incoming.headers.items()}
    refuse_compression(headers)
    return headers


@contextmanager
def _translating(attempt: Attempt) -> Generator[None]:
    try:
        yield
    except Exception as error:
        if (ours := _translated(error, attempt)) is None:
            raise
        raise ours from error


def _translated(error: Exception, attempt: Attempt) -> Exception | None:
    """Return our error for one of httpx's, or None for what is the user's own, from a hook say."""
    import httpx

    if isinstance(error, (httpx.ConnectError, httpx.ProxyError, httpx.UnsupportedProtocol)):
        attempt.sent = False
        return errors.unreachable(attempt, error)
    if isinstance(error, (httpx.ConnectTimeout, httpx.PoolTimeout)):
        attempt.sent = False
    if isinstance(error, httpx.TimeoutException):
        return errors.failed(attempt, TimeoutError())
    # A transport of the user's own, such as one over an ASGI app, may let a broken connection through.
    broken = (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, Garbled, ConnectionError, TimeoutError)
    return errors.failed(attempt, error) if isinstance(error, broken) else None
