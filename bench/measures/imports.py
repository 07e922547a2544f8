"""What ``import consul_coord`` costs a program: the wall time of fresh interpreters."""

from __future__ import annotations

import subprocess
import sys
from time import perf_counter
from typing import TYPE_CHECKING

from bench.results import Figure, Outcome, Spread
from bench.rounds import MILLI, figures, in_turns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.bed import Bed

EMPTY = "nothing"
HTTPX = "import httpx"
OURS = (
    "import consul_coord",
    "from consul_coord import Client, Lock",
    "from consul_coord import AsyncClient, AsyncLock",
)
ALONE = "the import alone"
_PROGRAMS = {
    HTTPX: HTTPX,
    **{program: program for program in OURS},
    EMPTY: "",
}


def run(bed: Bed) -> Outcome:
    """Start one interpreter after the other."""

    def start(_name: str, program: str) -> Sequence[float]:
        began = perf_counter()
        subprocess.run([sys.executable, "-c", program], check=True, cwd=bed.folder)  # noqa: S603 - Python itself
        return [perf_counter() - began]

    samples = in_turns(_PROGRAMS, start, rounds=bed.rounds(full=25, quick=2))
    empty = samples[EMPTY]
    alone = {
        name: [[one[0] - base[0]] for one, base in zip(times, empty, strict=True)]
        for name, times in samples.items()
        if name != EMPTY
    }
    return Outcome(
        measure="imports",
        title="Import time",
        base=HTTPX,
        figures=(
            *figures(samples, what="a process that does nothing else", base=HTTPX),
            *(_alone(name, alone) for name in alone),
        ),
        notes=("The import alone is the process's time less that of an empty one in the same round.",),
    )


def _alone(name: str, alone: dict[str, list[list[float]]]) -> Figure:
    """Sum up one import; the ratio is one of medians, since differences of single processes are noise."""
    value = Spread.of([one[0] for one in alone[name]], scale=MILLI)
    base = Spread.of([one[0] for one in alone[HTTPX]], scale=MILLI)
    ratio = Spread.of([value.median / base.median])
    return Figure(contender=name, what=ALONE, unit="ms", value=value, ratio=ratio)
