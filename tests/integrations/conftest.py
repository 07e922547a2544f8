"""What the recipes meet in these tests: Consul in both kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from consul_coord.server import ReferenceServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def reference_address() -> Iterator[str]:
    """Serve an empty Consul of this test's own."""
    with ReferenceServer() as server:
        yield server.address


@pytest.fixture(params=["reference server", "real agent"])
def address(request: pytest.FixtureRequest) -> str:
    """Return the address of the reference server, then that of a real agent."""
    name = {"reference server": "reference_address", "real agent": "agent_address"}[request.param]
    found: str = request.getfixturevalue(name)
    return found
