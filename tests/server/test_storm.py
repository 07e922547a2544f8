"""Thousands of sessions that end at once: all of them do, in order, and nobody waits for all of them."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from consul_coord.server import ReferenceServer, ServerConfig
from consul_coord.server.lockdelay import LockDelays
from consul_coord.server.wire import Request
from tests.server.driver import Driver

SESSIONS = 1_000


@pytest.fixture
def crowded() -> Driver:
    """An agent whose sessions are all due, and hold a key each."""
    driver = Driver()
    for number in range(SESSIONS):
        driver.ask("PUT", f"/v1/kv/k{number}?acquire={driver.session(TTL='10s', NodeChecks=[])}")
    driver.now += 20.0
    return driver


def test_a_limited_run_does_that_much_and_no_more(crowded: Driver) -> None:
    crowded.service.run_timers(crowded.now, most=50)
    assert len(crowded.state.store.sessions) == SESSIONS - 50
    assert crowded.service.next_timer() == crowded.now
    crowded.service.run_timers(crowded.now)
    assert len(crowded.state.store.sessions) == 0
    assert crowded.service.next_timer() is None


def test_a_request_is_served_in_between(crowded: Driver) -> None:
    request = Request.make("GET", "/v1/session/list")
    crowded.service.handle(request, crowded.now, timers=50)
    assert len(crowded.state.store.sessions) == SESSIONS - 50


def test_waits_that_end_count_as_well() -> None:
    driver = Driver()
    for _ in range(100):
        driver.block("/v1/session/list?index=1000&wait=5s")
    driver.now += 6.0
    driver.service.run_timers(driver.now, most=30)
    assert driver.service.blocked == 70


def test_delays_that_are_over_are_forgotten_in_time() -> None:
    delays = LockDelays(60.0)
    for number in range(50_000):
        delays.start(f"k{number}", 10**9, now=float(number))
    assert delays.active("k49999", 49_999.5)
    assert len(delays._ends) < 10_000


def test_a_write_is_not_queued_behind_reads_that_came_before_it() -> None:
    """Most of the reads see what was written, though it was sent after them."""
    reads = 400
    config = ServerConfig(http_max_conns_per_client=0)
    with ReferenceServer(config=config) as server, ExitStack() as open_ones:
        host, _, port = server.address.removeprefix("http://").rpartition(":")

        def connect() -> socket.socket:
            return open_ones.enter_context(socket.create_connection((host, int(port))))

        readers, writer = [connect() for _ in range(reads)], connect()

        def send_all(_: float) -> None:  # while the server can serve nobody
            for reader in readers:
                reader.sendall(READ)
            writer.sendall(WRITE)

        server._host.do(send_all)
        assert b" 200 OK" in writer.recv(65_536)
        late = sum(b" 200 OK" in reader.recv(65_536) for reader in readers)
        assert late > reads / 2


READ = b"GET /v1/kv/w HTTP/1.1\r\nHost: x\r\n\r\n"
WRITE = b"PUT /v1/kv/w HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nv"
