"""The pytest plugin: a Consul for an application's tests, and clients of it, as fixtures.

Installed with the package; nothing needs to be switched on.

- ``consul_server``: a ``ReferenceServer`` on a virtual clock, with empty state
- ``consul_server_config``: override it to configure that server
- ``consul_client``: a ``Client`` of that server, on its clock
- ``async_consul_client``: an ``AsyncClient`` of that server, on its clock, entered; for anyio's pytest plugin
- ``real_consul``: a real Consul agent, emptied for each test

Rules
- Every pytest run imports this module wherever the package is installed, also one that wants nothing of it.
  So it stands beside the package, whose own import costs a tenth of a second, and imports pytest and nothing
  else until a fixture is asked for.
- A test has a server of its own, so no state passes from one test to another, and pytest-xdist has nothing to
  share.
- Without a Consul binary, tests that ask for a real agent are skipped with the reason; they fail instead if
  CONSUL_COORD_REQUIRE_AGENT=1, so that a build can't pass without them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from consul_coord import AsyncClient, Client
    from consul_coord.clock import VirtualClock
    from consul_coord.server import ReferenceServer, ServerConfig
    from consul_coord.testing.agent import RealAgent

REQUIRE_AGENT = "CONSUL_COORD_REQUIRE_AGENT"
_NO_BINARY = "no Consul binary: set CONSUL_BIN, or put one at .consul/consul or on PATH"


@pytest.fixture
def consul_server_config() -> ServerConfig | None:
    """Return the settings of ``consul_server``; override it to change them."""
    return None


@pytest.fixture
def consul_server(consul_server_config: ServerConfig | None) -> Iterator[ReferenceServer[VirtualClock]]:
    """Serve an empty Consul agent in memory, whose time moves when the test says so.

    ``consul_server.clock.advance(seconds)`` lets TTLs, lock-delays and leases run out at once, for the server
    and for the fixtures' clients together. ``consul_server.faults`` disturbs it.
    """
    from consul_coord.clock import VirtualClock
    from consul_coord.server import ReferenceServer

    with ReferenceServer(clock=VirtualClock(), config=consul_server_config) as server:
        yield server


@pytest.fixture
def consul_client(consul_server: ReferenceServer[VirtualClock]) -> Iterator[Client]:
    """Return a client of ``consul_server`` on its clock; closed after the test, whatever state it is in."""
    from consul_coord.testing.fixtures import client_of

    with client_of(consul_server) as client:
        yield client


@pytest.fixture
async def async_consul_client(
    anyio_backend: object,  # noqa: ARG001 - asking for it lets anyio's plugin run this fixture
    consul_server: ReferenceServer[VirtualClock],
) -> AsyncIterator[AsyncClient]:
    """Return an entered async client of ``consul_server`` on its clock, closed after the test.

    For tests that anyio's pytest plugin runs, on asyncio or trio.
    """
    from consul_coord.testing.fixtures import async_client_of

    async with async_client_of(consul_server) as client:
        yield client


@pytest.fixture(scope="session")
def consul_coord_shared_agent() -> Iterator[RealAgent]:
    """Run the one real agent of a test process; ask for ``real_consul``, which empties it."""
    from consul_coord.testing.agent import RealAgent, find_consul

    if (binary := find_consul()) is None:
        if os.environ.get(REQUIRE_AGENT) == "1":
            pytest.fail(f"{_NO_BINARY} ({REQUIRE_AGENT}=1 forbids skipping)")
        pytest.skip(_NO_BINARY)
    with RealAgent(binary=binary) as agent:
        yield agent


@pytest.fixture
def real_consul(consul_coord_shared_agent: RealAgent) -> RealAgent:
    """Return a running Consul agent without keys, sessions, checks or nodes of other tests.

    Lock-delays of keys that earlier tests lost are the one thing that can't be taken out of a running agent:
    a test that loses a lock should use a key of its own. A test may stop or pause the agent.
    """
    from consul_coord.testing.fixtures import emptied

    return emptied(consul_coord_shared_agent)
