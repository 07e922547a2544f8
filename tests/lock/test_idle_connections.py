"""How many connections a client keeps: one while it holds or waits, and none once everything is released."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest

from consul_coord import (
    AcquireCancelled,
    AsyncClient,
    AsyncLeaderElection,
    AsyncLock,
    Client,
    LeaderElection,
    Lock,
    Semaphore,
    SessionSpec,
)
from tests.lock.conftest import spec
from tests.support.sites import PATIENCE, eventually
from tests.support.sockets import connections_to, needs_proc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from consul_coord import LeaderInfo
    from tests.lock.conftest import MakeClient
    from tests.support.proxy import FaultProxy
    from tests.support.sites import Site

pytestmark = needs_proc

CROWD = 8
IN_USE = 1
"""A holder's renewals and the blocking query on its key take turns."""
PROMISED = 5.0
TOLERANCE = 5.0


class Count:
    """Counts the connections opened since."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._before = connections_to(address)

    def now(self) -> int:
        return len(connections_to(self._address) - self._before)

    def falls(self) -> bool:
        return eventually(lambda: self.now() <= IN_USE, within=PROMISED + TOLERANCE)


@pytest.mark.slow
def test_a_clients_idle_connections_are_closed(site: Site, make_client: MakeClient) -> None:
    count, client = Count(site.address), make_client()
    with Lock(client, site.key):
        with ThreadPoolExecutor(CROWD) as threads:
            list(threads.map(lambda _: [client.kv.get(site.key) for _ in range(20)], range(CROWD)))
        assert count.now() > IN_USE
        assert count.falls()


@pytest.mark.slow
@pytest.mark.anyio
async def test_an_async_clients_idle_connections_are_closed(site: Site) -> None:
    count = Count(site.address)
    async with (
        AsyncClient(address=site.address, session=spec(site)) as client,
        AsyncLock(client, site.key),
    ):
        async with anyio.create_task_group() as group:
            for _ in range(CROWD):
                group.start_soon(client.kv.get, site.key)
        assert count.now() > IN_USE
        assert await anyio.to_thread.run_sync(count.falls)


# -- at rest: renewals and blocking queries take turns on one connection

QUICK = 2.0
"""The TTL of these sessions, in seconds."""
ROUND = 0.43 * QUICK
"""Seconds between two renewals of one."""
CROWDED = 1_000
FEW_FOR_A_CROWD = 8
ON_AN_AGENT = pytest.mark.parametrize("site", [pytest.param("agent", marks=pytest.mark.agent)], indirect=True)
ON_A_REFERENCE = pytest.mark.parametrize("site", ["reference"], indirect=True)


def settles_at(count: Count, most: int) -> bool:
    """Wait until there are no more connections than that, for two rounds of renewals and queries."""
    deadline = time.monotonic() + PATIENCE
    quiet_since = time.monotonic()
    while time.monotonic() < deadline and time.monotonic() < quiet_since + 2 * ROUND:
        time.sleep(0.05)
        if count.now() > most:
            quiet_since = time.monotonic()
    return time.monotonic() < deadline


@contextmanager
def waiting(lock: Lock | Semaphore) -> Iterator[None]:
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(lock.acquire)
        try:
            yield
        finally:
            lock.cancel()
            assert isinstance(call.exception(PATIENCE), AcquireCancelled)


def ignore(leader: LeaderInfo | None) -> None:
    """Take no note."""


ROLES: dict[str, Callable[[Client, SessionSpec, str], AbstractContextManager[object]]] = {
    "holds a lock": lambda client, _, key: Lock(client, f"{key}-free"),
    "holds a permit": lambda client, spec, key: Semaphore(client, f"{key}-room", 2, session=spec),
    "leads": lambda client, _, key: LeaderElection(client, f"{key}-free"),
    "waits for a lock": lambda client, _, key: waiting(Lock(client, key)),
    "waits for a permit": lambda client, spec, key: waiting(
        Semaphore(client, f"{key}-full", 1, session=spec)
    ),
    "is a candidate": lambda client, _, key: LeaderElection(client, key),
    "leads, and reports the leader": lambda client, _, key: LeaderElection(
        client, f"{key}-free", on_change=ignore
    ),
    "is a candidate, and reports the leader": lambda client, _, key: LeaderElection(
        client, key, on_change=ignore
    ),
}


@pytest.mark.slow
@ON_AN_AGENT
@pytest.mark.parametrize("role", ROLES)
def test_a_client_at_rest_keeps_one_connection_and_none_afterwards(
    site: Site, make_client: MakeClient, proxy: FaultProxy, role: str
) -> None:
    other, quick = make_client(), spec(site, ttl=QUICK)
    with Lock(other, site.key), Semaphore(other, f"{site.key}-full", 1):
        count = Count(proxy.address)  # of this client alone
        with Client(address=proxy.address, session=quick) as client:
            with ROLES[role](client, quick, site.key):
                assert settles_at(count, 1)
                assert eventually(lambda: count.now() == 1)
            assert eventually(lambda: count.now() == 0, within=PROMISED + TOLERANCE)


@pytest.mark.slow
@ON_A_REFERENCE
@pytest.mark.anyio
async def test_an_async_client_at_rest_keeps_one_connection_and_none_afterwards(
    site: Site, make_client: MakeClient, proxy: FaultProxy
) -> None:
    quick = spec(site, ttl=QUICK)
    with Lock(make_client(), site.key):
        count = Count(proxy.address)
        async with AsyncClient(address=proxy.address, session=quick) as client:
            async with AsyncLock(client, f"{site.key}-free"):
                assert await anyio.to_thread.run_sync(settles_at, count, 1)
            for key in (site.key, f"{site.key}-free"):
                async with AsyncLeaderElection(client, key, on_change=ignore):
                    assert await anyio.to_thread.run_sync(settles_at, count, 1)
            async with anyio.create_task_group() as group:
                group.start_soon(AsyncLock(client, site.key).acquire)
                assert await anyio.to_thread.run_sync(settles_at, count, 1)
                group.cancel_scope.cancel()
            assert await anyio.to_thread.run_sync(
                lambda: eventually(lambda: count.now() == 0, within=PROMISED + TOLERANCE)
            )


@pytest.mark.slow
@ON_AN_AGENT
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.anyio
async def test_a_crowd_in_one_client_keeps_few_connections(
    site: Site, make_client: MakeClient, proxy: FaultProxy
) -> None:
    count = Count(proxy.address)
    async with AsyncClient(address=proxy.address, session=spec(site, ttl=60.0)) as client:
        holds = [await AsyncLock(client, f"{site.key}-{number}").acquire() for number in range(CROWDED)]
        with Lock(make_client(), site.key):
            async with anyio.create_task_group() as group:
                for _ in range(CROWDED):
                    group.start_soon(AsyncLock(client, site.key).acquire)
                assert await anyio.to_thread.run_sync(settles_at, count, FEW_FOR_A_CROWD)
                group.cancel_scope.cancel()
        assert all(hold.is_held for hold in holds)
