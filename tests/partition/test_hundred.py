"""A hundred members with a thousand partitions on a real agent: what one member more or less costs."""

from __future__ import annotations

import statistics
import sys
import time
from contextlib import AsyncExitStack, nullcontext
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Final

import anyio
import pytest

from bench.bed import Bed
from bench.counting import REQUEST, counting_proxy
from consul_coord import AsyncClient, AsyncGroup, AsyncHold, AsyncPartitioner, SessionSpec
from consul_coord.recipes.partition.rendezvous import Rendezvous
from consul_coord.testing.agent import RealAgent
from tests.support.stalls import stalls

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from bench.counting import Counts

MEMBERS: Final = 100
PARTITIONS: Final = 1_000
SPEC: Final = SessionSpec(ttl=60, lock_delay=15)
SETTLED: Final = 2.0
"""Seconds from the call that joins or leaves until every partition is with the owner that is due."""
ROUNDS: Final = 5
QUIET: Final = 1.0
"""Seconds for what is still under way then: it counts as requests and entries, not as time."""


@pytest.fixture
def agent(consul_binary: Path) -> Iterator[RealAgent]:
    with RealAgent(binary=consul_binary, config={"limits": {"http_max_conns_per_client": 0}}) as agent:
        yield agent


@dataclass(frozen=True)
class Cost:
    """What one change came to."""

    moves: int
    seconds: float
    late: float
    """What the machine itself was late."""
    busy: float
    """Seconds of the processor, for all members together."""
    entries: int
    requests: int
    """Without renewals and waiting queries; 0 where they are not counted."""


class Hall:
    """The members, all in one process."""

    def __init__(self, bed: Bed, counts: Counts | None, stack: AsyncExitStack) -> None:
        self._bed, self._counts, self._stack = bed, counts, stack
        self.partitioners: dict[str, AsyncPartitioner] = {}
        self._rendezvous = Rendezvous([str(number) for number in range(PARTITIONS)])
        self.owners: dict[str, str] = {}
        """Who has been told last to own each partition."""
        self._told = anyio.Event()

    async def enter(self, name: str) -> AsyncPartitioner:
        """Have a member join; it owns nothing before its partitioner starts."""
        client = await self._stack.enter_async_context(
            AsyncClient(address=self._bed.address, session=SPEC, timeout=60)
        )
        group = AsyncGroup(client, "hall", id=name)
        await group.join()

        def begin(partition: str, _hold: AsyncHold) -> None:
            self.owners[partition] = name
            self._told.set()

        partitioner = self.partitioners[name] = AsyncPartitioner(group, PARTITIONS, on_acquired=begin)
        return partitioner

    async def settle(self) -> None:
        """Wait until every partition is with the member that is due."""
        due = self._rendezvous.owners(dict.fromkeys(self.partitioners, 1.0))
        with anyio.fail_after(300):
            while self.owners != due:
                self._told = anyio.Event()
                await self._told.wait()

    @property
    def requests(self) -> int:
        return 0 if self._counts is None else self._counts.by_kind()[REQUEST]

    @property
    def entries(self) -> int:
        return self._bed.raft_index()


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("counted", [False, True], ids=["timed", "counted"])
def test_one_member_more_or_less_among_a_hundred_moves_only_its_own(
    agent: RealAgent, tmp_path: Path, counted: bool
) -> None:
    """All members are in one process, which the proxy that counts would slow down: so it is done twice."""
    bed = Bed(address=agent.address, quick=True, folder=tmp_path)
    with counting_proxy(bed) if counted else nullcontext((bed, None)) as (way, counts):
        joins, leaves = anyio.run(_play, way, counts)
    for what, costs in (("join", joins), ("leave", leaves)):
        mean = [statistics.mean(column) for column in zip(*map(astuple, costs), strict=True)]
        slowest = max(cost.seconds for cost in costs)
        sys.stdout.write(
            f"{what}: {mean[0]:.1f} moves, {mean[1]:.2f} s (at most {slowest:.2f} s), "
            f"{mean[3]:.2f} s of the processor, {mean[4]:.0f} Raft entries, {mean[5]:.0f} requests\n"
        )
        assert counted or all(cost.seconds <= SETTLED + cost.late for cost in costs)


async def _play(bed: Bed, counts: Counts | None) -> tuple[list[Cost], list[Cost]]:
    async with AsyncExitStack() as stack:
        hall = Hall(bed, counts, stack)
        for number in range(MEMBERS):
            await hall.enter(f"10.0.0.{number}:8080")
        async with anyio.create_task_group() as tasks:
            for one in hall.partitioners.values():
                tasks.start_soon(one.start)
        await hall.settle()
        joins: list[Cost] = []
        leaves: list[Cost] = []
        for number in range(ROUNDS):
            name = f"10.0.1.{number}:8080"

            async def join(name: str = name) -> None:
                await (await hall.enter(name)).start()

            async def leave(name: str = name) -> None:
                gone = hall.partitioners.pop(name)
                await gone.group.leave()
                await gone.stop()

            joins.append(await _change(hall, name, join))
            leaves.append(await _change(hall, name, leave))
        return joins, leaves


async def _change(hall: Hall, name: str, change: Callable[[], Awaitable[None]]) -> Cost:
    before = dict(hall.owners)
    requests, entries, began = hall.requests, hall.entries, time.monotonic()
    with stalls() as measured:
        busy = time.process_time()
        await change()
        await hall.settle()
        seconds, busy = time.monotonic() - began, time.process_time() - busy
    await anyio.sleep(QUIET)
    after = hall.owners
    moved = {partition for partition in before if after[partition] != before[partition]}
    assert moved == {partition for partition in before if name in (before[partition], after[partition])}
    return Cost(len(moved), seconds, measured.slack, busy, hall.entries - entries, hall.requests - requests)
