"""Run each conformance case on the reference server and on a real agent."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from consul_coord.server import ReferenceServer, ServerConfig
from tests.conformance.target import Target

if TYPE_CHECKING:
    from collections.abc import Iterator

    from consul_coord.clock import SystemClock
    from consul_coord.testing.agent import RealAgent

# As the shared agent of the tests is configured: real expiry in a second, room for many watches.
NEWEST = "1.23.0"
CONFIG = ServerConfig(session_ttl_min=0.2, http_max_conns_per_client=0)


@pytest.fixture(scope="session")
def reference_server() -> Iterator[ReferenceServer[SystemClock]]:
    with ReferenceServer(config=CONFIG) as server:
        yield server


@pytest.fixture(scope="session")
def newest_server() -> Iterator[ReferenceServer[SystemClock]]:
    with ReferenceServer(config=replace(CONFIG, version=NEWEST)) as server:
        yield server


FIXTURES = {"reference": "reference_server", "newest": "newest_server", "agent": "real_agent"}


@pytest.fixture(params=["reference", "newest", pytest.param("agent", marks=pytest.mark.agent)])
def target(request: pytest.FixtureRequest) -> Target:
    kind: str = request.param
    fixture = FIXTURES[kind]
    server: ReferenceServer[SystemClock] | RealAgent = request.getfixturevalue(fixture)
    return Target(kind, server.address)
