"""Servers and agents that die under a held lock, for less than its lease: nobody loses anything.

The lease is half a minute, and a cluster has a new leader after a few seconds: a busy machine has time. What
is looked at afterwards is that the hold was renewed *since* the outage, by the servers that there are now.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Final

import pytest

from consul_coord import AsyncClient, AsyncLock, Client, HoldState, Lock, ReleaseOutcome, SessionSpec, TxnOp
from consul_coord.events import Lost
from tests.support.sites import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from consul_coord import AsyncHold, Hold
    from consul_coord.events import Event
    from proof.cluster import RealCluster
    from tests.support.sites import Site

pytestmark = pytest.mark.cluster

TTL: Final = 30.0
RENEWED: Final = 0.9 * TTL
"""Seconds of lease that only a renewal after the outage can give."""
PATIENCE: Final = 25.0
"""Seconds after which a cluster that has a quorum serves again."""


def spec(site: Site) -> SessionSpec:
    return SessionSpec(ttl=TTL, lock_delay=0, name=site.unique, allow_unbounded=True)


class Losses:
    """An observer that remembers what was lost."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, Lost):
            self.events.append(event)


@contextmanager
def held_through(site: Site, session_spec: SessionSpec | None = None) -> Iterator[Hold]:
    """Hold a lock while a block harms the servers; then everything that a hold is good for works."""
    losses, chosen = Losses(), session_spec or spec(site)
    with Client(address=site.address, session=chosen, timeout=PATIENCE, observer=losses) as client:
        hold = Lock(client, site.key).acquire(timeout=PATIENCE)
        fence, session = hold.fence, hold.session
        hold.put(b"before")
        yield hold
        assert hold.is_held
        hold.ensure(RENEWED)
        assert hold.remaining() > RENEWED - PATIENCE
        assert hold.verify()
        hold.put(b"after")
        client.txn(*hold.guard(), TxnOp.set(f"{site.key}/work", b"done under the lock"))
        assert (hold.state, hold.fence, hold.session) == (HoldState.HELD, fence, session)
        assert site.operator.entry(site.key) is not None
        assert site.operator.holder(site.key) == session
        assert hold.release() is ReleaseOutcome.RELEASED
        assert site.operator.holder(site.key) != session
    assert not site.operator.exists(session)
    assert losses.events == []


def kill_leader(cluster: RealCluster) -> None:
    """Kill the leader, and wait until another leads."""
    old = cluster.wait_for_leader()
    cluster.kill(old)
    assert cluster.wait_for_leader() != old


def test_the_leader_killed_under_a_held_lock(cluster: RealCluster, by_agent: Site) -> None:
    with held_through(by_agent):
        kill_leader(cluster)


def test_the_leader_killed_under_an_async_lock(cluster: RealCluster, by_follower: Site) -> None:
    losses = Losses()
    site = by_follower

    async def use(hold: AsyncHold, client: AsyncClient) -> None:
        fence = hold.fence
        await hold.put(b"before")
        await asyncio.to_thread(kill_leader, cluster)
        assert hold.is_held
        await hold.ensure(RENEWED)
        assert await hold.verify()
        await hold.put(b"after")
        await client.txn(*hold.guard(), TxnOp.set(f"{site.key}/work", b"done under the lock"))
        assert (hold.state, hold.fence) == (HoldState.HELD, fence)

    async def main() -> None:
        client = AsyncClient(address=site.address, session=spec(site), timeout=PATIENCE, observer=losses)
        async with client, AsyncLock(client, site.key).hold(timeout=PATIENCE) as hold:
            await use(hold, client)

    asyncio.run(main())
    assert losses.events == []
    entry = site.operator.entry(site.key)
    assert entry is not None
    assert entry["Value"] == b"after"


def test_a_waiter_outlives_the_leader_too(cluster: RealCluster, by_agent: Site, by_follower: Site) -> None:
    """The one who waits, by another agent than the holder, keeps its place and gets the lock."""
    fences: list[int] = []
    with Client(address=by_follower.address, session=spec(by_agent), timeout=PATIENCE) as client:
        lock = Lock(client, by_agent.key)
        waiter = Thread(target=lambda: fences.append(lock.run(lambda mine: mine.fence)))
        with held_through(by_agent) as hold:
            waiter.start()
            (contender,) = eventually(lock.contenders)
            kill_leader(cluster)
            eventually(hold.verify)
            assert [each.session for each in lock.contenders()] == [contender.session]
            assert fences == []
        waiter.join(PATIENCE)
    assert len(fences) == 1
    assert fences[0] > hold.fence


def test_a_follower_killed_under_a_held_lock(cluster: RealCluster, by_agent: Site) -> None:
    follower = next(i for i in range(3) if i != cluster.leader())
    with held_through(by_agent):
        cluster.kill(follower)


def test_all_servers_killed_at_once_and_started_again(cluster: RealCluster, by_agent: Site) -> None:
    """A server that leads before it has heard of an agent takes the agent's node out of the catalog.

    The sessions on that node end: in 1 of 16 such starts on a busy machine. Those of another node live.
    """
    lasting = SessionSpec.coordination(f"coord-{by_agent.unique}", ttl=TTL, name=by_agent.unique)
    with held_through(by_agent, lasting):
        for server in cluster.agents:
            server.kill()
        cluster.heal()


def test_the_servers_restarted_one_after_the_other(cluster: RealCluster, by_agent: Site) -> None:
    """As an upgrade does it: each is asked to end, and is back before the next one goes."""
    with held_through(by_agent):
        for server in cluster.agents:
            server.restart()
            cluster.heal()


def test_the_client_agent_killed_and_started_again(cluster: RealCluster, by_agent: Site) -> None:
    with held_through(by_agent):
        cluster.clients[0].kill()
        cluster.heal()


def test_an_agent_stopped_for_a_moment(cluster: RealCluster, by_agent: Site) -> None:
    with held_through(by_agent) as hold:
        cluster.clients[0].pause()
        assert not hold.lost.wait(1.0)
        cluster.clients[0].resume()
