"""What comes back: an HTTP/1.x reply, read piece by piece with h11. Pure: bytes in, a ``Response`` out.

Rules
- h11 reads the head, and a body unless the head tells its length. What h11 tolerates, but another could read
  differently, is refused before h11 sees it, or right after: another version, a bare line feed, a folded
  header, a length beside chunks, chunks in HTTP/1.0. That is ``Garbled``, and the connection is closed.
- Everything is bounded: head, number of headers, interim replies, chunk lines, trailers, body.
- We ask for no compression, so a compressed reply is garbled too: nothing is ever inflated.
- A connection may be used again only after a whole reply with nothing behind it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import h11

from consul_coord.http.messages import Response

if TYPE_CHECKING:
    from collections.abc import Mapping

    from consul_coord.http.transport.base import Limits

_BEGINNING = b"HTTP/1."
_INTERIM = (b"0 1", b"1 1")
"""How an interim reply goes on."""
_HEAD_END = b"\r\n\r\n"
_HEAD = re.compile(
    rb"HTTP/1\.[01] [1-9][0-9]{2}(?: [^\r\n]*)?\r\n"  # status line
    rb"(?:[^ \t\r\n][^\r\n]*\r\n)*\r\n"  # headers, none of them folded
)
_MAX_INTERIM_REPLIES = 8
_BODILESS = frozenset({204, 304})
_TOO_EARLY = "the connection ended before the reply did"
_NO_RESPONSE = Response(0)
_REQUEST = h11.Request(method="GET", target="/", headers=[("Host", "")])


class Garbled(Exception):
    """What came is no HTTP reply, or a larger one than allowed, or ended too early."""


class BodyLimit:
    """How large a reply's body may be: a success may not pass it, another is cut there."""

    __slots__ = ("_success", "size")

    def __init__(self, status: int, limits: Limits) -> None:
        self._success = 200 <= status < 300  # noqa: PLR2004
        self.size = limits.max_body if self._success else limits.max_error_body

    def passed_by(self, size: int) -> bool:
        """Return whether a body of this size is to be cut. Raises ``Garbled`` when it may not be."""
        if size > self.size and self._success:
            raise Garbled(f"a body of more than {self.size} bytes")
        return size > self.size

    def cut(self, body: bytearray) -> bytes:
        """Return what is kept of a body."""
        return bytes(body[: self.size])


def refuse_compression(headers: Mapping[str, str]) -> None:
    """Raise ``Garbled`` when the body is compressed: that was not asked for."""
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise Garbled("the reply is compressed, which was not asked for")


class ReplyReader:
    """Reads one reply. ``feed`` it until it returns True, then take ``response`` and ``reusable``."""

    __slots__ = (
        "_body",
        "_buffer",
        "_chunked",
        "_end",
        "_headers",
        "_interim",
        "_limit",
        "_limits",
        "_method",
        "_parser",
        "_status",
        "_wanted",
        "response",
        "reusable",
    )

    def __init__(self, method: str, limits: Limits) -> None:
        self.response = _NO_RESPONSE
        self.reusable = False
        """Whether the connection may carry another exchange."""
        self._method = method
        self._limits = limits
        self._parser = h11.Connection(h11.CLIENT, limits.max_head)
        self._interim = 0
        self._buffer = bytearray()
        """What has come and is not read: of the head at first, then a body of known length."""
        self._status = 0
        """Zero until the head is whole."""
        self._headers: dict[str, str] = {}
        self._limit = BodyLimit(0, limits)
        self._wanted: int | None = None
        """The length of the body, where the head tells it."""
        self._chunked = False
        self._body = bytearray()
        """What h11 has read of another body."""
        self._end = b""
        """The last bytes that h11 got."""

    def feed(self, data: bytes) -> bool:
        """Take the next bytes, or ``b""`` for the end of the stream; return whether the reply is whole.

        Raises ``Garbled``.
        """
        if self._status and self._wanted is None:
            return self._read_on(data)
        if not data:
            raise Garbled(_TOO_EARLY)
        buffer = self._buffer
        buffer += data
        if not (self._status or self._read_head(max(0, len(buffer) - len(data) - len(_HEAD_END)))):
            return False
        if self._wanted is None:
            return bool(buffer) and self._read_on(bytes(buffer))
        return len(buffer) >= self._wanted and self._finish(
            bytes(buffer[: self._wanted]), reusable=self.reusable and len(buffer) == self._wanted
        )

    def _finish(self, body: bytes, *, reusable: bool) -> bool:
        self.response = Response(self._status, self._headers, body)
        self.reusable = reusable
        return True

    def _read_head(self, seen: int) -> bool:
        """Return whether the head is whole. What is before ``seen`` was searched for its end."""
        buffer = self._buffer
        while not self._status:
            if not buffer.startswith(_BEGINNING[: len(buffer)]):
                raise Garbled("this is not HTTP/1")
            end = buffer.find(_HEAD_END, seen)
            if (len(buffer) if end < 0 else end) > self._limits.max_head:
                raise Garbled(f"more than {self._limits.max_head} bytes of headers")
            if end < 0:
                return False
            head = bytes(buffer[: end + len(_HEAD_END)])
            del buffer[: len(head)]
            if not _HEAD.fullmatch(head):
                raise Garbled("this is no head of a reply in HTTP/1")
            if head.count(b"\n") - len(("status line", "empty line")) > self._limits.max_headers:
                raise Garbled(f"more than {self._limits.max_headers} headers")
            self._take_head(head)
            seen = 0
        return True

    def _take_head(self, head: bytes) -> None:
        """Have h11 read a whole head, of the reply or of an interim one before it."""
        interim = head.startswith(_INTERIM, len(_BEGINNING))
        if interim and not self._interim:
            self._parser.send(_REQUEST)  # h11 expects no interim reply before a request
        event = self._next_event(head)
        if interim:
            self._interim += 1
            if self._interim > _MAX_INTERIM_REPLIES:
                raise Garbled(f"more than {_MAX_INTERIM_REPLIES} interim replies")
        elif isinstance(event, h11.Response):
            self._take_headers(event)

    def _take_headers(self, head: h11.Response) -> None:
        headers = self._headers
        for name, value in head.headers.raw_items():
            key, text = name.decode("latin-1").lower(), value.decode("latin-1")
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        refuse_compression(headers)
        self._status = head.status_code
        self._limit = BodyLimit(self._status, self._limits)
        modern = head.http_version == b"1.1"
        self.reusable = modern and "close" not in headers.get("connection", "").lower()
        self._chunked = "transfer-encoding" in headers
        if self._method == "HEAD" or self._status in _BODILESS:
            self._wanted = 0
        elif self._chunked and ("content-length" in headers or not modern):
            raise Garbled("a reply whose end can't be told")
        elif not self._chunked and "content-length" in headers:
            self._wanted = int(headers["content-length"])
            if self._limit.passed_by(self._wanted):
                self._wanted = self._limit.size
                self.reusable = False

    def _read_on(self, data: bytes) -> bool:
        """Have h11 take more of the body, ``b""`` for the end; return whether no more is wanted."""
        if not data and self._chunked:
            raise Garbled(_TOO_EARLY)
        self._end = (self._end + data)[-len(_HEAD_END) :]
        event = self._next_event(data)
        while isinstance(event, h11.Data):
            self._body += event.data
            if self._limit.passed_by(len(self._body)):
                return self._finish(self._limit.cut(self._body), reusable=False)
            event = self._next_event()
        # h11 lets a bare line feed follow the last chunk; others may wait for more then.
        sound = (
            self._chunked and self.reusable and self._end == _HEAD_END and not self._parser.trailing_data[0]
        )
        return event is not h11.NEED_DATA and self._finish(bytes(self._body), reusable=sound)

    def _next_event(self, data: bytes | None = None) -> object:
        try:
            if data is not None:
                self._parser.receive_data(data)
            return self._parser.next_event()
        except h11.RemoteProtocolError as error:
            raise Garbled(str(error)) from error
