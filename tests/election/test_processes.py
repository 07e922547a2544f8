"""Five candidates in processes of their own, and leaders that are killed, stopped, cut off, or that resign.

After each such event: a new leader within the bound; in the end: never two that believed at once, terms that
rise. What was measured is printed (``-s`` shows it).
"""

from __future__ import annotations

import random
import signal
import statistics
import sys
import time
from typing import TYPE_CHECKING

import pytest

from consul_coord import Client, failover_bound, leader
from consul_coord.testing.agent import RealAgent
from proof.cluster import RealCluster
from tests.election.candidate import PAUSE, SPEC
from tests.election.fleet import Fleet, assert_one_at_a_time, bound
from tests.election.ledger import now
from tests.election.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SECOND = 1_000_000_000
STOPPED = 2 * (SPEC.ttl or 0) + 1.5
"""Seconds for which a process or an agent is stopped: until the lease is long over."""
LATE = 3.0
"""Seconds by which a busy machine may delay all this."""


def tell(text: str) -> None:
    """Show a measurement."""
    sys.stdout.write(f"\n{text}")


class Rounds:
    """What is done to leaders, and how long a successor took."""

    def __init__(
        self, fleet: Fleet, *, agent: RealAgent | None = None, cluster: RealCluster | None = None
    ) -> None:
        self.fleet = fleet
        self.agent = agent
        self.cluster = cluster
        self.took: dict[str, list[float]] = {}

    def play(self, name: str) -> None:
        pid, belief = self.fleet.successor(of=0)
        kind: Callable[[int, int], float] = getattr(self, name)
        began = now()
        limit = kind(pid, belief.term)
        _, after = self.fleet.successor(of=belief.term)
        took = (after.first - began) / SECOND
        self.took.setdefault(name, []).append(took)
        assert took <= limit, f"{name}: a new leader after {took:.2f} s, not within {limit:.2f} s"

    def killed(self, pid: int, term: int) -> float:
        self.fleet.end(pid, signal.SIGKILL)
        self.fleet.start()
        return bound(extra=LATE)

    def stopped(self, pid: int, term: int) -> float:
        self.fleet.send(pid, signal.SIGSTOP)
        self.fleet.successor(of=term)
        self.fleet.send(pid, signal.SIGCONT)
        return bound(extra=LATE)

    def cut_off(self, pid: int, term: int) -> float:
        assert self.agent is not None
        self.agent.pause()
        time.sleep(STOPPED)
        self.agent.resume()
        return STOPPED + bound(extra=LATE + 2.0)

    def resigned(self, pid: int, term: int) -> float:
        self.fleet.send(pid, signal.SIGUSR1)
        return PAUSE

    def server_killed(self, pid: int, term: int) -> float:
        """Kill the servers' leader: it may cost nobody the leadership, so a resignation follows."""
        assert self.cluster is not None
        index = self.cluster.wait_for_leader()
        self.cluster.kill(index)
        self.cluster.wait_for_leader()
        self.cluster.start(index)
        self.fleet.send(pid, signal.SIGUSR1)
        return failover_bound(SPEC, leader_changes=1) + LATE

    def finish(self) -> None:
        for name, took in self.took.items():
            ordered = sorted(took)
            tell(
                f"{name}: {len(took)} rounds, successor after median {statistics.median(took):.3f} s, "
                f"least {ordered[0]:.3f} s, most {ordered[-1]:.3f} s"
            )
        assert_one_at_a_time(self.fleet.beliefs())


@pytest.mark.slow
def test_one_leader_at_a_time_whatever_happens_to_it(agent_address: str, key: str, tmp_path: Path) -> None:
    with Fleet(address=agent_address, key=key, folder=tmp_path, count=5) as fleet:
        rounds = Rounds(fleet)
        for name in ("resigned", "killed", "stopped", "resigned"):
            rounds.play(name)
        rounds.finish()


@pytest.mark.slow
def test_one_leader_at_a_time_on_the_reference_server(
    reference_address: str, key: str, tmp_path: Path
) -> None:
    with Fleet(address=reference_address, key=key, folder=tmp_path, count=3) as fleet:
        rounds = Rounds(fleet)
        for name in ("stopped", "resigned", "killed"):
            rounds.play(name)
        rounds.finish()


@pytest.mark.slow
def test_an_agent_that_stops_costs_the_leadership_and_nothing_else(
    consul_binary: Path, key: str, tmp_path: Path
) -> None:
    with (
        RealAgent(binary=consul_binary) as agent,
        Fleet(address=agent.address, key=key, folder=tmp_path, count=3) as fleet,
    ):
        rounds = Rounds(fleet, agent=agent)
        rounds.play("cut_off")
        rounds.finish()


def queued(client: Client, key: str, waiting: int) -> None:
    """Wait for the note of the leader, and for so many candidates behind it."""
    until(lambda: len(client.kv.keys(key + "/").value) == 1 + waiting, "the others wait")


def named(client: Client, key: str, fleet: Fleet) -> bool:
    """Return whether Consul names the leader that believes in itself."""
    found, believes = leader(client, key), fleet.leader()
    return found is not None and believes is not None and found.term == believes[1].term


def test_a_terminated_leader_has_resigned_before_its_end(
    agent_address: str, key: str, tmp_path: Path
) -> None:
    took = []
    with (
        Fleet(address=agent_address, key=key, folder=tmp_path, count=4) as fleet,
        Client(address=agent_address) as client,
    ):
        for waiting in (3, 2, 1):
            pid, belief = fleet.successor(of=0)
            queued(client, key, waiting)
            began = now()
            assert fleet.end(pid, signal.SIGTERM) == 0
            ended = now()
            _, after = fleet.successor(of=belief.term)
            assert after.first < ended + SECOND // 10
            until(lambda: named(client, key, fleet), "the leader is named")  # a later one, if it stalled
            took.append((after.first - began) / SECOND)
        assert_one_at_a_time(fleet.beliefs())
    tell(f"terminated: successor after {min(took) * 1000:.1f} to {max(took) * 1000:.1f} ms")
    assert min(took) <= 0.1


@pytest.mark.cluster
@pytest.mark.timeout(120)
def test_one_leader_at_a_time_whatever_happens_to_the_servers(
    consul_binary: Path, key: str, tmp_path: Path
) -> None:
    with (
        RealCluster(binary=consul_binary) as cluster,
        Fleet(address=cluster.addresses[0], key=key, folder=tmp_path, count=5) as fleet,
    ):
        rounds = Rounds(fleet, cluster=cluster)
        for name in ("server_killed", "killed", "server_killed"):
            rounds.play(name)
        rounds.finish()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_hundred_rounds(consul_binary: Path, key: str, tmp_path: Path) -> None:
    chance = random.Random(20_260)
    with (
        RealAgent(binary=consul_binary) as agent,
        Fleet(address=agent.address, key=key, folder=tmp_path, count=5) as fleet,
    ):
        rounds = Rounds(fleet, agent=agent)
        for _ in range(100):
            rounds.play(chance.choice(("killed", "stopped", "cut_off", "resigned")))
        rounds.finish()


@pytest.mark.long
@pytest.mark.cluster
@pytest.mark.timeout(1800)
def test_thirty_rounds_on_a_cluster(consul_binary: Path, key: str, tmp_path: Path) -> None:
    chance = random.Random(20_261)
    with (
        RealCluster(binary=consul_binary) as cluster,
        Fleet(address=cluster.addresses[0], key=key, folder=tmp_path, count=5) as fleet,
    ):
        rounds = Rounds(fleet, cluster=cluster)
        for _ in range(30):
            rounds.play(chance.choice(("killed", "stopped", "resigned", "server_killed")))
        rounds.finish()
