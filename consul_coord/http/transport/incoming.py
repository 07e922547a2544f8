"""What comes back: an HTTP/1.x reply, read piece by piece with h11. Pure: bytes in, a ``Response`` out.

Rules
- h11 reads the reply. What h11 tolerates, but another reader could read differently, is refused before h11
  sees it, or right after: another version, a bare line feed, a folded header, a length beside chunks, chunks
  in HTTP/1.0. All of that is ``Garbled``, and the connection is closed.
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
_TOO_EARLY = "the connection ended before the reply did"
_NOTHING = (b"", False)
"""What follows a reply: no more data, and no end."""
_NO_RESPONSE = Response(0)
_REQUESTS = {
    method: h11.Request(method=method, target="/", headers=[("Host", "")]) for method in ("GET", "HEAD")
}
"""What h11 is told of requests, where that makes a difference: it writes none of them."""


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
        "_end",
        "_head",
        "_headers",
        "_interim",
        "_limit",
        "_limits",
        "_parser",
        "_status",
        "response",
        "reusable",
    )

    def __init__(self, method: str, limits: Limits) -> None:
        self.response = _NO_RESPONSE
        self.reusable = False
        """Whether the connection may carry another exchange."""
        self._limits = limits
        self._parser = h11.Connection(h11.CLIENT, limits.max_head)
        if method == "HEAD":
            self._parser.send(_REQUESTS["HEAD"])
        self._head = bytearray()
        """What has come of a head that is not whole yet."""
        self._interim = 0
        self._status = 0
        """Zero until the head is whole."""
        self._headers: dict[str, str] = {}
        self._limit = BodyLimit(0, limits)
        self._body = bytearray()
        self._end = b""
        """The last bytes of a chunked reply."""

    def feed(self, data: bytes) -> bool:
        """Take the next bytes, or ``b""`` for the end of the stream; return whether the reply is whole.

        Raises ``Garbled``.
        """
        try:
            if self._status:
                self._give(data)
            elif not self._read_head(data):
                return False
            return self._read_body()
        except h11.RemoteProtocolError as error:
            raise Garbled(str(error) if data else _TOO_EARLY) from error

    def _give(self, data: bytes) -> None:
        """Have h11 take a piece of the body."""
        self._parser.receive_data(data)
        self._end = (self._end + data)[-len(_HEAD_END) :]

    def _read_head(self, data: bytes) -> bool:
        """Take more of the head, and what follows it; return whether the head is whole."""
        if not data:
            raise Garbled(_TOO_EARLY)
        head, seen = self._head, max(0, len(self._head) - len(_HEAD_END))
        head += data
        while not self._status:
            if not head.startswith(_BEGINNING[: len(head)]):
                raise Garbled("this is not HTTP/1")
            end = head.find(_HEAD_END, seen)
            if (len(head) if end < 0 else end) > self._limits.max_head:
                raise Garbled(f"more than {self._limits.max_head} bytes of headers")
            if end < 0:
                return False
            self._take_head(bytes(head[: end + len(_HEAD_END)]))
            del head[: end + len(_HEAD_END)]
            seen = 0
        if head:
            self._give(bytes(head))
        return True

    def _take_head(self, head: bytes) -> None:
        """Have h11 read a whole head, of the reply or of an interim one before it."""
        if not _HEAD.fullmatch(head):
            raise Garbled("this is no head of a reply in HTTP/1")
        if head.count(b"\n") - len((b"status line", b"empty line")) > self._limits.max_headers:
            raise Garbled(f"more than {self._limits.max_headers} headers")
        self._parser.receive_data(head)
        if head.startswith(_INTERIM, len(_BEGINNING)):
            self._skip_interim()
            return
        event = self._parser.next_event()
        if not isinstance(event, h11.Response):
            raise Garbled(f"{event} in place of a reply")
        headers = self._headers
        for name, value in event.headers.raw_items():
            key, text = name.decode("latin-1").lower(), value.decode("latin-1")
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        refuse_compression(headers)
        if "transfer-encoding" in headers and ("content-length" in headers or event.http_version != b"1.1"):
            raise Garbled("a reply whose end can't be told")
        self._status = event.status_code
        self._limit = BodyLimit(self._status, self._limits)

    def _skip_interim(self) -> None:
        if self._parser.our_state is h11.IDLE:
            self._parser.send(_REQUESTS["GET"])  # h11 expects none before a request
        self._parser.next_event()
        self._interim += 1
        if self._interim > _MAX_INTERIM_REPLIES:
            raise Garbled(f"more than {_MAX_INTERIM_REPLIES} interim replies")

    def _read_body(self) -> bool:
        """Take from h11 what it has of the body; return whether no more is wanted."""
        parser, body, limit = self._parser, self._body, self._limit
        while (event := parser.next_event()) is not h11.NEED_DATA:
            if type(event) is h11.Data:  # isinstance takes longer: these classes are abstract ones' children
                body += event.data
                if not limit.passed_by(len(body)):
                    continue
            else:
                # h11 lets a bare line feed follow the last chunk; others may wait for more then.
                sound = "transfer-encoding" not in self._headers or self._end == _HEAD_END
                self.reusable = sound and parser.their_state is h11.DONE and parser.trailing_data == _NOTHING
            self.response = Response(self._status, self._headers, limit.cut(body))
            return True
        return False
