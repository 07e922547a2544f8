"""How long a lock lies idle when it goes from one holder to the next, with many waiting.

Rules
- Every contender has a session and a client of its own, all in one process; each waiter gets the lock once
  and gives it up at once.
- A handoff lasts from just before one holder's release to the next one's return from acquire.
- Raft entries are counted over everything that the waiting brings, from the first to join to the last to
  leave, and divided by the holds; sessions are made before, and ended after.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from bench.contenders.go_client import go_peer
from bench.hearing import Waiters
from bench.results import Figure, Outcome, Spread
from bench.rounds import MILLI, open_all
from consul_coord import AsyncClient, AsyncLock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bench.bed import Bed
    from bench.contenders.go_client import GoPeer
    from bench.rounds import Contender


def settling(waiters: int) -> float:
    """Return the seconds that waiters are given to have their blocking queries with the agent."""
    return 0.3 + 0.01 * waiters


class Chain(Protocol):
    """One holder and some waiters."""

    def prepare(self, waiters: int) -> None:
        """Make their clients and sessions, in place of those before."""
        ...

    def run(self, key: str, waiters: int) -> Sequence[float]:
        """Let each have the lock once; return the seconds of each handoff."""
        ...


NAME = "ours, async"


class OursAsync:
    """``AsyncLock`` on an ``AsyncClient`` per contender, one task each."""

    name = NAME

    @contextmanager
    def open(self, bed: Bed) -> Iterator[Chain]:
        """Start a loop."""
        with asyncio.Runner() as runner:
            chain = _OurChain(bed, runner)
            try:
                yield chain
            finally:
                chain.close()


class _OurChain:
    def __init__(self, bed: Bed, runner: asyncio.Runner) -> None:
        self._bed = bed
        self._runner = runner
        self._clients: list[AsyncClient] = []
        self._joined = Waiters()

    def prepare(self, waiters: int) -> None:
        self._runner.run(self._prepare(waiters))

    def run(self, key: str, waiters: int) -> Sequence[float]:
        return self._runner.run(self._run(key, waiters))

    def close(self) -> None:
        self._runner.run(self._close())

    async def _prepare(self, waiters: int) -> None:
        await self._close()
        self._joined = Waiters()
        for number in range(waiters + 1):
            client = AsyncClient(address=self._bed.address, observer=self._joined.observer(str(number)))
            await client.__aenter__()
            self._clients.append(client)
            hold = await AsyncLock(client, self._bed.key()).acquire()
            await hold.release()

    async def _close(self) -> None:
        clients, self._clients = self._clients, []
        for client in clients:
            await client.close()

    async def _run(self, key: str, waiters: int) -> Sequence[float]:
        released = 0.0
        times: list[float] = []

        async def contend(client: AsyncClient) -> None:
            nonlocal released
            hold = await AsyncLock(client, key).acquire()
            now = perf_counter()
            times.append(now - released)
            released = now
            await hold.release()

        first = await AsyncLock(self._clients[0], key).acquire()
        async with asyncio.TaskGroup() as group:
            for client in self._clients[1:]:
                group.create_task(contend(client))
            await self._joined.all(waiters)
            await asyncio.sleep(settling(waiters))
            released = perf_counter()
            await first.release()
        return times


class Go:
    """``api.Lock``, one goroutine each."""

    name = "Go api.Lock"

    @contextmanager
    def open(self, bed: Bed) -> Iterator[Chain]:
        """Start the program."""
        with go_peer(bed) as peer:
            yield _GoChain(peer)


@dataclass(frozen=True, slots=True)
class _GoChain:
    peer: GoPeer

    def prepare(self, waiters: int) -> None:
        self.peer.ask(f"prepare {waiters}")

    def run(self, key: str, waiters: int) -> Sequence[float]:
        return self.peer.ask(f"handoff {key} {settling(waiters) * MILLI:.0f}")


GO = Go()
CONTENDERS: tuple[Contender[Chain], ...] = (GO, OursAsync())
ROUNDS: Mapping[int, int] = {1: 20, 10: 4, 50: 2, 150: 1}
"""How many chains of so many waiters each contender runs."""
QUICK_ROUNDS: Mapping[int, int] = {1: 2, 5: 1}


def run(bed: Bed) -> Outcome:
    """Run chains of growing length, contenders in turns."""
    found: list[Figure] = []
    with ExitStack() as stack:
        opened, skipped = open_all(stack, CONTENDERS, bed)
        for waiters, rounds in bed.pick(full=ROUNDS, quick=QUICK_ROUNDS).items():
            found += _measure(bed, opened, waiters=waiters, rounds=rounds)
    return Outcome(
        measure="handoff",
        title="Handoff from holder to waiter",
        base=GO.name,
        figures=tuple(found),
        skipped=skipped,
        notes=("Ratios are of medians over all handoffs at that length of queue; the mean shows stalls.",),
    )


def _measure(bed: Bed, opened: Mapping[str, Chain], *, waiters: int, rounds: int) -> Iterator[Figure]:
    times: dict[str, list[float]] = {name: [] for name in opened}
    entries: dict[str, list[float]] = {name: [] for name in opened}
    for _ in range(rounds):
        for name, chain in opened.items():
            chain.prepare(waiters)
            index = bed.raft_index()
            times[name] += chain.run(bed.key(), waiters)
            entries[name].append((bed.raft_index() - index) / (waiters + 1))
    what = f"{waiters} waiting"
    spreads = {name: Spread.of(values, scale=MILLI) for name, values in times.items()}
    base = spreads.get(GO.name)
    for name, value in spreads.items():
        ratio = None if base is None else Spread.of([value.median / base.median])
        yield Figure(contender=name, what=what, unit="ms", value=value, ratio=ratio)
    for name, values in entries.items():
        yield Figure(contender=name, what=f"{what}: Raft entries per hold", unit="", value=Spread.of(values))
