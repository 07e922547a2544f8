"""How a lock scales with the number of those who want it: one queue of up to 10,000, and 1,000 short ones.

In virtual time, with the product's own clients and the reference server's state (``bench.virtual``).

Rules
- Of a long queue only its ends are clients: the first, whose handoffs are counted, and the last, whose joins
  are. Those between are sessions that queue in the form that clients queue in, and do nothing.
- All clients have had the key before: who has not, looks once more before his first join.
- A handoff is what happens from one holder's release until the next one holds, and the one after that has
  moved up: with requests of all clients, renewals left out.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import httpx

from bench.hearing import Waiters
from bench.results import Figure, Outcome, Spread
from bench.rounds import MILLI
from bench.virtual import COMMIT, LATENCY, VirtualAgent, VirtualLoop
from consul_coord import LOCK_FLAGS, AsyncClient, AsyncLock, SessionSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.bed import Bed
    from bench.virtual import Counted
    from consul_coord import AsyncHold

FRONT = 8
"""Clients at the head of a queue."""
TAIL = 4
"""Clients that join at its end."""
SIZES = (10, 100, 1_000, 10_000)
QUICK_SIZES = (20, 100)
KEYS, EACH = (1_000, 3)
QUICK_KEYS = 20
REQUESTS = "requests per handoff"
ENTRIES = "Raft entries per handoff"
READ = "KiB read per handoff"
LATE = "handoff"
JOIN_REQUESTS = "requests per join"
JOIN_ENTRIES = "Raft entries per join"
JOIN_READ = "KiB read per join"
LISTINGS = "listings of the queue per join"
ADDRESS = "http://virtual:8500"
_KEY = "capacity/key"
_OPS = 64
_QUIET = SessionSpec(ttl=86_400.0, lock_delay=60.0)
"""Renewed so seldom, by its longest lock-delay, that no renewal falls into what is counted."""


def queue(size: int) -> str:
    """Return what the figures of one queue are called."""
    return f"a queue of {size:,}"


class Fleet:
    """Clients in one virtual loop."""

    def __init__(self, loop: VirtualLoop, agent: VirtualAgent, stack: AsyncExitStack) -> None:
        self.waiters = Waiters()
        self._loop = loop
        self._agent = agent
        self._stack = stack
        self._http = httpx.AsyncClient(transport=agent)
        self._clients = 0

    async def client(self) -> AsyncClient:
        """Add a client."""
        self._clients += 1
        client = AsyncClient(
            address=ADDRESS,
            http_client=self._http,
            clock=self._loop,
            session=_QUIET,
            observer=self.waiters.observer(str(self._clients)),
        )
        return await self._stack.enter_async_context(client)

    async def fill(self, count: int) -> None:
        """Queue up so many sessions that are nobody's."""
        made: list[str] = []
        for _ in range(count):
            reply = await self._agent.serve("PUT", "/v1/session/create", b'{"NodeChecks": []}')
            made.append(json.loads(reply.body)["ID"])
        for first in range(0, count, _OPS):
            ops = [
                {
                    "Verb": "lock",
                    "Key": f"{_KEY}/.wait/{each}",
                    "Session": each,
                    "Flags": LOCK_FLAGS,
                    "Value": "",
                }
                for each in made[first : first + _OPS]
            ]
            await self._agent.serve("PUT", "/v1/txn", json.dumps([{"KV": op} for op in ops]).encode())


async def _queue(loop: VirtualLoop, size: int) -> tuple[Counted, Counted, int]:
    """Return what the handoffs at the head came to, and what the joins at the end did, and how many joins."""
    async with AsyncExitStack() as stack:
        agent = VirtualAgent(loop)
        fleet = Fleet(loop, agent, stack)
        tail = min(TAIL, size - FRONT)
        locks = [AsyncLock(await fleet.client(), _KEY) for _ in range(1 + FRONT + tail)]
        for lock in locks:
            await (await lock.acquire()).release()
        holder = await locks[0].acquire()
        front = [await _join(fleet, lock, number) for number, lock in enumerate(locks[1 : FRONT + 1], 1)]
        await fleet.fill(size - FRONT - tail)
        before = agent.counted()
        last = [await _join(fleet, lock, number) for number, lock in enumerate(locks[FRONT + 1 :], FRONT + 1)]
        joined = agent.counted().since(before)
        before = agent.counted()
        await _pass_along(holder, front)
        handed = agent.counted().since(before)
        for task in last:
            task.cancel()
        await asyncio.gather(*last, return_exceptions=True)
    return handed, joined, tail


async def _join(fleet: Fleet, lock: AsyncLock, waiting: int) -> asyncio.Task[AsyncHold]:
    """Have one more wait; return when so many do."""
    task = asyncio.create_task(lock.acquire())
    await fleet.waiters.all(waiting)
    await asyncio.sleep(1.0)  # until its blocking query is with the agent
    return task


async def _pass_along(hold: AsyncHold, waiting: Sequence[asyncio.Task[AsyncHold]]) -> None:
    """Give the lock to one after the other; the last keeps it."""
    for task in waiting:
        await hold.release()
        hold = await task
    await asyncio.sleep(1.0)  # until the next one has moved up


async def _many(loop: VirtualLoop, keys: int) -> Counted:
    """Return what it took to let each of its clients have each key once, from the first join on."""
    async with AsyncExitStack() as stack:
        agent = VirtualAgent(loop)
        fleet = Fleet(loop, agent, stack)
        names = [f"capacity/{number}" for number in range(keys)]
        clients = [[await fleet.client() for _ in range(EACH)] for _ in names]
        before = agent.counted()
        await asyncio.gather(
            *(_take(client, name) for name, each in zip(names, clients, strict=True) for client in each)
        )
        return agent.counted().since(before)


async def _take(client: AsyncClient, key: str) -> None:
    async with AsyncLock(client, key):
        await asyncio.sleep(0.01)


def run(bed: Bed) -> Outcome:
    """Count queues of growing length, then many of one length."""
    sizes, keys = bed.pick(full=(SIZES, KEYS), quick=(QUICK_SIZES, QUICK_KEYS))
    found = [figure for size in sizes for figure in queue_figures(size)]
    found += _many_figures(keys)
    return Outcome(
        measure="capacity",
        title="Capacity: clients and queues in virtual time",
        figures=tuple(found),
        notes=(
            f"One way takes {LATENCY * MILLI:g} ms, an agreement of the servers {COMMIT * MILLI:g} ms more.",
            f"Counted for {FRONT} handoffs at the head of each queue and {TAIL} joins at its end.",
            "In many queues each client makes its session, looks, joins, takes, and leaves: all is counted.",
        ),
    )


def _virtually(loop: VirtualLoop) -> asyncio.Runner:
    return asyncio.Runner(loop_factory=lambda: loop)


def queue_figures(size: int) -> Iterator[Figure]:
    """Count one queue."""
    loop = VirtualLoop()
    with _virtually(loop) as runner:
        handed, joined, joins = runner.run(_queue(loop, size))
    values = {
        REQUESTS: ("", handed.requests / FRONT),
        ENTRIES: ("", handed.entries / FRONT),
        READ: ("KiB", handed.read / FRONT / 1024),
        LATE: ("ms", (handed.time - 1.0) / FRONT * MILLI),
        JOIN_REQUESTS: ("", joined.requests / joins),
        JOIN_ENTRIES: ("", joined.entries / joins),
        JOIN_READ: ("KiB", joined.read / joins / 1024),
        LISTINGS: ("", joined.listings / joins),
    }
    for what, (unit, value) in values.items():
        yield Figure(contender=queue(size), what=what, unit=unit, value=Spread.of([value]))


def _many_figures(keys: int) -> Iterator[Figure]:
    loop = VirtualLoop()
    with _virtually(loop) as runner:
        found = runner.run(_many(loop, keys))
    holds = keys * EACH
    values = {
        "requests per hold": ("", found.requests / holds),
        "Raft entries per hold": ("", found.entries / holds),
        "KiB read per hold": ("KiB", found.read / holds / 1024),
        "until all have had it": ("s", found.time),
    }
    for what, (unit, value) in values.items():
        name = f"{keys:,} queues of {EACH}"
        yield Figure(contender=name, what=what, unit=unit, value=Spread.of([value]))
