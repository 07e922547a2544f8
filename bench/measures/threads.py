"""Several threads on one client, a key each, beside one thread alone; and with many idle locks besides."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from bench.contenders.pairs import timed
from bench.contenders.raw import Link, PreparedPair, session, whole
from bench.results import Outcome
from bench.rounds import figures, in_turns, open_all
from consul_coord import Client, Lock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.bed import Bed
    from bench.contenders.pairs import Pairs
    from bench.rounds import Contender

THREADS = 8
_PAIRS = 160
"""Pairs in a batch, shared among its threads."""


class Team:
    """Some threads, each with its own way to do pairs."""

    def __init__(self, members: Sequence[Pairs], pool: ThreadPoolExecutor) -> None:
        self._members = members
        self._pool = pool
        self.rates: list[float] = []
        """Pairs per second in each batch so far, the warm-up's included."""

    def run(self) -> Sequence[float]:
        """Do one batch; return the seconds of each pair."""
        each = _PAIRS // len(self._members)
        began = perf_counter()
        batches = list(self._pool.map(lambda pairs: pairs(each), self._members))
        times = [time for batch in batches for time in batch]
        self.rates.append(len(times) / (perf_counter() - began))
        return times


@dataclass(frozen=True, slots=True)
class Ours:
    """So many threads on one ``Client``."""

    name: str
    threads: int
    idle: bool = False
    """Whether the client has many more locks, which nobody uses."""

    @contextmanager
    def open(self, bed: Bed) -> Iterator[Team]:
        """Make the client and the threads."""
        with Client(address=bed.address) as client, ThreadPoolExecutor(self.threads) as pool:
            kept = [Lock(client, bed.key()).acquire() for _ in range(_idle_locks(bed) if self.idle else 0)]
            locks = [Lock(client, bed.key()) for _ in range(self.threads)]
            yield Team([timed(partial(_pair, lock)) for lock in locks], pool)
            for hold in kept:
                hold.release()


def _idle_locks(bed: Bed) -> int:
    return bed.pick(full=1_000, quick=100)


def _pair(lock: Lock) -> None:
    lock.acquire().release()


@dataclass(frozen=True, slots=True)
class Raw:
    """So many threads with a raw socket each: what Python and the agent leave to be had."""

    name: str
    threads: int

    @contextmanager
    def open(self, bed: Bed) -> Iterator[Team]:
        """Connect them all, on one session."""
        with ExitStack() as stack:
            made = stack.enter_context(session(bed))
            pool = stack.enter_context(ThreadPoolExecutor(self.threads))
            members: list[Pairs] = []
            for _ in range(self.threads):
                link = Link(bed)
                stack.enter_context(closing(link.socket))
                prepared = PreparedPair.of(bed, whole(bed.key(), made))
                members.append(timed(partial(prepared.run, link)))
            yield Team(members, pool)


ONE = Ours("ours, 1 thread", 1)
MANY = Ours(f"ours, {THREADS} threads", THREADS)
LADEN = Ours(f"ours, {THREADS} threads, many idle locks", THREADS, idle=True)
RATE = "pairs per second"
PAIR = "acquire + release"
CONTENDERS: tuple[Contender[Team], ...] = (
    ONE,
    MANY,
    LADEN,
    Raw("raw sockets, 1 thread", 1),
    Raw(f"raw sockets, {THREADS} threads", THREADS),
)


def run(bed: Bed) -> Outcome:
    """Let each team do its batches in turn."""
    with ExitStack() as stack:
        opened, skipped = open_all(stack, CONTENDERS, bed)
        samples = in_turns(opened, lambda _, team: team.run(), rounds=bed.rounds(full=20, quick=4))
    rates = {name: [[rate] for rate in team.rates[1:]] for name, team in opened.items()}
    return Outcome(
        measure="threads",
        title=f"{THREADS} threads, {THREADS} keys, one client",
        base=ONE.name,
        figures=(
            *figures(samples, what=PAIR, base=ONE.name),
            *figures(rates, what=RATE, unit="/s", scale=1.0, base=ONE.name),
        ),
        skipped=skipped,
        notes=(f"The many idle locks are {_idle_locks(bed):,}, held by the same client.",),
    )
