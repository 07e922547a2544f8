"""A datacenter that does not exist, as a client and the command line meet it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from consul_coord import (
    AsyncClient,
    AsyncLock,
    Client,
    InvalidRequest,
    Lock,
    Registration,
    Semaphore,
    WriteOptions,
)
from consul_coord.cli import main
from consul_coord.server import ReferenceServer
from tests.support.stalls import lasting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from consul_coord.clock import SystemClock

SOON = 2.0
"""Seconds: a fifth of what a client goes on trying."""
NAMED = "no datacenter 'mars', only 'dc1'"


@pytest.fixture(scope="module")
def server() -> Iterator[ReferenceServer[SystemClock]]:
    with ReferenceServer() as running:
        yield running


@pytest.mark.parametrize("recipe", [lambda c: Lock(c, "k"), lambda c: Semaphore(c, "k", 2)])
def test_a_wait_in_it_ends_at_once(
    server: ReferenceServer[SystemClock], recipe: Callable[[Client], Lock | Semaphore]
) -> None:
    with Client(server.address, datacenter="mars") as client, lasting(least=0.0, most=SOON):
        with pytest.raises(InvalidRequest, match=NAMED):
            recipe(client).acquire(timeout=30)
        with pytest.raises(InvalidRequest, match=NAMED):
            client.kv.get("k")
        with pytest.raises(InvalidRequest, match=NAMED):
            next(iter(client.kv.watch("k")))
        assert not client.connected


@pytest.mark.anyio
async def test_in_async_code_too(server: ReferenceServer[SystemClock]) -> None:
    async with AsyncClient(server.address, datacenter="mars") as client:
        with pytest.raises(InvalidRequest, match=NAMED), lasting(least=0.0, most=SOON):
            await AsyncLock(client, "k").acquire(timeout=30)


@pytest.mark.parametrize("verb", ["holders", "top", "sessions", "doctor"])
def test_the_command_line_names_it(
    verb: str, server: ReferenceServer[SystemClock], capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = [verb, *(["k"] if verb != "sessions" else []), "--datacenter", "mars"]
    with lasting(least=0.0, most=SOON):
        assert main([*arguments, "--address", server.address]) in {1, 78}
    told = capfd.readouterr()
    assert NAMED in told.out + told.err


NODE = Registration(node="n2", address="10.0.0.2")
HERE = WriteOptions(datacenter="dc1")


def test_the_datacenter_of_a_call_comes_before_that_of_its_client(
    server: ReferenceServer[SystemClock],
) -> None:
    with Client(server.address, datacenter="mars") as client:
        with pytest.raises(InvalidRequest, match=NAMED):
            client.catalog.register(NODE)
        client.catalog.register(NODE, options=HERE)
        assert "n2" in server.state.nodes
        client.catalog.deregister("n2", options=HERE)
        assert "n2" not in server.state.nodes


@pytest.mark.anyio
async def test_so_it_does_on_an_event_loop(server: ReferenceServer[SystemClock]) -> None:
    async with AsyncClient(server.address, datacenter="mars") as client:
        await client.catalog.register(NODE, options=HERE)
        assert "n2" in server.state.nodes
        await client.catalog.deregister("n2", options=HERE)
        assert "n2" not in server.state.nodes
