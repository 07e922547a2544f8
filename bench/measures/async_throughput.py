"""How many pairs one process gets through on an event loop: 200 tasks, a key each."""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from bench.contenders.raw import PreparedPair, body_of, index_in, session, whole
from bench.results import Outcome
from bench.rounds import MILLI, figures, in_turns, open_all
from consul_coord import AsyncClient, AsyncLock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from typing import TypeAlias

    import httpx

    from bench.bed import Bed

TASKS = 200
RATE = "pairs per second"
CPU = "CPU per pair"
OURS = "ours, async"
OVER_HTTPX = "ours, async, over the user's httpx.AsyncClient"
HTTPX = "httpx.AsyncClient, the same transactions"

Load: TypeAlias = "Callable[[int], Sequence[float]]"
"""Has each task do so many pairs; returns the seconds and the CPU seconds that all took together."""


@dataclass(frozen=True, slots=True)
class Ours:
    """One ``AsyncClient``, a lock per task; over its own connections, or the user's ``httpx.AsyncClient``."""

    name: str = OURS
    over_httpx: bool = False

    @contextmanager
    def open(self, bed: Bed) -> Iterator[Load]:
        """Start a loop and enter the client in it."""
        with asyncio.Runner() as runner:
            users = _httpx_client() if self.over_httpx else None
            client = AsyncClient(address=bed.address, http_client=users, timeout=60.0)
            runner.run(_enter(client))
            locks = [AsyncLock(client, bed.key()) for _ in range(TASKS)]
            try:
                yield lambda cycles: runner.run(_load([partial(_hold_once, lock) for lock in locks], cycles))
            finally:
                runner.run(client.close())
                if users is not None:
                    runner.run(users.aclose())


class Httpx:
    """One ``httpx.AsyncClient`` with as many connections as tasks, sending the prepared transactions."""

    name = HTTPX

    @contextmanager
    def open(self, bed: Bed) -> Iterator[Load]:
        """Start a loop and open the client in it."""
        with session(bed) as made, asyncio.Runner() as runner:
            client = _httpx_client(base_url=bed.address)
            prepared = [PreparedPair.of(bed, whole(bed.key(), made)) for _ in range(TASKS)]
            try:
                yield lambda cycles: runner.run(
                    _load([partial(_pair, client, one) for one in prepared], cycles)
                )
            finally:
                runner.run(client.aclose())


def _httpx_client(*, base_url: str = "") -> httpx.AsyncClient:
    """Make a client with as many connections as tasks."""
    import httpx

    limits = httpx.Limits(max_connections=TASKS, max_keepalive_connections=TASKS)
    return httpx.AsyncClient(base_url=base_url, limits=limits, timeout=60)


async def _enter(client: AsyncClient) -> None:
    await client.__aenter__()


async def _hold_once(lock: AsyncLock) -> None:
    hold = await lock.acquire()
    await hold.release()


async def _pair(client: httpx.AsyncClient, prepared: PreparedPair) -> None:
    granted = await client.put("/v1/txn", content=body_of(prepared.lock))
    granted.raise_for_status()
    released = await client.put("/v1/txn", content=body_of(prepared.unlock(index_in(granted.content))))
    released.raise_for_status()


async def _load(pairs: Sequence[Callable[[], Awaitable[None]]], cycles: int) -> Sequence[float]:
    async def task(pair: Callable[[], Awaitable[None]]) -> None:
        for _ in range(cycles):
            await pair()

    began, cpu = perf_counter(), _cpu()
    async with asyncio.TaskGroup() as group:
        for pair in pairs:
            group.create_task(task(pair))
    return perf_counter() - began, _cpu() - cpu


def _cpu() -> float:
    times = os.times()
    return times.user + times.system


def run(bed: Bed) -> Outcome:
    """Load the agent with each client in turn."""
    cycles = bed.pick(full=5, quick=1)
    pairs = cycles * TASKS
    with ExitStack() as stack:
        opened, skipped = open_all(stack, (Httpx(), Ours(), Ours(OVER_HTTPX, over_httpx=True)), bed)
        samples = in_turns(opened, lambda _, load: load(cycles), rounds=bed.rounds(full=6, quick=1))
    rates = {name: [[pairs / seconds] for seconds, _ in rounds] for name, rounds in samples.items()}
    costs = {name: [[cpu / pairs] for _, cpu in rounds] for name, rounds in samples.items()}
    return Outcome(
        measure="async_throughput",
        title=f"Async throughput: {TASKS} tasks, {TASKS} keys, one process",
        base=HTTPX,
        figures=(
            *figures(rates, what=RATE, unit="/s", scale=1.0, base=HTTPX),
            *figures(costs, what=CPU, unit="ms", scale=MILLI, base=HTTPX),
        ),
        skipped=skipped,
    )
