"""The work of the pytest plugin's fixtures, as plain context managers for other test frameworks too.

Rules
- A test may end in any state: without a leader, with faults in force, with holds and waiters. Clean-up ends
  all the same: it takes faults back, elects a leader, and lets the server's clock run while the client
  closes, since a wait on a clock that stands still would never end.
"""

from __future__ import annotations

import contextlib
import http
import json
import threading
import time
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final

from consul_coord import AsyncClient, Client
from consul_coord.testing.agent import AgentError, RealAgent

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from consul_coord.clock import VirtualClock
    from consul_coord.server import ReferenceServer

_STEP: Final = 0.005
"""Seconds of real time between two moves of a clock that runs."""
_CLOSING_TIME: Final = 0.1
"""Seconds of real time that closing may take before the clock begins to run."""
_CLOSING_SPEED: Final = 50.0


@contextmanager
def client_of(server: ReferenceServer[VirtualClock]) -> Generator[Client, None, None]:
    """Give a client of a server, on its clock, and close it whatever state both are in."""
    client = Client(address=server.address, clock=server.clock)
    try:
        yield client
    finally:
        _mend(server)
        with time_passes(server.clock, speed=_CLOSING_SPEED, after=_CLOSING_TIME):
            client.close()


@asynccontextmanager
async def async_client_of(server: ReferenceServer[VirtualClock]) -> AsyncGenerator[AsyncClient, None]:
    """Give an entered async client of a server, on its clock, and close it whatever state both are in."""
    client = AsyncClient(address=server.address, clock=server.clock)
    await client.__aenter__()
    try:
        yield client
    finally:
        _mend(server)
        with time_passes(server.clock, speed=_CLOSING_SPEED, after=_CLOSING_TIME):
            await client.close()


@contextmanager
def time_passes(
    clock: VirtualClock, *, speed: float = 5.0, after: float = 0.0
) -> Generator[None, None, None]:
    """Let a virtual clock run while the block lasts, ``speed`` times as fast as a real one.

    For what needs time and other threads' work in between: renewals, watches that start soon after a grant.
    ``after``: seconds of real time during which the clock still stands. A speed at which a lease passes
    before its renewal is done costs that lease; the default leaves 3 s for one of 15 s.
    """
    over = threading.Event()

    def run() -> None:
        if over.wait(after):
            return
        before = time.monotonic()
        while not over.wait(_STEP):
            now = time.monotonic()
            clock.advance((now - before) * speed)
            before = now

    thread = threading.Thread(target=run, name="consul-test-clock", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def emptied(agent: RealAgent) -> RealAgent:
    """Empty a real agent of keys, sessions, checks and foreign nodes; start it again if it was stopped.

    Keys go first: a session that holds nothing any more leaves no lock-delay behind.
    """
    if not agent.is_running:
        agent.restart()
    agent.resume()
    own = _ask(agent, "GET", "/v1/agent/self")["Config"]["NodeName"]
    _ask(agent, "DELETE", "/v1/kv/?recurse")
    for query in _ask(agent, "GET", "/v1/query"):
        _ask(agent, "DELETE", f"/v1/query/{query['ID']}")
    for session in _ask(agent, "GET", "/v1/session/list"):
        _ask(agent, "PUT", f"/v1/session/destroy/{session['ID']}")
    for service in _ask(agent, "GET", "/v1/agent/services"):
        _ask(agent, "PUT", f"/v1/agent/service/deregister/{service}")
    for check in _ask(agent, "GET", "/v1/agent/checks"):
        _ask(agent, "PUT", f"/v1/agent/check/deregister/{check}")
    for node in _ask(agent, "GET", "/v1/catalog/nodes"):
        if node["Node"] != own:
            _ask(agent, "PUT", "/v1/catalog/deregister", {"Node": node["Node"]})
    return agent


def _mend(server: ReferenceServer[VirtualClock]) -> None:
    server.faults.clear()
    if not server.state.leader:
        server.elect_leader()


def _ask(agent: RealAgent, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - any JSON value
    status, text = agent.request(method, path, None if body is None else json.dumps(body).encode())
    if status != http.HTTPStatus.OK:
        message = f"{agent!r}: {method} {path} gave {status}"
        raise AgentError(message)
    with contextlib.suppress(json.JSONDecodeError):  # some of an agent's own replies are empty
        return json.loads(text)
    return None
