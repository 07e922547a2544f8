"""Transports over an ``httpx`` client that the user brings: proxies, instrumentation, ``MockTransport``.

The only module that imports httpx, and that only while a request is sent.

Rules
- The client stays the user's: it is never closed here, and its headers, proxies and hooks apply. The address,
  the token and the default parameters are ours; its ``base_url`` and ``follow_redirects`` are not used.
- httpx bounds single reads and writes. So that the whole exchange is bounded, and can be cancelled, a sync
  one runs on a thread of its own, which is left behind when time is up, and ends with the single read it is
  in.
- Nothing was sent only if httpx failed to connect, or says that it is still connecting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.errors import ClientClosed, TransportError
from consul_coord.http.messages import Response
from consul_coord.http.transport.attempt import Attempt, reason
from consul_coord.http.transport.base import DEFAULT_LIMITS
from consul_coord.http.transport.bounded import Abandoned, call_bounded
from consul_coord.http.transport.incoming import BodyLimit, Garbled, refuse_compression
from consul_coord.http.transport.outgoing import Outgoing

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    import httpx

    from consul_coord.config import Settings
    from consul_coord.http.messages import Request
    from consul_coord.http.transport.base import Cancellation, Limits

READ_SIZE = 64 * 1024


class UserClientTransport:
    """Sends over a user's ``httpx.Client``, from any thread."""

    def __init__(self, settings: Settings, client: httpx.Client, *, limits: Limits = DEFAULT_LIMITS) -> None:
        self._requests = _Requests(settings)
        self._client = client
        self._limits = limits
        self._closed = False

    def send(self, request: Request, *, timeout: float, cancel: Cancellation | None = None) -> Response:
        """Return the whole reply; see ``Transport.send``."""
        _check_open(self._closed or self._client.is_closed)
        attempt = self._requests.attempt(request, timeout)
        arguments = self._requests.arguments(attempt, _Progress(attempt).note)
        try:
            return call_bounded(lambda: self._fetch(arguments, attempt), timeout=timeout, cancel=cancel)
        except TransportError:
            raise
        except Abandoned as error:
            raise attempt.cancelled() from error
        except TimeoutError as error:
            raise attempt.timed_out() from error

    def close(self) -> None:
        """Send no more. The client stays open."""
        self._closed = True

    def forget(self) -> None:
        """Do nothing: in a forked child, the client's sockets are its owner's to care for."""

    def _fetch(self, arguments: dict[str, Any], attempt: Attempt) -> Response:
        try:
            outgoing = self._client.build_request(**arguments)
            incoming = self._client.send(outgoing, stream=True, follow_redirects=False)
            try:
                body = _Body(incoming, self._limits)
                for piece in incoming.iter_bytes(READ_SIZE):
                    attempt.remaining()
                    if body.add(piece):
                        break
                return body.response()
            finally:
                incoming.close()
        except Exception as error:
            if (ours := _translated(error, attempt)) is None:
                raise
            raise ours from error


class AsyncUserClientTransport:
    """Sends over a user's ``httpx.AsyncClient``."""

    def __init__(
        self, settings: Settings, client: httpx.AsyncClient, *, limits: Limits = DEFAULT_LIMITS
    ) -> None:
        self._requests = _Requests(settings)
        self._client = client
        self._limits = limits
        self._closed = False

    async def send(self, request: Request, *, timeout: float) -> Response:
        """Return the whole reply; see ``AsyncTransport.send``."""
        import anyio

        _check_open(self._closed or self._client.is_closed)
        attempt = self._requests.attempt(request, timeout)
        arguments = self._requests.arguments(attempt, _Progress(attempt).anote)
        with anyio.move_on_after(timeout):
            try:
                return await self._fetch(arguments)
            except Exception as error:
                if (ours := _translated(error, attempt)) is None:
                    raise
                raise ours from error
        raise attempt.timed_out()

    async def aclose(self) -> None:
        """Send no more. The client stays open."""
        self._closed = True

    def forget(self) -> None:
        """Do nothing: in a forked child, the client's sockets are its owner's to care for."""

    async def _fetch(self, arguments: dict[str, Any]) -> Response:
        outgoing = self._client.build_request(**arguments)
        incoming = await self._client.send(outgoing, stream=True, follow_redirects=False)
        try:
            body = _Body(incoming, self._limits)
            async for piece in incoming.aiter_bytes(READ_SIZE):
                if body.add(piece):
                    break
            return body.response()
        finally:
            await incoming.aclose()


class _Requests:
    """Writes our requests as httpx takes them."""

    def __init__(self, settings: Settings) -> None:
        self._outgoing = Outgoing(settings)
        self._address = settings.address
        self._root = f"{settings.scheme}://{settings.authority}"

    def attempt(self, request: Request, timeout: float) -> Attempt:
        attempt = Attempt(request, address=self._address, timeout=timeout)
        attempt.require_time()
        return attempt

    def arguments(self, attempt: Attempt, trace: Callable[..., object]) -> dict[str, Any]:
        """Return the keyword arguments of ``build_request``."""
        request = attempt.request
        return {
            "method": request.method,
            "url": self._root + self._outgoing.target(request),
            "headers": self._outgoing.headers(attempt.began),
            # Empty content makes httpx say "Content-Length: 0" on a PUT.
            "content": request.body or b"",
            "timeout": attempt.deadline - attempt.began,
            "extensions": {"trace": trace},
        }


class _Progress:
    """Follows httpcore's trace, to know whether anything has left. Unless it denies that, something may."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        attempt.sent = True

    def note(self, event: str, _details: object) -> None:
        if event.startswith("connection.connect_"):
            self._attempt.sent = False
        elif event.endswith(".send_request_headers.started"):
            self._attempt.sent = True

    async def anote(self, event: str, details: object) -> None:
        self.note(event, details)


class _Body:
    """Collects a reply's body within the limits."""

    def __init__(self, incoming: httpx.Response, limits: Limits) -> None:
        self._status = incoming.status_code
        self._headers = {name.lower(): value for name, value in incoming.headers.items()}
        self._limit = BodyLimit(self._status, limits)
        self._content = bytearray()
        refuse_compression(self._headers)

    def add(self, piece: bytes) -> bool:
        """Take a piece; return whether no more is wanted. Raises ``Garbled`` when that is an error."""
        self._content += piece
        return self._limit.passed_by(len(self._content))

    def response(self) -> Response:
        return Response(self._status, self._headers, self._limit.cut(self._content))


def _check_open(closed: bool) -> None:  # noqa: FBT001 - it is the question itself
    if closed:
        raise ClientClosed("the client is closed")


def _translated(error: Exception, attempt: Attempt) -> TransportError | None:
    """Return our error for one of httpx's, or None for what is the user's own, from a hook say."""
    import httpx

    if isinstance(error, (httpx.ConnectError, httpx.ProxyError, httpx.UnsupportedProtocol)):
        attempt.sent = False
        return attempt.unreachable(error)
    if isinstance(error, (httpx.ConnectTimeout, httpx.PoolTimeout)):
        attempt.sent = False
    if isinstance(error, (httpx.TimeoutException, TimeoutError)):
        return attempt.timed_out()
    # A transport of the user's own, such as one over an ASGI app, may let a broken connection through.
    if isinstance(error, (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, Garbled, ConnectionError)):
        return attempt.broken(reason(error))
    return None
