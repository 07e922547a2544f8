"""A cluster of three servers with a client agent, whole again before each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from proof.cluster import RealCluster
from tests.support.sites import Site

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def one_cluster(consul_binary: Path) -> Iterator[RealCluster]:
    with RealCluster(binary=consul_binary, clients=1) as cluster:
        yield cluster


@pytest.fixture
def cluster(one_cluster: RealCluster) -> RealCluster:
    one_cluster.heal()
    one_cluster.wait_for_leader()
    return one_cluster


@pytest.fixture
def by_agent(cluster: RealCluster) -> Iterator[Site]:
    """Yield where the client agent is reached; in the end nothing of the test's may be left."""
    site = Site.at("client agent", cluster.clients[0].address)
    yield site
    assert site.left_behind() == []


@pytest.fixture
def by_follower(cluster: RealCluster) -> Iterator[Site]:
    """Yield where a server that does not lead is reached; in the end nothing of the test's may be left."""
    leader = cluster.leader()
    follower = next(agent for i, agent in enumerate(cluster.agents) if i != leader)
    site = Site.at("follower", follower.address)
    yield site
    assert site.left_behind() == []
