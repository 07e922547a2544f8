"""Connections that are not in use are closed within seconds, also when the client does nothing any more."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest

from consul_coord import AsyncClient, AsyncLock, Lock
from tests.lock.conftest import spec
from tests.support.sites import eventually
from tests.support.sockets import connections_to, needs_proc

if TYPE_CHECKING:
    from tests.lock.conftest import MakeClient
    from tests.support.sites import Site

pytestmark = needs_proc

CROWD = 8
IN_USE = 3
"""A holder's renewals, the blocking query on its session, and that on its key."""
PROMISED = 5.0
TOLERANCE = 5.0


class Count:
    """Counts the connections opened since."""

    def __init__(self, site: Site) -> None:
        self._address = site.address
        self._before = connections_to(site.address)

    def now(self) -> int:
        return len(connections_to(self._address) - self._before)

    def falls(self) -> bool:
        return eventually(lambda: self.now() <= IN_USE, within=PROMISED + TOLERANCE)


def test_a_clients_idle_connections_are_closed(site: Site, make_client: MakeClient) -> None:
    count, client = Count(site), make_client()
    with Lock(client, site.key):
        with ThreadPoolExecutor(CROWD) as threads:
            list(threads.map(lambda _: [client.kv.get(site.key) for _ in range(20)], range(CROWD)))
        assert count.now() > IN_USE
        assert count.falls()


@pytest.mark.anyio
async def test_an_async_clients_idle_connections_are_closed(site: Site) -> None:
    count = Count(site)
    async with (
        AsyncClient(address=site.address, session=spec(site)) as client,
        AsyncLock(client, site.key),
    ):
        async with anyio.create_task_group() as group:
            for _ in range(CROWD):
                group.start_soon(client.kv.get, site.key)
        assert count.now() > IN_USE
        assert await anyio.to_thread.run_sync(count.falls)
