"""Several agents in the simulator: one at a time dies or falls silent, and one belongs to another cluster."""

from __future__ import annotations

from collections import Counter

import pytest

from consul_coord.testing import Simulation
from consul_coord.testing.simulation.plan import draw_with_agents

FEW = 6
PORTION = 200
SHARDS = 4


def run(seed: int) -> Counter[str]:
    return Counter(Simulation(seed=seed, plan=draw_with_agents(seed)).run().counts.seen)


def test_no_hold_is_lost_and_the_other_cluster_is_never_used() -> None:
    """The rules "ways in" and "one cluster", with faults planted against both in ``mutations``."""
    seen = sum((run(seed) for seed in range(FEW)), Counter[str]())
    for rare in ("chaos: agent death", "chaos: agent silence", "failed over", "stray agent refused"):
        assert seen[rare], f"{rare} did not come up"


def test_the_same_seed_gives_the_same_run() -> None:
    one, two = (Simulation(seed=1, plan=draw_with_agents(1)).run() for _ in range(2))
    assert one.trace.digest() == two.trace.digest()


@pytest.mark.search
@pytest.mark.timeout(900)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_portion_of_all_seeds(search_seed: int, shard: int) -> None:
    first = 1_000 + search_seed * PORTION
    for seed in range(first + shard, first + PORTION, SHARDS):
        run(seed)
