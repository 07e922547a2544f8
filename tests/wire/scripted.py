"""The fixtures of the tests that script an agent; they ask for them by ``pytest_plugins``."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord.server import ReferenceServer, ServerConfig
from tests.wire.agents import ScriptedAgent
from tests.wire.clients import KINDS
from tests.wire.relay import RelayedConsul

if TYPE_CHECKING:
    from collections.abc import Iterator

    from consul_coord.clock import SystemClock
    from tests.wire.clients import Make

VARIABLES = (
    "CONSUL_HTTP_ADDR",
    "CONSUL_HTTP_TOKEN",
    "CONSUL_HTTP_TOKEN_FILE",
    "CONSUL_HTTP_AUTH",
    "CONSUL_HTTP_SSL",
    "CONSUL_HTTP_SSL_VERIFY",
    "CONSUL_CACERT",
    "CONSUL_CAPATH",
    "CONSUL_CLIENT_CERT",
    "CONSUL_CLIENT_KEY",
    "CONSUL_TLS_SERVER_NAME",
    "CONSUL_NAMESPACE",
    "CONSUL_PARTITION",
)


@pytest.fixture(scope="session")
def running_agent() -> Iterator[ScriptedAgent]:
    # It would write a line a request.
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    agent = ScriptedAgent()
    agent.start()
    yield agent
    agent.stop()


@pytest.fixture
def scripted(running_agent: ScriptedAgent) -> Iterator[ScriptedAgent]:
    """Return an agent that answers what the test says."""
    running_agent.begin_test()
    yield running_agent
    running_agent.end_test()


@pytest.fixture(scope="session")
def running_consul(running_agent: ScriptedAgent) -> Iterator[ReferenceServer[SystemClock]]:
    with ReferenceServer(config=ServerConfig(session_ttl_min=0.1)) as server:
        yield server


@pytest.fixture
def consul(scripted: ScriptedAgent, running_consul: ReferenceServer[SystemClock]) -> Iterator[RelayedConsul]:
    """Return an empty Consul behind the scripted agent."""
    empty = running_consul.snapshot()
    relayed = RelayedConsul(scripted, running_consul)
    yield relayed
    relayed.end()
    running_consul.restore(empty)


@pytest.fixture(params=KINDS)
def make(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, scripted: ScriptedAgent
) -> Iterator[Make]:
    """Return what makes clients of the scripted agent, of each kind in turn; no CONSUL variable is set."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with ExitStack() as stack:
        kind: Any = KINDS[request.param]
        yield kind(scripted.address, stack)
