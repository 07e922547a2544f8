"""What a thousand held locks cost their process: memory, threads, connections, CPU at rest."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from bench.counting import counting_proxy
from bench.holding import WORLDS, Held
from bench.results import Figure, Outcome, Spread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

    from bench.bed import Bed

_ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One process that held locks."""

    held: Held
    connections: int
    """Open while nothing but the holding went on."""
    most_connections: int
    """Open at one time, at most, while the locks were taken."""


def hold(bed: Bed, world: str, holds: int, *, rest: float, trace: bool = False) -> Holding:
    """Have a fresh process hold so many locks; count its connections from outside. Raises RuntimeError."""
    with counting_proxy(bed) as (behind, counts):
        options = ["--trace"] if trace else []
        with subprocess.Popen(  # noqa: S603 - this very Python
            [sys.executable, "-m", "bench.holding", world, str(holds), behind.address, str(rest), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
        ) as process:
            try:
                line = cast("IO[str]", process.stdout).readline()
                if not line:
                    message = f"the process that was to hold {holds} locks ended ({world})"
                    raise RuntimeError(message)
                return Holding(
                    held=Held(**json.loads(line)),
                    connections=counts.connections,
                    most_connections=counts.most_connections,
                )
            finally:
                cast("IO[str]", process.stdin).close()


def run(bed: Bed) -> Outcome:
    """Hold in both worlds, once traced and once not."""
    holds = bed.pick(full=1_000, quick=200)
    return Outcome(
        measure="held",
        title=f"{holds} held locks in one process",
        figures=tuple(figure for world in WORLDS for figure in _figures(bed, world, holds)),
        notes=(
            "Blocking code takes them one after the other, async code all at once, a task each.",
            "Traced memory is what Python's allocator counts, resident memory the growth of the process.",
        ),
    )


def _figures(bed: Bed, world: str, holds: int) -> Iterator[Figure]:
    rest = bed.pick(full=5.0, quick=0.5)
    traced, plain = (hold(bed, world, holds, rest=rest, trace=trace) for trace in (True, False))
    for what, value, unit in (
        ("traced memory per held lock", traced.held.kib / holds, "KiB"),
        ("resident memory, all", plain.held.kib, "KiB"),
        ("threads", plain.held.threads, ""),
        ("connections at rest", plain.connections, ""),
        ("connections at most", plain.most_connections, ""),
        ("CPU at rest", plain.held.cpu * 100, "% of a core"),
    ):
        yield Figure(contender=f"ours, {world}", what=what, unit=unit, value=Spread.of([value]))
