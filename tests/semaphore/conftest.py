"""Fixtures for semaphores on a reference server and on a real agent.

Rules
- Every test has a prefix and a session name of its own, so that what is left behind can be told to be its
  own.
- The reference server ends sessions as early as Consul promises, after one TTL, and not as late as it does.
- Clients made by ``make_client`` are closed at the end, whatever the test did, and before the proxy is, which
  lets everything through by then: else each would leave its sessions at an agent that others use.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from consul_coord import SEMAPHORE_FLAGS, Client, Semaphore, SessionSpec
from consul_coord.server import ReferenceServer, ServerConfig
from tests.support.proxy import FaultProxy
from tests.support.sites import Operator, Site

if TYPE_CHECKING:
    from collections.abc import Iterator

    from consul_coord.clock import SystemClock

TTL = 10.0
CONFIG = ServerConfig(session_ttl_min=0.2, session_ttl_factor=1.0, http_max_conns_per_client=0)


@dataclass(frozen=True, slots=True)
class Place:
    """A semaphore's prefix on one server, as an operator sees it."""

    site: Site

    @property
    def operator(self) -> Operator:
        return self.site.operator

    @property
    def prefix(self) -> str:
        return f"{self.site.unique}/slots"

    @property
    def record(self) -> str:
        return f"{self.prefix}/.lock"

    def read(self) -> dict[str, Any]:
        """Return what the record says."""
        found = self.operator.entry(self.record)
        assert found is not None
        return dict(json.loads(found["Value"]))

    def write(self, record: object, *, flags: int = SEMAPHORE_FLAGS) -> bytes:
        """Overwrite the record, and return its value."""
        value = record if isinstance(record, bytes) else json.dumps(record).encode()
        assert self.operator.put(self.record, value, flags=flags)
        return value

    def contenders(self) -> list[str]:
        """Return the sessions that wait or hold."""
        return [
            key.rpartition("/")[2] for key in self.operator.under(f"{self.prefix}/") if key != self.record
        ]

    def foreign(self, value: bytes = b"") -> str:
        """Make a session that has a contender with this value: without a mark, as foreign clients do."""
        wanted = {"TTL": "60s", "Behavior": "delete", "NodeChecks": [], "LockDelay": "200ms"}
        session = str(self.operator.done("PUT", "/v1/session/create", wanted)["ID"])
        key = f"{self.prefix}/{session}"
        assert self.operator.put(key, value, acquire=session, flags=SEMAPHORE_FLAGS)
        return session

    def left_behind(self) -> list[str]:
        """Return what is there of the test's besides the record: contenders and sessions."""
        return sorted({*self.contenders(), *self.operator.sessions(self.site.unique)})


class MakeClient(Protocol):
    """Makes clients whose sessions have the test's name and this TTL."""

    def __call__(self, *, address: str = ..., ttl: float = ..., **settings: Any) -> Client: ...


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
def place(site: Site) -> Place:
    return Place(site)


@pytest.fixture
def proxy(site: Site) -> Iterator[FaultProxy]:
    with FaultProxy(site.address) as proxy:
        yield proxy


def spec(site: Site, *, ttl: float = TTL, **changes: Any) -> SessionSpec:
    """Return what the sessions of a test are like."""
    return SessionSpec(ttl=ttl, name=site.unique, **changes)


@pytest.fixture
def make_client(site: Site, proxy: FaultProxy) -> Iterator[MakeClient]:
    clients: list[Client] = []

    def make(*, address: str = site.address, ttl: float = TTL, **settings: Any) -> Client:
        clients.append(Client(address=address, session=spec(site, ttl=ttl), **settings))
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
def semaphore(client: Client, place: Place) -> Semaphore:
    """A semaphore with two slots, whose holders look at its record every two seconds."""
    return Semaphore(client, place.prefix, 2, session=SessionSpec(ttl=5.0))
