"""On real servers: what ends a session early, and that sessions on a coordination node outlive it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from consul_coord import Client, Lock, LossReason, SessionSpec
from tests.support.sites import Operator, eventually, without_node

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.testing.agent import RealAgent
    from proof.cluster import RealCluster
    from tests.support.sites import Site

    How = Callable[[RealAgent, Operator], None]

pytestmark = pytest.mark.cluster

TTL: Final = 60.0
"""Longer than the servers take to remove a member, and an agent to start again."""
PATIENT: Final = 40.0
ALIVE: Final = 1


def is_gone(server: Operator, node: str) -> bool:
    return server.done("GET", f"/v1/catalog/node/{node}?consistent") is None


def killed_and_sent_away(agent: RealAgent, server: Operator) -> None:
    """Crash it, and let an operator remove what is left of it."""
    agent.kill()

    def failed() -> bool:
        members = server.done("GET", "/v1/agent/members")
        return all(each["Name"] != agent.name or each["Status"] != ALIVE for each in members)

    eventually(failed, within=PATIENT)
    server.ask("PUT", f"/v1/agent/force-leave/{agent.name}")
    eventually(lambda: is_gone(server, agent.name), within=PATIENT)


def left(agent: RealAgent, _: Operator) -> None:
    """Let it leave in good order."""
    Operator(agent.address).ask("PUT", "/v1/agent/leave")


@pytest.mark.parametrize("how", [killed_and_sent_away, left])
def test_its_holds_outlive_the_agent_that_they_were_taken_through(
    cluster: RealCluster, by_agent: Site, by_follower: Site, how: How
) -> None:
    agent = cluster.clients[0]
    usual_key, kept_key = f"{by_agent.key}/usual", f"{by_agent.key}/kept"
    usual = SessionSpec(ttl=TTL, lock_delay=1.0, name=by_agent.unique)
    lasting = SessionSpec.coordination(f"coord-{by_agent.unique}", ttl=TTL, name=by_agent.unique)
    with (
        Client(address=by_agent.address, session=usual) as one,
        Client(address=by_agent.address, session=lasting) as other,
    ):
        lost = Lock(one, usual_key).acquire(timeout=PATIENT)
        kept = Lock(other, kept_key).acquire(timeout=PATIENT)
        how(agent, by_follower.operator)
        eventually(lambda: not by_follower.operator.exists(lost.session), within=PATIENT)
        assert by_follower.operator.holder(kept_key) == kept.session
        agent.restart()
        assert kept.is_held
        eventually(kept.verify, within=PATIENT)
        assert not lost.is_held
        assert lost.reason in {LossReason.EXPIRED, LossReason.SESSION_GONE}
    by_follower.operator.done("PUT", "/v1/catalog/deregister", {"Node": f"coord-{by_agent.unique}"})


@pytest.mark.parametrize(("ttl", "lock_delay"), [(60.0, 2.0), (15.0, 4.0)])
def test_a_holder_that_hears_nothing_has_stopped_before_the_next_one_begins(
    cluster: RealCluster, by_agent: Site, by_follower: Site, ttl: float, lock_delay: float
) -> None:
    """Its agent stands still, and its node leaves the catalog: its session ends long before its TTL."""
    agent = cluster.clients[0]
    spec = SessionSpec(ttl=ttl, lock_delay=lock_delay, name=by_agent.unique)
    with (
        Client(address=by_agent.address, session=spec) as one,
        Client(address=by_follower.address) as successor,
    ):
        hold = Lock(one, by_agent.key).acquire(timeout=PATIENT)
        hold.ensure(0.9 * lock_delay)  # renewed just before: it believes for as long as it ever may
        agent.pause()
        with without_node(by_follower.operator, agent.name):
            assert hold.is_held
            with Lock(successor, by_agent.key).hold(timeout=PATIENT):
                assert hold.reason is LossReason.EXPIRED
        agent.resume()
