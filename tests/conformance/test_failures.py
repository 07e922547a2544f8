"""What clients see of a server that stops, is full, is empty, or has no leader."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

from consul_coord.server import ReferenceServer, ServerConfig
from consul_coord.testing.agent import RealAgent
from proof.cluster import RealCluster
from tests.conformance.target import DEADLINE, Target, until

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping
    from pathlib import Path

    from consul_coord.clock import SystemClock
    from tests.conformance.target import Answer

SETTLE: Final = 0.3
CONNECTIONS: Final = 4
BOTH = ["reference", pytest.param("agent", marks=pytest.mark.agent)]


@dataclass(frozen=True)
class Served:
    """A server of a test's own, and how it is stopped."""

    target: Target
    stop: Callable[[], object]


@contextmanager
def reference(config: ServerConfig) -> Generator[Served, None, None]:
    with ReferenceServer(config=config) as server:
        yield Served(Target("reference", server.address), server.stop)


@contextmanager
def agent(binary: Path, config: Mapping[str, object]) -> Generator[Served, None, None]:
    with RealAgent(binary=binary, config=config) as running:
        yield Served(Target("agent", running.address), running.terminate)


@pytest.fixture(params=BOTH)
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    if request.param == "reference":
        running = reference(ServerConfig(http_max_conns_per_client=CONNECTIONS))
    else:
        limits = {"limits": {"http_max_conns_per_client": CONNECTIONS}}
        running = agent(request.getfixturevalue("consul_binary"), limits)
    with running as given:
        yield given


def test_a_server_that_stops_answers_what_is_pending(served: Served) -> None:
    target = served.target
    target.put("/v1/kv/k", b"v")
    before = target.get("/v1/kv/k")
    with ThreadPoolExecutor() as pool:
        watch = pool.submit(target.get, f"/v1/kv/k?index={before.index}&wait=300s")
        with pytest.raises(TimeoutError):
            watch.result(SETTLE)
        served.stop()
        answer = watch.result(DEADLINE)
    assert (answer.status, answer.json, answer.index) == (200, before.json, before.index)
    with pytest.raises(OSError, match="refused"):
        target.get("/v1/kv/k")


def test_connections_beyond_the_share(served: Served) -> None:
    target = served.target
    with ExitStack() as taken:
        for _ in range(CONNECTIONS):
            connection = taken.enter_context(closing(target.connect()))
            connection.request("GET", "/v1/status/leader")
            assert connection.getresponse().read()
        try:
            status = target.get("/v1/status/leader").status
        except OSError:
            status = None  # closed without a word
    assert status is None or (status == 429 and not target.is_1_8)


def test_a_server_without_anything(served: Served) -> None:
    target = served.target
    empty = target.get("/v1/kv/?keys")
    assert (empty.status, empty.json) == (200, [])
    for path in ("/v1/kv/none", "/v1/kv/none?recurse", "/v1/kv/?keys", "/v1/query"):
        assert target.get(path).index == 1
    assert target.get("/v1/session/list").json == []


@dataclass(frozen=True)
class Quorum:
    """Servers with a leader that can be lost; ``target`` is one that stays, ``heirs`` may all lead next."""

    target: Target
    heirs: tuple[Target, ...]
    lose_leader: Callable[[], object]
    elect_leader: Callable[[], object]
    change_leader: Callable[[], object]


@contextmanager
def reference_quorum() -> Generator[Quorum, None, None]:
    def change(server: ReferenceServer[SystemClock]) -> None:
        server.lose_leader()
        server.elect_leader()

    with ReferenceServer(config=ServerConfig(session_ttl_min=0.2)) as server:
        target = Target("reference", server.address)
        yield Quorum(target, (target,), server.lose_leader, server.elect_leader, partial(change, server))


@contextmanager
def real_quorum(binary: Path) -> Generator[Quorum, None, None]:
    with RealCluster(binary=binary) as cluster:
        leader = cluster.wait_for_leader()
        follower, other = (index for index in range(3) if index != leader)

        def lose() -> None:
            cluster.kill(other)
            cluster.kill(leader)

        heirs = tuple(Target("cluster", cluster.addresses[index]) for index in (follower, other))
        yield Quorum(
            heirs[0],
            heirs,
            lose,
            partial(cluster.start, other),
            partial(cluster.kill, leader),
        )


@pytest.fixture(params=["reference", pytest.param("cluster", marks=[pytest.mark.agent, pytest.mark.cluster])])
def quorum(request: pytest.FixtureRequest) -> Iterator[Quorum]:
    if request.param == "reference":
        running = reference_quorum()
    else:
        running = real_quorum(request.getfixturevalue("consul_binary"))
    with running as given:
        yield given


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_without_a_leader(quorum: Quorum) -> None:
    target = quorum.target
    target.put("/v1/kv/k", b"v")
    session = target.session(TTL="1s")
    until(lambda: target.get("/v1/kv/k?stale").status == 200)
    index = target.get("/v1/kv/k?stale").index
    with ThreadPoolExecutor(max_workers=16) as pool:
        watch = pool.submit(target.get, f"/v1/kv/k?index={index}&wait=300s")
        stale = pool.submit(target.get, f"/v1/kv/k?index={index}&wait=300s&stale")
        shorter = pool.submit(target.get, f"/v1/kv/k?index={index}&wait=4s&stale")
        with pytest.raises(TimeoutError):
            watch.result(SETTLE)
        quorum.lose_leader()
        ended = watch.result(DEADLINE)
        assert ended.status == 500
        assert ended.text.startswith("rpc error ")
        until(lambda: target.get("/v1/status/leader").json == "")
        path = f"/v1/kv/k?index={index}&wait=300s"
        held = None if target.is_1_8 else pool.submit(target.ask, "GET", path, timeout=2 * DEADLINE)
        refused_for_want_of_a_leader(target, session, path if target.is_1_8 else "/v1/kv/k", pool)
        shown = target.get("/v1/kv/k?stale")
        assert (shown.status, shown.json[0]["Value"]) == (200, "dg==")
        assert shown.headers["X-Consul-KnownLeader"] == "false"
        assert int(shown.headers["X-Consul-LastContact"]) > 0
        assert not stale.done()
        # 1.8 tells of the leader it had when the query began; later versions, of the one at its end.
        told = shorter.result(DEADLINE).headers["X-Consul-KnownLeader"]
        assert told == "true" or (told == "false" and not target.is_1_8)
        assert target.get(f"/v1/session/info/{session}?stale").json  # long past twice its TTL
        elected = time.monotonic()
        quorum.elect_leader()
        until(lambda: target.put("/v1/kv/k", b"w").status == 200)
        assert stale.result(DEADLINE).json[0]["Value"] == "dw=="
        if held:  # in 1.20.6, a blocking query waits for a leader as long as it would for a change
            assert held.result(DEADLINE).json[0]["Value"] == "dw=="
        until(lambda: target.info(session) == [])
        assert time.monotonic() - elected >= 2.0


def refused_for_want_of_a_leader(target: Target, session: str, path: str, pool: ThreadPoolExecutor) -> None:
    """Ask in all ways at once: each waits for a leader, and is refused."""
    began = time.monotonic()
    calls: tuple[tuple[str, str, bytes], ...] = (
        ("GET", "/v1/kv/k", b""),
        ("GET", "/v1/kv/k?consistent", b""),
        ("GET", path, b""),
        ("PUT", "/v1/kv/k", b"w"),
        ("PUT", f"/v1/session/renew/{session}", b""),
        ("PUT", "/v1/session/create", b'{"NodeChecks":[]}'),
        ("PUT", "/v1/txn", b'[{"KV":{"Verb":"set","Key":"k"}}]'),
    )
    asked: list[Future[Answer]] = [pool.submit(target.ask, *call) for call in calls]
    for each in asked:
        answer = each.result(DEADLINE)
        assert answer.status == 500
        assert "No cluster leader" in answer.text
    assert time.monotonic() - began >= 6.5


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_lock_delay_survives_a_change_of_the_leader(quorum: Quorum) -> None:
    target = quorum.target
    first, second = target.session(LockDelay="6s"), target.session()
    until(lambda: target.put(f"/v1/kv/k?acquire={first}").json)
    began = time.monotonic()
    assert target.put(f"/v1/session/destroy/{first}").json is True
    assert target.put(f"/v1/kv/k?acquire={second}").json is False
    for heir in quorum.heirs:  # one that leads before it has heard of the end knows of no lock-delay
        until(lambda: "Session" not in heir.get("/v1/kv/k?stale").json[0])  # noqa: B023 - at once
    quorum.change_leader()
    until(lambda: (answer := target.put(f"/v1/kv/k?acquire={second}")).status == 200 and answer.json)
    assert time.monotonic() - began >= 6.0


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_new_leader_starts_every_ttl_afresh(quorum: Quorum) -> None:
    target = quorum.target
    session = target.session(TTL="1500ms")
    time.sleep(1.0)  # a TTL that goes on counting then ends too early
    assert target.info(session)
    changed = time.monotonic()
    quorum.change_leader()
    until(lambda: (answer := target.get(f"/v1/session/info/{session}")).status == 200 and not answer.json)
    assert time.monotonic() - changed >= 3.0
