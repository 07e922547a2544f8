"""What the recipes meet in these tests: Consul in both kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from consul_coord.server import ReferenceServer

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT = 240.0
"""Seconds: most tests here start several programs, which takes long where much else is going on."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/integrations/"):
            item.add_marker(pytest.mark.timeout(TIMEOUT))


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
