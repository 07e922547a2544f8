"""The ASGI app: HTTP in, ``Host`` in the middle, HTTP out; only the transport's rules live here.

Rules
- A reply of an endpoint varies on Accept-Encoding and is gzipped for whoever takes it; a redirect, or a reply
  to an unknown path, is not. A larger one is sent chunked.
- A body without Content-Length is marked as such, because Consul does not read it everywhere.
- A request says whom it is for, once; one of HTTP/1.0 need not.
- A client that goes away before its request is whole, or while it waits, takes the request with it.
"""

from __future__ import annotations

import gzip
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from consul_coord.server.control import PREFIX, Control
from consul_coord.server.faults import Effect
from consul_coord.server.host import Late
from consul_coord.server.wire import Reply, Request, text_reply

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from consul_coord.server.asgi import Message, Receive, Scope, Send
    from consul_coord.server.faults import Fault, Faults
    from consul_coord.server.host import Host

WIRE: Final = "consul_coord.wire"
_WRITING: Final = frozenset({"PUT", "POST", "DELETE"})
_QUICK: Final = ("/v1/agent/", "/v1/session/renew/")
"""Where no server writes to its disk."""

_CHUNKED_ABOVE = 2_048
_GZIP_LEVEL = 1
_LARGEST_BODY = 64 * 1024 * 1024
_HOST = re.compile(rb"[!$&'()*+,;=:%\[\]A-Za-z0-9\-._~]*")


class Wire(Protocol):
    """The connection under a request, in the ASGI scope's extensions.

    For faults that HTTP has no word for.
    """

    def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        ...

    def close(self) -> None:
        """End the connection after what was sent."""
        ...

    def reset(self) -> None:
        """End the connection with a reset."""
        ...

    def when_gone(self, action: Callable[[], object]) -> None:
        """Call ``action`` when the connection has ended, from whichever side; it replaces an earlier one."""
        ...


class App:
    """Serve a host's agent to an ASGI server, or to a client in the same process."""

    def __init__(self, host: Host, faults: Faults) -> None:
        config = host.service.state.config
        self._host = host
        self._faults = faults
        self._gzip = config.gzip
        self._least_gzip = config.dialect.least_gzip
        self._write_time = config.write_time
        policy = "allow" if config.acl is None else config.acl.default_policy
        self._always = (("X-Consul-Default-Acl-Policy", policy),) if config.dialect.tells_policy else ()
        self._control = Control(host, faults) if config.control else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            message = f"this app serves HTTP only, not {scope['type']!r}"
            raise RuntimeError(message)
        if (body := await _body(receive)) is None:
            return
        if scope.get("http_version") == "1.0":
            send = _whole(scope, send)
        if (refused := _bad_host(scope)) is not None:
            await _send(send, refused, zipped=False)
            return
        request = _request(scope, body)
        if self._control is not None and request.path.startswith(PREFIX):
            await _send(send, self._control.answer(request), zipped=False)
        elif (fault := self._faults.strike(request)) is not None:
            await self._suffer(fault, request, scope, receive, send)
        elif (reply := await self._serve(request, scope, receive)) is not None:
            await _send(send, reply, zipped=self._zips(request, reply))

    async def _suffer(
        self, fault: Fault, request: Request, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if fault.delay:
            await self._host.sleep(fault.delay)
        if fault.effect is Effect.LOSE_LEADER:
            self._host.do(self._host.service.state.lose_leader)
        applied = fault.effect not in _NOT_APPLIED
        reply = await self._serve(request, scope, receive) if applied else Reply()
        if reply is not None:
            await _WAYS.get(fault.effect, _plainly)(
                _Outcome(fault, reply, scope, send, zipped=self._zips(request, reply))
            )

    async def _serve(self, request: Request, scope: Scope, receive: Receive) -> Reply | None:
        if self._write_time and request.method in _WRITING and not request.path.startswith(_QUICK):
            await self._host.sleep(self._write_time)
        outcome = self._host.begin(request)
        reply = await self._later(outcome, scope, receive) if isinstance(outcome, Late) else outcome
        if reply is None or not self._always:
            return reply
        return replace(reply, headers=(*reply.headers, *self._always))

    def _zips(self, request: Request, reply: Reply) -> bool:
        large = len(reply.body) >= self._least_gzip
        return (
            self._gzip and large and reply.varies and _takes_gzip(request.headers.get("accept-encoding", ""))
        )

    async def _later(self, late: Late, scope: Scope, receive: Receive) -> Reply | None:
        stop = _when_gone(scope, receive, late)
        try:
            await late.came.wait()
        finally:
            stop()
            if late.reply is None:
                self._host.withdraw(late)
        return late.reply


def _when_gone(scope: Scope, receive: Receive, late: Late) -> Callable[[], object]:
    """End a wait when the client goes; return what stops looking for that."""
    wire = _wire_of(scope)
    if wire is not None:  # no task for each of thousands who wait
        wire.when_gone(late.came.set)
        return lambda: None

    async def wake() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        late.came.set()

    return late.loop.start(wake)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """A reply on its way through a fault."""

    fault: Fault
    reply: Reply
    scope: Scope
    send: Send
    zipped: bool


async def _plainly(outcome: _Outcome) -> None:
    await _send(outcome.send, outcome.reply, zipped=outcome.zipped)


async def _as_error(outcome: _Outcome) -> None:
    await _send(outcome.send, text_reply(outcome.fault.status, outcome.fault.text), zipped=outcome.zipped)


async def _with_low_index(outcome: _Outcome) -> None:
    headers = tuple((k, "1" if k == "X-Consul-Index" else v) for k, v in outcome.reply.headers)
    await _send(outcome.send, replace(outcome.reply, headers=headers), zipped=outcome.zipped)


async def _not_at_all(outcome: _Outcome) -> None:
    _wire(outcome).close()


async def _halfway(outcome: _Outcome) -> None:
    await _send_half(outcome)
    _wire(outcome).close()


async def _halfway_reset(outcome: _Outcome) -> None:
    await _send_half(outcome)
    _wire(outcome).reset()


async def _garbled(outcome: _Outcome) -> None:
    wire = _wire(outcome)
    wire.write(_GARBAGE)
    wire.close()


async def _send_half(outcome: _Outcome) -> None:
    body = outcome.reply.body or b"true"
    headers = _headers(outcome.reply)
    headers.append((b"Content-Length", b"%d" % len(body)))
    await outcome.send({"type": "http.response.start", "status": outcome.reply.status, "headers": headers})
    await outcome.send({"type": "http.response.body", "body": body[: len(body) // 2], "more_body": True})


def _wire_of(scope: Scope) -> Wire | None:
    wire: Wire | None = scope.get("extensions", {}).get(WIRE, {}).get("wire")
    return wire


def _wire(outcome: _Outcome) -> Wire:
    wire = _wire_of(outcome.scope)
    if wire is None:  # a client in the same process: it sees what it would see of a broken connection
        raise ConnectionResetError("the connection was broken by a fault")
    return wire


_GARBAGE = b"\x16\x03\x01 this is not HTTP\r\n\r\n"
_NOT_APPLIED = frozenset({Effect.LOSE_REQUEST, Effect.RESPOND, Effect.GARBAGE})

_WAYS: dict[Effect, Callable[[_Outcome], Awaitable[None]]] = {
    Effect.LOSE_REQUEST: _not_at_all,
    Effect.LOSE_REPLY: _not_at_all,
    Effect.RESPOND: _as_error,
    Effect.APPLY_AND_RESPOND: _as_error,
    Effect.RESET: _halfway_reset,
    Effect.TRUNCATE: _halfway,
    Effect.GARBAGE: _garbled,
    Effect.INDEX_BACK: _with_low_index,
}


@dataclass(frozen=True, slots=True)
class _Body:
    """A request's body; ``size`` is what was sent, ``kept`` no more than the largest that is looked at."""

    kept: bytes
    size: int


async def _body(receive: Receive) -> _Body | None:
    """Return the body, once it is whole; None when the client leaves before."""
    parts, size, more = list[bytes](), 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        part: bytes = message.get("body", b"")
        size += len(part)
        if size <= _LARGEST_BODY:
            parts.append(part)
        else:  # drained but not kept: it is refused by its length
            parts.clear()
        more = message.get("more_body", False)
    return _Body(b"".join(parts), size)


def _whole(scope: Scope, send: Send) -> Send:
    """Return how to reply to HTTP/1.0, which knows no chunks and ends a connection unless told to keep it."""
    held: list[Message] = []
    wishes = b",".join(value for name, value in scope["headers"] if name == b"connection").lower()

    async def send_whole(message: Message) -> None:
        held.append(message)
        if message.get("more_body", message["type"] == "http.response.start"):
            return
        start, *parts = held
        body = b"".join(part.get("body", b"") for part in parts)
        headers = [each for each in start["headers"] if each[0].lower() != b"content-length"]
        headers.append((b"Content-Length", b"%d" % len(body)))
        if b"keep-alive" in wishes:
            headers.append((b"Connection", b"keep-alive"))
        await send({**start, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return send_whole


def _bad_host(scope: Scope) -> Reply | None:
    """Return the refusal of a request that does not say whom it is for, or says it in a wrong way."""
    hosts: list[bytes] = [value for name, value in scope["headers"] if name.lower() == b"host"]
    if not hosts and scope.get("http_version") == "1.1":
        return _no_host("missing required Host header")
    if len(hosts) > 1:
        return _no_host("too many Host headers")
    return _no_host("malformed Host header") if hosts and not _HOST.fullmatch(hosts[0]) else None


def _no_host(why: str) -> Reply:
    return text_reply(400, f"400 Bad Request: {why}", (("Connection", "close"),))


def _request(scope: Scope, body: _Body) -> Request:
    headers = {
        name.decode("latin-1").lower(): value.decode("latin-1")
        for name, value in reversed(list(scope["headers"]))  # so that the first of a name counts
    }
    length = headers.get("content-length", "")
    if not length.isdecimal():
        length = str(body.size) if body.size > _LARGEST_BODY else ""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    client = scope.get("client")
    return Request(
        scope["method"],
        raw.partition(b"?")[0].decode("latin-1"),
        scope["query_string"].decode("latin-1"),
        body.kept,
        headers,
        int(length) if length else None,
        client[0] if client else "",
    )


def _takes_gzip(accepted: str) -> bool:
    for coding in accepted.split(","):
        name, *parameters = (part.strip() for part in coding.split(";"))
        if name.lower() == "gzip":
            quality = next((part[2:] for part in parameters if part.startswith("q=")), "1")
            try:
                return float(quality) > 0
            except ValueError:
                return False
    return False


def _headers(reply: Reply) -> list[tuple[bytes, bytes]]:
    return [
        (name.encode("latin-1"), value.encode("utf-8", "surrogateescape")) for name, value in reply.headers
    ]


async def _send(send: Send, reply: Reply, *, zipped: bool) -> None:
    headers = _headers(reply)
    if reply.varies:
        headers.append((b"Vary", b"Accept-Encoding"))
    body = reply.body
    if zipped and body:
        body = gzip.compress(body, _GZIP_LEVEL, mtime=0)
        headers.append((b"Content-Encoding", b"gzip"))
    if len(body) <= _CHUNKED_ABOVE:
        headers.append((b"Content-Length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
