"""Settings that change while a client runs: the token, the time of one call, the next session."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord import (
    AsyncClient,
    Client,
    ConfigError,
    InvalidArgument,
    Lock,
    PermissionDenied,
    ReadWriteLock,
    RequestTimeout,
    Semaphore,
    SessionSpec,
)
from consul_coord.server import ReferenceServer, ServerConfig
from consul_coord.server.acl import AclConfig, Token
from consul_coord.testing.agent import RealAgent
from tests.support.proxy import Fault, FaultProxy, Lose

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def guarded() -> Iterator[ReferenceServer[Any]]:
    acl = AclConfig(
        tokens={"first": Token(management=True), "second": Token(management=True)}, default_policy="deny"
    )
    with ReferenceServer(config=ServerConfig(acl=acl, session_ttl_min=0.2)) as server:
        yield server


@pytest.fixture
def proxy(guarded: ReferenceServer[Any]) -> Iterator[FaultProxy]:
    with FaultProxy(guarded.address) as between:
        yield between


def sent(proxy: FaultProxy) -> str | None:
    return proxy.requests[-1].headers.get("X-Consul-Token")


def test_a_token_is_replaced_for_later_requests(proxy: FaultProxy) -> None:
    with Client(proxy.address, token="first") as client:
        client.kv.put("some/key", "1")
        assert sent(proxy) == "first"
        client.token = "second"
        client.kv.put("some/key", "2")
        assert sent(proxy) == "second"
        client.token = ""
        with pytest.raises(PermissionDenied):
            client.kv.put("some/key", "3")
        assert sent(proxy) is None
        with pytest.raises(ConfigError) as refused:
            client.token = "not\na token"
        assert "not\na" not in str(refused.value)
        with pytest.raises(AttributeError, match="not shown"):
            assert client.token
        client.token = "first"


def test_renewals_of_a_hold_go_on_with_the_new_token(proxy: FaultProxy) -> None:
    spec = SessionSpec(ttl=1.0, lock_delay=1.0)
    with Client(proxy.address, token="first", session=spec) as client, Lock(client, "jobs/nightly") as hold:
        client.token = "second"
        before = proxy.count("PUT", "/v1/session/renew/")
        deadline = time.monotonic() + 10
        while proxy.count("PUT", "/v1/session/renew/") < before + 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        renewals = [each for each in proxy.requests if each.path.startswith("/v1/session/renew/")]
        assert renewals[-1].headers["X-Consul-Token"] == "second"
        assert hold.is_held


def test_it_takes_the_place_of_a_token_file(proxy: FaultProxy, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    with Client(proxy.address, token_file=file) as client:
        client.kv.get("some/key")
        client.token = "second"
        file.write_text("another that is not looked at")
        client.kv.get("some/key")
        assert sent(proxy) == "second"


def test_one_call_may_have_a_time_of_its_own(proxy: FaultProxy) -> None:
    held = proxy.add(Fault(lose=Lose.TIME, path="/v1/kv/slow", times=9))
    with Client(proxy.address, token="first", timeout=30.0) as client:
        began = time.monotonic()
        with pytest.raises(RequestTimeout):
            client.kv.get("slow", timeout=0.2)
        assert time.monotonic() - began < 5.0
        held.let_go()
        assert client.kv.put("some/key", "1", timeout=5.0)
        assert client.session.named("nobody", timeout=5.0) == ()
        assert client.status.leader(timeout=5.0)
        for wrong in (0, -1.0, float("inf"), float("nan")):
            with pytest.raises(InvalidArgument, match="timeout"):
                client.kv.get("some/key", timeout=wrong)


@pytest.mark.anyio
async def test_an_async_client_takes_the_same(proxy: FaultProxy) -> None:
    async with AsyncClient(proxy.address, token="first") as client:
        client.token = "second"
        assert await client.kv.put("some/key", "1", timeout=5.0)
        assert sent(proxy) == "second"


def test_the_next_session_has_the_settings_of_then(guarded: ReferenceServer[Any]) -> None:
    first, second = SessionSpec(ttl=20.0), SessionSpec(ttl=30.0, lock_delay=30.0)
    with Client(guarded.address, token="first", session=first) as client:
        hold = Lock(client, "jobs/nightly").acquire()
        client.session_spec = second
        assert client.session_spec is second
        kept = client.session.info(hold.session).value
        assert kept is not None
        assert kept.ttl == 20.0, "a session that exists stays as it is"
        client.session.destroy(hold.session)
        assert hold.lost.wait(10)
        again = Lock(client, "jobs/other").acquire(timeout=30)
        found = client.session.info(again.session).value
        assert found is not None
        assert (found.ttl, found.lock_delay) == (30.0, 30.0)


@pytest.mark.parametrize("kind", ["permit", "place"])
def test_a_semaphore_and_a_read_write_lock_make_their_next_session_by_the_settings_of_then(
    guarded: ReferenceServer[Any], kind: str
) -> None:
    with Client(guarded.address, token="first", session=SessionSpec(ttl=20.0)) as client:
        lock = Semaphore(client, "jobs", 9) if kind == "permit" else ReadWriteLock(client, "jobs").read
        lock.acquire(timeout=5).release()
        client.session_spec = SessionSpec(ttl=30.0, lock_delay=30.0)
        found: list[float | None] = []
        for _ in range(3):  # more often than it keeps sessions in stock
            hold = lock.acquire(timeout=5)
            session = client.session.info(hold.session).value
            assert session is not None
            found.append(session.ttl)
            client.session.destroy(hold.session)
            assert hold.lost.wait(10)
            hold.release()
        assert found[-1] == 30.0


def test_an_agent_tells_the_shortest_ttl_that_it_is_set_to_take(
    consul_binary: Path, guarded: ReferenceServer[Any]
) -> None:
    for setting, seconds in (("0s", 10.0), ("1500ms", 1.5)):
        with (
            RealAgent(binary=consul_binary, config={"session_ttl_min": setting}) as agent,
            Client(agent.address) as client,
        ):
            assert client.agent.info().value.session_ttl_min == seconds
    with Client(guarded.address, token="first") as client:
        assert client.agent.info().value.session_ttl_min == guarded.config.session_ttl_min
