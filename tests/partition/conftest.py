"""Servers, clients and members with partitions for this folder's tests."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from consul_coord import Client, Group, Partitioner, SessionSpec
from consul_coord.server import ReferenceServer, ServerConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    class MakeMember(Protocol):
        """Makes a member with a client of its own, which begins to own partitions; all end with the test."""

        def __call__(
            self, name: str, partitions: Any = 8, *, client: Client | None = None, **settings: Any
        ) -> Partitioner: ...


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
def prefix() -> str:
    """Return a prefix that no other test uses."""
    return f"tests/partition/{next(_numbers)}"


@pytest.fixture
def member(address: str, prefix: str) -> Iterator[MakeMember]:
    with ExitStack() as stack:

        def make(
            name: str, partitions: Any = 8, *, client: Client | None = None, **settings: Any
        ) -> Partitioner:
            client = client or stack.enter_context(Client(address=address, session=SPEC))
            group = stack.enter_context(Group(client, prefix, id=name))
            return stack.enter_context(Partitioner(group, partitions, **{"settle": 0.1, **settings}))

        yield make
