"""Whoever sends without end is given up after a bounded number of bytes, in bounded memory and work.

Measured without a network: how much was taken before giving up, the most memory meanwhile, and how the work
grows when a reply comes byte by byte. That a real connection ends in time is shown in ``tests/wire``.
"""

from __future__ import annotations

import time
import tracemalloc
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final

import pytest

from consul_coord.http.transport.base import Limits
from consul_coord.http.transport.wire import Garbled, ReplyReader

if TYPE_CHECKING:
    from collections.abc import Iterable

KIB: Final = 1024
LIMITS: Final = Limits(max_head=64 * KIB, max_headers=100, max_body=64 * KIB, max_error_body=64 * KIB)
_OK: Final = b"HTTP/1.1 200 OK\r\n"
_CHUNKED: Final = _OK + b"Transfer-Encoding: chunked\r\n\r\n"
_ERROR: Final = b"HTTP/1.1 500 No\r\n"
ENDLESS: Final[dict[str, tuple[bytes, bytes, int]]] = {
    "a header": (_OK + b"X: ", b"a" * 997, LIMITS.max_head),
    "headers": (_OK, b"X: 1\r\n" * 99, LIMITS.max_head),
    "a status line": (b"HTTP/1.1 200 ", b"a" * 997, LIMITS.max_head),
    "interim replies": (b"", b"HTTP/1.1 100 Continue\r\n\r\n", 64 * KIB),
    "a body without length": (_OK + b"\r\n", b"a" * 4096, LIMITS.max_body),
    "a body of a false length": (_OK + b"Content-Length: 999999999999\r\n\r\n", b"a" * 4096, LIMITS.max_body),
    "chunks": (_CHUNKED, b"1000\r\n" + b"a" * 4096 + b"\r\n", LIMITS.max_body + 4 * KIB),
    "chunks of a byte": (_CHUNKED, b"1\r\na\r\n" * 500, 7 * LIMITS.max_body),
    "a chunk of a false length": (_CHUNKED + b"ffffffff\r\n", b"a" * 4096, LIMITS.max_body),
    "a chunk's extension": (_CHUNKED + b"1;", b"a" * 997, 64 * KIB),
    "trailers": (_CHUNKED + b"0\r\n", b"X: 1\r\n" * 99, 64 * KIB),
    "an error page": (_ERROR + b"\r\n", b"e" * 4096, LIMITS.max_error_body),
    "an error page in chunks": (
        _ERROR + b"Transfer-Encoding: chunked\r\n\r\n",
        b"1000\r\n" + b"e" * 4096 + b"\r\n",
        LIMITS.max_error_body + 4 * KIB,
    ),
}


def _taken(pieces: Iterable[bytes]) -> int:
    """Return how many bytes a reader takes before it has a reply, or gives up."""
    reader, taken = ReplyReader("GET", LIMITS), 0
    for piece in pieces:
        taken += len(piece)
        try:
            if reader.feed(piece):
                break
        except Garbled:
            break
    return taken


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "chunks of a byte")) for name in ENDLESS]
)
def test_what_never_ends_is_given_up_in_bounded_memory(name: str) -> None:
    beginning, piece, limit = ENDLESS[name]
    tracemalloc.start()
    try:
        taken = _taken(chain((beginning,), repeat(piece)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert taken <= limit + len(beginning) + 2 * len(piece)
    assert peak <= 4 * limit + 256 * KIB


def test_a_head_that_drips_costs_no_more_than_it_may() -> None:
    head = _OK + b"X: " + b"a" * (LIMITS.max_head - len(_OK) - 8)
    began = time.process_time()
    assert _taken(head[place : place + 1] for place in range(len(head))) == len(head)
    assert time.process_time() - began < 10.0
