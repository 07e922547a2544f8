"""The runs of the simulator that a mutant is shown to: those of seeds, and rehearsals of whole clients.

Rules
- A run is a name, ``kind:seed``: the same run, whatever ran before it. ``seed:217/5`` is the fifth repetition
  of the run of seed 217: the same plan, with another seed for everything that happens.
- A mutant is shown the runs that reach its line. The others are as they are without it, to the last digit.
  If time is left after them, their repetitions follow, most of which reach the line, too.
- ``python -m proof.mutants.simulate`` writes which run reaches what, to the file that MUTANTS_REACH names.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import defaultdict
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING

from consul_coord import AsyncLeaderElection, AsyncLock, AsyncSemaphore, SessionSpec
from consul_coord.testing import Rehearsal, Simulation, SimulationFailed
from consul_coord.testing.simulation.worlds import draw

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from consul_coord.testing import Stage
    from consul_coord.testing.simulation.judge import Violation

ROOT = Path(__file__).resolve().parents[2]
KEY = "jobs/rehearsed"


async def _lock(stage: Stage) -> None:
    async with AsyncLock(stage.client, KEY).hold(timeout=60) as hold:
        with stage.working(KEY):
            await asyncio.sleep(3.0)
            stage.write(KEY, fence=hold.fence)


async def _leader(stage: Stage) -> None:
    async with AsyncLeaderElection(stage.client, KEY) as election, await election.wait_for_leadership():
        with stage.working(KEY):
            await asyncio.sleep(4.0)


async def _semaphore(stage: Stage) -> None:
    async with AsyncSemaphore(stage.client, KEY, 1).hold(timeout=60):
        with stage.working(KEY):
            await asyncio.sleep(2.0)


PROGRAMS: dict[str, Callable[[Stage], Awaitable[None]]] = {
    "lock": _lock,
    "leader": _leader,
    "semaphore": _semaphore,
}
RUNS = {"seed": 2_000, **{f"rehearsed {name}": 15 for name in PROGRAMS}}
"""How many runs there are of each kind."""
MOST_SHOWN = 2_000
"""So many runs, with their repetitions, are shown to one mutant if there is time."""
_APART = 10_000_000
"""The distance between the seeds of two repetitions of one run."""


def runs(scale: float = 1.0) -> list[str]:
    """Return the names of all runs, those of each kind spread evenly."""
    spread = [
        ((seed + 0.5) / most, f"{name}:{seed}")
        for name, most in RUNS.items()
        for seed in range(max(1, int(scale * most)))
    ]
    return [name for _, name in sorted(spread)]


def with_repetitions(names: Sequence[str]) -> list[str]:
    """Return runs, and then the first repetition of each drawn one, the second of each, and so on."""
    drawn = [name for name in names if name.startswith("seed:")]
    repeated = (f"{name}/{time}" for time in count(1) for name in drawn) if drawn else ()
    return [*names, *islice(repeated, max(0, MOST_SHOWN - len(names)))]


def drawn(number: str) -> Simulation:
    """Return the run of a seed, or a repetition of one."""
    seed, _, repetition = number.partition("/")
    plan = draw(int(seed))
    if repetition:
        plan = replace(plan, seed=plan.seed + int(repetition) * _APART)
    return Simulation(seed=plan.seed, plan=plan)


def violation_of(name: str) -> Violation | None:
    """Do one run, and return the rule that it breaks."""
    kind, _, number = name.partition(":")
    if kind == "seed":
        return drawn(number).outcome().violation
    program = PROGRAMS[kind.removeprefix("rehearsed ")]
    try:
        Rehearsal(program, seed=int(number), session=SessionSpec(ttl=10, lock_delay=1)).run()
    except SimulationFailed as failed:
        return failed.violation
    return None


def search(names: Iterable[str], *, seconds: float) -> tuple[str, int]:
    """Do runs until a rule is broken or so much time of the processor is used.

    Returns what was broken, and how many runs there were.
    """
    began, number = time.process_time(), 0
    for number, name in enumerate(names, 1):
        try:
            violation = violation_of(name)
        except Exception as error:  # noqa: BLE001 - a run that breaks down is a finding
            return f"{name}: {type(error).__name__}: {error}"[:300], number
        if violation is not None:
            return f"{name}: {violation}"[:300], number
        if time.process_time() - began > seconds:
            break
    return "", number


def measured(names: list[str], file: Path) -> None:
    """Write down which runs reach which line."""
    from proof.mutants.reach import measuring

    measured_by = measuring()
    measured_by.start()
    for name in names:
        measured_by.switch_context(name)
        violation_of(name)
    measured_by.stop()
    data = measured_by.get_data()
    numbers = {name: number for number, name in enumerate(names)}
    lines: dict[str, dict[int, list[int]]] = defaultdict(dict)
    for each in data.measured_files():
        for line, contexts in data.contexts_by_lineno(each).items():
            known = sorted(numbers[context] for context in contexts if context in numbers)
            lines[str(Path(each).relative_to(ROOT))][line] = known
    file.write_text(json.dumps({"runs": names, "lines": lines}))


if __name__ == "__main__":
    measured(runs(float(os.environ.get("MUTANTS_SCALE", "1"))), Path(os.environ["MUTANTS_REACH"]))
