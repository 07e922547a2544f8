"""The ASGI app: HTTP in, ``Host`` in the middle, HTTP out; only the transport's rules live here.

Rules
- Every reply varies on Accept-Encoding and is gzipped for whoever takes it; a larger one is sent chunked.
- A body without Content-Length is marked as such, because Consul does not read it everywhere.
- A client that goes away while its request waits takes the request with it.
"""

from __future__ import annotations

import asyncio
import gzip
from typing import TYPE_CHECKING, Any

from consul_coord.server.host import Late
from consul_coord.server.wire import Request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from consul_coord.server.host import Host
    from consul_coord.server.wire import Reply

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

_CHUNKED_ABOVE = 2_048
_GZIP_LEVEL = 1
_LARGEST_BODY = 64 * 1024 * 1024


class App:
    """Serve a host's agent to an ASGI server, or to a client in the same process."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._gzip = host.service.state.config.gzip

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            message = f"this app serves HTTP only, not {scope['type']!r}"
            raise RuntimeError(message)
        request = _request(scope, await _body(receive))
        outcome = self._host.begin(request)
        reply = await self._later(outcome, receive) if isinstance(outcome, Late) else outcome
        if reply is not None:
            await _send(
                send, reply, zipped=self._gzip and "gzip" in request.headers.get("accept-encoding", "")
            )

    async def _later(self, late: Late, receive: Receive) -> Reply | None:
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait((late.reply, gone), return_when=asyncio.FIRST_COMPLETED)
            return late.reply.result() if late.reply.done() else None
        finally:
            gone.cancel()
            self._host.withdraw(late)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(receive: Receive) -> bytes:
    message = await receive()
    body: bytes = message.get("body", b"")
    if not message.get("more_body"):
        return body
    parts, size = [body], len(body)
    while message.get("more_body"):
        message = await receive()
        part: bytes = message.get("body", b"")
        size += len(part)
        if size <= _LARGEST_BODY:  # beyond, drained but not kept: it is refused by its length
            parts.append(part)
    return b"".join(parts)


def _request(scope: Scope, body: bytes) -> Request:
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    length = headers.get("content-length", "")
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    client = scope.get("client")
    return Request(
        scope["method"],
        raw.partition(b"?")[0].decode("latin-1"),
        scope["query_string"].decode("latin-1"),
        body,
        headers,
        int(length) if length.isdigit() else None,
        client[0] if client else "",
    )


async def _send(send: Send, reply: Reply, *, zipped: bool) -> None:
    headers = [(name.encode("latin-1"), value.encode("utf-8")) for name, value in reply.headers]
    headers.append((b"Vary", b"Accept-Encoding"))
    body = reply.body
    if zipped and body:
        body = gzip.compress(body, _GZIP_LEVEL, mtime=0)
        headers.append((b"Content-Encoding", b"gzip"))
    if len(body) <= _CHUNKED_ABOVE:
        headers.append((b"Content-Length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
