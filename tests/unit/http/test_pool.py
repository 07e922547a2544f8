"""A pool of connections while other threads use it, and connections that end while a reply is due."""

from __future__ import annotations

import math
import socket
import struct
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from consul_coord.config import Settings
from consul_coord.errors import RequestTimeout
from consul_coord.http.endpoints import status
from consul_coord.http.transport.base import DEFAULT_LIMITS
from consul_coord.http.transport.exchange import DirectTransport
from consul_coord.http.transport.pool import KEEP, STAY, Link, Pool
from consul_coord.http.transport.wire import ReplyReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from consul_coord.http.transport.exchange import Attempt

REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Pair:
    """A connection over loopback: the agent's end, and a link."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.link = Link(socket.create_connection(listener.getsockname()))
            self.agent, _ = listener.accept()
        self.link.kept_until = KEEP

    def wait_for_input(self) -> None:
        """Wait until something, or an end, has come."""
        assert self.link.has_input(10_000)

    def reset(self) -> None:
        """End the connection as a host does that has forgotten it."""
        self.agent.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.agent.close()

    def close(self) -> None:
        self.agent.close()
        self.link.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


@pytest.fixture
def pool() -> Pool:
    return Pool(now=lambda: 0.0)


@pytest.mark.parametrize("is_proven", [False, True])
def test_a_new_connection_is_no_other_one_before_it_was_answered(
    pool: Pool, pair: Pair, *, is_proven: bool
) -> None:
    """The agent may have no room for it: the one that has just been used is not closed for it."""
    pool.open.add(pair.link)
    pair.link.in_use, pair.link.is_proven = True, is_proven
    assert pool.has_another() is is_proven


def parked(pool: Pool, pair: Pair) -> None:
    pool.park(pair.link, ReplyReader("GET", DEFAULT_LIMITS), 0.0)


def test_a_parked_connection_is_used_again_once_its_reply_is_whole(pool: Pool, pair: Pair) -> None:
    parked(pool, pair)
    assert pool.take(0.0) is None
    pair.agent.sendall(REPLY[:-1])
    pair.wait_for_input()
    assert pool.take(0.0) is None
    pair.agent.sendall(REPLY[-1:])
    pair.wait_for_input()
    assert pool.take(0.0) is pair.link


def test_a_child_process_lets_go_of_a_parked_connection(pool: Pool, pair: Pair) -> None:
    pool.open.add(pair.link)
    pair.link.in_use = True
    parked(pool, pair)
    pool.forget()
    assert pair.link.sock.fileno() < 0


ENDS: dict[str, Callable[[Pair], object]] = {
    "reset": Pair.reset,
    "closed": lambda pair: pair.agent.close(),
    "mad": lambda pair: pair.agent.sendall(b"HELLO\r\n\r\n"),
    "not to be used again": lambda pair: pair.agent.sendall(
        REPLY.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_parked_connection_that_is_of_no_more_use_is_closed(pool: Pool, pair: Pair, end: str) -> None:
    parked(pool, pair)
    ENDS[end](pair)
    pair.wait_for_input()
    assert pool.take(0.0) is None
    assert not pool.parked
    assert pair.link.sock.fileno() < 0


class Raced(deque[Link]):
    """Its last connection is taken by another thread, right after somebody has seen it here."""

    def _race(self) -> Link:
        self.clear()
        raise IndexError

    def pop(self) -> Link:  # type: ignore[override]
        return self._race()

    def popleft(self) -> Link:
        return self._race()


@pytest.mark.parametrize("where", ["idle", "parked"])
def test_a_connection_that_another_thread_takes_just_then_is_left_to_it(
    pool: Pool, pair: Pair, where: str
) -> None:
    for act in (pool.take, pool.sweep, pool.step_aside):
        setattr(pool, where, Raced([pair.link]))
        setattr(pool, "parked" if where == "idle" else "idle", deque[Link]())
        act(2 * KEEP)
        assert pair.link.sock.fileno() >= 0


def test_who_steps_aside_closes_all_that_is_not_in_use(pool: Pool, pair: Pair) -> None:
    used, rests = Pair(), Pair()
    pool.open.add(used.link)
    pool.idle.append(rests.link)
    parked(pool, pair)
    pool.step_aside(0.0)
    assert [each.link.sock.fileno() < 0 for each in (pair, rests, used)] == [True, True, False]
    assert not pool.idle
    assert not pool.parked
    used.close()
    rests.agent.close()


def test_what_is_kept_too_long_is_closed_though_other_connections_are_taken_just_then(
    pool: Pool, pair: Pair
) -> None:
    other = Pair()
    pool.idle = Raced([other.link])
    parked(pool, pair)
    assert pool.sweep(2 * KEEP) > 0
    assert pair.link.sock.fileno() < 0
    assert other.link.sock.fileno() >= 0
    other.close()


def test_connections_that_were_opened_together_are_not_given_up_together(pair: Pair) -> None:
    numbers = iter([0.0, 0.5, 1.0])
    pool = Pool(now=lambda: 0.0, random=lambda: next(numbers))
    stays = []
    for _ in range(3):
        pool.stay(pair.link, 100.0)
        stays.append(pair.link.stays_until - 100.0)
    assert stays == pytest.approx([0.75 * STAY, STAY, 1.25 * STAY])


class CancelledAtTheEnd(DirectTransport):
    """Its requests are answered, and cancelled by another thread just when the reply is whole."""

    agent: socket.socket

    async def _read(self, sock: socket.socket, attempt: Attempt) -> bytes:
        self.agent.sendall(REPLY)
        received = await super()._read(sock, attempt)
        attempt.cancel()
        return received


def connected(transport: DirectTransport, pair: Pair) -> None:
    pair.link.home = transport.pool.open
    pair.link.kept_until = math.inf
    transport.pool.open.add(pair.link)
    transport.pool.idle.append(pair.link)


def test_a_connection_that_was_cut_off_just_after_its_reply_is_not_kept(pool: Pool, pair: Pair) -> None:
    transport = CancelledAtTheEnd(Settings.resolve(environ={}), pool=pool)
    connected(transport, pair)
    transport.agent = pair.agent
    assert transport.send(status.leader().request, timeout=10.0).status == 200
    assert not pool.idle
    assert pair.link.sock.fileno() < 0


class AnsweredLater(DirectTransport):
    """Its requests are answered after ``takes`` seconds by its clock."""

    agent: socket.socket
    clock: float
    takes: float

    async def _read(self, sock: socket.socket, attempt: Attempt) -> bytes:
        self.clock += self.takes
        self.agent.sendall(REPLY)
        return await super()._read(sock, attempt)


@pytest.mark.parametrize("hold_open", [0.0, 5.0])
def test_a_query_that_has_waited_for_its_connection_still_has_its_time(pair: Pair, hold_open: float) -> None:
    pool = Pool(now=lambda: transport.clock)
    transport = AnsweredLater(Settings.resolve(environ={}), pool=pool)
    transport.agent, transport.clock, transport.takes = pair.agent, 0.0, 5.0
    connected(transport, pair)
    request = replace(status.leader().request, hold_open=hold_open)
    if hold_open:
        assert transport.send(request, timeout=1.0).status == 200
    else:
        with pytest.raises(RequestTimeout):
            transport.send(request, timeout=1.0)
