"""A deterministic simulator: the recipes as they ship, on virtual time, with faults drawn from a seed.

Rules
- The logic under test is the real one, and so is the server's: only time, network and chance are simulated.
- One seed, one run. A failure is reported with its seed, and comes again with it.
- Safety is looked at after every event, liveness once all is healed, and leftovers at the end.
"""

from __future__ import annotations

from consul_coord.testing.simulation.counts import SOMETIMES, Counts
from consul_coord.testing.simulation.judge import Violation
from consul_coord.testing.simulation.plan import CHAOS, FATES, Plan
from consul_coord.testing.simulation.rehearsal import Rehearsal, Stage
from consul_coord.testing.simulation.simulation import Outcome, Simulation, SimulationFailed
from consul_coord.testing.simulation.worlds import draw

__all__ = [
    "CHAOS",
    "FATES",
    "SOMETIMES",
    "Counts",
    "Outcome",
    "Plan",
    "Rehearsal",
    "Simulation",
    "SimulationFailed",
    "Stage",
    "Violation",
    "draw",
]
