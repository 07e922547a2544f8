"""The face of the simulator: a seed in, an outcome out, or an error that shows the whole story."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from consul_coord.testing.simulation.world import World
from consul_coord.testing.simulation.worlds import draw

if TYPE_CHECKING:
    from collections.abc import Generator

    from consul_coord.testing.simulation.counts import Counts
    from consul_coord.testing.simulation.judge import Violation
    from consul_coord.testing.simulation.plan import Plan
    from consul_coord.testing.simulation.trace import Trace

RUNS_A_COLLECTION = 10
"""After so many runs in a process what they have left is collected."""
SHOWN = 120
"""Lines of the trace that an error shows."""


class SimulationFailed(AssertionError):
    """A rule was broken. Run the same ``seed`` again to see the same happen."""

    def __init__(self, outcome: Outcome) -> None:
        self.seed = outcome.seed
        self.violation = outcome.violation
        self.trace = outcome.trace
        story = outcome.trace.text(last=SHOWN)
        super().__init__(f"{outcome.plan.describe()}\n{story}\nseed {self.seed}: {self.violation}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one run."""

    plan: Plan
    violation: Violation | None
    trace: Trace
    counts: Counts
    events: int
    """How many events there were."""
    seconds: float
    """How much virtual time has passed."""

    @property
    def seed(self) -> int:
        """The seed."""
        return self.plan.seed


class Simulation:
    """One run of several clients of this package against a Consul that misbehaves, all from one seed.

    Nothing in it is real but the logic under test: time is virtual, the network and the server are simulated,
    there are neither threads nor sockets. The same seed gives the same run, whatever the machine. While it
    runs, the collector of garbage is under its control, as what it finds would differ between machines.
    """

    def __init__(self, *, seed: int, plan: Plan | None = None) -> None:
        """Describe the run; ``plan`` replaces what would be drawn from the seed."""
        self.plan = plan or draw(seed)

    def run(self) -> Outcome:
        """Run it, and return what came of it. Raises SimulationFailed when a rule was broken."""
        outcome = self.outcome()
        if outcome.violation is not None:
            raise SimulationFailed(outcome)
        return outcome

    def outcome(self) -> Outcome:
        """Run it, and return what came of it, broken rules included."""
        with _without_collector():
            return self._run()

    def _run(self) -> Outcome:
        world = World(self.plan)
        world.run()
        judge = world.judge
        return Outcome(
            self.plan,
            judge.violation,
            judge.trace,
            judge.counts,
            world.scheduler.happened,
            world.scheduler.now,
        )


_runs = count(1)


def _collect_sometimes() -> None:
    """Collect what runs have left: each time would take longer than many a run."""
    if next(_runs) % RUNS_A_COLLECTION == 0:
        gc.collect()


@contextmanager
def _without_collector() -> Generator[None]:
    """Let objects go when nobody refers to them, or where the run says so, but at no other time.

    Objects that the caller has frozen stay so: there is no way to freeze the same again.
    """
    enabled, frozen = gc.isenabled(), gc.get_freeze_count()
    gc.disable()
    if not frozen:
        gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()
        _collect_sometimes()
        if enabled:
            gc.enable()
