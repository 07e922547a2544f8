"""Thousands of sessions that end at once: all of them do, in order, and nobody waits for all of them."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from statistics import median
from typing import TYPE_CHECKING

import pytest

from consul_coord.server import ReferenceServer, ServerConfig
from consul_coord.server.lockdelay import LockDelays
from consul_coord.server.wire import Request
from consul_coord.testing.agent import RealAgent
from tests.server.driver import Driver

if TYPE_CHECKING:
    from pathlib import Path

SESSIONS = 1_000
WAITING = 4_000
ROUNDS = 5


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


def woken(address: str) -> tuple[float, float]:
    """Return how long a write right behind 4,000 waiting reads takes, and then until the last is answered."""
    host, _, port = address.removeprefix("http://").rpartition(":")
    with ExitStack() as open_ones:

        def connect() -> socket.socket:
            return open_ones.enter_context(socket.create_connection((host, int(port)), timeout=60))

        def ask(request: bytes) -> bytes:
            writer.sendall(request)
            return writer.recv(65_536)

        readers, writer = [connect() for _ in range(WAITING)], connect()
        ask(WRITE)
        found = ask(READ)
        index = int(found.lower().partition(b"x-consul-index: ")[2].split()[0])
        waiting = READ.replace(b"/w ", b"/w?index=%d&wait=60s " % index)
        for reader in readers:
            reader.sendall(waiting)
        began = time.perf_counter()
        assert b" 200 OK" in ask(WRITE.replace(b"/w ", b"/other "))
        passed = time.perf_counter() - began
        ask(READ.replace(b"/w ", b"/w?index=%d&wait=1s " % index))  # by its end all the others wait
        began = time.perf_counter()
        ask(WRITE[:-1] + b"%d" % (time.time_ns() % 10))
        assert all(b" 200 OK" in reader.recv(65_536) for reader in readers)
        return passed, time.perf_counter() - began


@pytest.mark.long
@pytest.mark.timeout(600)
def test_thousands_who_wait_are_woken_about_as_soon_as_by_an_agent(consul_binary: Path) -> None:
    """On a machine that does nothing else. Each server is a process of its own, and they take turns."""
    limits = {"limits": {"http_max_conns_per_client": 10_000}}
    serve = (
        "import sys; from consul_coord.server import ReferenceServer, ServerConfig\n"
        "with ReferenceServer(config=ServerConfig(http_max_conns_per_client=0)) as server:\n"
        "    print(server.address, flush=True); sys.stdin.read()"
    )
    with (
        RealAgent(binary=consul_binary, config=limits) as agent,
        subprocess.Popen(
            [sys.executable, "-c", serve], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as server,
    ):
        assert server.stdout is not None
        assert server.stdin is not None
        own = server.stdout.readline().strip()
        rounds = [(woken(own), woken(agent.address)) for _ in range(ROUNDS)]
        server.stdin.close()
    passed, took = ([median(side[i] for side in each) for each in zip(*rounds, strict=True)] for i in (0, 1))
    sys.stdout.write(f"write behind: {passed}; last one woken: {took}; ours first\n")
    assert took[0] <= 1.5 * took[1]
    assert passed[0] <= max(1.5 * passed[1], 0.5)
