"""Worlds of the simulator with runs of their own: several agents, a limit on connections, shared partitions,
read-write locks, plain calls, crowds of watches, worlds where all is well, where each request fails once, and
where one does.

The rules of each have faults planted against them in ``mutations``.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import pytest

from consul_coord.recipes.group import follow
from consul_coord.recipes.group.members import BUCKETS
from consul_coord.testing import Simulation
from consul_coord.testing.simulation import promises
from consul_coord.testing.simulation.worlds import (
    draw_calm,
    draw_hiccups,
    draw_keepers,
    draw_strike,
    draw_with_agents,
    draw_with_callers,
    draw_with_crowds,
    draw_with_limit,
    draw_with_members,
    draw_with_rwlocks,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from consul_coord.testing.simulation.plan import Plan

SHARDS = 4


class World(NamedTuple):
    """One kind of run, and the rare things that a few quick seeds of it must show."""

    draw: Callable[[int], Plan]
    few: Sequence[int]
    portion: int
    rare: tuple[str, ...]

    def run(self, seed: int) -> Counter[str]:
        return Counter(Simulation(seed=seed, plan=self.draw(seed)).run().counts.seen)


WORLDS = {
    "calm": World(
        draw_calm,
        (7, 33),
        300,
        ("chaos: deregister node", "lost: key_deleted", "handed over", "job done", "partition acquired"),
    ),
    "hiccups": World(
        draw_hiccups,
        (2, 5, 7),
        300,
        ("adopted", "jeopardy survived", "timed out: unreachable", "chaos: old leader", "lost reply on take"),
    ),
    "strike": World(
        draw_strike,
        (*range(30), 145),
        1_000,
        ("adopted", "chaos: pause", "chaos: close", "chaos: old leader", "lost reply on take", "job done"),
    ),
    "keepers": World(
        draw_keepers,
        range(12),
        500,
        ("released: released", "chaos: pause", "chaos: destroy session", "several slots taken"),
    ),
    "callers": World(
        draw_with_callers,
        range(12),
        1_000,
        (
            *(
                f"plain call: {kind}"
                for kind in ("TxnFailed", "RequestTimeout", "BrokenReply", "DecodeError")
            ),
            *("watched", "watch refused", "plain call: InvalidRequest"),
        ),
    ),
    "crowds": World(draw_with_crowds, (0, 1, 4), 200, ("watched",)),
    "agents": World(
        draw_with_agents,
        range(3, 6),
        200,
        ("chaos: agent death", "chaos: agent silence", "failed over", "stray agent refused"),
    ),
    "limit": World(
        draw_with_limit,
        range(2, 3),
        200,
        ("chaos: crowd", "connection refused at the limit", "limit reported", "released: released"),
    ),
    "members": World(
        draw_with_members,
        range(3),
        400,
        ("joined", "partition acquired", "partition handed over", "partition lost"),
    ),
    "rwlocks": World(
        draw_with_rwlocks,
        range(3),
        400,
        ("several in", "reader in", "writer in", "reader died", "writer died", "lost reply on join"),
    ),
}
every = pytest.mark.parametrize("world", [pytest.param(world, id=name) for name, world in WORLDS.items()])


@pytest.mark.slow
@every
def test_no_rule_is_broken_and_what_is_rare_comes_up(world: World) -> None:
    seen = sum((world.run(seed) for seed in world.few), Counter[str]())
    for rare in world.rare:
        assert seen[rare], f"{rare} did not come up"


@pytest.mark.slow
@every
def test_the_same_seed_gives_the_same_run(world: World) -> None:
    seed = world.few[-1]
    one, two = (Simulation(seed=seed, plan=world.draw(seed)).run() for _ in range(2))
    assert one.trace.digest() == two.trace.digest()


@pytest.mark.slow
def test_members_of_a_large_group_are_followed_by_the_same_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs have few members, so buckets are read only where a few are many.

    Each look takes more requests then. The bound for small groups is exceeded in 19 of 40 seeds.
    """
    monkeypatch.setattr(follow, "LARGE", 1)
    monkeypatch.setattr(promises, "MOST_SENT", len(BUCKETS) * promises.MOST_SENT)
    test_no_rule_is_broken_and_what_is_rare_comes_up(WORLDS["members"])


@pytest.mark.search
@pytest.mark.timeout(900)
@every
@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_portion_of_all_seeds(search_seed: int, world: World, shard: int) -> None:
    first = search_seed * world.portion
    for seed in range(first + shard, first + world.portion, SHARDS):
        world.run(seed)
