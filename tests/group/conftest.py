"""Servers, clients and groups for this folder's tests."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from consul_coord import Client, SessionSpec
from consul_coord.server import ReferenceServer, ServerConfig
from tests.support.proxy import FaultProxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    class MakeClient(Protocol):
        """Makes a client that is closed with the test."""

        def __call__(self, **settings: Any) -> Client: ...


CONFIG = ServerConfig(session_ttl_min=0.2, http_max_conns_per_client=0)
SPEC = SessionSpec(ttl=2.0, lock_delay=2.0)
_numbers = itertools.count()


@pytest.fixture(scope="session")
def reference_address() -> Iterator[str]:
    with ReferenceServer(config=CONFIG) as server:
        yield server.address


@pytest.fixture(params=["reference_address", pytest.param("agent_address", marks=pytest.mark.agent)])
def address(request: pytest.FixtureRequest) -> str:
    """Return the address of the reference server, and of a real agent."""
    found: str = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def proxy(address: str) -> Iterator[FaultProxy]:
    with FaultProxy(address) as proxy:
        yield proxy


@pytest.fixture
def prefix() -> str:
    """Return a prefix that no other test uses."""
    return f"tests/group/{next(_numbers)}"


@pytest.fixture
def make_client(address: str) -> Iterator[MakeClient]:
    with ExitStack() as stack:

        def make(**settings: Any) -> Client:
            return stack.enter_context(Client(**{"address": address, "session": SPEC, **settings}))

        yield make


@pytest.fixture
def client(make_client: MakeClient) -> Client:
    return make_client()
