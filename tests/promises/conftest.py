"""A reference server, a proxy before it that loses and delays to order, and clients that go through it.

Rules
- What is asserted is what users see: the public API, requests on the wire, and the server's own state. So
  these tests outlive any change of how it is done.
- Sessions last for a minute and are renewed seldom, except where a test says otherwise: nothing else tells a
  client of a loss before the promise under test does.
"""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from consul_coord import Client, SessionSpec
from consul_coord.server import ReferenceServer, ServerConfig
from tests.support.proxy import FaultProxy
from tests.support.sites import Operator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from consul_coord.clock import SystemClock

    class MakeClient(Protocol):
        """Makes a client whose requests pass the proxy; it is closed with the test."""

        def __call__(self, **settings: Any) -> Client: ...


CONFIG = ServerConfig(session_ttl_min=0.2, http_max_conns_per_client=0)
TTL = 60.0
SPEC = SessionSpec(ttl=TTL, lock_delay=TTL)
_numbers = itertools.count()


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    backend: str = request.param
    return backend


@pytest.fixture
def server() -> Iterator[ReferenceServer[SystemClock]]:
    with ReferenceServer(config=CONFIG) as server:
        yield server


@pytest.fixture
def proxy(server: ReferenceServer[SystemClock]) -> Iterator[FaultProxy]:
    with FaultProxy(server.address) as proxy:
        yield proxy


@pytest.fixture
def operator(server: ReferenceServer[SystemClock]) -> Operator:
    return Operator(server.address)


@pytest.fixture
def key() -> str:
    return f"promises/{next(_numbers)}"


@pytest.fixture
def make_client(proxy: FaultProxy) -> Iterator[MakeClient]:
    with ExitStack() as stack:

        def make(**settings: Any) -> Client:
            return stack.enter_context(Client(**{"address": proxy.address, "session": SPEC, **settings}))

        yield make
        proxy.clear()
        proxy.come_up()


@pytest.fixture
def client(make_client: MakeClient) -> Client:
    return make_client()
