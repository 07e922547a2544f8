"""Servers, clients and candidates for this folder's tests."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from consul_coord import Client, LeaderElection, SessionSpec
from consul_coord.server import ReferenceServer, ServerConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    class MakeClient(Protocol):
        """Makes a client that is closed with the test."""

        def __call__(self, **settings: Any) -> Client: ...

    class Stand(Protocol):
        """Starts a candidate of a client of its own; both end with the test."""

        def __call__(self, *, client: Client | None = None, **settings: Any) -> LeaderElection: ...


CONFIG = ServerConfig(session_ttl_min=0.2, http_max_conns_per_client=0)
SPEC = SessionSpec(ttl=2.0, lock_delay=2.0)
QUICK = (0.01, 0.02)
"""A ``retry_wait`` for tests."""
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
def key() -> str:
    """Return a key that no other test uses."""
    return f"tests/election/{next(_numbers)}/leader"


@pytest.fixture
def make_client(address: str) -> Iterator[MakeClient]:
    with ExitStack() as stack:

        def make(**settings: Any) -> Client:
            return stack.enter_context(Client(**{"address": address, "session": SPEC, **settings}))

        yield make


@pytest.fixture
def client(make_client: MakeClient) -> Client:
    return make_client()


@pytest.fixture
def stand(make_client: MakeClient, key: str) -> Iterator[Stand]:
    with ExitStack() as stack:

        def start(*, client: Client | None = None, **settings: Any) -> LeaderElection:
            election = LeaderElection(client or make_client(), key, **{"retry_wait": QUICK, **settings})
            return stack.enter_context(election)

        yield start
