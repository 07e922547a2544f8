"""What is sent, and how a sound reply is read, by every transport alike."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from consul_coord._version import __version__
from consul_coord.errors import ClientClosed, InvalidArgument
from consul_coord.http.messages import Request, Retry
from consul_coord.http.transport import dial, streams
from tests.wire.servers import OK, PATIENCE, always, answering

if TYPE_CHECKING:
    from tests.wire.conftest import MakeEngine, Serve
    from tests.wire.servers import Peer

GET = Request("GET", "/v1/status/leader", retry=Retry.READ)
PUT = Request("PUT", "/v1/kv/a", body=b"value")


def head_of(request: bytes) -> tuple[str, dict[str, str]]:
    lines = request.partition(b"\r\n\r\n")[0].decode("ascii").split("\r\n")
    pairs = [line.partition(": ") for line in lines[1:]]
    return lines[0], {name.lower(): value for name, _, value in pairs}


def test_returns_status_headers_in_lower_case_and_body(engine: MakeEngine, serve: Serve) -> None:
    reply = b"HTTP/1.1 404 Not Found\r\nX-Consul-Index: 7\r\nContent-Length: 2\r\n\r\nno"
    response = engine(serve(always(reply))).send(GET)
    assert (response.status, response.headers["x-consul-index"], response.body) == (404, "7", b"no")


def test_sends_the_headers_that_every_request_has(engine: MakeEngine, serve: Serve) -> None:
    server = serve(always(OK))
    engine(server, token="s3cret", http_auth=("ann", "pw")).send(PUT)
    line, headers = head_of(server.requests[0])
    assert line == "PUT /v1/kv/a HTTP/1.1"
    assert headers["host"] == f"127.0.0.1:{server.port}"
    assert headers["user-agent"] == f"consul-coord/{__version__}"
    assert headers["accept-encoding"] == "identity"
    assert headers["x-consul-token"] == "s3cret"
    assert headers["authorization"] == "Basic YW5uOnB3"
    assert headers["content-length"] == "5"
    assert server.requests[0].endswith(b"\r\n\r\nvalue")


def test_without_a_token_none_is_sent(engine: MakeEngine, serve: Serve) -> None:
    server = serve(always(OK))
    engine(server).send(GET)
    _, headers = head_of(server.requests[0])
    assert not {"x-consul-token", "authorization"} & headers.keys()


@pytest.mark.parametrize("method", ["PUT", "POST"])
@pytest.mark.parametrize("body", [None, b""])
def test_an_empty_body_has_a_length(
    engine: MakeEngine, serve: Serve, method: str, body: bytes | None
) -> None:
    server = serve(always(OK))
    engine(server).send(Request(method, "/v1/session/create", body=body))
    _, headers = head_of(server.requests[0])
    assert headers["content-length"] == "0"
    assert "transfer-encoding" not in headers


def test_parameters_are_encoded_and_keep_their_order(engine: MakeEngine, serve: Serve) -> None:
    server = serve(always(OK))
    params = (("wait", "30s"), ("recurse", ""), ("filter", "a b&c=d/é+%\r\n"))
    engine(server).send(Request("GET", "/v1/kv/a%20b%2Fc", params=params))
    expected = "/v1/kv/a%20b%2Fc?wait=30s&recurse&filter=a%20b%26c%3Dd%2F%C3%A9%2B%25%0D%0A"
    assert head_of(server.requests[0])[0] == f"GET {expected} HTTP/1.1"


def test_default_parameters_give_way_to_the_requests_own(engine: MakeEngine, serve: Serve) -> None:
    server = serve(always(OK))
    sender = engine(server, datacenter="dc1", namespace="team", partition="p1")
    sender.send(replace(GET, params=(*GET.params, ("dc", "dc2"))))
    assert head_of(server.requests[0])[0] == "GET /v1/status/leader?dc=dc2&ns=team&partition=p1 HTTP/1.1"


def test_an_address_prefix_precedes_the_path(engine: MakeEngine, serve: Serve) -> None:
    server = serve(always(OK))
    engine(f"{server.address}/gate/way/").send(GET)
    assert head_of(server.requests[0])[0] == "GET /gate/way/v1/status/leader HTTP/1.1"


@pytest.mark.parametrize(
    "request_line",
    [
        ("GET", "/a b"),
        ("GET", "/a\r\nX-Evil: 1"),
        ("GET", "/é"),
        ("GET", "v1"),
        ("GET", "/a?b"),
        ("G T", "/"),
        ("", "/"),
    ],
)
def test_what_could_split_a_request_is_refused(
    own_engine: MakeEngine, serve: Serve, request_line: tuple[str, str]
) -> None:
    server = serve(always(OK))
    with pytest.raises(InvalidArgument):
        own_engine(server).send(Request(*request_line))
    assert server.connections == 0


def test_a_redirect_is_returned_and_never_followed(engine: MakeEngine, serve: Serve) -> None:
    elsewhere = serve(always(OK))
    there = f"{elsewhere.address}/v1/kv/a".encode()
    server = serve(always(b"HTTP/1.1 307 Moved\r\nLocation: %b\r\nContent-Length: 0\r\n\r\n" % there))
    response = engine(server, token="s3cret").send(PUT)
    assert response.status == 307
    assert response.headers["location"] == there.decode()
    assert elsewhere.connections == 0


SOUND_REPLIES = {
    "chunked": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nT: 1\r\n\r\n",
        b"abcde",
    ),
    "to the end": (b"HTTP/1.1 200 OK\r\n\r\nabcde", b"abcde"),
    "old version": (b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nabcde", b"abcde"),
    "interim first": (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na", b"a"),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    "no reason": (b"HTTP/1.1 200\r\nContent-Length: 1\r\n\r\na", b"a"),
    "odd bytes in a header": (b"HTTP/1.1 200 OK\r\nX-A: \xff\xfe\x80\r\nContent-Length: 1\r\n\r\na", b"a"),
}


@pytest.mark.parametrize("name", SOUND_REPLIES)
def test_every_sound_way_to_end_a_reply(engine: MakeEngine, serve: Serve, name: str) -> None:
    reply, body = SOUND_REPLIES[name]
    assert engine(serve(answering(reply))).send(GET).body == body


def test_a_large_body_arrives_whole_both_ways(engine: MakeEngine, serve: Serve) -> None:
    large = bytes(range(256)) * 4096 * 2
    server = serve(always(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(large), large)))
    response = engine(server).send(Request("PUT", "/v1/kv/a", body=large))
    assert response.body == large
    assert server.requests[0].endswith(large)


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a request of some size be sent in parts."""
    made = dial.made

    def made_small(family: int) -> socket.socket:
        sock = made(family)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return sock

    monkeypatch.setattr(dial, "made", made_small)
    monkeypatch.setattr(streams, "made", made_small)


LARGE = Request("PUT", "/v1/kv/a", body=bytes(range(256)) * 2048)


@pytest.mark.usefixtures("small_buffers")
def test_a_body_that_is_larger_than_the_buffers_waits_for_its_reader(
    own_engine: MakeEngine, serve: Serve
) -> None:
    def handle(peer: Peer) -> None:
        time.sleep(0.02)  # what is sent meanwhile fills the buffers
        peer.request()
        peer.send(OK)

    server = serve(handle)
    assert own_engine(server).send(LARGE).body == b"true"
    assert server.requests[0].endswith(LARGE.body or b"-")


@pytest.mark.usefixtures("small_buffers")
def test_a_refusal_amid_a_body_is_read(own_engine: MakeEngine, serve: Serve) -> None:
    def refuse(peer: Peer) -> None:
        peer.send(b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 5\r\n\r\nlarge")
        time.sleep(0.02)  # what is sent meanwhile fills the buffers, and is never read

    response = own_engine(serve(refuse)).send(LARGE)
    assert (response.status, response.body) == (413, b"large")


def test_a_connection_is_used_again(engine: MakeEngine, serve: Serve) -> None:
    server = serve(always(OK))
    sender = engine(server)
    for _ in range(5):
        assert sender.send(PUT).body == b"true"
    assert server.connections == 1


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\na",
        b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na",
    ],
)
def test_a_connection_that_the_agent_closes_is_not_used_again(
    own_engine: MakeEngine, serve: Serve, reply: bytes
) -> None:
    server = serve(always(reply))
    sender = own_engine(server)
    assert [sender.send(PUT).body for _ in range(3)] == [b"a"] * 3
    assert server.connections == 3


def test_bytes_behind_a_reply_are_never_taken_for_the_next(own_engine: MakeEngine, serve: Serve) -> None:
    forged = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"
    server = serve(always(OK + forged))
    sender = own_engine(server)
    assert [sender.send(PUT).body for _ in range(3)] == [b"true"] * 3
    assert server.connections == 3


def test_eight_threads_share_a_transport(engine: MakeEngine, serve: Serve) -> None:
    def echo(peer: Peer) -> None:
        while (request := peer.request()) is not None:
            body = request.partition(b"\r\n\r\n")[2]
            peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    server = serve(echo)
    sender = engine(server)

    def work(number: int) -> bool:
        sent = [b"%d-%d" % (number, turn) for turn in range(25)]
        return [sender.send(Request("PUT", "/v1/kv/a", body=body)).body for body in sent] == sent

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(8)))
    assert len(server.requests) == 200


def test_a_request_held_open_delays_no_other(own_engine: MakeEngine, serve: Serve) -> None:
    released = threading.Event()

    def hold(peer: Peer) -> None:
        while (request := peer.request()) is not None:
            if b"index=" in request:
                assert released.wait(PATIENCE)
            peer.send(OK)

    sender = own_engine(serve(hold))
    watch = Request("GET", "/v1/kv/a", params=(("index", "1"),), retry=Retry.READ, hold_open=30.0)
    with ThreadPoolExecutor(4) as threads:
        watches = [threads.submit(sender.send, watch, timeout=PATIENCE) for _ in range(4)]
        for _ in range(3):
            assert sender.send(PUT).body == b"true"
        assert not any(pending.done() for pending in watches)
        released.set()
        assert all(pending.result(PATIENCE).body == b"true" for pending in watches)


def test_a_closed_transport_sends_nothing(engine: MakeEngine, serve: Serve) -> None:
    server = serve(always(OK))
    sender = engine(server)
    sender.send(GET)
    sender.close()
    with pytest.raises(ClientClosed):
        sender.send(GET)
    assert len(server.requests) == 1
