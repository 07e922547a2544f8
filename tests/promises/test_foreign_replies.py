"""A 404 of a proxy that stands before the agent, and was just reloaded, says nothing of locks."""

from __future__ import annotations

import time

import pytest

from consul_coord import Client, DecodeError, Lock, SessionSpec
from consul_coord.server import Effect, Fault, ReferenceServer
from tests.support.sites import eventually

PAGE = "<h1>default backend - 404</h1>"
LEASE = 2.0
"""Seconds; renewals come when two fifths of it have passed."""


@pytest.mark.parametrize("body", ["", PAGE])
@pytest.mark.parametrize("path", ["/v1/session/renew/", "/v1/kv/", "/v1/"])
def test_a_404_of_a_proxy_costs_no_lock(path: str, body: str) -> None:
    spec = SessionSpec(ttl=10, lock_delay=LEASE)
    with ReferenceServer() as server, Client(server.address, session=spec) as client:
        hold = Lock(client, "jobs/a").acquire(timeout=5)
        fault = server.faults.add(Fault(effect=Effect.RESPOND, status=404, body=body, path=path))
        assert eventually(lambda: fault.hits > 0)
        fault.remove()
        time.sleep(0.2 * LEASE)
        assert hold.is_held
        assert hold.verify()


def test_a_404_of_a_proxy_is_no_free_lock() -> None:
    with ReferenceServer() as server, Client(server.address, timeout=1) as client:
        lock = Lock(client, "jobs/a")
        with lock.hold(timeout=5):
            fault = server.faults.add(Fault(effect=Effect.RESPOND, status=404, body=PAGE, path="/v1/kv/"))
            with pytest.raises(DecodeError, match="not an agent's"):
                lock.holder()
            fault.remove()
