"""What clients see of where an agent stands: a follower, a client agent, one whose node dies.

The reference server is one agent. It has no gossip and no other servers: what those would do to it is set
(``ServerConfig.hops``), ordered (``faults``, ``lag``) or written to its catalog, as each case says.
"""

from __future__ import annotations

import http.client
import uuid
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

from consul_coord.server import Effect, Fault, ReferenceServer, ServerConfig
from consul_coord.testing.agent import RealAgent
from proof.cluster import RealCluster
from tests.conformance.target import UNKNOWN, Target, until

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

HOP: Final = "rpc error making call: "
BOTH: Final = ["reference", pytest.param("cluster", marks=[pytest.mark.agent, pytest.mark.cluster])]
RARELY: Final = {"limits": {"rpc_rate": 2, "rpc_max_burst": 2}}
HOST: Final = "127.0.0.31"

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def cluster(consul_binary: Path) -> Iterator[RealCluster]:
    """Three servers and two client agents, of which the second may die."""
    with RealCluster(binary=consul_binary, clients=2) as running:
        yield running


def follower_of(cluster: RealCluster) -> Target:
    leader = cluster.wait_for_leader()
    return Target("cluster", cluster.addresses[(leader + 1) % len(cluster.addresses)])


@pytest.fixture(params=BOTH)
def side(request: pytest.FixtureRequest) -> str:
    named: str = request.param
    return named


@pytest.fixture(params=[1, 2], ids=["follower", "client agent"])
def hops(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.fixture
def distant(request: pytest.FixtureRequest, side: str, hops: int) -> Iterator[Target]:
    """An agent so many hops from the leader; a real client agent may be at a follower or at the leader."""
    if side == "reference":
        with ReferenceServer(config=ServerConfig(hops=hops)) as server:
            yield Target("reference", server.address)
        return
    cluster: RealCluster = request.getfixturevalue("cluster")
    yield follower_of(cluster) if hops == 1 else Target("cluster", cluster.clients[0].address)


Asked = tuple[tuple[str, str, object], int, str]

LEADERS: Final[tuple[Asked, ...]] = (
    (("PUT", f"/v1/kv/k?acquire={UNKNOWN}", b""), 500, f'invalid session "{UNKNOWN}"'),
    (("PUT", "/v1/kv/k?acquire=", b""), 500, "missing session"),
    (("PUT", "/v1/session/create", {"Behavior": "x"}), 500, "Invalid Behavior setting 'x'"),
    (("PUT", "/v1/session/create", {"Node": "none"}), 500, "Missing node registration"),
    (("PUT", "/v1/catalog/register", {}), 500, "Must provide node"),
    (("GET", f"/v1/query/{UNKNOWN}", b""), 404, "Query not found"),
)
NEAREST_SERVERS: Final[tuple[Asked, ...]] = (
    (("GET", f"/v1/query/{UNKNOWN}?stale", b""), 404, "Query not found"),
    (("GET", "/v1/kv/k?dc=mars", b""), 500, "No path to datacenter"),
)
OWN: Final[tuple[Asked, ...]] = (
    (("PUT", f"/v1/session/renew/{UNKNOWN}", b""), 404, f"Session id '{UNKNOWN}' not found"),
    (("PUT", "/v1/kv/k?flags=x", b""), 500, 'strconv.ParseUint: parsing "x": invalid syntax'),
    (("GET", "/v1/kv/", b""), 400, "Missing key name"),
    (("GET", "/v1/kv/k?index=x", b""), 400, "Invalid index"),
)
ROWS: Final = [
    *((*row, 0) for row in LEADERS),
    *((*row, 1) for row in NEAREST_SERVERS),
    *((*row, 2) for row in OWN),
]


@pytest.mark.parametrize(
    ("call", "status", "text", "spared"), ROWS, ids=[f"{row[0][0]} {row[0][1]}" for row in ROWS]
)
def test_each_hop_adds_its_words_to_an_error(
    distant: Target, hops: int, call: tuple[str, str, object], *, status: int, text: str, spared: int
) -> None:
    """Those of the leader come from furthest; some the nearest server gives, and some the agent itself.

    A real client agent goes on to another server after each error, to the leader too, which is a hop nearer.
    """
    expected = max(0, hops - spared)

    def as_often_as_hops() -> bool:
        answer = distant.ask(*call)
        assert answer.status == status
        said = answer.text.strip()
        assert distant.says(said.replace(HOP, ""), text)
        return said.startswith(HOP * expected) and said.count(HOP) == expected

    until(as_often_as_hops)


def test_a_transaction_that_fails_says_so_in_the_same_words_everywhere(distant: Target) -> None:
    answer = distant.txn({"Verb": "check-not-exists", "Key": "k"}, {"Verb": "get", "Key": "none"})
    assert answer.status == 409
    assert answer.json["Errors"] == [{"OpIndex": 1, "What": 'key "none" doesn\'t exist'}]


@dataclass(frozen=True)
class Follower:
    """A server whose data may be behind the leader's, between ``lag`` and ``catch_up`` at least."""

    target: Target
    lag: Callable[[], object] = lambda: None
    catch_up: Callable[[], object] = lambda: None


@pytest.fixture
def follower(request: pytest.FixtureRequest, side: str) -> Iterator[Follower]:
    if side == "cluster":
        yield Follower(follower_of(request.getfixturevalue("cluster")))
        return
    with ReferenceServer() as server:
        yield Follower(Target("reference", server.address), server.lag, server.catch_up)


def test_a_stale_read_may_miss_what_was_written_through_the_same_server(follower: Follower) -> None:
    """A real follower is behind by itself, nearly always; the reference server is when told to be."""
    target = follower.target
    until(lambda: is_missed(follower, target.key(uuid.uuid4().hex)))


def is_missed(follower: Follower, key: str) -> bool:
    """Write a key, and read it at once and until it is there; tell whether it was not at first."""
    target = follower.target
    follower.lag()
    assert target.put(f"/v1/kv/{key}", b"v").json is True
    answer = target.get(f"/v1/kv/{key}?stale")
    follower.catch_up()
    until(lambda: target.get(f"/v1/kv/{key}?stale").status == 200)
    if answer.status == 200:
        return False
    assert (answer.status, answer.body) == (404, b"")
    assert answer.index < target.entry(key)["ModifyIndex"]
    return True


@contextmanager
def limited_reference() -> Generator[Target, None, None]:
    with ReferenceServer() as server:
        target = Target("reference", server.address)
        assert target.put("/v1/kv/limited", b"v").json is True
        for method in ("GET", "PUT"):
            server.faults.add(
                Fault(effect=Effect.RESPOND, status=429, method=method, path="^/v1/kv/", times=1)
            )
        yield target


@contextmanager
def limited_agent(cluster: RealCluster, binary: Path, folder: Path) -> Generator[Target, None, None]:
    members = Target("cluster", cluster.addresses[0]).get("/v1/agent/members").json
    join = [f"{member['Addr']}:{member['Port']}" for member in members]
    client = {"server": False, "bootstrap_expect": 0, "retry_join": join, "retry_interval": "200ms"}
    agent = RealAgent(binary=binary, host=HOST, name="limited", data_dir=folder, config={**client, **RARELY})
    with ExitStack() as stack:
        stack.callback(agent.close)
        agent.launch()
        until(lambda: answers(agent))
        yield Target("cluster", agent.address)


def answers(agent: RealAgent) -> bool:
    assert agent.is_running, agent.log
    try:
        status, _ = agent.request("PUT", "/v1/kv/limited", b"v")
    except (OSError, http.client.HTTPException):
        return False
    return status == 200


def test_too_many_requests(request: pytest.FixtureRequest, side: str, tmp_path: Path) -> None:
    """Beyond ``limits.rpc_rate``, which a client agent has, reads and writes are refused alike.

    The reference server refuses what a fault names, in the same form.
    """
    if side == "reference":
        running = limited_reference()
    else:
        binary: Path = request.getfixturevalue("consul_binary")
        running = limited_agent(request.getfixturevalue("cluster"), binary, tmp_path)
    with running as target:
        for method in ("GET", "PUT"):
            until(partial(is_refused, target, method))
            until(partial(is_served, target, method))


def is_served(target: Target, method: str) -> bool:
    return target.ask(method, "/v1/kv/limited", b"v").status == 200


def is_refused(target: Target, method: str) -> bool:
    """Ask a few times in a row; tell whether one was too many."""
    answers = [target.ask(method, "/v1/kv/limited", b"v") for _ in range(20)]
    refused = [answer for answer in answers if answer.status != 200]
    known = {(429, "")} if target.is_1_8 else {(429, ""), (429, "RPC rate limit exceeded")}
    assert {(answer.status, answer.text) for answer in refused} <= known
    return bool(refused)


@dataclass(frozen=True)
class Mortal:
    """An agent whose node can die, and a server that goes on."""

    agent: Target
    server: Target
    die: Callable[[], object]


@pytest.fixture
def mortal(request: pytest.FixtureRequest, side: str) -> Iterator[Mortal]:
    if side == "cluster":
        cluster: RealCluster = request.getfixturevalue("cluster")
        client = cluster.clients[1]
        yield Mortal(Target("cluster", client.address), follower_of(cluster), client.kill)
        return
    with ReferenceServer() as server:
        target = Target("reference", server.address)
        serf = {"CheckID": "serfHealth", "Status": "critical"}
        dead = {"Node": target.node, "SkipNodeUpdate": True, "Check": serf}
        yield Mortal(target, target, lambda: target.put("/v1/catalog/register", dead))


@pytest.mark.slow
def test_the_sessions_of_a_node_that_dies_end(mortal: Mortal) -> None:
    """By the default check alone: Consul's gossip makes serfHealth critical, which ends what relies on it.

    The reference server has no gossip: the check is made critical as the leader would do it.
    """
    agent, server = mortal.agent, mortal.server
    key, other = server.key(), server.session()
    bound = agent.put("/v1/session/create", {}).json["ID"]
    free = agent.session()
    assert agent.put(f"/v1/kv/{key}?acquire={bound}", b"v").json is True
    mortal.die()
    until(lambda: server.info(bound) == [])
    assert server.info(free)
    checks = server.get(f"/v1/health/node/{agent.node}").json
    assert {check["CheckID"]: check["Status"] for check in checks}["serfHealth"] == "critical"
    entry = server.entry(key)
    assert "Session" not in entry
    assert (entry["Value"], entry["LockIndex"]) == ("dg==", 1)
    assert server.put(f"/v1/kv/{key}?acquire={other}").json is False
    refused = server.put("/v1/session/create", {"Node": agent.node})
    assert refused.status == 500
    assert server.says(refused.text.replace(HOP, ""), "Check 'serfHealth' is in critical state")
