"""This package's lock: blocking, on an event loop, and over a user's own client of httpx."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

from bench.contenders.pairs import timed
from consul_coord import AsyncClient, AsyncLock, Client, Lock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.bed import Bed
    from bench.contenders.pairs import Pairs


class OursSync:
    """``Lock`` on a ``Client``."""

    name = "ours, sync"

    @contextmanager
    def open(self, bed: Bed) -> Iterator[Pairs]:
        """Make the client."""
        with Client(address=bed.address) as client:
            yield _pairs(client, bed.key())


class OursOverHttpx:
    """``Lock`` on a ``Client`` that carries everything over the user's own clients."""

    name = "ours, sync, over the user's httpx.Client"

    @contextmanager
    def open(self, bed: Bed) -> Iterator[Pairs]:
        """Make the clients. The background one lives and ends with the loop of our client's thread."""
        import httpx

        with (
            httpx.Client() as foreground,
            Client(
                address=bed.address, http_client=foreground, background_http_client=httpx.AsyncClient()
            ) as client,
        ):
            yield _pairs(client, bed.key())


def _pairs(client: Client, key: str) -> Pairs:
    lock = Lock(client, key)
    return timed(lambda: lock.acquire().release())


class OursAsync:
    """``AsyncLock`` on an ``AsyncClient``, one task."""

    name = "ours, async"

    @contextmanager
    def open(self, bed: Bed) -> Iterator[Pairs]:
        """Start a loop and enter the client in it."""
        with asyncio.Runner() as runner:
            client = AsyncClient(address=bed.address)
            runner.run(_enter(client))
            lock = AsyncLock(client, bed.key())
            try:
                yield lambda count: runner.run(_timed(lock, count))
            finally:
                runner.run(client.close())


async def _enter(client: AsyncClient) -> None:
    await client.__aenter__()


async def _timed(lock: AsyncLock, count: int) -> Sequence[float]:
    times: list[float] = []
    for _ in range(count):
        began = perf_counter()
        hold = await lock.acquire()
        await hold.release()
        times.append(perf_counter() - began)
    return times
