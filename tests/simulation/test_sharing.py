"""Groups and partitions in the simulator: members come, go and are hurt, and share partitions meanwhile."""

from __future__ import annotations

from collections import Counter

import pytest

from consul_coord.testing import Simulation
from consul_coord.testing.simulation.plan import draw_with_members

FEW = 12
PORTION = 400
SHARDS = 4


def run(seed: int) -> Counter[str]:
    return Counter(Simulation(seed=seed, plan=draw_with_members(seed)).run().counts.seen)


def test_a_partition_has_one_owner_who_is_told_first_and_the_one_that_is_due() -> None:
    """The rules "exclusion" and "sharing", with faults planted against both in ``mutations``."""
    seen = sum((run(seed) for seed in range(FEW)), Counter[str]())
    for rare in ("joined", "partition acquired", "partition handed over", "partition lost"):
        assert seen[rare], f"{rare} did not come up"


def test_the_same_seed_gives_the_same_run() -> None:
    one, two = (Simulation(seed=2, plan=draw_with_members(2)).run() for _ in range(2))
    assert one.trace.digest() == two.trace.digest()


@pytest.mark.search
@pytest.mark.timeout(900)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_portion_of_all_seeds(search_seed: int, shard: int) -> None:
    first = 1_000 + search_seed * PORTION
    for seed in range(first + shard, first + PORTION, SHARDS):
        run(seed)
