"""An election with fifty candidates: from a leader's resignation to the next one's ``on_elected``.

Rules
- Every candidate has a client of its own, all in one event loop.
- Who has resigned is a candidate again after a moment, so that there are always as many; the next resignation
  comes when all of them wait.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

from bench.results import Figure, Outcome, Spread
from bench.rounds import MILLI
from consul_coord import AsyncClient, AsyncLeaderElection
from consul_coord.events import Waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.bed import Bed
    from consul_coord import AsyncLeadership, Event

RETRY_WAIT = (0.02, 0.05)
"""Seconds from a resignation to being a candidate again; the default is half a second to two."""
TIMEOUT = 60.0
SETTLING = 0.3
WHAT = "resign to the next one's on_elected"
NAME = "ours, async"


class Election:
    """Candidates for one key."""

    def __init__(self) -> None:
        self.leader: int | None = None
        self.waiting: set[int] = set()
        self.elected_at = 0.0
        self._clients: list[AsyncClient] = []
        self._elections: list[AsyncLeaderElection] = []
        self._changed = asyncio.Event()

    async def start(self, bed: Bed, candidates: int) -> None:
        """Make the candidates and have one of them lead."""
        key = bed.key()
        for number in range(candidates):
            client = AsyncClient(address=bed.address, observer=_Ear(self, number))
            await client.__aenter__()
            self._clients.append(client)
            election = AsyncLeaderElection(
                client, key, retry_wait=RETRY_WAIT, on_elected=self._elected_by(number)
            )
            self._elections.append(election)
            await election.start()
        await self._all_wait()

    def _elected_by(self, number: int) -> Callable[[AsyncLeadership], None]:
        def elected(_: AsyncLeadership) -> None:
            self.elected_at = perf_counter()
            self.leader = number
            self.waiting.discard(number)
            self._changed.set()

        return elected

    def waits(self, number: int) -> None:
        """Take note of a candidate who waits."""
        self.waiting.add(number)
        self._changed.set()

    async def resign(self) -> float:
        """Have the leader resign once all others wait; return the seconds to the next."""
        await self._all_wait()
        await asyncio.sleep(SETTLING)
        old, self.leader = self.leader, None
        began = perf_counter()
        await self._elections[old or 0].resign()
        while not self._is_led():
            await self._next_change()
        return self.elected_at - began

    def _is_led(self) -> bool:
        return self.leader is not None

    async def _all_wait(self) -> None:
        while not self._is_led() or len(self.waiting) < len(self._elections) - 1:
            await self._next_change()

    async def _next_change(self) -> None:
        self._changed.clear()
        async with asyncio.timeout(TIMEOUT):
            await self._changed.wait()

    async def stop(self) -> None:
        """End it, the leader last."""
        leader = self.leader or 0
        order = [number for number in range(len(self._clients)) if number != leader]
        for number in (*order, leader):
            await self._elections[number].stop()
            await self._clients[number].close()


class _Ear:
    """Hears one candidate wait."""

    def __init__(self, election: Election, number: int) -> None:
        self._election = election
        self._number = number

    def on_event(self, event: Event) -> None:
        if isinstance(event, Waiting):
            self._election.waits(self._number)


@contextmanager
def candidates(bed: Bed, count: int) -> Iterator[Callable[[], float]]:
    """Hold an election among so many; gives what has the leader resign and returns the seconds it took."""
    with asyncio.Runner() as runner:
        election = runner.run(_make())
        try:
            runner.run(election.start(bed, count))
            yield lambda: runner.run(election.resign())
        finally:
            runner.run(election.stop())


async def _make() -> Election:
    return Election()


def run(bed: Bed) -> Outcome:
    """Have one leader after the other resign."""
    count, resignations = bed.pick(full=(50, 60), quick=(10, 6))
    with candidates(bed, count) as resign:
        times: Sequence[float] = [resign() for _ in range(resignations)]
    return Outcome(
        measure="election",
        title=f"Election: {count} candidates",
        figures=(Figure(contender=NAME, what=WHAT, unit="ms", value=Spread.of(times, scale=MILLI)),),
        notes=(
            "Each candidate has a client of its own, all in one process.",
            f"A leader that resigned stands again after {RETRY_WAIT[0]} to {RETRY_WAIT[1]} s.",
        ),
    )
