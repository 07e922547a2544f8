"""How soon a holder learns that its session was destroyed, while its process is idle, busy, or very busy."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from bench.results import Figure, Outcome, Spread
from bench.rounds import MILLI
from bench.serving import Served

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.bed import Bed

NAME = "ours, sync"
KNOWN = "lost.wait() returned"
LAST = "the last on_lost called"
CASES: Sequence[tuple[int, int, int]] = (
    (1, 0, 10),
    (1, 1, 10),
    (1, 2, 15),
    (1, 8, 5),
    (1_000, 0, 5),
    (1_000, 2, 7),
    (1_000, 8, 3),
)
"""Holds, busy threads, rounds."""
QUICK_CASES: Sequence[tuple[int, int, int]] = ((1, 2, 2), (100, 2, 1))
_SWITCH = sys.getswitchinterval() * MILLI
_ROOT = Path(__file__).parent.parent.parent


def case(holds: int, busy: int, what: str) -> str:
    """Return what the figure of one case is called."""
    return f"{holds:,} held, {busy} busy threads: {what}"


class Loser:
    """The running process."""

    def __init__(self, bed: Bed, process: subprocess.Popen[str]) -> None:
        self._agent = Served(bed.address)
        self._input = cast("IO[str]", process.stdin)
        self._output = cast("IO[str]", process.stdout)

    def round(self) -> tuple[float, float]:
        """Destroy the session; return after how many seconds ``lost.wait()`` returned, and all were told."""
        self._input.write("\n")
        self._input.flush()
        session: str = self._answer()
        began = time.monotonic()
        self._agent.ask("PUT", f"/v1/session/destroy/{session}")
        found = self._answer()
        return found["known"] - began, found["last"] - began

    def _answer(self) -> Any:  # noqa: ANN401 - any JSON value
        return json.loads(self._output.readline())


@contextmanager
def loser(bed: Bed, holds: int, busy: int) -> Iterator[Loser]:
    """Run the process for a while."""
    command = [sys.executable, "-m", "bench.losing", str(holds), str(busy), bed.address]
    with subprocess.Popen(  # noqa: S603 - this very Python
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT
    ) as process:
        try:
            yield Loser(bed, process)
        finally:
            cast("IO[str]", process.stdin).close()


def run(bed: Bed) -> Outcome:
    """Lose in each case, one after the other."""
    found: list[Figure] = []
    for holds, busy, rounds in bed.pick(full=CASES, quick=QUICK_CASES):
        with loser(bed, holds, busy) as process:
            times = [process.round() for _ in range(rounds)]
        for at, what in enumerate((KNOWN, LAST)):
            value = Spread.of([each[at] for each in times], scale=MILLI)
            found.append(Figure(contender=NAME, what=case(holds, busy, what), unit="ms", value=value))
    return Outcome(
        measure="loss",
        title="Loss: from the session's destruction until the holder knows",
        figures=tuple(found),
        notes=(
            "From just before the request that destroys it, sent by another process.",
            f"A thread that asks a busy one for the interpreter's lock waits {_SWITCH:.0f} ms at least.",
        ),
    )
