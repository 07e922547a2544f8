"""A simulator is believed as far as it finds planted faults."""

from __future__ import annotations

from typing import get_args

import pytest

from consul_coord.testing import Simulation
from consul_coord.testing.simulation.judge import Rule
from tests.simulation.mutations import MUTATIONS, Mutation

# Those that take long are looked for where there is time.
CASES = [
    pytest.param(each, id=each.name, marks=pytest.mark.long if each.rare else pytest.mark.search)
    for each in MUTATIONS
]


@pytest.mark.parametrize("mutation", CASES)
@pytest.mark.timeout(900)
def test_a_planted_fault_is_found(mutation: Mutation) -> None:
    with mutation.planted():
        violations = (
            Simulation(seed=seed, plan=mutation.drawn(seed)).outcome().violation
            for seed in range(mutation.within)
        )
        assert any(found.rule == (mutation.breaks or found.rule) for found in violations if found is not None)


@pytest.mark.parametrize("mutation", [pytest.param(each, id=each.name) for each in MUTATIONS])
def test_a_fault_can_be_planted(mutation: Mutation) -> None:
    was = getattr(mutation.home, mutation.function)
    with mutation.planted():
        assert getattr(mutation.home, mutation.function) != was
    assert getattr(mutation.home, mutation.function) == was


def test_each_rule_is_broken_by_a_planted_fault() -> None:
    assert {mutation.breaks for mutation in MUTATIONS} - {None} == set(get_args(Rule))
