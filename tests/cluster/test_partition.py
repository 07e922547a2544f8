"""An agent that stands still, as a partition that nobody announces, while the rest of the cluster goes on."""

from __future__ import annotations

import statistics
import sys
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import pytest

from consul_coord import Client, Lock, LossReason, SessionSpec
from tests.support.sites import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord import Hold
    from proof.cluster import RealCluster
    from tests.support.sites import Site

CLIENTS: Final = 10
HOLDS: Final = 5
"""Of each client."""
PATIENCE: Final = 30.0


@pytest.mark.cluster
@pytest.mark.parametrize("ttl", [2.0, *(pytest.param(ttl, marks=pytest.mark.long) for ttl in (1.0, 0.5))])
def test_fifty_holds_are_known_to_be_lost_before_anybody_else_has_them(
    cluster: RealCluster, by_agent: Site, by_follower: Site, ttl: float
) -> None:
    """The holders' agent is stopped; the others, by a server, get each key when its session has expired."""
    spec = SessionSpec(ttl=ttl, lock_delay=0, name=by_agent.unique, allow_unbounded=True)
    told: dict[str, float] = {}
    taken: dict[str, float] = {}
    with ExitStack() as stack:
        holders = [
            stack.enter_context(Client(address=by_agent.address, session=spec)) for _ in range(CLIENTS)
        ]
        takers = [
            stack.enter_context(Client(address=by_follower.address, session=spec)) for _ in range(CLIENTS)
        ]
        holds = [
            Lock(holder, f"{by_agent.key}/{place}/{number}").acquire(timeout=PATIENCE)
            for place, holder in enumerate(holders)
            for number in range(HOLDS)
        ]
        now = holders[0].now

        def wait(hold: Hold) -> None:
            assert hold.lost.wait(PATIENCE)
            told[hold.key] = now()

        def take(hold: Hold, by: Client) -> None:
            with Lock(by, hold.key).hold(timeout=PATIENCE) as other:
                taken[hold.key] = now()
                assert other.fence > hold.fence

        waiting = [start(wait, hold) for hold in holds]
        taking = [start(take, hold, takers[place % CLIENTS]) for place, hold in enumerate(holds)]
        eventually(lambda: len(by_follower.operator.under(f"{by_agent.key}/")) == 2 * len(holds))
        cluster.clients[0].pause()
        for thread in (*waiting, *taking):
            thread.join(PATIENCE)
        cluster.clients[0].resume()
    assert {hold.reason for hold in holds} == {LossReason.EXPIRED}
    late = [told[hold.key] - hold.deadline() for hold in holds]
    ahead = [taken[hold.key] - told[hold.key] for hold in holds]
    sys.stdout.write(
        f"{len(holds)} holds, TTL {ttl} s: told {statistics.median(late) * 1000:.1f} ms after the deadline "
        f"(most {max(late) * 1000:.1f}), {min(ahead) * 1000:.0f} ms or more before the next holder\n"
    )
    assert statistics.median(late) <= ttl / 10
    assert min(ahead) > 0, "another one had it before its holder knew of the loss"


def start(function: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    return thread
