"""The rooms of the recipes: which may import which, and that no way leads back."""

from __future__ import annotations

import pytest

from tests.architecture import rules
from tests.architecture.test_imports import SOURCES, with_planted


def test_each_room_imports_only_what_it_may() -> None:
    assert rules.wrong_ways(SOURCES) == []
    found = {room for module in SOURCES if (room := rules.room_of(module))}
    assert found == set(rules.ROOMS)


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("session.lease", "from consul_coord.recipes.hold import grant"),
        ("hold.holds", "from consul_coord.recipes.watch.engine import Watches"),
        ("watch.engine", "from consul_coord.recipes.cleanup import reaper"),
        ("contend.attempt", "if TYPE_CHECKING:\n    from consul_coord.recipes.lock.lock import LockObject"),
        ("semaphore.slots", "from consul_coord.recipes.lock import waitqueue"),
        ("lock.attempt", "from consul_coord.recipes.client import ClientState"),
    ],
)
def test_a_way_that_is_not_there_is_caught(module: str, line: str) -> None:
    (violation,) = rules.wrong_ways(with_planted(f"consul_coord.recipes.{module}", line))
    assert violation.startswith(f"consul_coord.recipes.{module}")


def test_no_module_of_the_recipes_leads_back_to_itself() -> None:
    assert rules.circles(SOURCES) == []


def test_a_circle_is_caught() -> None:
    line = "if TYPE_CHECKING:\n    from consul_coord.recipes.hold.holds import Holds"
    planted = with_planted("consul_coord.recipes.hold.grant", line)
    assert {"consul_coord.recipes.hold.grant", "consul_coord.recipes.hold.holds"} <= {*rules.circles(planted)}


@pytest.mark.parametrize("room", sorted(set(rules.ROOMS) - {"client"}))
def test_each_door_says_what_belongs_there(room: str) -> None:
    door = SOURCES[f"consul_coord.recipes.{room}"]
    assert "Belongs here:" in door
    assert "Does not belong here:" in door
