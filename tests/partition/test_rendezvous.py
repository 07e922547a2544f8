"""Who owns what, by the members' names alone: pure."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from consul_coord.recipes.partition.rendezvous import Rendezvous

PARTITIONS = [f"part-{number}" for number in range(1_000)]
MEMBERS = {f"10.0.{number // 10}.{number % 10}:8080": 1.0 for number in range(100)}


def moved(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {partition for partition in before if before[partition] != after[partition]}


def test_one_member_less_moves_only_its_own_partitions() -> None:
    rendezvous = Rendezvous(PARTITIONS)
    before = rendezvous.owners(MEMBERS)
    moves = []
    for gone in MEMBERS:
        after = rendezvous.owners({one: weight for one, weight in MEMBERS.items() if one != gone})
        assert moved(before, after) == {one for one, owner in before.items() if owner == gone}
        moves.append(len(moved(before, after)))
    assert sum(moves) / len(moves) <= 1.05 * 10


def test_one_member_more_takes_partitions_only_for_itself() -> None:
    rendezvous = Rendezvous(PARTITIONS)
    before = rendezvous.owners(MEMBERS)
    moves = []
    for number in range(100):
        new = f"10.1.0.{number}:8080"
        after = rendezvous.owners(MEMBERS | {new: 1.0})
        assert {after[partition] for partition in moved(before, after)} <= {new}
        moves.append(len(moved(before, after)))
    assert sum(moves) / len(moves) <= 1.05 * 10


def test_everybody_comes_to_the_same_owners_whatever_happened_before() -> None:
    one, other = Rendezvous(PARTITIONS), Rendezvous(PARTITIONS)
    one.owners({"gone": 3.0, **MEMBERS})
    assert one.owners(MEMBERS) == other.owners(dict(reversed(MEMBERS.items())))


def test_the_owners_are_those_of_every_release() -> None:
    """Members of different releases share partitions: what this gives must never change."""
    owners = Rendezvous(list("01234567")).owners({"a": 1.0, "b": 1.0, "c": 2.0})
    assert "".join(owners.values()) == "acccccbc"


def test_the_owners_with_a_bound_are_those_of_every_release() -> None:
    """The same, where members have different weights and the bound moves some."""
    partitions = list("0123456789abcdef")
    owners = Rendezvous(partitions, bound=1.0).owners({"a": 1.0, "b": 2.0, "c": 5.0})
    assert "".join(owners[each] for each in partitions) == "acccccbccacbbbcc"


@pytest.mark.parametrize("bound", [1.0, 1.25, 2.0])
def test_with_a_bound_nobody_owns_more_than_its_share_allows(bound: float) -> None:
    weights = {"a": 0.5, "b": 2.0, "c": 5.0}
    loads = Counter(Rendezvous(PARTITIONS, bound=bound).owners(weights).values())
    assert sum(loads.values()) == len(PARTITIONS)
    for member, weight in weights.items():
        assert loads[member] <= math.ceil(bound * len(PARTITIONS) * weight / 7.5)
    if bound == 1.0:
        assert loads["b"] == pytest.approx(len(PARTITIONS) * 2.0 / 7.5, abs=2)


def test_a_share_follows_the_weight() -> None:
    weights = {"small": 1.0, "large": 3.0, "draining": 0.0}
    loads = Counter(Rendezvous(PARTITIONS).owners(weights).values())
    assert loads["draining"] == 0
    assert loads["large"] / loads["small"] == pytest.approx(3, rel=0.15)


def test_another_weight_moves_partitions_only_to_or_from_that_member() -> None:
    rendezvous = Rendezvous(PARTITIONS)
    before = rendezvous.owners({"a": 1.0, "b": 1.0, "c": 1.0})
    after = rendezvous.owners({"a": 1.0, "b": 1.0, "c": 2.0})
    assert {after[partition] for partition in moved(before, after)} == {"c"}


def test_the_spread_is_as_documented_and_can_be_bounded() -> None:
    loads = Counter(Rendezvous(PARTITIONS).owners(MEMBERS).values())
    assert 2 <= min(loads.values()) <= max(loads.values()) <= 20
    bounded = Counter(Rendezvous(PARTITIONS, bound=1.25).owners(MEMBERS).values())
    assert max(bounded.values()) <= math.ceil(1.25 * 10)
    assert sum(bounded.values()) == 1_000


@pytest.mark.slow
def test_with_a_bound_few_others_move_besides() -> None:
    rendezvous = Rendezvous(PARTITIONS, bound=1.25)
    before = rendezvous.owners(MEMBERS)
    moves = []
    for gone in list(MEMBERS)[:4]:
        after = rendezvous.owners({one: weight for one, weight in MEMBERS.items() if one != gone})
        moves.append(len(moved(before, after)))
    assert sum(moves) / len(moves) <= 3 * 10


@pytest.mark.parametrize("bound", [None, 1.0, 1.5])
def test_nobody_owns_anything_where_nobody_may(bound: float | None) -> None:
    rendezvous = Rendezvous(PARTITIONS, bound=bound)
    assert rendezvous.owners({}) == {}
    assert rendezvous.owners({"draining": 0.0}) == {}
    assert set(rendezvous.owners({"only": 0.001}).values()) == {"only"}


@pytest.mark.parametrize("bound", [1.0, 1.1, 1.5])
@pytest.mark.parametrize("members", range(1, 8))
def test_each_partition_has_an_owner_however_tight_the_bound(members: int, bound: float) -> None:
    weights = {f"m{number}": 1.0 + number % 2 for number in range(members)}
    for number in range(1, 20):
        partitions = PARTITIONS[:number]
        assert Rendezvous(partitions, bound=bound).owners(weights).keys() == set(partitions)
