"""No two believe, whatever ends a session: every recipe, with every spec that the docs recommend.

The trial itself is `proof.believers`; here it runs shortly, and is shown to see what it is for.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import pytest

from consul_coord.models import session as session_model
from consul_coord.recipes.rwlock import queue as rwqueue
from consul_coord.recipes.semaphore import slots
from consul_coord.recipes.session import keeping
from proof.believers import ACTS, AT_A_SERVER, RECIPES, SPECS, play, play_all
from tests.simulation.mutations import Mutation

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from consul_coord import SessionSpec
    from proof.cluster import RealCluster

pytestmark = pytest.mark.cluster

SHORT: Final[Mapping[str, SessionSpec]] = {name: SPECS[name] for name in ("quick", "short delay")}
SCALE: Final = 0.1
AT_RENEWALS: Final = Mutation(
    "the same at renewals", keeping, "horizon", "min(ttl, lock_delay, LONGEST_LOCK_DELAY)", "ttl"
)
PLANTED: Final = {
    "semaphore": Mutation(
        "a slot is taken without its lock-delay", slots, "removal", "for key in keys for", "for key in () for"
    ),
    "writer after writer": Mutation(
        "a place is removed without its lock-delay",
        rwqueue,
        "removal",
        "TxnOp.lock(dead.key, by), TxnOp.delete(dead.key)",
        "TxnOp.delete(dead.key), TxnOp.delete(dead.key)",
    ),
    "lock": Mutation(
        "a lease of the TTL alone",
        session_model,
        "horizon",
        "min(ttl, lock_delay, LONGEST_LOCK_DELAY)",
        "ttl",
        also=AT_RENEWALS,
    ),
}


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "act",
    ["destroy", pytest.param("deregister", marks=pytest.mark.long)],
)
def test_no_two_believe_when_sessions_end_unheard(cluster: RealCluster, act: str) -> None:
    (outcome,) = play(cluster, act, scale=SCALE, specs=SHORT)
    assert outcome.passed, str(outcome)
    assert all(thing.taken == thing.room for thing in outcome.things)


@pytest.mark.long
@pytest.mark.timeout(180)
@pytest.mark.parametrize("recipe", PLANTED)
def test_the_trial_sees_two_believers(cluster: RealCluster, recipe: str) -> None:
    with PLANTED[recipe].planted():
        (outcome,) = play(
            cluster,
            "destroy",
            scale=SCALE,
            specs={"short delay": SPECS["short delay"]},
            recipes={recipe: RECIPES[recipe]},
        )
    assert outcome.overlaps


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("servers", [3, 5])
def test_no_two_believe_whatever_is_done_to_agents_and_servers(consul_binary: Path, servers: int) -> None:
    outcomes = []
    for outcome in play_all(times=2, scale=SCALE, servers=servers, binary=consul_binary):
        sys.stdout.write(f"{outcome}\n")
        outcomes.append(outcome)
    assert {outcome.act for outcome in outcomes} == set(ACTS)
    assert [str(outcome) for outcome in outcomes if not outcome.passed] == []
    for outcome in outcomes:
        if outcome.act in AT_A_SERVER:
            assert "autopilot removed" in outcome.told
