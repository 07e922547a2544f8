"""Calls that give up at the agent's limit on connections name it, whichever way the agent refuses them."""

from __future__ import annotations

import pytest

from consul_coord import AcquireTimeout, Client, Lock
from consul_coord.server import ReferenceServer, ServerConfig
from tests.support.limits import full
from tests.support.sites import Operator

VERSIONS = pytest.mark.parametrize("version", ["1.8.7", "1.20.6"], ids=["closed without a reply", "429"])


@VERSIONS
def test_an_acquire_without_a_session_names_the_limit(version: str) -> None:
    config = ServerConfig(http_max_conns_per_client=4, version=version)
    with (
        ReferenceServer(config=config) as server,
        Client(address=server.address) as client,
        full(server.address),
        pytest.raises(AcquireTimeout, match=r"limits\.http_max_conns_per_client"),
    ):
        Lock(client, "full").acquire(timeout=2.0)


@VERSIONS
def test_an_operator_of_the_tests_gets_an_error_at_the_limit(version: str) -> None:
    config = ServerConfig(http_max_conns_per_client=4, version=version)
    with ReferenceServer(config=config) as server, full(server.address), pytest.raises(OSError):  # noqa: PT011
        Operator(server.address).under("k")
