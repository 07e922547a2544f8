"""What a thousand held or waiting locks, or elections, cost: memory, threads, connections, CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from bench.counting import RENEWAL, counting_proxy
from bench.holding import Held
from bench.results import Figure, Outcome, Spread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

    from bench.bed import Bed

TRACED = "traced memory, each"
RESIDENT = "resident memory, all"
THREADS = "threads"
CONNECTIONS = "connections at rest"
MOST_CONNECTIONS = "connections at most"
RENEWED = "sessions renewed"
CPU = "CPU at rest"
SYNC, ASYNC, WAITING, CROWD, ELECTIONS = "sync", "async", "waiting", "crowd", "elections"
_ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True, slots=True)
class World:
    """What a process does, and how many of it."""

    name: str
    shown: str
    full: int
    quick: int


WORLDS = (
    World(SYNC, "ours, sync: {count} held", full=1_000, quick=100),
    World(ASYNC, "ours, async: {count} held", full=1_000, quick=100),
    World(WAITING, "ours, async: {count} held, {count} waiting", full=1_000, quick=100),
    World(CROWD, "ours, async: {count} waiting for one lock", full=10_000, quick=100),
    World(ELECTIONS, "ours, sync: {count} elections", full=500, quick=50),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One process that held locks."""

    held: Held
    connections: int
    """Open while nothing but the holding went on."""
    most_connections: int
    """Open at one time, at most, while the locks were taken."""
    renewed: int
    """Sessions that it renewed."""


def hold(bed: Bed, world: str, holds: int, *, rest: float, trace: bool = False) -> Holding:
    """Have a fresh process hold so many locks; count its connections from outside. Raises RuntimeError."""
    prefix = bed.key()
    with ExitStack() as stack:
        behind, counts = stack.enter_context(counting_proxy(bed))
        if world == WAITING:
            stack.enter_context(_holding(bed, SYNC, prefix, holds, rest=0.1, trace=False))
        held = stack.enter_context(_holding(behind, world, prefix, holds, rest=rest, trace=trace))
        renewals = {seen.target for seen in counts.seen if seen.kind == RENEWAL}
        return Holding(
            held=held,
            connections=counts.connections,
            most_connections=counts.most_connections,
            renewed=len(renewals),
        )


@contextmanager
def _holding(bed: Bed, world: str, prefix: str, holds: int, *, rest: float, trace: bool) -> Iterator[Held]:
    """Run the process; gives what it found, while it holds."""
    options = ["--trace"] if trace else []
    command = [sys.executable, "-m", "bench.holding", world, prefix, str(holds), bed.address, str(rest)]
    with subprocess.Popen(  # noqa: S603 - this very Python
        [*command, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT
    ) as process:
        try:
            line = cast("IO[str]", process.stdout).readline()
            if not line:
                message = f"the process that was to hold {holds} locks ended ({world})"
                raise RuntimeError(message)
            yield Held(**json.loads(line))
        finally:
            cast("IO[str]", process.stdin).close()


def run(bed: Bed) -> Outcome:
    """Hold in each world, once traced and once not."""
    return Outcome(
        measure="held",
        title="Many locks in one process",
        figures=tuple(figure for world in WORLDS for figure in _figures(bed, world)),
        notes=(
            "Blocking code takes them one after the other, async code all at once, a task each.",
            "Those that wait do so for locks that another process holds, all below one prefix.",
            "Those that wait for one lock do so for one that their own client holds.",
            "Traced memory is what Python's allocator counts, resident memory the growth of the process.",
        ),
    )


def name_of(world: World, bed: Bed) -> str:
    """Return what a world is called in this run."""
    return world.shown.format(count=f"{bed.pick(full=world.full, quick=world.quick):,}")


def _figures(bed: Bed, world: World) -> Iterator[Figure]:
    holds = bed.pick(full=world.full, quick=world.quick)
    # With the settling that is longer than the 5 s within which unused connections are closed.
    rest = bed.pick(full=8.0, quick=4.0)
    plain = hold(bed, world.name, holds, rest=rest)
    values = [
        (RESIDENT, plain.held.kib / 1024, "MiB"),
        (THREADS, plain.held.threads, ""),
        (CONNECTIONS, plain.connections, ""),
        (MOST_CONNECTIONS, plain.most_connections, ""),
        (RENEWED, plain.renewed, ""),
        (CPU, plain.held.cpu * 100, "% of a core"),
    ]
    if world.name in {SYNC, ASYNC} and not bed.quick:
        traced = hold(bed, world.name, holds, rest=0.5, trace=True)
        values.insert(0, (TRACED, traced.held.kib / holds, "KiB"))
    for what, value, unit in values:
        yield Figure(contender=name_of(world, bed), what=what, unit=unit, value=Spread.of([value]))
