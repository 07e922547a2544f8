"""What comes back: an HTTP/1.x reply, read piece by piece. Pure: bytes in, a ``Response`` out.

Rules
- Strict where two readers could disagree about where a reply ends: one length or chunked, no folded
  headers, no bare line ends, no upgrade. Anything else is ``Garbled``, and the connection is of no more
  use.
- Everything is bounded: head, number of headers, interim replies, chunk lines, body.
- We ask for no compression, so a compressed reply is garbled too: nothing is ever inflated.
- A connection may be used again only after a whole reply with nothing behind it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from consul_coord.http.messages import Response

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from consul_coord.http.transport.base import Limits

_STATUS_LINE = re.compile(r"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\r\n]*)?")
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n]*)?")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LENGTH = re.compile(r"[0-9]{1,18}")
_BEGINNING = b"HTTP/1."
_HEAD_END = b"\r\n\r\n"
_MAX_INTERIM_REPLIES = 8
_MAX_CHUNK_LINE = 4096
_SUCCESS = range(200, 300)
_BODILESS = frozenset({204, 304})
_SWITCHING_PROTOCOLS = 101
_FIRST_FINAL = 200
_NO_RESPONSE = Response(0)


class Garbled(Exception):
    """What came is no HTTP reply, or a larger one than allowed, or ended too early."""


class BodyLimit:
    """How large a reply's body may be: a success may not pass it, another is cut there."""

    __slots__ = ("_success", "size")

    def __init__(self, status: int, limits: Limits) -> None:
        self._success = status in _SUCCESS
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
        "_headers",
        "_is_head",
        "_limit",
        "_limits",
        "_lines",
        "_status",
        "_step",
        "_wanted",
        "_whole",
        "response",
        "reusable",
    )

    def __init__(self, method: str, limits: Limits) -> None:
        self.response = _NO_RESPONSE
        self.reusable = False
        """Whether the connection may carry another exchange."""
        self._is_head = method == "HEAD"
        self._limits = limits
        self._limit = BodyLimit(0, limits)
        self._buffer = bytearray()
        self._body = bytearray()
        self._headers: dict[str, str] = {}
        self._status = 0
        self._wanted = 0
        self._lines = 0
        self._whole = False
        # Each step eats what it can from the buffer, and returns whether another step can go on.
        self._step: Callable[[], bool] = self._read_head

    def feed(self, data: bytes) -> bool:
        """Take the next bytes, or ``b""`` for the end of the stream; return whether the reply is whole.

        Raises ``Garbled``.
        """
        if not data:
            return self._take_end()
        self._buffer += data
        while self._step():
            pass
        return self._whole

    def _take_end(self) -> bool:
        if self._step != self._read_to_end:
            raise Garbled("the connection ended before the reply did")
        return not self._finish(bytes(self._buffer), reusable=False)

    def _finish(self, body: bytes, *, reusable: bool) -> bool:
        self.response = Response(self._status, self._headers, body)
        self.reusable = reusable and self.reusable
        self._whole = True
        return False

    # --- head

    def _read_head(self) -> bool:
        buffer = self._buffer
        if not buffer.startswith(_BEGINNING[: len(buffer)]):
            raise Garbled("this is not HTTP/1")
        end = buffer.find(_HEAD_END)
        if max(end, len(buffer) if end < 0 else 0) > self._limits.max_head:
            raise Garbled(f"more than {self._limits.max_head} bytes of headers")
        if end < 0:
            return False
        lines = buffer[:end].decode("latin-1").split("\r\n")
        del buffer[: end + len(_HEAD_END)]
        minor = self._take_head(lines)
        if self._status < _FIRST_FINAL:
            return self._skip_interim()
        return self._choose_body(minor)

    def _take_head(self, lines: list[str]) -> str:
        if len(lines) - 1 > self._limits.max_headers:
            raise Garbled(f"more than {self._limits.max_headers} headers")
        found = _STATUS_LINE.fullmatch(lines[0])
        if found is None:
            raise Garbled("this is no status line of HTTP/1")
        self._status = int(found[2])
        self._headers = _parse_headers(lines[1:])
        return found[1]

    def _skip_interim(self) -> bool:
        self._lines += 1
        if self._status == _SWITCHING_PROTOCOLS or self._lines > _MAX_INTERIM_REPLIES:
            raise Garbled(f"status {self._status} in place of a reply")
        return bool(self._buffer)

    def _choose_body(self, minor: str) -> bool:
        headers = self._headers
        refuse_compression(headers)
        self._limit = BodyLimit(self._status, self._limits)
        self.reusable = minor == "1" and "close" not in headers.get("connection", "").lower()
        length = headers.get("content-length")
        if self._is_head or self._status in _BODILESS:
            return self._finish(b"", reusable=not self._buffer)
        if "transfer-encoding" in headers:
            if headers["transfer-encoding"].lower() != "chunked" or minor == "0" or length is not None:
                raise Garbled("a reply whose end can't be told")
            self._step = self._read_chunk_line
        elif length is None:
            self._step = self._read_to_end
        else:
            self._take_length(length)
        return True

    # --- body

    def _take_length(self, text: str) -> None:
        lengths = {part.strip() for part in text.split(",")}
        length = lengths.pop()
        if lengths or not _LENGTH.fullmatch(length):
            raise Garbled("a bad Content-Length")
        self._wanted = int(length)
        if self._limit.passed_by(self._wanted):
            self._wanted = self._limit.size
            self.reusable = False
        self._step = self._read_fixed

    def _read_fixed(self) -> bool:
        have = len(self._buffer)
        if have < self._wanted:
            return False
        return self._finish(bytes(self._buffer[: self._wanted]), reusable=have == self._wanted)

    def _read_to_end(self) -> bool:
        if not self._limit.passed_by(len(self._buffer)):
            return False
        return self._finish(self._limit.cut(self._buffer), reusable=False)

    def _take_line(self) -> bytearray | None:
        buffer = self._buffer
        end = buffer.find(b"\r\n")
        if max(end, len(buffer) if end < 0 else 0) > _MAX_CHUNK_LINE:
            raise Garbled("a chunk line without end")
        if end < 0:
            return None
        line = buffer[:end]
        del buffer[: end + len(b"\r\n")]
        return line

    def _read_chunk_line(self) -> bool:
        line = self._take_line()
        if line is None:
            return False
        found = _CHUNK_LINE.fullmatch(line)
        if found is None:
            raise Garbled("a bad chunk length")
        self._wanted = int(found[1], 16)
        self._limit.passed_by(len(self._body) + self._wanted)
        self._step = self._read_chunk if self._wanted else self._read_trailer
        return True

    def _read_chunk(self) -> bool:
        piece = self._buffer[: self._wanted]
        del self._buffer[: len(piece)]
        self._body += piece
        self._wanted -= len(piece)
        if self._limit.passed_by(len(self._body)):
            return self._finish(self._limit.cut(self._body), reusable=False)
        if self._wanted:
            return False
        self._step = self._read_chunk_end
        return True

    def _read_chunk_end(self) -> bool:
        line = self._take_line()
        if line:
            raise Garbled("a chunk longer than it said")
        self._step = self._read_chunk_line if line is not None else self._read_chunk_end
        return line is not None

    def _read_trailer(self) -> bool:
        line = self._take_line()
        if line is None:
            return False
        if not line:
            return self._finish(bytes(self._body), reusable=not self._buffer)
        self._lines += 1
        if self._lines > self._limits.max_headers:
            raise Garbled(f"more than {self._limits.max_headers} headers")
        return True


def _parse_headers(lines: list[str]) -> dict[str, str]:
    """Return names in lower case to values; several values of one name are joined by commas."""
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _NAME.fullmatch(name) or "\n" in value or "\r" in value:
            raise Garbled("a bad header line")
        key, value = name.lower(), value.strip(" \t")
        headers[key] = f"{headers[key]}, {value}" if key in headers else value
    return headers
