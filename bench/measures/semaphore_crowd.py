"""A semaphore with many waiting: how long a slot lies idle, how many writes fail, how much is read.

Rules
- Every contender has a client of its own, all in one process, and takes a slot a few times, for some
  milliseconds each time, so that all slots go from hand to hand at once.
- A handoff lasts from just before a release to the return of the acquire that gets a slot next.
- What goes over the wire is counted in a run of its own, through the proxy, from the first release on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from bench.contenders.go_client import go_peer
from bench.contenders.ours import SLOTS
from bench.counting import counting_proxy
from bench.hearing import Waiters
from bench.measures.handoff import settling
from bench.results import Figure, Outcome, Spread
from bench.rounds import MILLI, open_all
from consul_coord import AsyncClient, AsyncSemaphore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bench.bed import Bed
    from bench.contenders.go_client import GoPeer
    from bench.counting import Counts
    from bench.rounds import Contender
    from consul_coord import AsyncPermit

TURNS = 2
HOLD = 0.01
"""Seconds for which a slot is held."""
HANDOFF = "slot handoff"
FAILED = "failed CAS per acquisition"
READ = "KiB read per handoff"
REQUESTS = "requests per handoff, blocking queries too"


class Crowd(Protocol):
    """So many who want one of three slots."""

    def prepare(self, contenders: int) -> None:
        """Make their clients, in place of those before."""
        ...

    def run(self, prefix: str) -> Sequence[float]:
        """Let each have a slot a few times; return the seconds of each handoff."""
        ...


class OursAsync:
    """``AsyncSemaphore`` on an ``AsyncClient`` per contender, one task each."""

    name = "ours, async"

    @contextmanager
    def open(self, bed: Bed) -> Iterator[Crowd]:
        """Start a loop."""
        with asyncio.Runner() as runner:
            crowd = _OurCrowd(bed, runner)
            try:
                yield crowd
            finally:
                crowd.close()


class _OurCrowd:
    def __init__(self, bed: Bed, runner: asyncio.Runner) -> None:
        self._bed = bed
        self._runner = runner
        self._clients: list[AsyncClient] = []
        self._waiters = Waiters()

    def prepare(self, contenders: int) -> None:
        self._runner.run(self._prepare(contenders))

    def run(self, prefix: str) -> Sequence[float]:
        return self._runner.run(self._run(prefix))

    def close(self) -> None:
        self._runner.run(self._close())

    async def _prepare(self, contenders: int) -> None:
        await self._close()
        self._waiters = Waiters()
        for number in range(contenders):
            client = AsyncClient(address=self._bed.address, observer=self._waiters.observer(str(number)))
            await client.__aenter__()
            self._clients.append(client)

    async def _close(self) -> None:
        clients, self._clients = self._clients, []
        for client in clients:
            await client.close()

    async def _run(self, prefix: str) -> Sequence[float]:
        freed: deque[float] = deque()
        times: list[float] = []

        async def leave(permit: AsyncPermit) -> None:
            freed.append(perf_counter())
            await permit.release()

        async def turns(semaphore: AsyncSemaphore, count: int) -> None:
            for _ in range(count):
                permit = await semaphore.acquire()
                if freed:
                    times.append(perf_counter() - freed.popleft())
                await asyncio.sleep(HOLD)
                await leave(permit)

        async def first(semaphore: AsyncSemaphore, permit: AsyncPermit) -> None:
            await leave(permit)
            await turns(semaphore, TURNS - 1)

        semaphores = [AsyncSemaphore(client, prefix, SLOTS) for client in self._clients]
        permits = [await semaphore.acquire() for semaphore in semaphores[:SLOTS]]
        async with asyncio.TaskGroup() as group:
            for semaphore in semaphores[SLOTS:]:
                group.create_task(turns(semaphore, TURNS))
            await self._waiters.all(len(semaphores) - SLOTS)
            await asyncio.sleep(settling(len(semaphores)))
            for semaphore, permit in zip(semaphores, permits, strict=False):
                group.create_task(first(semaphore, permit))
        return times


class Go:
    """``api.Semaphore``, one goroutine each."""

    name = "Go api.Semaphore"

    @contextmanager
    def open(self, bed: Bed) -> Iterator[Crowd]:
        """Start the program."""
        with go_peer(bed) as peer:
            yield _GoCrowd(peer)


@dataclass(slots=True)
class _GoCrowd:
    peer: GoPeer
    contenders: int = 0

    def prepare(self, contenders: int) -> None:
        self.contenders = contenders
        self.peer.ask(f"prepare {contenders - 1}")

    def run(self, prefix: str) -> Sequence[float]:
        wait = settling(self.contenders) * MILLI
        return self.peer.ask(f"slots {prefix} {wait:.0f} {HOLD * MILLI:.0f} {TURNS}")


GO = Go()
CONTENDERS: tuple[Contender[Crowd], ...] = (GO, OursAsync())
GO_MOST = 50
"""Larger crowds of Go's clients take a minute a round: every change wakes all of them."""
ROUNDS: Mapping[int, int] = {10: 8, 50: 3, 150: 1}
"""How many crowds of so many each contender runs."""
QUICK_ROUNDS: Mapping[int, int] = {10: 1}


def run(bed: Bed) -> Outcome:
    """Run growing crowds, contenders in turns; then count once."""
    sizes = bed.pick(full=ROUNDS, quick=QUICK_ROUNDS)
    found: list[Figure] = []
    with ExitStack() as stack:
        opened, skipped = open_all(stack, CONTENDERS, bed)
        for size, rounds in sizes.items():
            able = {name: crowd for name, crowd in opened.items() if _is_able(name, size)}
            found += _time(bed, able, size=size, rounds=rounds)
    for size in sizes:
        for each in CONTENDERS:
            if each.name in opened and _is_able(each.name, size):
                found += count(bed, each, size=size)
    return Outcome(
        measure="semaphore_crowd",
        title=f"A semaphore of {SLOTS} slots with many waiting",
        base=GO.name,
        figures=tuple(found),
        skipped=skipped,
        notes=(
            f"Each takes a slot {TURNS} times, for {HOLD * MILLI:.0f} ms. Ratios are of medians.",
            f"Go's clients beyond {GO_MOST} are left out: a round takes them a minute.",
            "Bytes are those of replies' bodies on the wire, which the agent compresses for Go's client.",
        ),
    )


def _is_able(name: str, size: int) -> bool:
    return name != GO.name or size <= GO_MOST


def _time(bed: Bed, opened: Mapping[str, Crowd], *, size: int, rounds: int) -> Sequence[Figure]:
    times: dict[str, list[float]] = {name: [] for name in opened}
    for _ in range(rounds):
        for name, crowd in opened.items():
            crowd.prepare(size)
            times[name] += crowd.run(bed.key())
    spreads = {name: Spread.of(values, scale=MILLI) for name, values in times.items()}
    base = spreads.get(GO.name)
    return [
        Figure(
            contender=name,
            what=f"{size} contenders: {HANDOFF}",
            unit="ms",
            value=value,
            ratio=None if base is None else Spread.of([value.median / base.median]),
        )
        for name, value in spreads.items()
    ]


def count(bed: Bed, contender: Contender[Crowd], *, size: int) -> Sequence[Figure]:
    """Count what one crowd sends and reads. Raises Unavailable."""
    with counting_proxy(bed) as (behind, counts), contender.open(behind) as crowd:
        crowd.prepare(size)
        crowd.run(bed.key())
        return list(_counted(contender.name, counts, size=size))


def _counted(name: str, counts: Counts, *, size: int) -> Iterator[Figure]:
    """Sum up a run; its joins are part of it, so that a handoff bears the cost of its waiting."""
    acquisitions = size * TURNS
    kinds = counts.by_kind()
    found = {
        FAILED: ("", counts.failed_cas() / acquisitions),
        READ: ("KiB", counts.read() / 1024 / acquisitions),
        REQUESTS: ("", (kinds["request"] + kinds["blocking query"]) / acquisitions),
    }
    for what, (unit, value) in found.items():
        yield Figure(contender=name, what=f"{size} contenders: {what}", unit=unit, value=Spread.of([value]))
