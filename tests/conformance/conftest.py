"""Run each conformance case on the reference server and on a real agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from consul_coord.server import ReferenceServer, ServerConfig
from tests.conformance.target import Target

if TYPE_CHECKING:
    from collections.abc import Iterator

    from consul_coord.clock import SystemClock
    from consul_coord.testing.agent import RealAgent

# As the shared agent of the tests is configured: real expiry in a second, room for many watches.
CONFIG = ServerConfig(session_ttl_min=0.2, http_max_conns_per_client=0)


@pytest.fixture(scope="session")
def reference_server() -> Iterator[ReferenceServer[SystemClock]]:
    with ReferenceServer(config=CONFIG) as server:
        yield server


@pytest.fixture(params=["reference", pytest.param("agent", marks=pytest.mark.agent)])
def target(request: pytest.FixtureRequest) -> Target:
    kind: str = request.param
    fixture = "reference_server" if kind == "reference" else "real_agent"
    server: ReferenceServer[SystemClock] | RealAgent = request.getfixturevalue(fixture)
    return Target(kind, server.address)
