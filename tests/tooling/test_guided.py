"""The guided search: names repeat runs, what is new is kept, and a broken rule ends it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consul_coord.testing.simulation.worlds import draw_mixed
from proof import guided
from tests.simulation.mutations import MUTATIONS

SCENE = next(seed for seed in range(100) if draw_mixed(seed).gentle)
OTHER = next(seed for seed in range(100) if not draw_mixed(seed).gentle)
SHARDS = 12


def test_a_name_is_a_plan() -> None:
    assert guided.bred("7") == draw_mixed(7)
    names = [f"{OTHER}/{number}" for number in range(30)]
    plans = [guided.bred(name) for name in names]
    assert plans == [guided.bred(name) for name in names]
    changed = [plan for plan in plans if plan != draw_mixed(OTHER) and not plan.gentle]
    assert {plan.seed == OTHER for plan in changed} == {True, False}
    assert any(plan.chaos != draw_mixed(OTHER).chaos for plan in changed)
    assert any(plan.fates != draw_mixed(OTHER).fates for plan in changed)


def test_a_scene_gets_another_seed_alone() -> None:
    for number in range(20):
        assert guided.bred(f"{SCENE}/{number}") == replace(draw_mixed(SCENE), seed=number)


@pytest.mark.search
def test_a_run_that_reaches_something_new_is_kept_and_bred() -> None:
    seen = guided.Seen()
    told: list[str] = []
    kept, broken = guided.search(seen, ["5", "5"], seed=1, seconds=4.0, tell=told.append)
    assert (kept[0], broken) == ("5", "")
    assert kept.count("5") == 1
    assert seen.lines > 500
    assert "no rule broken" in told[-1]
    again = guided.Seen()
    _, news = again.news(guided.bred("5"))
    assert news > 500
    _, news = again.news(guided.bred("5"))
    assert news == 0


def test_a_broken_rule_ends_the_search() -> None:
    fault = next(each for each in MUTATIONS if each.breaks == "fences")
    told: list[str] = []
    with fault.planted():
        _, broken = guided.search(guided.Seen(), ["0", "1", "2"], seed=1, seconds=30.0, tell=told.append)
        assert told[-1].startswith(f"{broken}: fences")
        assert guided.main(["show", broken]) == 1
    assert guided.main(["show", broken]) == 0


@pytest.mark.search
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_run_that_is_kept_breaks_a_rule(shard: int) -> None:
    names = guided.corpus()[shard::SHARDS]
    assert names
    broken = {name: guided.outcome_of(name).violation for name in names}
    assert {name: violation for name, violation in broken.items() if violation is not None} == {}
