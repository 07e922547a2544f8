"""Tools for testing applications of this package: a simulator, a real agent, fixtures, faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.lazy import lazily as _lazily

if TYPE_CHECKING:
    from consul_coord.testing.simulation import Rehearsal, Simulation, SimulationFailed, Stage
else:  # fixtures alone need nothing of the simulator
    __getattr__, __dir__ = _lazily(__name__, {"simulation": "Rehearsal Simulation SimulationFailed Stage"})

__all__ = ["Rehearsal", "Simulation", "SimulationFailed", "Stage"]
