"""A simulator is believed as far as it finds planted faults."""

from __future__ import annotations

import pytest

from consul_coord.testing import Simulation
from tests.simulation.mutations import MUTATIONS, Mutation

SEEDS = 2_000
"""Within so many each planted fault is found."""


def first_violation(mutation: Mutation, seeds: range) -> int | None:
    """Return the first seed that finds a planted fault."""
    with mutation.planted():
        return next((seed for seed in seeds if Simulation(seed=seed).outcome().violation is not None), None)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
@pytest.mark.timeout(600)
def test_a_planted_fault_is_found(mutation: Mutation) -> None:
    assert first_violation(mutation, range(SEEDS)) is not None
