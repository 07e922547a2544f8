"""Fixtures for locks on a reference server and on a real agent.

Rules
- Every test has keys and a session name of its own, so that what is left behind can be told to be its own.
- The reference server ends sessions as early as Consul promises, after one TTL, and not as late as it does.
- Clients made by ``make_client`` are closed at the end, whatever the test did, and before the proxy is, which
  lets everything through by then: else each would leave its sessions at an agent that others use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pytest

from consul_coord import Client, Lock, SessionSpec
from consul_coord.server import ReferenceServer, ServerConfig
from tests.support.proxy import FaultProxy
from tests.support.sites import Site

if TYPE_CHECKING:
    from collections.abc import Iterator

    from consul_coord import Hold
    from consul_coord.clock import SystemClock

TTL = 10.0
CONFIG = ServerConfig(session_ttl_min=0.2, session_ttl_factor=1.0, http_max_conns_per_client=0)


class MakeClient(Protocol):
    """Makes clients whose sessions have the test's name, no lock-delay, and this TTL."""

    def __call__(
        self, *, address: str = ..., ttl: float = ..., lock_delay: float = ..., **settings: Any
    ) -> Client: ...


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    backend: str = request.param
    return backend


@pytest.fixture(scope="session")
def reference_server() -> Iterator[ReferenceServer[SystemClock]]:
    with ReferenceServer(config=CONFIG) as server:
        yield server


@pytest.fixture(params=["reference", pytest.param("agent", marks=pytest.mark.agent)])
def site(request: pytest.FixtureRequest) -> Site:
    kind: str = request.param
    server = request.getfixturevalue("reference_server" if kind == "reference" else "real_agent")
    return Site.at(kind, server.address)


@pytest.fixture
def proxy(site: Site) -> Iterator[FaultProxy]:
    with FaultProxy(site.address) as proxy:
        yield proxy


def spec(site: Site, *, ttl: float = TTL, lock_delay: float = 0.0, **changes: Any) -> SessionSpec:
    """Return what the sessions of a test are like: without a lock-delay the next one need not wait for it."""
    unbounded = changes.pop("allow_unbounded", not lock_delay)
    return SessionSpec(ttl=ttl, lock_delay=lock_delay, name=site.unique, allow_unbounded=unbounded, **changes)


@pytest.fixture
def make_client(site: Site, proxy: FaultProxy) -> Iterator[MakeClient]:
    clients: list[Client] = []

    def make(
        *, address: str = site.address, ttl: float = TTL, lock_delay: float = 0.0, **settings: Any
    ) -> Client:
        session = spec(site, ttl=ttl, lock_delay=lock_delay)
        clients.append(Client(address=address, session=session, **settings))
        return clients[-1]

    yield make
    proxy.clear()
    proxy.come_up()
    for client in clients:
        client.close()


@pytest.fixture
def client(make_client: MakeClient) -> Client:
    return make_client()


@pytest.fixture
def held(site: Site, make_client: MakeClient) -> Hold:
    """Another client's hold of the test's key."""
    return Lock(make_client(), site.key).acquire(timeout=5)
