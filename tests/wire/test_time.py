"""``timeout`` is the whole exchange: whatever the agent does, the call ends then, and says what is known."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from consul_coord.errors import RequestTimeout
from consul_coord.http.messages import Request, Retry
from consul_coord.http.transport import watcher
from consul_coord.http.transport.watcher import Watch
from tests.support.sites import eventually
from tests.support.stalls import lasting
from tests.wire.servers import OK, PATIENCE, always, silent

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.wire.conftest import MakeEngine, Serve
    from tests.wire.servers import Peer

TIMEOUT = 1.2
TOLERANCE = 0.3
GET = Request("GET", "/v1/kv/a", retry=Retry.READ)
PUT = Request("PUT", "/v1/kv/a", body=b"v", retry=Retry.NEVER)
RENEW = Request("PUT", "/v1/session/renew/x", retry=Retry.IDEMPOTENT)
PAUSE = 0.02
"""Between two bytes: far less than the time limit, so that a limit for each read would never end it."""


@contextmanager
def ends_in_time() -> Generator[None]:
    with lasting(least=TIMEOUT - 0.01, most=TIMEOUT + TOLERANCE):
        yield


def slow_head(peer: Peer) -> None:
    peer.request()
    peer.drip(b"HTTP/1.1 200 OK\r\n" + b"X-A: a\r\n" * 100, pause=PAUSE)


def slow_body(peer: Peer) -> None:
    peer.request()
    peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    peer.drip(bytes(1000), pause=PAUSE)


def slow_chunks(peer: Peer) -> None:
    peer.request()
    peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    peer.drip(b"1\r\na\r\n" * 200, pause=PAUSE)


def slow_error_page(peer: Peer) -> None:
    peer.request()
    peer.send(b"HTTP/1.1 500 No\r\n\r\n")
    peer.drip(bytes(1000), pause=PAUSE)


@pytest.mark.parametrize("handler", [silent, slow_head, slow_body, slow_chunks, slow_error_page])
def test_a_slow_reply_ends_at_the_limit(engine: MakeEngine, serve: Serve, handler: object) -> None:
    sender = engine(serve(handler))
    with ends_in_time(), pytest.raises(RequestTimeout) as raised:
        sender.send(PUT, timeout=TIMEOUT)
    assert raised.value.outcome_unknown is True
    assert f"{TIMEOUT:g} s" in str(raised.value)


@pytest.mark.parametrize(("request_", "unknown"), [(GET, False), (PUT, True), (RENEW, True)])
def test_the_outcome_after_a_timeout(
    engine: MakeEngine, serve: Serve, request_: Request, unknown: bool
) -> None:
    with pytest.raises(RequestTimeout) as raised:
        engine(serve(silent)).send(request_, timeout=0.5)  # enough to connect, also on a busy machine
    assert raised.value.outcome_unknown is unknown


def test_a_reader_that_stops_reading_ends_at_the_limit(own_engine: MakeEngine, serve: Serve) -> None:
    def deaf(peer: Peer) -> None:
        peer.server.closing.wait(5.0)

    sender, timeout = own_engine(serve(deaf)), 2.0  # time to connect, also beside a large copy
    large = Request("PUT", "/v1/kv/a", body=bytes(32 * 1024 * 1024))
    with lasting(least=timeout - 0.01, most=timeout + TOLERANCE), pytest.raises(RequestTimeout) as raised:
        sender.send(large, timeout=timeout)
    assert raised.value.outcome_unknown is True


@contextmanager
def black_hole() -> Generator[str]:
    """Yield an address that neither accepts nor refuses: the queue of its listener is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        fillers = [socket.socket() for _ in range(8)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            for filler in fillers:
                filler.close()


def test_a_black_hole_leaves_nothing_unknown(engine: MakeEngine) -> None:
    with black_hole() as address:
        sender = engine(address)
        with ends_in_time(), pytest.raises(RequestTimeout) as raised:
            sender.send(PUT, timeout=TIMEOUT)
    assert raised.value.outcome_unknown is False


@pytest.mark.parametrize("timeout", [0.0, -1.0])
def test_without_time_nothing_is_sent(engine: MakeEngine, serve: Serve, timeout: float) -> None:
    server = serve(always(OK))
    sender = engine(server)
    sender.send(PUT)
    with pytest.raises(RequestTimeout) as raised:
        sender.send(PUT, timeout=timeout)
    assert raised.value.outcome_unknown is False
    assert sender.send(PUT).body == b"true"
    assert len(server.requests) == 2


def test_a_timed_out_connection_is_closed(engine: MakeEngine, serve: Serve) -> None:
    hung_up = []

    def watch(peer: Peer) -> None:
        with suppress(OSError):  # the time may have been over before the request was written
            peer.request()
        hung_up.append(peer.wait_for_hang_up())

    sender = engine(serve(watch))
    with pytest.raises(RequestTimeout):
        sender.send(PUT, timeout=0.1)
    deadline = time.monotonic() + PATIENCE
    while not hung_up and time.monotonic() < deadline:
        time.sleep(0.01)
    assert hung_up == [True]


def test_near_the_limit_a_connection_outlives_the_time_of_its_request(
    own_engine: MakeEngine, serve: Serve
) -> None:
    """It may be the only one that the client has, and what it holds depends on it."""
    timed_out = threading.Event()

    def handle(peer: Peer) -> None:
        peer.request()
        peer.send(OK)
        peer.request()
        timed_out.wait(10.0)
        while True:
            peer.send(OK)
            if peer.request() is None:
                return

    server = serve(handle)
    sender = own_engine(server)
    sender.send(PUT)
    pool = sender.transport.pool  # type: ignore[attr-defined]
    pool.limit.refused(pool.now())  # as one was in another thread
    with pytest.raises(RequestTimeout):
        sender.send(PUT, timeout=0.1)
    timed_out.set()
    eventually(lambda: [link for link in pool.parked if link.has_input(0)])
    assert sender.send(PUT, timeout=10.0).body == b"true"
    assert server.connections == 1


@pytest.mark.parametrize("is_over", [False, True])
def test_the_socket_of_an_exchange_that_has_just_ended_is_left_alone(is_over: bool) -> None:
    """Its connection may have been taken for the next exchange by then."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        watch = Watch(time.monotonic() + 60.0)
        watch.begin(ours)
        if is_over:
            watch.end()
        watch.cut()
        watch.end()
        assert watch.is_cut is not is_over
        if is_over:
            ours.sendall(b"x")
        theirs.settimeout(30.0)
        assert theirs.recv(1) == (b"x" if is_over else b"")


def test_a_watch_whose_owner_was_interrupted_as_it_ended_is_left_alone() -> None:
    """The watcher would wait for ever, and with it all other exchanges of the process."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        watch = Watch(time.monotonic() + 60.0)
        watch.begin(ours)
        watch._lock.acquire()  # as by an interrupted end
        with lasting(most=0.5):
            watch.cut()
        assert not watch.is_cut
        assert watch._lock.locked()
        assert watch not in watcher._watched
        ours.send(b"it is open")


def test_of_two_watchers_that_are_started_at_once_one_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = watcher._Watcher(), watcher._Watcher()
    monkeypatch.setattr(watcher, "_running", {None: first})
    monkeypatch.setattr(second, "_look", pytest.fail)
    second.run()
    assert watcher._running == {None: first}
