"""Connections from workers to their agent that a test can harm, byte by byte.

Rules
- What the proxy does is one value, ``harm``, for all its connections, old and new, until it is set to
  another.
- ``HOLD`` is the network that delivers late: what is held arrives when the harm ends, whether the client
  still waits for an answer or has hung up long ago. ``SWALLOW`` is the one that never does: such connections
  are cut at the end of the harm. ``CUT`` ends each connection in the middle of the next reply, ``RESET`` at
  once.
- It runs in one thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import socket
import struct
import threading
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import TracebackType
    from typing import Any, Self

T = TypeVar("T")

_CHUNK: Final = 65_536
_DELAY: Final = 0.3


class Harm(enum.StrEnum):
    """What is done to every connection."""

    NONE = enum.auto()
    DELAY = enum.auto()
    HOLD = enum.auto()
    SWALLOW = enum.auto()
    CUT = enum.auto()
    RESET = enum.auto()


class Proxy:
    """One listener before one agent; lives in the loop of its `Proxies`."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._harm = Harm.NONE
        self._calm = asyncio.Event()
        self._calm.set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def serve(self) -> None:
        """Serve until cancelled."""
        server = await asyncio.start_server(self._connected, sock=self._listener)
        try:
            await server.serve_forever()
        finally:
            self._reset_all()

    async def set(self, harm: Harm) -> None:
        """Do another harm from now on."""
        before, self._harm = self._harm, harm
        if Harm.RESET in {before, harm} or before is Harm.SWALLOW:
            self._reset_all()
        if harm is Harm.HOLD:
            self._calm.clear()
        else:
            self._calm.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            if self._harm is not Harm.RESET:
                await self._calm.wait()
                await self._join(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # cancelled only at the end of all, where asyncio would report it for each connection
        finally:
            _abort(writer)
            self._writers.discard(writer)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward_reader, onward_writer = await asyncio.open_connection(*self._upstream)
        self._writers.add(onward_writer)
        pumps = {
            asyncio.create_task(self._pump(reader, onward_writer, replies=False)),
            asyncio.create_task(self._pump(onward_reader, writer, replies=True)),
        }
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            _abort(onward_writer)
            self._writers.discard(onward_writer)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, replies: bool
    ) -> None:
        while data := await reader.read(_CHUNK):
            if self._harm is Harm.DELAY:
                await asyncio.sleep(_DELAY)
            await self._calm.wait()
            if self._harm is Harm.SWALLOW:
                continue
            cut = self._harm is Harm.CUT and replies
            writer.write(data[: len(data) // 2] if cut else data)
            await writer.drain()
            if cut:
                return

    def _reset_all(self) -> None:
        for writer in list(self._writers):
            _reset(writer)


class Proxies:
    """Several proxies in one thread; a context manager. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chaos-proxies", daemon=True)
        self._tasks: list[asyncio.Task[None]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def before(self, address: str) -> Proxy:
        """Return a new proxy before an agent, given as ``http://host:port``."""
        host, _, port = address.removeprefix("http://").rpartition(":")

        async def start() -> Proxy:
            proxy = Proxy((host, int(port)))
            self._tasks.append(asyncio.create_task(proxy.serve()))
            return proxy

        return self._call(start())

    def set(self, proxy: Proxy, harm: Harm) -> None:
        """Do a harm to a proxy's connections from now on."""
        self._call(proxy.set(harm))

    async def _end(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _abort(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, RuntimeError):
        writer.transport.abort()


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection as a machine that knows nothing of it does: with RST."""
    with contextlib.suppress(OSError):
        sock: socket.socket = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    _abort(writer)
