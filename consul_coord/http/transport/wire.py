"""HTTP/1.1 on the wire: a request as bytes, and a reply read piece by piece with h11. Pure.

Rules of requests
- Whatever has a character that could end a line or split a request is refused before anything is sent.
- A PUT or POST always says how long its body is: Consul silently ignores a chunked one.
- The settings' datacenter, namespace and partition are added unless the request names its own.

Rules of replies
- h11 reads the head, and the body unless the head tells its length. A reply that h11 tolerates, but another
  reader could understand differently, is refused before h11 sees it, or right after. Examples are another
  version, a bare line feed, a folded header, a length beside chunks, and chunks in HTTP/1.0. That is
  ``Garbled``, and the connection is closed.
- An agent sends the same head many times a second. The last ones are remembered as h11 read them.
- Everything is bounded: head, number of headers, interim replies, chunk lines, trailers, body.
- We ask for no compression, so a compressed reply is garbled too: nothing is ever inflated.
- A connection may be used again only after a whole reply with nothing behind it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import quote

import h11

from consul_coord._version import __version__
from consul_coord.errors import InvalidArgument
from consul_coord.http.messages import Response
from consul_coord.value import Value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from consul_coord.config import Settings
    from consul_coord.http.messages import Request
    from consul_coord.http.transport.base import Limits

# -- requests

USER_AGENT = f"consul-coord/{__version__}"

_METHODS_WITH_BODY = frozenset({"PUT", "POST", "PATCH"})
_METHOD = re.compile(r"[A-Z]+")
_PATH = re.compile(r"/[!-\"$->@-~]*")
"""Visible ASCII without ``?`` and ``#``: a path brings no query of its own."""


class Outgoing:
    """Writes requests for one agent. The headers that stay the same are made once."""

    def __init__(self, settings: Settings) -> None:
        self._credentials = settings.credentials
        self._prefix = settings.prefix
        self._defaults = settings.default_params
        self._fixed = {
            "Host": settings.authority,
            "User-Agent": USER_AGENT,
            "Accept-Encoding": "identity",
        }
        self._made: tuple[dict[str, str] | None, bytes] = (None, b"")
        """The headers of the credentials that were sent last, and all headers with them as bytes."""

    def target(self, request: Request) -> str:
        """Return path and query, percent-encoded. Raises ``InvalidArgument`` for a path that is not."""
        path, params = request.path, request.params
        if not (_PATH.fullmatch(path) and _METHOD.fullmatch(request.method)):
            raise InvalidArgument(f"not a request line: {request.method!r} {path!r}")
        if self._defaults:
            own = {name for name, _ in params}
            params = (*params, *(pair for pair in self._defaults if pair[0] not in own))
        if not params:
            return self._prefix + path
        # A flag such as ``recurse`` is a bare name.
        query = [quote(name, "") + (f"={quote(value, '')}" if value else "") for name, value in params]
        return f"{self._prefix}{path}?{'&'.join(query)}"

    def headers(self, now: float) -> dict[str, str]:
        """Return what every request carries. ``now``: monotonic seconds, for the token file."""
        return self._fixed | self._credentials.headers(now)

    def encode(self, request: Request, now: float) -> bytes:
        """Return the request as it goes over the wire."""
        line = f"{request.method} {self.target(request)} HTTP/1.1\r\n".encode("ascii")
        credentials = self._credentials
        own = credentials.latest if credentials.watched is None else credentials.headers(now)
        known, lines = self._made
        if own is not known:
            pairs = (self._fixed | own).items()
            lines = "".join([f"{name}: {value}\r\n" for name, value in pairs]).encode("ascii")
            self._made = (own, lines)
        body = request.body or b""
        if body or request.method in _METHODS_WITH_BODY:
            return b"%bContent-Length: %d\r\n%b\r\n%b" % (line, len(body), lines, body)
        return b"%b%b\r\n" % (line, lines)


# -- replies

_BEGINNING = b"HTTP/1."
_HEAD_END = b"\r\n\r\n"
_HEAD = re.compile(
    rb"HTTP/1\.[01] [1-9][0-9]{2}(?: [^\r\n]*)?\r\n"  # status line
    rb"(?:[^ \t\r\n][^\r\n]*\r\n)*\r\n"  # headers, none of them folded
)
_FINAL = 200
_MAX_INTERIM_REPLIES = 8
_BODILESS = frozenset({204, 304})
_TOO_EARLY = "the connection ended before the reply did"
_NO_RESPONSE = Response(0)
_REQUEST = h11.Request(method="GET", target="/", headers=[("Host", "")])
_REMEMBERED_HEADS = 64
_REMEMBERED_SIZE = 1024


class Garbled(Exception):
    """The bytes are not an HTTP reply, or it is larger than allowed, or ended too early."""


def kept_of(size: int, status: int, limits: Limits) -> int:
    """Return how much of a body is kept. Raises ``Garbled`` when a success has more than is allowed."""
    if not 200 <= status < 300:  # noqa: PLR2004
        return min(size, limits.max_error_body)
    if size > limits.max_body:
        raise Garbled(f"a body of more than {limits.max_body} bytes")
    return size


def refuse_compression(headers: Mapping[str, str]) -> None:
    """Raise ``Garbled`` when the body is compressed: that was not asked for."""
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise Garbled("the reply is compressed, which was not asked for")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Head(Value):
    """The content of a head."""

    status: int
    headers: Mapping[str, str]
    keep_alive: bool
    chunked: bool
    length: int | None
    """Of the body; None when h11 has to find its end."""


def _start(head: bytes) -> tuple[h11.Connection, object]:
    """Return a parser that has read this head, and what that said."""
    parser = h11.Connection(h11.CLIENT)
    parser.send(_REQUEST)
    return parser, _next_event(parser, head)


def _next_event(parser: h11.Connection, data: bytes | None = None) -> object:
    try:
        if data is not None:
            parser.receive_data(data)
        return parser.next_event()
    except h11.RemoteProtocolError as error:
        raise Garbled(str(error)) from error


def _read_head(head: bytes, max_headers: int) -> Head:
    """Read a whole head, its empty line included. Raises ``Garbled``."""
    if not _HEAD.fullmatch(head):
        raise Garbled("this is no head of a reply in HTTP/1")
    if head.count(b"\n") - len(("status line", "empty line")) > max_headers:
        raise Garbled(f"more than {max_headers} headers")
    event = _start(head)[1]
    if not isinstance(event, h11.Response | h11.InformationalResponse):
        raise Garbled("this is no reply")
    headers: dict[str, str] = {}
    for name, value in event.headers.raw_items():
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    chunked, modern = "transfer-encoding" in headers, event.http_version == b"1.1"
    length: int | None = None
    if event.status_code < _FINAL or event.status_code in _BODILESS:
        length = 0
    elif chunked and ("content-length" in headers or not modern):
        raise Garbled("a reply without a clear end")
    elif "content-length" in headers:
        length = int(headers["content-length"])
    refuse_compression(headers)
    keep_alive = modern and "close" not in headers.get("connection", "").lower()
    return Head(event.status_code, MappingProxyType(headers), keep_alive, chunked, length)


_remembered_head = lru_cache(_REMEMBERED_HEADS)(_read_head)


class ReplyReader:
    """Reads one reply. ``feed`` it until it returns True, then take ``response`` and ``reusable``."""

    def __init__(self, method: str, limits: Limits) -> None:
        self.response = _NO_RESPONSE
        self.reusable = False
        """Whether the connection may carry another exchange."""
        self._method = method
        self._limits = limits
        self._interim = 0
        self._head: Head | None = None
        self._buffer = bytearray()
        """Received bytes not read yet: of the head at first, then of the body."""
        self._wanted = 0
        """How much of the body is kept."""
        self._parser: h11.Connection | None = None
        """The reader of a body of unknown length."""
        self._end = b""
        """The last bytes that it got."""

    def feed(self, data: bytes) -> bool:
        """Take the next bytes, or ``b""`` for the end of the stream; return whether the reply is whole.

        Raises ``Garbled``.
        """
        if self._head is not None and self._parser is not None:
            return self._read_on(self._head, self._parser, data)
        if not data:
            raise Garbled(_TOO_EARLY)
        buffer = self._buffer
        buffer += data
        head = self._head or self._find_head(len(buffer) - len(data))
        if head is None:
            return False
        if self._parser is not None:
            rest, self._buffer = bytes(buffer), bytearray()
            return bool(rest) and self._read_on(head, self._parser, rest)
        return len(buffer) >= self._wanted and self._finish(head, sound=len(buffer) == self._wanted)

    def _finish(self, head: Head, *, sound: bool) -> bool:
        self.response = Response(head.status, head.headers, bytes(self._buffer[: self._wanted]))
        self.reusable = sound and head.keep_alive
        return True

    def _find_head(self, seen: int) -> Head | None:
        """Take a whole head from the buffer, if there is one; its beginning was searched before."""
        buffer, limits = self._buffer, self._limits
        seen = max(0, seen - len(_HEAD_END))
        while True:
            if not buffer.startswith(_BEGINNING[: len(buffer)]):
                raise Garbled("this is not HTTP/1")
            end = buffer.find(_HEAD_END, seen)
            if (len(buffer) if end < 0 else end) > limits.max_head:
                raise Garbled(f"more than {limits.max_head} bytes of headers")
            if end < 0:
                return None
            text = bytes(buffer[: end + len(_HEAD_END)])
            del buffer[: len(text)]
            read = _remembered_head if len(text) <= _REMEMBERED_SIZE else _read_head
            head = read(text, limits.max_headers)
            if head.status >= _FINAL:
                break
            self._interim, seen = self._interim + 1, 0
            if self._interim > _MAX_INTERIM_REPLIES:
                raise Garbled(f"more than {_MAX_INTERIM_REPLIES} interim replies")
        length = 0 if self._method == "HEAD" else head.length
        if length is None:
            self._parser, _ = _start(text)
        else:
            self._wanted = kept_of(length, head.status, limits)
            if self._wanted < length:  # the rest stays where it is, and the connection is of no more use
                head = replace(head, keep_alive=False)
        self._head = head
        return head

    def _read_on(self, head: Head, parser: h11.Connection, data: bytes) -> bool:
        """Have h11 take more of the body, ``b""`` for the end; return whether no more is wanted."""
        if not data and head.chunked:
            raise Garbled(_TOO_EARLY)
        self._end = (self._end + data)[-len(_HEAD_END) :]
        event = _next_event(parser, data)
        while isinstance(event, h11.Data):
            self._buffer += event.data
            self._wanted = kept_of(len(self._buffer), head.status, self._limits)
            if self._wanted < len(self._buffer):
                return self._finish(head, sound=False)
            event = _next_event(parser)
        # h11 lets a bare line feed follow the last chunk; others may wait for more then.
        sound = head.chunked and self._end == _HEAD_END and not parser.trailing_data[0]
        return event is not h11.NEED_DATA and self._finish(head, sound=sound)
