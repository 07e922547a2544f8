"""Read-write locks in the simulator, under all the faults that locks have."""

from __future__ import annotations

from collections import Counter

import pytest

from consul_coord.testing import Simulation
from consul_coord.testing.simulation.plan import draw_with_rwlocks

FEW = 12
PORTION = 400
SHARDS = 4


def run(seed: int) -> Counter[str]:
    return Counter(Simulation(seed=seed, plan=draw_with_rwlocks(seed)).run().counts.seen)


def test_a_writer_is_alone_and_readers_are_not() -> None:
    """The rules of ``rw_rules``, with faults planted against them in ``mutations``."""
    seen = sum((run(seed) for seed in range(FEW)), Counter[str]())
    for rare in ("several in", "reader in", "writer in", "reader died", "writer died", "lost reply on join"):
        assert seen[rare], f"{rare} did not come up"


def test_the_same_seed_gives_the_same_run() -> None:
    one, two = (Simulation(seed=2, plan=draw_with_rwlocks(2)).run() for _ in range(2))
    assert one.trace.digest() == two.trace.digest()


@pytest.mark.search
@pytest.mark.timeout(900)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_portion_of_all_seeds(search_seed: int, shard: int) -> None:
    first = 1_000 + search_seed * PORTION
    for seed in range(first + shard, first + PORTION, SHARDS):
        run(seed)
