"""What the figures are to be: the table of aims, and how a run is held against it.

Rules
- An aim is a figure of one measure and a bound, as a number, so that "met" is nobody's opinion.
- Counts say the same on any machine, in the quick form too: tests hold them. Times and ratios of times depend
  on the machine, and are reported.
- An aim whose figures are not there (no Go, the quick form's other sizes) is not judged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from bench.contenders.commands import CONSUL_COMMAND, OUR_COMMAND
from bench.contenders.go_client import GO_GIVEN, GO_OWN, GO_SLOT_GIVEN
from bench.contenders.ours import OursAsync, OursOverHttpx, OursSync
from bench.contenders.raw import BareHttpx
from bench.measures import (
    async_throughput,
    capacity,
    counts,
    election,
    fleet,
    handoff,
    held,
    imports,
    loss,
    semaphore_crowd,
    server_memory,
    server_start,
    server_storm,
    server_wake,
    threads,
)
from bench.results import Verdict
from bench.serving import REFERENCE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bench.results import Outcome

Kind: TypeAlias = Literal["count", "time"]
Reading: TypeAlias = Callable[["Outcome"], float]
"""Takes one number out of an outcome. Raises KeyError when it was not measured."""

SYNC, ASYNC = OursSync().name, OursAsync().name
OVER_HTTPX, BARE_HTTPX = OursOverHttpx().name, BareHttpx().name
PAIR = "acquire + release"


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """One bound on one number."""

    measure: str
    what: str
    reading: Reading
    most: float | None = None
    least: float | None = None
    unit: str = ""
    kind: Kind = "time"

    @property
    def bound(self) -> str:
        """The bound as text."""
        sign, number = ("≤", self.most) if self.most is not None else ("≥", self.least)
        return f"{sign} {number:,g} {self.unit}".rstrip()

    def met_by(self, found: float) -> bool:
        """Return whether a number is within the bound."""
        return (self.most is None or found <= self.most) and (self.least is None or found >= self.least)


def median(contender: str, what: str) -> Reading:
    """Read a figure's median."""
    return lambda outcome: outcome.figure(contender, what).value.median


def ratio(contender: str, what: str) -> Reading:
    """Read a figure's ratio to the outcome's base."""

    def read(outcome: Outcome) -> float:
        found = outcome.figure(contender, what).ratio
        if found is None:
            raise KeyError(outcome.base)
        return found.median

    return read


def quotient(above: Reading, below: Reading) -> Reading:
    """Read how many times one number is the other."""
    return lambda outcome: above(outcome) / below(outcome)


def mean(contender: str, what: str) -> Reading:
    """Read a figure's mean."""
    return lambda outcome: outcome.figure(contender, what).value.mean


def longest(contender: str, what: str) -> Reading:
    """Read a figure's ninetieth percentile."""
    return lambda outcome: outcome.figure(contender, what).value.p90


def _counted(measure: str, contender: str, what: str, most: float, unit: str = "") -> Aim:
    return Aim(
        measure=measure,
        what=f"{contender}: {what}",
        reading=median(contender, what),
        most=most,
        kind="count",
        unit=unit,
    )


def _handoffs() -> Iterator[Aim]:
    for waiters in sorted({*handoff.QUICK_ROUNDS, *handoff.ROUNDS}):
        entries = f"{waiters} waiting: Raft entries per hold"
        yield _counted("handoff", handoff.NAME, entries, 3.5 if waiters < _MANY else 3.2)
    for waiters in handoff.ROUNDS:
        what = f"{waiters} waiting"
        yield Aim(measure="handoff", what=what, reading=median(handoff.NAME, what), most=3, unit="ms")
    for waiters in (50, 150):
        what = f"{waiters} waiting"
        yield Aim(
            measure="handoff",
            what=f"{what}: Go's mean / ours",
            reading=quotient(mean(handoff.GO.name, what), mean(handoff.NAME, what)),
            least=10,
            unit="×",
        )


_MANY = 10
"""With fewer waiting, the server's own Raft entries weigh in each hold's share."""


def _crowds() -> Iterator[Aim]:
    for size in semaphore_crowd.ROUNDS:
        yield _counted("semaphore_crowd", ASYNC, f"{size} contenders: {semaphore_crowd.FAILED}", 0.5)
    what = f"50 contenders: {semaphore_crowd.HANDOFF}"
    yield Aim(measure="semaphore_crowd", what=what, reading=median(ASYNC, what), most=5, unit="ms")


def _losses() -> Iterator[Aim]:
    for holds, busy, _ in loss.CASES:
        if busy <= _BUSY:
            what = loss.case(holds, busy, loss.KNOWN)
            yield Aim(measure="loss", what=what, reading=median(loss.NAME, what), most=50, unit="ms")


_BUSY = 2
"""So many busy threads are aimed at; more are reported."""


def _held() -> Iterator[Aim]:
    for world in held.WORLDS:
        for count in (world.full, world.quick):
            name = world.shown.format(count=f"{count:,}")
            one_loop = 2 if world.name in {held.SYNC, held.ELECTIONS} else 1
            yield _counted("held", name, held.THREADS, one_loop)
            yield _counted("held", name, held.CONNECTIONS, 64)
            yield _counted("held", name, held.RENEWED, 1)
        name = world.shown.format(count=f"{world.full:,}")
        cpu, memory = median(name, held.CPU), median(name, held.RESIDENT)
        yield Aim(measure="held", what=f"{name}: {held.CPU}", reading=cpu, most=5, unit="%")
        if most := {held.WAITING: 30, held.CROWD: 60}.get(world.name):
            what = f"{name}: {held.RESIDENT}"
            yield Aim(measure="held", what=what, reading=memory, most=most, unit="MiB")
        if world.name in {held.SYNC, held.ASYNC}:
            each = median(name, held.TRACED)
            yield Aim(measure="held", what=f"{name}: {held.TRACED}", reading=each, most=8, unit="KiB")


def _capacity() -> Iterator[Aim]:
    for size in sorted({*capacity.QUICK_SIZES, *capacity.SIZES}):
        name = capacity.queue(size)
        yield _counted("capacity", name, capacity.REQUESTS, 6)
        yield _counted("capacity", name, capacity.ENTRIES, 3)
        yield _counted("capacity", name, capacity.LISTINGS, 1)
        yield _counted("capacity", name, capacity.READ, 4, "KiB")


AIMS: tuple[Aim, ...] = (
    Aim(measure="pair", what=f"{SYNC} / raw sockets", reading=ratio(SYNC, PAIR), most=2, unit="×"),
    Aim(
        measure="pair",
        what=f"{SYNC} / {GO_GIVEN.name}",
        reading=quotient(median(SYNC, PAIR), median(GO_GIVEN.name, PAIR)),
        most=1,
        unit="×",
    ),
    Aim(
        measure="pair",
        what=f"{SYNC} / {GO_OWN.name}",
        reading=quotient(median(SYNC, PAIR), median(GO_OWN.name, PAIR)),
        most=0.5,
        unit="×",
    ),
    Aim(
        measure="pair",
        what=f"{OVER_HTTPX} / {BARE_HTTPX}",
        reading=quotient(median(OVER_HTTPX, PAIR), median(BARE_HTTPX, PAIR)),
        most=1.15,
        unit="×",
    ),
    Aim(measure="pair", what=f"{ASYNC} / raw sockets", reading=ratio(ASYNC, PAIR), most=4, unit="×"),
    Aim(measure="pair", what=OUR_COMMAND.name, reading=median(OUR_COMMAND.name, PAIR), most=140, unit="ms"),
    Aim(
        measure="pair",
        what=f"{OUR_COMMAND.name} / {CONSUL_COMMAND.name}",
        reading=quotient(median(OUR_COMMAND.name, PAIR), median(CONSUL_COMMAND.name, PAIR)),
        most=3,
        unit="×",
    ),
    *(
        _counted("counts", name, what, 2)
        for name in (SYNC, ASYNC)
        for what in (counts.REQUESTS, counts.ENTRIES)
    ),
    Aim(
        measure="threads",
        what=f"{threads.THREADS} threads / 1 thread: {threads.RATE}",
        reading=ratio(threads.MANY.name, threads.RATE),
        least=1,
        unit="×",
    ),
    Aim(
        measure="threads",
        what=f"{threads.THREADS} threads / 1 thread: {threads.PAIR}",
        reading=ratio(threads.MANY.name, threads.PAIR),
        most=8,
        unit="×",
    ),
    Aim(
        measure="threads",
        what=f"{threads.THREADS} threads, with / without many idle locks: {threads.RATE}",
        reading=quotient(median(threads.LADEN.name, threads.RATE), median(threads.MANY.name, threads.RATE)),
        least=0.9,
        unit="×",
    ),
    Aim(
        measure="async_throughput",
        what=f"{async_throughput.OURS} / {async_throughput.HTTPX}",
        reading=ratio(async_throughput.OURS, async_throughput.RATE),
        least=2,
        unit="×",
    ),
    *_handoffs(),
    *(
        Aim(
            measure="semaphore_pair",
            what=f"{name} / {GO_SLOT_GIVEN.name}",
            reading=ratio(name, PAIR),
            most=0.5,
            unit="×",
        )
        for name in (SYNC, ASYNC)
    ),
    *(
        _counted("semaphore_counts", name, what, most)
        for name in (SYNC, ASYNC)
        for what, most in ((counts.REQUESTS, 2), (counts.ENTRIES, 2), (counts.FAILED, 0))
    ),
    *_crowds(),
    Aim(
        measure="election",
        what=election.WHAT,
        reading=median(election.NAME, election.WHAT),
        most=10,
        unit="ms",
    ),
    *_losses(),
    *_held(),
    *(
        Aim(
            measure="imports",
            what=f"{name} / {imports.HTTPX}",
            reading=ratio(name, imports.ALONE),
            most=most,
            unit="×",
        )
        for name, most in zip(imports.OURS, (0.6, 1.3, 1.3), strict=True)
    ),
    Aim(
        measure="server_start",
        what=server_start.IN_PROCESS,
        reading=median(server_start.IN_PROCESS, server_start.WHAT),
        most=300,
        unit="ms",
    ),
    Aim(
        measure="server_start",
        what=server_start.COMMAND,
        reading=median(server_start.COMMAND, server_start.WHAT),
        most=700,
        unit="ms",
    ),
    Aim(
        measure="server_txns",
        what="transactions",
        reading=median(REFERENCE, "transactions"),
        least=4_000,
        unit="/s",
    ),
    Aim(
        measure="server_wake",
        what=f"{server_wake.QUERIES:,} woken",
        reading=median(REFERENCE, server_wake.WHAT),
        most=250,
        unit="ms",
    ),
    Aim(
        measure="server_memory",
        what=f"{server_memory.KEYS:,} keys",
        reading=median(REFERENCE, server_memory.FILLED),
        most=80 * 1024,
        unit="KiB",
    ),
    Aim(
        measure="server_storm",
        what=server_storm.LONGEST,
        reading=median(REFERENCE, server_storm.LONGEST),
        most=100,
        unit="ms",
    ),
    *_capacity(),
    _counted("fleet", "ours", fleet.CONNECTIONS, 1),
    *[_counted("fleet", role, fleet.CONNECTIONS, 1) for role in fleet.REQUESTS_AT_MOST],
    _counted("fleet", "ours, has released", fleet.CONNECTIONS, 0),
    *[
        Aim(
            measure="fleet",
            what=f"{role}: {fleet.REQUESTS}",
            reading=median(role, fleet.REQUESTS),
            most=round(most, 1),
        )
        for role, most in fleet.REQUESTS_AT_MOST.items()
    ],
    _counted("fleet", "ours", fleet.NOT_SERVED, 0),
    _counted("fleet", "ours", fleet.LOST, 0),
    Aim(
        measure="fleet",
        what=f"ours: {fleet.ABOVE}",
        reading=median("ours", fleet.ABOVE),
        most=8_192,
        unit="KiB",
    ),
)


def judge(outcomes: Iterable[Outcome], *, kind: Kind | None = None) -> tuple[Verdict, ...]:
    """Hold outcomes against the aims of their measures, of one kind or all; what is missing is not judged."""
    by_measure = {outcome.measure: outcome for outcome in outcomes}
    return tuple(
        verdict
        for aim in AIMS
        if aim.measure in by_measure
        and kind in {None, aim.kind}
        and (verdict := _judge(aim, by_measure[aim.measure])) is not None
    )


def _judge(aim: Aim, outcome: Outcome) -> Verdict | None:
    try:
        found = aim.reading(outcome)
    except KeyError:
        return None
    return Verdict(
        measure=aim.measure,
        what=aim.what,
        kind=aim.kind,
        bound=aim.bound,
        unit=aim.unit,
        found=found,
        met=aim.met_by(found),
    )
