"""The rules of the read-write lock hold in every state of a small world, and none of them can be left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from consul_coord.recipes.rwlock import queue as rwqueue
from consul_coord.recipes.rwlock.queue import Behind, Enter
from tests.models.explorer import explore
from tests.models.rwlock_model import RwModel

if TYPE_CHECKING:
    from consul_coord.models import KVPair
    from consul_coord.recipes.contend.queue import Look
    from consul_coord.recipes.rwlock.queue import Mode, Verdict

SMALL: Final = {
    "two writers, a fault and a kill": RwModel(("write", "write"), faults=1, kills=1),
    "two writers, twice each, two kills": RwModel(("write", "write"), attempts=2, kills=2),
    "two readers and a writer, a kill": RwModel(("read", "write", "read"), kills=1),
    "a reader and a writer, a fault, both give up": RwModel(("read", "write"), faults=1, kills=1, give_ups=2),
    "a reader and two writers, a kill and one gives up": RwModel(
        ("write", "read", "write"), kills=1, give_ups=1
    ),
}
LARGE: Final = {
    "a reader and two writers, a fault and a kill": RwModel(("write", "read", "write"), faults=1, kills=1),
    "two readers and a writer, two kills": RwModel(("read", "write", "read"), kills=2),
}


def _the_dead_are_in_nobodys_way(look: Look, session: str, mode: Mode, born: int) -> Verdict:
    verdict = rwqueue.judge(look, session, mode, born=born)
    if isinstance(verdict, Behind) and verdict.blocker.session is None:
        return Enter(verdict.own)
    return verdict


def _only_the_living_are_in(look: Look) -> tuple[KVPair, ...]:
    return tuple(pair for pair in rwqueue.inside(look) if pair.session is not None)


WITHOUT: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "nobody asks for a lock-delay": ("exclusion", {"asks_delay": False}),
    "a lease is longer than the lock-delay": ("exclusion", {"lease_first": False}),
    "a contender vanishes with its session": ("exclusion", {"vanishes": True}),
    "the dead are in nobody's way": ("exclusion", {"judge": _the_dead_are_in_nobodys_way}),
    "all the dead are removed at once": ("exclusion", {"inside": _only_the_living_are_in}),
    "no pause ends": ("progress", {"pauses_end": False}),
}


@pytest.mark.search
@pytest.mark.parametrize("name", SMALL)
def test_the_rules_hold_in_every_state(name: str) -> None:
    explored = explore(SMALL[name])
    assert explored.broken == "", str(explored)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", LARGE)
def test_the_rules_hold_in_every_state_of_larger_worlds(name: str) -> None:
    explored = explore(LARGE[name], most=5_000_000)
    assert explored.broken == "", str(explored)


@pytest.mark.search
@pytest.mark.parametrize("name", WITHOUT)
def test_no_rule_can_be_left_out(name: str) -> None:
    rule, changes = WITHOUT[name]
    explored = explore(RwModel(("write", "read", "write"), kills=1, **changes))
    assert explored.broken == rule, str(explored)
