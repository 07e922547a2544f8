"""Servers without a leader, as newer versions of Consul show it: requests wait for longer than their time."""

from __future__ import annotations

import pytest

from consul_coord import AcquireTimeout, AsyncClient, Client, Lock, RequestTimeout
from consul_coord.http import retry
from consul_coord.server import ReferenceServer, ServerConfig
from tests.support.stalls import lasting

NEWEST = ServerConfig(version="1.22.0", leaderless_hold=60.0)
NAMED = "Consul's servers have no leader"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "LONG_TRY", 0.5)


def test_a_write_that_is_not_answered_names_the_missing_leader() -> None:
    with ReferenceServer(config=NEWEST) as server, Client(server.address) as client:
        server.lose_leader()
        with pytest.raises(RequestTimeout, match=NAMED) as caught, lasting(least=0.99, most=1.3):
            client.kv.put("k", b"1", timeout=1.0)
        assert caught.value.outcome_unknown
        assert client.stats().requests == 2
        server.elect_leader()
        assert client.kv.put("k", b"2")


@pytest.mark.anyio
async def test_in_async_code_too() -> None:
    with ReferenceServer(config=NEWEST) as server:
        async with AsyncClient(server.address) as client:
            server.lose_leader()
            with pytest.raises(RequestTimeout, match=NAMED):
                await client.kv.put("k", b"1", timeout=1.0)
            server.elect_leader()


def test_a_wait_for_a_lock_names_it() -> None:
    with ReferenceServer(config=NEWEST) as server, Client(server.address) as client:
        lock = Lock(client, "jobs/nightly")
        with lock.hold():
            pass
        server.lose_leader()
        with pytest.raises(AcquireTimeout, match=NAMED):
            lock.acquire(timeout=1.0)
        server.elect_leader()
