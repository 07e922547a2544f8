"""This package's lock and semaphore: blocking, on an event loop, and over a user's own client of httpx."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from bench.contenders.pairs import timed
from consul_coord import AsyncClient, AsyncLock, AsyncSemaphore, Client, Lock, Semaphore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.bed import Bed
    from bench.contenders.pairs import Pairs
    from consul_coord import AsyncHold, Hold

SLOTS = 3
"""The limit of every semaphore that is measured; the Go program has the same."""


class Taker(Protocol):
    """What can be acquired: a lock, or a semaphore's slot."""

    def acquire(self) -> Hold:
        """Get it."""
        ...


class AsyncTaker(Protocol):
    """The same on an event loop."""

    async def acquire(self) -> AsyncHold:
        """Get it."""
        ...


@dataclass(frozen=True, slots=True)
class OursSync:
    """On a ``Client``."""

    name: str = "ours, sync"
    make: Callable[[Client, str], Taker] = Lock

    @contextmanager
    def open(self, bed: Bed) -> Iterator[Pairs]:
        """Make the client."""
        with Client(address=bed.address) as client:
            yield _pairs(self.make(client, bed.key()))


@dataclass(frozen=True, slots=True)
class OursOverHttpx:
    """On a ``Client`` that carries everything over the user's own clients."""

    name: str = "ours, sync, over the user's httpx.Client"
    make: Callable[[Client, str], Taker] = Lock

    @contextmanager
    def open(self, bed: Bed) -> Iterator[Pairs]:
        """Make the clients. The background one belongs to a loop that ends first: it keeps nothing open."""
        import httpx

        background = httpx.AsyncClient(limits=httpx.Limits(max_keepalive_connections=0))
        with (
            httpx.Client() as foreground,
            Client(address=bed.address, http_client=foreground, background_http_client=background) as client,
        ):
            yield _pairs(self.make(client, bed.key()))


def _pairs(taker: Taker) -> Pairs:
    return timed(lambda: taker.acquire().release())


@dataclass(frozen=True, slots=True)
class OursAsync:
    """On an ``AsyncClient``, one task."""

    name: str = "ours, async"
    make: Callable[[AsyncClient, str], AsyncTaker] = AsyncLock

    @contextmanager
    def open(self, bed: Bed) -> Iterator[Pairs]:
        """Start a loop and enter the client in it."""
        with asyncio.Runner() as runner:
            client = AsyncClient(address=bed.address)
            runner.run(_enter(client))
            taker = self.make(client, bed.key())
            try:
                yield lambda count: runner.run(_timed(taker, count))
            finally:
                runner.run(client.close())


def slots(client: Client, prefix: str) -> Semaphore:
    """Return the semaphore that is measured."""
    return Semaphore(client, prefix, SLOTS)


def async_slots(client: AsyncClient, prefix: str) -> AsyncSemaphore:
    """Return the semaphore that is measured, for an event loop."""
    return AsyncSemaphore(client, prefix, SLOTS)


async def _enter(client: AsyncClient) -> None:
    await client.__aenter__()


async def _timed(taker: AsyncTaker, count: int) -> Sequence[float]:
    times: list[float] = []
    for _ in range(count):
        began = perf_counter()
        hold = await taker.acquire()
        await hold.release()
        times.append(perf_counter() - began)
    return times
