"""A simulator is believed as far as it finds planted faults."""

from __future__ import annotations

import pytest

from consul_coord.testing import Simulation
from tests.simulation.mutations import MUTATIONS, Mutation

SEEDS = 2_000
"""Within so many each planted fault is found."""

# Those that take long are looked for where there is time.
CASES = [
    pytest.param(each, id=each.name, marks=[pytest.mark.long] if each.rare else []) for each in MUTATIONS
]


@pytest.mark.parametrize("mutation", CASES)
@pytest.mark.timeout(900)
def test_a_planted_fault_is_found(mutation: Mutation) -> None:
    with mutation.planted():
        assert any(Simulation(seed=seed).outcome().violation is not None for seed in range(SEEDS))
