"""A request on its way out: who has its socket when it is cancelled, and which token it carries."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest

from consul_coord.config import Settings
from consul_coord.http.messages import Request
from consul_coord.http.transport.base import Abandoned
from consul_coord.http.transport.exchange import Attempt
from consul_coord.http.transport.wire import Outgoing

if TYPE_CHECKING:
    from collections.abc import Iterator

GET = Request("GET", "/v1/status/leader")


def attempt() -> Attempt:
    return Attempt(GET, address="http://127.0.0.1:1", timeout=1.0)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    with ExitStack() as stack:
        one, other = socket.socketpair()
        yield stack.enter_context(closing(one)), stack.enter_context(closing(other))


def is_shut_down(peer: socket.socket) -> bool:
    peer.setblocking(False)
    try:
        return peer.recv(1) == b""
    except BlockingIOError:
        return False


def test_whoever_cancels_first_shuts_the_socket_down(ends: tuple[socket.socket, socket.socket]) -> None:
    tried = attempt()
    tried.hold(ends[0])
    tried.cancel()
    assert is_shut_down(ends[1])
    assert not tried.let_go()


def test_a_socket_that_was_let_go_is_left_alone(ends: tuple[socket.socket, socket.socket]) -> None:
    tried = attempt()
    tried.hold(ends[0])
    assert tried.let_go()
    tried.cancel()
    assert not is_shut_down(ends[1])


def test_a_cancelled_attempt_goes_on_with_no_socket(ends: tuple[socket.socket, socket.socket]) -> None:
    tried = attempt()
    tried.cancel()
    with pytest.raises(Abandoned):
        tried.hold(ends[0])


def test_one_of_two_has_the_socket_however_they_meet() -> None:
    for _ in range(300):
        with ExitStack() as stack:
            one, other = (stack.enter_context(closing(end)) for end in socket.socketpair())
            tried, start = attempt(), threading.Barrier(2)
            tried.hold(one)

            def cancel(tried: Attempt = tried, start: threading.Barrier = start) -> None:
                start.wait()
                tried.cancel()

            thread = threading.Thread(target=cancel)
            thread.start()
            start.wait()
            kept = tried.let_go()
            thread.join()
            assert kept is not is_shut_down(other)


def test_another_token_is_sent_from_the_next_request_on() -> None:
    settings = Settings.resolve(token="first", environ={})
    outgoing = Outgoing(settings)
    assert b"X-Consul-Token: first\r\n" in outgoing.encode(GET, 0.0)
    settings.credentials.replace("second")
    assert b"X-Consul-Token: second\r\n" in outgoing.encode(GET, 0.0)
    assert b"first" not in outgoing.encode(GET, 0.0)
