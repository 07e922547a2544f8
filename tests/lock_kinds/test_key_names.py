"""Names that some release of Consul refuses in reads, and takes in transactions."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest

from consul_coord import (
    Client,
    Group,
    InvalidRequest,
    LeaderElection,
    Lock,
    MultiLock,
    ReadWriteLock,
    Semaphore,
)
from consul_coord.recipes.group.members import bucket_of
from consul_coord.server import ReferenceServer
from tests.support.proxy import Fault, FaultProxy, Lose
from tests.support.sites import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ODD = "jobs/odd~name"
MEMBER = f"jobs/members/{bucket_of('odd~name')}/odd~name"
REFUSED = b"invalid key name, keys should respect the strict pattern"
PATIENT = 10.0


@pytest.fixture
def agent() -> Iterator[FaultProxy]:
    with ReferenceServer() as server, FaultProxy(server.address) as proxy:
        yield proxy


@pytest.fixture
def client(agent: FaultProxy) -> Iterator[Client]:
    with Client(address=agent.address) as one:
        yield one


def refuse(agent: FaultProxy) -> None:
    """Refuse the name in the path of requests, as newer releases do; transactions take it."""
    for method, path in product(("GET", "PUT", "DELETE"), (f"/v1/kv/{ODD}", f"/v1/kv/{MEMBER}")):
        agent.add(Fault(lose=Lose.AGENT, method=method, path=path, times=10**6, body=REFUSED))


def stand(client: Client) -> None:
    with LeaderElection(client, ODD) as election:
        eventually(lambda: election.problem, within=PATIENT)
        assert not election.is_leader
        raise election.problem or AssertionError


RECIPES: dict[str, Callable[[Client], object]] = {
    "lock": lambda client: Lock(client, ODD).acquire(timeout=PATIENT),
    "lock, one try": lambda client: Lock(client, ODD).acquire(timeout=0),
    "several locks": lambda client: MultiLock(client, ["jobs/a", ODD]).acquire(timeout=PATIENT),
    "semaphore": lambda client: Semaphore(client, ODD, 2).acquire(timeout=PATIENT),
    "reader": lambda client: ReadWriteLock(client, ODD).read.acquire(timeout=PATIENT),
    "writer": lambda client: ReadWriteLock(client, ODD).write.acquire(timeout=PATIENT),
    "member": lambda client: Group(client, "jobs", id="odd~name").join(timeout=PATIENT),
    "candidate": stand,
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_name_that_the_server_refuses_is_told_before_anything_is_written(
    agent: FaultProxy, client: Client, recipe: str
) -> None:
    refuse(agent)
    with pytest.raises(InvalidRequest, match="letters, digits"):
        RECIPES[recipe](client)
    with Client(address=agent.address) as operator:
        assert operator.kv.keys("").value == ()


def test_a_name_is_read_at_the_first_need_only_and_a_safe_one_never(
    agent: FaultProxy, client: Client
) -> None:
    for _ in range(3):
        with Lock(client, ODD), Lock(client, "jobs/safe-name_1.a,b=c&d"):
            pass
    reads = [request.path for request in agent.requests if request.method == "GET"]
    reads = [path for path in reads if "index=" not in path]  # watches come along where holds last
    # A client looks once at a key that it never had, whatever its name is.
    assert sum(path.startswith("/v1/kv/jobs/odd~name") for path in reads) == 1 + 1
    assert sum(path.startswith("/v1/kv/jobs/safe-name_1.a%2Cb%3Dc%26d") for path in reads) == 0 + 1
    assert len(reads) == 3


def test_a_newer_server_is_noticed_within_a_minute(
    agent: FaultProxy, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Lock(client, ODD):
        pass
    refuse(agent)
    monkeypatch.setattr("consul_coord.recipes.contend.attempt.READABLE_FOR", 0.0)
    with pytest.raises(InvalidRequest, match="letters, digits"):
        Lock(client, ODD).acquire(timeout=PATIENT)
