"""The rules of jobs that run once hold in every state of a small world, and none of them can be left out."""

from __future__ import annotations

import re
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import pytest

from consul_coord.recipes.once.record import judge
from tests.models.explorer import Explored, explore
from tests.models.once_model import OnceModel

if TYPE_CHECKING:
    from consul_coord.recipes.once.record import Ask, Record

SMALL: Final = {
    "two callers, twice each, for two slots": OnceModel(),
    "two callers, two faults, two losses": OnceModel(calls=1, faults=2, losses=2),
    "three callers for one slot": OnceModel(callers=3, calls=1, slots=1),
    "the work fails": OnceModel(failures=1, losses=0),
}
LARGE: Final = {
    "three callers for two slots": OnceModel(callers=3, calls=1, failures=1),
    "two callers for three slots, two faults": OnceModel(slots=3, faults=2),
    "two callers, three times each": OnceModel(calls=3, faults=2, losses=2),
}
HAPPENS: Final = {
    *("record done", "record refused", "record lost", "record late", "record reply lost", "dies"),
    *("loses its session", "a late write is applied", "gets the lock", "works", "releases"),
}


@cache
def explored_once(name: str) -> Explored:
    return explore(SMALL[name])


@pytest.mark.parametrize("name", SMALL)
def test_the_rules_hold_in_every_state(name: str) -> None:
    assert not explored_once(name).broken, str(explored_once(name))


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", LARGE)
def test_the_rules_hold_in_every_state_of_a_larger_world(name: str) -> None:
    found = explore(LARGE[name], most=5_000_000)
    sys.stdout.write(f"{name}: {found.states} states\n")
    assert not found.broken, str(found)


def test_everything_happens_that_can() -> None:
    assert explored_once("two callers, twice each, for two slots").names >= HAPPENS


def _another_slot_runs(ask: Ask, record: Record | None) -> str | Record:
    return judge(ask, record if record is not None and record.slot == ask.slot else None)


WITHOUT: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "the order of slots": ({"judge": _another_slot_runs}, "a slot begins"),
    "the reading in the grant": ({"reads_at_the_grant": False}, "a slot begins again that succeeded"),
    "the guard of the record": ({"guards": False}, "a slot succeeds twice|fell"),
    "the reading after a doubt": ({"settles_by": "hope"}, "told of a success that was none"),
    "the work before the record": ({"records_first": True}, "nobody did"),
}


@pytest.mark.parametrize("name", WITHOUT)
def test_no_rule_can_be_left_out(name: str) -> None:
    changes, rule = WITHOUT[name]
    found = explore(OnceModel(**changes))
    assert re.search(rule, found.broken), str(found)
