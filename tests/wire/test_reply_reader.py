"""The reader of replies by itself: however the bytes are cut, and compared with another reader of HTTP."""

from __future__ import annotations

import http.client
import io
import itertools
from typing import TYPE_CHECKING

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consul_coord.http.transport.base import DEFAULT_LIMITS, Limits
from consul_coord.http.transport.wire import Garbled, ReplyReader
from tests.wire.test_bad_replies import BAD_REPLIES, STRICTER
from tests.wire.test_exchange import SOUND_REPLIES

if TYPE_CHECKING:
    from consul_coord.http.messages import Response

ALL_REPLIES = {name: reply for name, (reply, _) in SOUND_REPLIES.items()} | BAD_REPLIES | STRICTER


def read(
    data: bytes, cuts: list[int] | None = None, *, limits: Limits = DEFAULT_LIMITS
) -> tuple[Response, bool] | None:
    """Return reply and whether the connection is reusable, or None when it is garbled."""
    reader = ReplyReader("GET", limits)
    edges: list[int] = sorted({0, len(data), *(cuts or ())})
    try:
        for start, end in itertools.pairwise(edges):
            if reader.feed(data[start:end]):
                return reader.response, reader.reusable
        reader.feed(b"")
    except Garbled:
        return None
    return reader.response, reader.reusable


@given(data=st.data(), reply=st.sampled_from(list(ALL_REPLIES.values())))
def test_it_does_not_matter_how_the_bytes_are_cut(data: st.DataObject, reply: bytes) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(reply)), max_size=8))
    assert read(reply, cuts) == read(reply)


@pytest.mark.parametrize("name", ALL_REPLIES)
def test_byte_by_byte_is_the_same(name: str) -> None:
    reply = ALL_REPLIES[name]
    assert read(reply, list(range(len(reply)))) == read(reply)


@pytest.mark.parametrize(
    ("sound", "wrong"),
    [
        (b"", b"SSH-2.0-OpenSSH_9.6\r\n"),
        (b"", b"\x15\x03\x01\x00\x02\x02\x46"),
        (b"HTTP/", b"2 200 OK\r\n"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", b"220 mail.invalid ESMTP\r\n"),
    ],
    ids=["SSH", "TLS", "HTTP/2", "after an interim reply"],
)
def test_what_is_no_reply_is_refused_at_once_though_it_may_go_on(sound: bytes, wrong: bytes) -> None:
    """Such a server waits for its client to speak: a client that waits for more waits in vain."""
    reader = ReplyReader("GET", DEFAULT_LIMITS)
    if sound:
        assert not reader.feed(sound)
    with pytest.raises(Garbled, match="not HTTP/1"):
        reader.feed(wrong)


class Wire:
    """What ``http.client`` reads from in place of a socket."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, *_: object) -> io.BytesIO:
        return io.BytesIO(self._data)


def by_the_standard_library(data: bytes) -> tuple[int, bytes] | None:
    reply = http.client.HTTPResponse(Wire(data))  # type: ignore[arg-type]
    try:
        reply.begin()
        return reply.status, reply.read()
    except (http.client.HTTPException, ValueError):
        return None


FRAGMENTS = st.sampled_from(
    [
        *(reply[:end] for reply, _ in SOUND_REPLIES.values() for end in (17, 40, len(reply))),
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.0 500 No\r\n",
        b"Content-Length: 3\r\n",
        b"Content-Length: 0\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"X-A: b\r\n",
        b"X-A:\r\n",
        b": b\r\n",
        b"\r\n",
        b"\n",
        b"\r",
        b" ",
        b"abc",
        b"3\r\nabc\r\n",
        b"0\r\n\r\n",
        b"fffffffff\r\n",
        b"\x00",
        b"\xff",
    ]
)


@given(pieces=st.lists(st.one_of(FRAGMENTS, st.binary(max_size=3)), max_size=10))
def test_what_is_accepted_the_standard_library_reads_alike(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    ours = read(data)
    theirs = by_the_standard_library(data)
    if ours is not None and theirs is not None:
        assert (ours[0].status, ours[0].body) == theirs


@given(
    status=st.integers(200, 599).filter(lambda status: status not in {204, 304}),
    headers=st.dictionaries(
        st.from_regex(r"\Ax-[a-z]{1,5}\Z"), st.from_regex(r"\A[!-~]([ -~]{0,9}[!-~])?\Z"), max_size=5
    ),
    body=st.binary(max_size=200),
    sizes=st.lists(st.integers(1, 50), max_size=10),
)
def test_what_h11_writes_is_read(status: int, headers: dict[str, str], body: bytes, sizes: list[int]) -> None:
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    connection.next_event()
    connection.next_event()
    framing = {} if sizes else {"content-length": str(len(body))}
    written = connection.send(h11.Response(status_code=status, headers=list((headers | framing).items())))
    rest, parts = body, [written]
    for size in sizes:
        parts.append(connection.send(h11.Data(data=rest[:size])))
        rest = rest[size:]
    parts += [connection.send(h11.Data(data=rest)), connection.send(h11.EndOfMessage())]
    result = read(b"".join(part or b"" for part in parts))
    assert result is not None
    response, reusable = result
    assert (response.status, response.body, reusable) == (status, body, True)
    assert headers.items() <= response.headers.items()


def test_several_values_of_a_header_are_joined() -> None:
    result = read(b"HTTP/1.1 200 OK\r\nX-A: 1\r\nx-a: 2\r\nContent-Length: 0, 0\r\n\r\n")
    assert result is not None
    assert result[0].headers["x-a"] == "1, 2"


@pytest.mark.parametrize(("count", "accepted"), [(99, True), (100, True), (101, False)])
def test_the_number_of_headers_is_bounded(count: int, accepted: bool) -> None:
    reply = b"HTTP/1.1 204 No Content\r\n" + b"X-A: 1\r\n" * count + b"\r\n"
    assert (read(reply) is not None) is accepted


@pytest.mark.parametrize(("size", "accepted"), [(10, True), (11, False)])
@pytest.mark.parametrize("framing", ["length", "chunked", "end"])
def test_a_success_at_its_limit(framing: str, size: int, accepted: bool) -> None:
    body = b"a" * size
    replies = {
        "length": b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (size, body),
        "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"
        % (size, body),
        "end": b"HTTP/1.1 200 OK\r\n\r\n" + body,
    }
    assert (read(replies[framing], limits=Limits(max_body=10)) is not None) is accepted


@pytest.mark.parametrize("end", [b"0\r\n\n", b"0\r\nX-T: 1\r\n\n", b"0\nX-T: 1\n\n"])
def test_chunks_that_end_with_a_bare_line_feed_leave_no_reusable_connection(end: bytes) -> None:
    reply = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n" + end
    for cuts in ([], list(range(len(reply)))):
        result = read(reply, cuts)
        assert result is None or (result[0].body, result[1]) == (b"abc", False)


def test_a_reply_to_head_has_no_body() -> None:
    reader = ReplyReader("HEAD", DEFAULT_LIMITS)
    assert reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
    assert reader.reusable
    assert reader.response.body == b""


@pytest.mark.parametrize(("interim", "is_read"), [(0, True), (8, True), (9, False)])
def test_some_interim_replies_are_passed_over_and_no_more(interim: int, *, is_read: bool) -> None:
    reply = b"HTTP/1.1 100 Continue\r\n\r\n" * interim + b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na"
    assert (read(reply) is not None) is is_read
