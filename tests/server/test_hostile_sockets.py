"""Hostile clients on real sockets: whatever they send, and however they leave, nothing of it stays.

The server runs in the test's own event loop, so that its tasks, its open files and what it would only log can
be looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import http.client
import logging
import random
import socket
import struct
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consul_coord.clock import SystemClock
from consul_coord.server import ReferenceServer, ServerConfig
from consul_coord.server.app import App
from consul_coord.server.faults import Faults
from consul_coord.server.host import Host
from consul_coord.server.openapi import describe
from consul_coord.server.service import Service
from consul_coord.server.state import ConsulState
from consul_coord.server.transport import Listener
from tests.server.hostile import Attacker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from consul_coord.server.wire import Request

    Reader = asyncio.StreamReader
    Writer = asyncio.StreamWriter
    Manner = Callable[[Reader, Writer, bytes], Awaitable[None]]

DEADLINE: Final = 20.0
PATIENCE: Final = 0.05  # of a client whose request may block, or is none
LONGER: Final = 1.0  # of one whose request is answered at once, on a busy machine
AT_ONCE: Final = 32
CONFIG: Final = ServerConfig(http_max_conns_per_client=0)
STATUSES: Final = frozenset({200, 301, 400, 401, 403, 404, 405, 409, 413, 500, 501})
FILES: Final = Path("/proc/self/fd")
RESET: Final = struct.pack("ii", 1, 0)
NO_HTTP: Final = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\x00" * 300,
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /" + b"a" * 100_000,
    b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 5_000 + b"\r\n",
    b"PUT /v1/kv/k HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    b"PUT /v1/kv/k HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
    b"PUT /v1/kv/k HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"PUT /v1/kv/k HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
    b"GET /v1/kv/k HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    b"GET /v1/kv/k HTTP/1.0\r\n\r\n",
    b"POST * HTTP/1.1\r\n\r\n",
)


pytestmark = pytest.mark.skipif(not FILES.exists(), reason="open files are counted in /proc")


class Site:
    """A server in this event loop, and how it is looked at."""

    def __init__(self) -> None:
        ids = (f"00000000-0000-4000-8000-{number:012x}" for number in range(10**12))
        state = ConsulState(now=SystemClock().now(), new_id=lambda: next(ids), config=CONFIG)
        self.host = Host(Service(state, random=lambda: 0.0), SystemClock())
        self.listener = Listener(App(self.host, Faults()), max_conns_per_client=0)
        self.complaints: list[str] = []
        self.replies = 0
        self._place: tuple[str, int] = ("", 0)

    async def start(self) -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: self.complaints.append(repr(context))
        )
        listening = socket.create_server(("127.0.0.1", 0))
        self._place = listening.getsockname()
        await self.listener.start(listening, None)

    async def visit(self, manner: Manner, sent: bytes) -> None:
        reader, writer = await asyncio.open_connection(*self._place)
        try:
            with contextlib.suppress(ConnectionError):
                await manner(reader, writer, sent)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def whole(self, reader: Reader, writer: Writer, sent: bytes) -> None:
        """Read all that comes, and leave when nothing comes."""
        writer.write(sent)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LONGER if is_answered(sent) else PATIENCE):
                head = await reader.readuntil(b"\r\n")
                assert int(head.split()[1]) in STATUSES, (sent, head)
                self.replies += 1
                await reader.read()

    async def twice(self, reader: Reader, writer: Writer, sent: bytes) -> None:
        await self.whole(reader, writer, sent + sent)

    async def half(self, _: Reader, writer: Writer, sent: bytes) -> None:
        writer.write(sent[: len(sent) // 2])
        await writer.drain()

    async def half_then_nothing(self, reader: Reader, writer: Writer, sent: bytes) -> None:
        writer.write(sent[: len(sent) // 2])
        writer.write_eof()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await reader.read()

    async def deaf(self, _: Reader, writer: Writer, sent: bytes) -> None:
        writer.write(sent * 20)
        await writer.drain()

    async def reset(self, _: Reader, writer: Writer, sent: bytes) -> None:
        writer.write(sent)
        await asyncio.sleep(0)
        raw: socket.socket = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        writer.transport.abort()

    async def nothing_is_left(self, files: int) -> None:
        """Wait until all is as it was before anybody came."""
        async with asyncio.timeout(DEADLINE):
            while len(asyncio.all_tasks()) > 1 or self.host.service.blocked or open_files() > files:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert self.complaints == []


def is_answered(sent: bytes) -> bool:
    """Tell whether what is sent is a request that is surely answered at once."""
    return sent not in NO_HTTP and b"index=" not in sent and b"chunked" not in sent


def open_files() -> int:
    return sum(1 for _ in FILES.iterdir())


def on_the_wire(request: Request, random: Random) -> bytes:
    """Return a request as bytes, with its faults in it."""
    target = f"{request.path}?{request.query}".encode("utf-8", "surrogatepass").replace(b" ", b"%20")
    headers = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    framing = f"Content-Length: {len(request.body)}\r\nConnection: close\r\n"
    head = f"{request.method} ".encode() + target + f" HTTP/1.1\r\nHost: x\r\n{framing}".encode()
    body = request.body
    if random.randrange(10) == 0:
        head = head.replace(f"Content-Length: {len(body)}".encode(), b"Transfer-Encoding: chunked")
        body = f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n" if body else b"0\r\n\r\n"
    return head + headers.encode("utf-8", "surrogatepass") + b"\r\n" + body


async def attack(seed: int, visits: int) -> int:
    """Send that many clients, a few at once; return how many of them had a reply."""
    site, source = Site(), random.Random(seed)
    attacker = Attacker(describe(CONFIG), source)
    manners: tuple[Manner, ...] = (
        *(site.whole,) * 4,
        *(site.twice, site.half, site.half_then_nothing, site.deaf, site.reset),
    )
    await site.start()
    files = open_files()
    for _ in range(visits // AT_ONCE):
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                odd = source.randrange(8) == 0
                sent = source.choice(NO_HTTP) if odd else on_the_wire(attacker.request(), source)
                group.create_task(site.visit(source.choice(manners), sent))
    await site.nothing_is_left(files)
    await site.listener.stop(site.host.dismiss, 1.0)
    site.host.close()
    return site.replies


def test_a_header_of_a_reply_may_name_what_is_no_utf_8() -> None:
    with ReferenceServer() as server:
        connection = http.client.HTTPConnection(server.address.removeprefix("http://"), timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", "/v1/agent/health/service/id/%ff")
            answer = connection.getresponse()
    assert (answer.status, answer.headers["X-Consul-Reason"]) == (404, "ServiceId \xff not found")


@pytest.mark.search
@pytest.mark.timeout(180)
def test_hostile_clients_leave_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    seeds = st.integers(0, 2**32)

    @settings(max_examples=3, deadline=None)
    @given(seed=seeds)
    def once(seed: int) -> None:
        assert asyncio.run(attack(seed, 128)) > 20

    once()
    assert [record.getMessage() for record in caplog.records if record.levelname != "WARNING"] == []


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_thousands_of_hostile_clients_take_no_memory(caplog: pytest.LogCaptureFixture) -> None:
    def held(seed: int) -> int:
        asyncio.run(attack(seed, 1_000))
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    # What pytest keeps of the many warnings would be counted with what the server keeps.
    caplog.set_level(logging.ERROR, "consul_coord.server")
    tracemalloc.start()
    try:
        held(0)  # what is loaded and cached once
        first = held(1)
        last = [held(seed) for seed in range(2, 6)][-1]
    finally:
        tracemalloc.stop()
    assert last - first < 300_000
    assert [record.getMessage() for record in caplog.records] == []
