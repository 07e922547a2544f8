"""What applications test their use of this package with: a simulator, a real agent, fixtures, faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from consul_coord.testing.simulation import Rehearsal, Simulation, SimulationFailed, Stage

__all__ = ["Rehearsal", "Simulation", "SimulationFailed", "Stage"]


def __getattr__(name: str) -> object:
    """Load the simulator on first use: fixtures alone need none of it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from consul_coord.testing import simulation

    return getattr(simulation, name)
