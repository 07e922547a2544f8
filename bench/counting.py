"""A proxy between a client and the agent that counts requests, replies and connections.

Rules
- It counts what passes, whoever sends it: a contender's own counters are not asked.
- Renewals and blocking queries go on by themselves and depend on how long a contender lives, so they are
  counted apart from the requests that a pair of calls makes.
- It passes bytes on as they are. It understands of HTTP what it needs to find where a request ends: requests
  with a Content-Length, or without a body. Another kind ends the connection. The replies of a connection
  belong to its requests in order.
- It is no part of any measure of time.
"""

from __future__ import annotations

import asyncio
import threading
import zlib
from collections import Counter, deque
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from httptools import HttpResponseParser

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from bench.bed import Bed

RENEWAL = "renewal"
WATCH = "blocking query"
REQUEST = "request"

_HEAD_END = b"\r\n\r\n"
_CHUNK = 64 * 1024
_START_TIMEOUT = 10.0
_CONFLICT = 409
_SAID = 64
"""Bytes of a reply that are kept: enough for a plain answer, compressed or not."""
_GZIP = b"\x1f\x8b"
_ANY_HEADER = 32 + zlib.MAX_WBITS


@dataclass(slots=True)
class Seen:
    """One request that passed, and its reply once that has passed, too."""

    method: str
    target: str
    body: bytes
    status: int = 0
    """The reply's; 0 while there is none."""
    read: int = 0
    """Bytes of the reply's body."""
    said: bytes = b""
    """How the reply's body begins, as it is on the wire."""

    @property
    def kind(self) -> str:
        """Return whether it is a renewal, a blocking query, or any other request."""
        url = urlsplit(self.target)
        if url.path.startswith("/v1/session/renew/"):
            return RENEWAL
        return WATCH if parse_qs(url.query).get("index", ["0"])[0] not in {"", "0"} else REQUEST

    @property
    def failed_cas(self) -> bool:
        """Return whether it was a write that named an index, and came too late for it."""
        if self.target.startswith("/v1/txn"):
            return self.status == _CONFLICT and b'"Verb":"cas"' in self.body
        return "cas" in parse_qs(urlsplit(self.target).query) and _plain(self.said) == b"false"


def _plain(body: bytes) -> bytes:
    """Return the beginning of a body as it was before it was compressed, if it was."""
    return zlib.decompressobj(_ANY_HEADER).decompress(body) if body.startswith(_GZIP) else body


@dataclass(slots=True)
class Counts:
    """What has passed so far. Written by the proxy's thread alone; read from any."""

    seen: list[Seen] = field(default_factory=list[Seen])
    connections: int = 0
    """Connections that are open now."""
    most_connections: int = 0
    """The most that were open at one time."""

    def by_kind(self, *, since: int = 0) -> Counter[str]:
        """Return how many requests of each kind have passed, leaving out the first ``since`` of all."""
        return Counter(request.kind for request in self.seen[since:])

    def failed_cas(self, *, since: int = 0) -> int:
        """Return how many writes came too late for the index that they named."""
        return sum(request.failed_cas for request in self.seen[since:])

    def read(self, *, since: int = 0) -> int:
        """Return how many bytes the replies' bodies had in all."""
        return sum(request.read for request in self.seen[since:])


@contextmanager
def counting_proxy(bed: Bed) -> Iterator[tuple[Bed, Counts]]:
    """Run a proxy in front of the bed's agent; gives the bed behind it, and the counts as they grow."""
    proxy = _Proxy(bed.host, bed.port)
    thread = threading.Thread(target=proxy.run, name="bench-proxy", daemon=True)
    thread.start()
    try:
        yield bed.behind(proxy.address()), proxy.counts
    finally:
        proxy.stop()
        thread.join()


class _Proxy:
    def __init__(self, host: str, port: int) -> None:
        self.counts = Counts()
        self._upstream = (host, port)
        self._ready = threading.Event()
        self._port = 0
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()

    def run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    def address(self) -> str:
        if not self._ready.wait(_START_TIMEOUT):
            message = "the counting proxy did not start"
            raise RuntimeError(message)
        return f"http://127.0.0.1:{self._port}"

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        # Leaving the loop's runner cancels what is still connected.
        await self._stopping.wait()
        server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Cancelled when the proxy stops.
        with suppress(OSError, asyncio.CancelledError):
            async with self._counted(), _closing(writer):
                up_reader, up_writer = await asyncio.open_connection(*self._upstream)
                async with _closing(up_writer):
                    asked: deque[Seen] = deque()
                    replies = asyncio.create_task(_pass_on(up_reader, writer, _Replies(asked)))
                    try:
                        await self._requests(reader, up_writer, asked)
                    finally:
                        replies.cancel()

    @asynccontextmanager
    async def _counted(self) -> AsyncIterator[None]:
        counts = self.counts
        counts.connections += 1
        counts.most_connections = max(counts.most_connections, counts.connections)
        try:
            yield
        finally:
            counts.connections -= 1

    async def _requests(
        self, reader: asyncio.StreamReader, upstream: asyncio.StreamWriter, asked: deque[Seen]
    ) -> None:
        while head := await _head(reader):
            line, *fields = head.decode("latin-1").split("\r\n")
            names = {name.lower(): value for name, _, value in (each.partition(":") for each in fields)}
            if "transfer-encoding" in names:
                return
            body = await reader.readexactly(int(names.get("content-length", "0")))
            method, target, _ = line.split(" ")
            seen = Seen(method, target, body)
            self.counts.seen.append(seen)
            asked.append(seen)
            upstream.write(head + body)
            await upstream.drain()


async def _head(reader: asyncio.StreamReader) -> bytes:
    """Return the next request's head, or nothing when there is none any more."""
    try:
        return await reader.readuntil(_HEAD_END)
    except asyncio.IncompleteReadError:
        return b""


class _Replies:
    """Notes each reply of one connection with the request that it answers."""

    def __init__(self, asked: deque[Seen]) -> None:
        self._asked = asked
        self._parser = HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_headers_complete(self) -> None:
        self._asked[0].status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        seen = self._asked[0]
        seen.read += len(body)
        seen.said = (seen.said + body)[:_SAID]

    def on_message_complete(self) -> None:
        self._asked.popleft()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, replies: _Replies) -> None:
    with suppress(OSError):
        while data := await reader.read(_CHUNK):
            replies.feed(data)
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def _closing(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    try:
        yield
    finally:
        writer.close()
