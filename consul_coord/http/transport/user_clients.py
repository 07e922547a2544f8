"""Transports over an ``httpx`` client that the user brings: proxies, instrumentation, ``MockTransport``.

The only module that imports httpx, which whoever brings a client of it has imported already.

Rules
- The client stays the user's: it is never closed here, and its headers, parameters, proxies and hooks apply,
  as far as they are not ours: the address, the token and the default parameters are. Its ``base_url`` and
  ``follow_redirects`` are not used.
- It can't be made to let go of its connections. So a forked child sends nothing if there may be any: they are
  its parent's, and each of the two would get the other one's replies.
- httpx bounds single reads and writes. The whole exchange of a sync client is bounded, and can be cancelled,
  in one of two ways.
- Over a kept HTTP/1 connection of httpx's own transport it takes place on the caller's thread. It can block
  only in the connection's socket, which a watcher shuts down when time is up (see ``watcher``).
- Any other exchange runs on a helper thread (see ``bounded``), because nobody can end the look-up of a name,
  a new connection, or the wait for a place in the pool of httpx. The same holds for a transport, a hook or a
  login of the user's own. The thread is left behind when time is up, and ends with the read it is in.
- Nothing was sent only if httpx failed to connect, or says that it is still connecting, and did not begin to
  send before: a transport of the user's own may repeat what fails. A call that is cancelled or interrupted
  until then sends nothing later.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from functools import lru_cache, partial
from inspect import currentframe
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from consul_coord.errors import ClientClosed, ConfigError, TransportError
from consul_coord.http.failures import again
from consul_coord.http.messages import Response
from consul_coord.http.transport import errors
from consul_coord.http.transport.base import DEFAULT_LIMITS, Abandoned
from consul_coord.http.transport.bounded import call_bounded
from consul_coord.http.transport.exchange import Attempt
from consul_coord.http.transport.pool import READ_SIZE
from consul_coord.http.transport.watcher import Watch
from consul_coord.http.transport.wire import Garbled, Outgoing, kept_of, refuse_compression

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Generator, Iterable
    from types import FrameType
    from typing import Any

    import httpx

    from consul_coord.config import Settings
    from consul_coord.http.messages import Request
    from consul_coord.http.transport.base import Cancellation, Limits


C = TypeVar("C", "httpx.Client", "httpx.AsyncClient")


class _Elsewhere(Exception):
    """The exchange can't take place on the caller's thread. Nothing was sent."""


POOLED = 0.95
"""The part of its time for which an exchange waits for a connection. If that ends first, nothing was sent."""


class _Left(dict[str, float]):
    """The timeouts of httpx, of which each stage gets what is left of the whole exchange's time."""

    def __init__(self, attempt: Attempt, *, pool: float) -> None:
        left = attempt.remaining()
        super().__init__(connect=left, read=left, write=left, pool=pool)
        self._attempt = attempt

    def get(self, key: str, default: object = None, /) -> float:  # noqa: ARG002
        """Return the seconds for one stage. Raises ``TimeoutError``."""
        return self["pool"] if key == "pool" else self._attempt.remaining()


def check_kind(name: str, client: object, kind: str) -> None:
    """Raise ConfigError if what a parameter was given is no client of httpx of that class."""
    import httpx

    if not isinstance(client, getattr(httpx, kind)):
        raise ConfigError(f"{name} takes an httpx.{kind}, not {type(client).__name__}")


class _OverClient(Generic[C]):
    """The common part of both: our requests as httpx takes them, and its errors as ours."""

    _kind: str
    """The class of httpx that it takes."""

    def __init__(self, settings: Settings, client: C, *, limits: Limits = DEFAULT_LIMITS) -> None:
        check_kind("http_client", client, self._kind)
        self._outgoing = Outgoing(settings)
        self._address, self._origin = settings.address, settings.origin
        self._root = f"{settings.scheme}://{settings.authority}"
        self._client: C = client
        self._limits = limits
        self._closed = False
        self._is_used = self._is_inherited = False
        self._keeps = False
        """Whether the last exchange was over a connection of HTTP/1 that httpx keeps."""
        self._merged: tuple[object, object, httpx.Headers | None] = (None, None, None)
        """The client's headers, ours, and both together, as they were last."""

    def listen(self, on_refusal: Callable[[], object]) -> None:
        """Do nothing: the client's connections are its owner's."""

    def forget(self) -> None:
        """In a forked child: send nothing more, if the client may have connections of the parent's."""
        self._is_inherited = self._is_used

    def _begin(self, request: Request, timeout: float) -> Attempt:
        if self._closed:
            raise ClientClosed
        if self._client.is_closed:
            raise ClientClosed(
                f"the httpx.{self._kind} that carries its requests is closed: close it after this client"
            )
        if self._is_inherited:
            raise ConfigError(
                f"the httpx.{self._kind} that carries its requests was used before this process was forked, "
                "and its connections are the parent's: make it and this client in the child"
            )
        self._is_used = True
        return Attempt(request, address=self._address, origin=self._origin, timeout=timeout)

    def _build(
        self, attempt: Attempt, trace: Callable[..., object], *, pool: float = math.inf
    ) -> httpx.Request:
        """Return the request. httpx waits for a place in its pool for ``pool`` seconds at most."""
        import httpx

        request, client = attempt.request, self._client
        _begin_sending(attempt)
        url, ours = _url(self._root + self._outgoing.target(request)), self._outgoing.headers(attempt.began)
        # Empty content makes httpx say "Content-Length: 0" on a PUT.
        content = request.body or b""
        extensions = {"timeout": _Left(attempt, pool=min(pool, POOLED * attempt.remaining()))}
        if type(client) in (httpx.Client, httpx.AsyncClient) and not (client.cookies or client.params):
            # What the client would build, without merging the headers each time.
            built = httpx.Request(
                request.method,
                url,
                headers=self._merge(client.headers, ours),
                content=content,
                extensions=extensions,
            )
        else:
            # Parameters of the client's own would replace the whole query.
            params = url.params if client.params else None
            built = client.build_request(
                request.method, url, params=params, headers=ours, content=content, extensions=extensions
            )
        built.extensions["trace"] = partial(trace, attempt, built.extensions)
        return built

    def _merge(self, theirs: httpx.Headers, ours: dict[str, str]) -> httpx.Headers:
        raw, (known, own, merged) = theirs.raw, self._merged
        if merged is None or known != raw or own != ours:
            merged = theirs.copy()
            merged.update(ours)
            self._merged = (raw, ours, merged)
        return merged

    def _add(self, incoming: httpx.Response, body: bytearray, piece: bytes) -> bool:
        """Add a piece to a body; returns whether more is wanted."""
        body += piece
        kept = kept_of(len(body), incoming.status_code, self._limits)
        more = kept == len(body)
        del body[kept:]
        return more


_SENDING = ".send_request_headers.started"
_SENDING_HTTP_1 = "http11" + _SENDING


@lru_cache(maxsize=64)
def _url(text: str) -> httpx.URL:
    """Parse a URL: that takes httpx longer than all else about a request."""
    import httpx

    return httpx.URL(text)


class UserClientTransport(_OverClient["httpx.Client"]):
    """Sends over a user's ``httpx.Client``, from any thread."""

    _kind = "Client"

    def send(self, request: Request, *, timeout: float, cancel: Cancellation | None = None) -> Response:
        """Return the whole reply; see ``Transport.send``."""
        attempt = self._begin(request, timeout)
        if self._keeps and self._is_plain():
            try:
                return self._fetch_here(attempt, cancel)
            except _Elsewhere:
                self._keeps = attempt.sent = False
        try:
            return call_bounded(lambda: self._fetch(attempt), timeout=attempt.remaining(), cancel=cancel)
        except TransportError:
            raise
        except BaseException as error:
            attempt.cancelled = not isinstance(error, TimeoutError)
            if isinstance(error, (Abandoned, TimeoutError)):
                raise errors.failed(attempt, error) from error
            raise

    def sweep(self) -> float:
        """Do nothing: the client's connections are its owner's."""
        return math.inf

    def close(self) -> None:
        """Send no more. The client stays open."""
        self._closed = True

    def _is_plain(self) -> bool:
        """Return whether nothing but httpx itself has a part in an exchange."""
        import httpx

        client = self._client
        if type(client) is not httpx.Client or client.auth is not None or any(client.event_hooks.values()):
            return False
        route = getattr(client, "_transport_for_url", None)  # httpx has no public name for it
        return route is not None and type(route(_url(self._root))) is httpx.HTTPTransport

    def _fetch_here(self, attempt: Attempt, cancel: Cancellation | None) -> Response:
        """Use a kept connection, on this thread. Raises ``_Elsewhere`` if there is none."""
        import httpx

        watch = Watch(attempt.deadline)

        def stop() -> None:
            attempt.cancelled = True
            watch.cancel()

        unsubscribe = None if cancel is None else cancel.subscribe(stop)
        try:
            return self._fetch(attempt, watch)
        except TransportError as error:
            if isinstance(error.__cause__, httpx.PoolTimeout):
                raise _Elsewhere from None
            if watch.is_cut:
                raise errors.timed_out(attempt) from error
            raise
        finally:
            watch.end()
            if unsubscribe is not None:
                unsubscribe()

    def _fetch(self, attempt: Attempt, watch: Watch | None = None) -> Response:
        """Exchange on this thread; with a ``watch``, only over a kept connection."""
        with _translating(attempt):
            if watch is None:
                outgoing = self._build(attempt, _note)
            else:
                outgoing = self._build(attempt, partial(_require_kept, watch), pool=0.0)
                attempt.sent = False
            incoming = self._client.send(outgoing, stream=True, follow_redirects=False)
            try:
                headers, body = _headers(incoming), bytearray()
                for piece in _pieces(incoming):
                    attempt.remaining()
                    if not self._add(incoming, body, piece):
                        break
            finally:
                if watch is not None:
                    watch.end()
                incoming.close()
            if watch is not None and watch.is_cut:  # that may look like the end of the body
                raise TimeoutError
            self._keeps = _is_kept(incoming, headers)
            return Response(incoming.status_code, headers, bytes(body))


class AsyncUserClientTransport(_OverClient["httpx.AsyncClient"]):
    """Sends over a user's ``httpx.AsyncClient``."""

    _kind = "AsyncClient"

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
                if not self._add(incoming, body, piece):
                    break
            return Response(incoming.status_code, headers, bytes(body))
        finally:
            await incoming.aclose()


def _note(attempt: Attempt, extensions: dict[str, Any], event: str, details: dict[str, Any]) -> None:
    """Follow httpcore's trace, to know whether anything has left. Unless it denies that, something may."""
    if event.startswith("connection.connect_"):
        attempt.sent = False
    elif event.endswith(_SENDING) and not _opens_tunnel(details):
        _begin_sending(attempt)
        attempt.has_begun = True
        extensions.pop("trace", None)  # the rest tells nothing more, and each event costs


def _opens_tunnel(details: dict[str, Any]) -> bool:
    """Return whether what is sent is for a proxy, and ours comes later."""
    return getattr(details.get("request"), "method", None) == b"CONNECT"


def _begin_sending(attempt: Attempt) -> None:
    """Take note that something may leave. Raises ``Abandoned`` after a cancellation: nothing leaves then."""
    attempt.sent = True
    if attempt.cancelled:
        raise Abandoned


async def _anote(attempt: Attempt, extensions: dict[str, Any], event: str, details: dict[str, Any]) -> None:
    _note(attempt, extensions, event, details)


def _require_kept(
    watch: Watch, attempt: Attempt, extensions: dict[str, Any], event: str, _details: object
) -> None:
    """Follow httpcore's trace, and end what is not an exchange over a kept HTTP/1 connection."""
    if event == _SENDING_HTTP_1 and (sock := _socket_above(currentframe())) is not None:
        attempt.sent = attempt.has_begun = True
        extensions.pop("trace", None)
        watch.begin(sock)
    elif not attempt.sent:
        raise _Elsewhere


def _socket_above(frame: FrameType | None) -> socket.socket | None:
    """Return the socket of the connection that has called, by the stack: the trace does not name it."""
    import httpcore

    # The locals of a frame are costly: those in between are passed by.
    while frame is not None and frame.f_code.co_name != "handle_request":
        frame = frame.f_back
    connection = None if frame is None else frame.f_locals.get("self")
    if not isinstance(connection, httpcore.HTTP11Connection):
        return None
    stream = getattr(connection, "_network_stream", None)
    return None if stream is None else stream.get_extra_info("socket")


def _pieces(incoming: httpx.Response) -> Iterable[bytes]:
    """Return the body; ``iter_bytes`` would give the connection back before the watch has ended."""
    if incoming.is_stream_consumed:  # by a hook
        return (incoming.content,)
    return cast("httpx.SyncByteStream", incoming.stream)


def _is_kept(incoming: httpx.Response, headers: dict[str, str]) -> bool:
    """Return whether a reply came over a connection that httpx keeps, and that speaks HTTP/1."""
    version, is_real = incoming.extensions.get("http_version"), "network_stream" in incoming.extensions
    return is_real and version == b"HTTP/1.1" and "close" not in headers.get("connection", "").lower()


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
        raise again(ours) from error


def _translated(error: Exception, attempt: Attempt) -> Exception | None:
    """Return our error for one of httpx's, or None for what is the user's own, from a hook say."""
    import httpx

    if isinstance(error, (httpx.ConnectError, httpx.ProxyError, httpx.UnsupportedProtocol)):
        attempt.sent = attempt.has_begun
        return errors.unreachable(attempt, error)
    if isinstance(error, (httpx.ConnectTimeout, httpx.PoolTimeout)):
        attempt.sent = attempt.has_begun
    if isinstance(error, httpx.TimeoutException):
        return errors.failed(attempt, TimeoutError())
    # A transport of the user's own, such as one over an ASGI app, may let a broken connection through.
    broken = (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, Garbled, ConnectionError, TimeoutError)
    return errors.failed(attempt, error) if isinstance(error, broken) else None
