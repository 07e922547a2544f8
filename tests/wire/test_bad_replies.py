"""What is no sound reply: it ends in a typed error, at once, with a truthful outcome, and nothing is kept."""

from __future__ import annotations

import gzip
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from consul_coord.config import Settings
from consul_coord.errors import BrokenReply
from consul_coord.http.messages import Request, Retry
from consul_coord.http.transport.base import Limits
from consul_coord.http.transport.exchange import DirectTransport
from tests.wire.servers import OK, answering

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.wire.conftest import MakeEngine, Serve
    from tests.wire.servers import Peer

GET = Request("GET", "/v1/kv/a", retry=Retry.READ)
PUT = Request("PUT", "/v1/kv/a", body=b"v", retry=Retry.NEVER)
REQUESTS = {False: GET, True: PUT}
"""By whether a bad reply leaves the outcome unknown."""

MEBIBYTE = 1024 * 1024


def head(*lines: bytes, status: bytes = b"200 OK") -> bytes:
    return b"\r\n".join((b"HTTP/1.1 " + status, *lines, b"", b""))


BAD_REPLIES = {
    "nothing": b"",
    "half a status line": b"HTTP/1.1 20",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "body shorter than said": head(b"Content-Length: 10") + b"abc",
    "chunked body without end": head(b"Transfer-Encoding: chunked") + b"3\r\nabc\r\n",
    "half a chunk": head(b"Transfer-Encoding: chunked") + b"9\r\nabc",
    "bad chunk length": head(b"Transfer-Encoding: chunked") + b"xyz\r\nabc\r\n0\r\n\r\n",
    "garbage": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 this is no HTTP at all \r\n\r\n",
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "bad status": b"HTTP/1.1 2x0 OK\r\nContent-Length: 0\r\n\r\n",
    "bad header": head(b"no colon here", b"Content-Length: 0"),
    "bad length": head(b"Content-Length: -1"),
    "two lengths": head(b"Content-Length: 1", b"Content-Length: 4") + b"true",
    "compressed": head(b"Content-Encoding: gzip", b"Content-Length: 20") + gzip.compress(b"", mtime=0),
}
STRICTER = {
    "longer than its chunk": head(b"Transfer-Encoding: chunked") + b"1\r\nabc\r\n0\r\n\r\n",
    "length and chunked": head(b"Content-Length: 4", b"Transfer-Encoding: chunked") + b"0\r\n\r\n",
    "unknown coding": head(b"Transfer-Encoding: gzip, chunked") + b"0\r\n\r\n",
    "name with a space": head(b"X-A : 1", b"Content-Length: 0"),
    "folded header": head(b"X-A: 1", b" more", b"Content-Length: 0"),
    "bare line feed": b"HTTP/1.1 200 OK\nContent-Length: 0\r\n\r\n",
    "stray carriage return": head(b"X-A: a\rContent-Length: 9", b"Content-Length: 0"),
    "upgrade": head(b"Upgrade: h2c", status=b"101 Switching Protocols"),
    "chunks in HTTP/1.0": b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a later version": b"HTTP/1.2 200 OK\r\nContent-Length: 0\r\n\r\n",
    "a bad status": b"HTTP/1.1 099 No\r\nContent-Length: 0\r\n\r\n",
    "bad length with plus": head(b"Content-Length: +4") + b"true",
}
"""What only our own engines refuse; httpx is a little more tolerant."""


@pytest.mark.parametrize("unknown", REQUESTS)
@pytest.mark.parametrize("name", BAD_REPLIES)
def test_a_bad_reply(engine: MakeEngine, serve: Serve, name: str, unknown: bool) -> None:
    server = serve(answering(BAD_REPLIES[name]))
    with pytest.raises(BrokenReply) as raised:
        engine(server, token="s3cret").send(REQUESTS[unknown])
    assert raised.value.outcome_unknown is unknown
    assert (raised.value.method, raised.value.path) == (REQUESTS[unknown].method, "/v1/kv/a")
    assert "s3cret" not in repr(raised.value)
    # A client of another test may still look for a server that had this port before.
    assert len([each for each in server.requests if b" /v1/kv/a" in each]) == 1


@pytest.mark.parametrize("name", STRICTER)
def test_an_ambiguous_reply(own_engine: MakeEngine, serve: Serve, name: str) -> None:
    server = serve(answering(STRICTER[name]))
    with pytest.raises(BrokenReply):
        own_engine(server).send(GET)


def pouring(beginning: bytes, piece: bytes) -> Callable[[Peer], None]:
    """Return a handler that sends without end, until the client hangs up."""

    def handle(peer: Peer) -> None:
        peer.request()
        peer.send(beginning)
        while not peer.server.closing.is_set():
            peer.send(piece)

    return handle


ENDLESS = {
    "header": (b"HTTP/1.1 200 OK\r\nX-A: ", b"a" * 4096),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X-A: 1\r\n" * 512),
    "status line": (b"HTTP/1.1 200 ", b"a" * 4096),
    "garbage": (b"", b"\x00" * 4096),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_an_endless_head_is_given_up(engine: MakeEngine, serve: Serve, name: str) -> None:
    server = serve(pouring(*ENDLESS[name]))
    with pytest.raises(BrokenReply):
        engine(server).send(GET)


@pytest.mark.parametrize(
    ("beginning", "piece"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", b"a" * 65536),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"8000\r\n" + b"a" * 0x8000 + b"\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1;" + b"a" * 8000),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n", b"a" * 65536),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
)
def test_an_endless_success_is_broken(serve: Serve, beginning: bytes, piece: bytes) -> None:
    server = serve(pouring(beginning, piece))
    settings = Settings.resolve(address=server.address, environ={})
    transport = DirectTransport(settings, limits=Limits(max_body=MEBIBYTE))
    with pytest.raises(BrokenReply):
        transport.send(GET, timeout=5.0)


# Leaving a body half read makes trio complain of the iterators within httpx and httpcore.
@pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning")
@pytest.mark.parametrize("framing", [b"", b"Content-Length: 10485760\r\n", b"Transfer-Encoding: chunked\r\n"])
def test_a_large_error_page_is_cut(engine: MakeEngine, serve: Serve, framing: bytes) -> None:
    piece = b"e" * 65536
    if framing.startswith(b"Transfer"):
        piece = b"10000\r\n%b\r\n" % piece
    page = [b"HTTP/1.1 502 Bad Gateway\r\n%b\r\n" % framing, *[piece] * 160]

    def handle(peer: Peer) -> None:
        while peer.request() is not None:
            for part in page:
                peer.send(part)
            if not framing:
                return

    server = serve(handle)
    sender = engine(server)
    for _ in range(2):
        response = sender.send(PUT)
        assert response.status == 502
        assert response.body == b"e" * 65536
    assert server.connections == 2


def test_a_compressed_bomb_is_never_inflated(engine: MakeEngine, serve: Serve) -> None:
    bomb = gzip.compress(bytes(50 * MEBIBYTE))
    reply = head(b"Content-Encoding: gzip", b"Content-Length: %d" % len(bomb)) + bomb
    sender = engine(serve(answering(reply)))
    tracemalloc.start()
    try:
        with pytest.raises(BrokenReply):
            sender.send(GET)
        assert tracemalloc.get_traced_memory()[1] < 5 * MEBIBYTE
    finally:
        tracemalloc.stop()


def test_a_compressed_error_page_is_broken_too(engine: MakeEngine, serve: Serve) -> None:
    page = gzip.compress(b"no")
    reply = head(b"Content-Encoding: gzip", b"Content-Length: %d" % len(page), status=b"500 No") + page
    with pytest.raises(BrokenReply):
        engine(serve(answering(reply))).send(GET)


def test_after_a_bad_reply_the_next_is_good(engine: MakeEngine, serve: Serve) -> None:
    replies = iter([b"garbage\r\n\r\n", OK])

    def handle(peer: Peer) -> None:
        while peer.request() is not None:
            peer.send(next(replies))

    sender = engine(serve(handle))
    with pytest.raises(BrokenReply):
        sender.send(PUT)
    assert sender.send(PUT).body == b"true"


def test_an_early_refusal_of_a_large_body_is_read(own_engine: MakeEngine, serve: Serve) -> None:
    def refuse(peer: Peer) -> None:
        peer.send(head(b"Content-Length: 5", b"Connection: close", status=b"413 Too Large") + b"large")
        peer.wait_for_hang_up()

    server = serve(refuse)
    response = own_engine(server).send(Request("PUT", "/v1/kv/a", body=bytes(MEBIBYTE)))
    assert (response.status, response.body) == (413, b"large")
