"""Servers forget a lock-delay that began before their snapshot, or that only their dead leader knew of."""

from __future__ import annotations

import contextlib
import http
import http.client
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import pytest

from consul_coord import AcquireTimeout, Client, Lock, SessionSpec
from proof.cluster import RealCluster
from tests.support.sites import Operator, Site, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from consul_coord.testing.agent import RealAgent

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(180)]

TTL: Final = 40.0
PATIENT: Final = 60.0
ENTRIES: Final = 20
"""A server makes a snapshot after so many writes, in this trial."""
TRIES: Final = 10
ASKING: Final = 100
"""Requests for the key at a time: the next leader gives it away in its first few milliseconds only."""


@pytest.fixture
def cluster(consul_binary: Path, request: pytest.FixtureRequest) -> Iterator[RealCluster]:
    threshold = ENTRIES if request.param else 100_000
    config = {
        "raft_snapshot_threshold": threshold,
        "raft_snapshot_interval": "500ms",
        "raft_trailing_logs": 1,
    }
    with RealCluster(binary=consul_binary, clients=1, config=config) as one:
        yield one


def snapshot_of(server: RealAgent) -> int:
    """Return up to which write a server's snapshot goes."""
    stats = json.loads(server.request("GET", "/v1/agent/self")[1])["Stats"]
    return int(stats["raft"]["last_snapshot_index"])


def restart_all(cluster: RealCluster) -> None:
    """Kill all servers, and start them again."""
    for server in cluster.agents:
        server.kill()
    for server in cluster.agents:
        server.launch()
    for server in cluster.agents:
        server.wait_ready()


def restart_one_by_one(cluster: RealCluster) -> None:
    """Restart the followers in turn, as for an upgrade, and the leader at last: one of them leads then."""
    leader = cluster.agents[cluster.wait_for_leader()]
    for server in [*(one for one in cluster.agents if one is not leader), leader]:
        server.kill()
        cluster.wait_for_leader()
        server.launch()
        server.wait_ready()


@pytest.mark.parametrize(
    ("cluster", "restart"),
    [
        pytest.param(True, restart_all, id="all from a snapshot"),
        pytest.param(True, restart_one_by_one, id="one by one from a snapshot"),
        pytest.param(False, restart_all, id="all from the log"),
    ],
    indirect=["cluster"],
)
def test_servers_that_restart_from_a_snapshot_forget_a_lock_delay(
    cluster: RealCluster, restart: Callable[[RealCluster], None], request: pytest.FixtureRequest
) -> None:
    from_snapshot = bool(request.node.callspec.params["cluster"])
    site = Site.at("server", cluster.agents[0].address)
    spec = SessionSpec(ttl=TTL, lock_delay=TTL, name=site.unique)
    with (
        Client(address=cluster.clients[0].address, session=spec) as former,
        Client(address=cluster.agents[0].address) as next_one,
    ):
        hold = Lock(former, site.key).acquire(timeout=PATIENT)
        hold.ensure(0.9 * TTL)
        cluster.clients[0].pause()
        ended = time.monotonic()
        site.operator.destroy(hold.session)
        with pytest.raises(AcquireTimeout, match="lock-delay"):
            Lock(next_one, site.key).acquire(timeout=0)
        next_one.kv.put(f"{site.unique}/mark", "")
        mark = next_one.kv.get(f"{site.unique}/mark").value
        assert mark is not None
        if from_snapshot:
            for number in range(3 * ENTRIES):
                next_one.kv.put(f"{site.unique}/filler", str(number))
            for server in cluster.agents:
                eventually(lambda: snapshot_of(server) > mark.modify_index, within=PATIENT)  # noqa: B023 - at once
        restart(cluster)
        successor = Lock(next_one, site.key).acquire(timeout=2 * PATIENT)
        got = time.monotonic() - ended
        believed = hold.remaining()
        successor.release()
        cluster.clients[0].resume()
        sys.stdout.write(
            f"\n{request.node.name}: taken after {got:.1f} s, believed for {believed:.1f} s more"
        )
    assert (believed > 0.0) == from_snapshot


def asked_for_until_answered(address: str, path: str) -> bool:
    """Ask for a key until there is a leader, who gives it or not."""
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            status, answer = Operator(address).ask("PUT", path)
            if status == http.HTTPStatus.OK:
                return bool(json.loads(answer))


def believed_when_the_leader_dies_at_once(cluster: RealCluster) -> float:
    """End a hold and kill the leader; return for how long the hold is believed if others get its key."""
    leader = cluster.wait_for_leader()
    addresses = [agent.address for index, agent in enumerate(cluster.agents) if index != leader]
    site = Site.at("server", addresses[0])
    path = f"/v1/kv/{site.key}?acquire={site.operator.create()}"
    spec = SessionSpec(ttl=TTL, lock_delay=TTL, name=site.unique)
    with Client(address=cluster.clients[0].address, session=spec) as former:
        hold = Lock(former, site.key).acquire(timeout=PATIENT)
        cluster.clients[0].pause()
        site.operator.destroy(hold.session)
        cluster.kill(leader)
        with ThreadPoolExecutor(ASKING) as pool:
            asked = [pool.submit(asked_for_until_answered, addresses[n % 2], path) for n in range(ASKING)]
            believed = hold.remaining() if any(each.result(PATIENT) for each in asked) else 0.0
        cluster.heal()
    return believed


@pytest.mark.timeout(600)
def test_a_leader_that_dies_at_once_takes_a_lock_delay_with_it(consul_binary: Path) -> None:
    with RealCluster(binary=consul_binary, clients=1) as cluster:
        assert any(believed_when_the_leader_dies_at_once(cluster) > 0.0 for _ in range(TRIES))
