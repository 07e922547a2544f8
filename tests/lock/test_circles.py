"""Calls that nobody answers, and users' functions that fail, leave nothing to the garbage collector.

``tests/unit/test_circles.py`` says why.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import pytest

from consul_coord import (
    AsyncClient,
    AsyncLock,
    Client,
    ConsulCoordError,
    LeaderElection,
    Lock,
    Semaphore,
    SessionSpec,
)
from consul_coord.server import ReferenceServer
from tests.support.circles import no_error_in_a_circle

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

NOBODY = "127.0.0.1:1"
OTHER = SessionSpec(ttl=20)
BLOCKING: dict[str, Callable[[Client], object]] = {
    "get": lambda client: client.kv.get("k"),
    "update": lambda client: client.kv.update("k", lambda _: b"", timeout=0.3),
    "acquire": lambda client: Lock(client, "k").acquire(timeout=0.3),
    "acquire by another session": lambda client: Lock(client, "k", session=OTHER).acquire(timeout=0.3),
    "try": lambda client: Lock(client, "k").try_acquire(),
    "permit": lambda client: Semaphore(client, "k", limit=2).acquire(timeout=0.3),
}
ADDRESSES = {"one agent": NOBODY, "several": [NOBODY, "127.0.0.1:2"]}


@pytest.mark.parametrize("call", BLOCKING)
@pytest.mark.parametrize("agents", ADDRESSES)
def test_a_blocking_call_that_nobody_answers(agents: str, call: str) -> None:
    with no_error_in_a_circle(), Client(ADDRESSES[agents], timeout=0.3) as client:
        with suppress(ConsulCoordError):
            BLOCKING[call](client)
        client.close()


def test_a_users_function_that_fails() -> None:
    asked = threading.Semaphore(0)

    def health() -> bool:
        asked.release()
        raise OSError("no such sensor")

    with no_error_in_a_circle(), ReferenceServer() as server, Client(server.address) as client:
        with LeaderElection(client, "k", health=health, health_interval=0.05):
            for _ in range(3):  # only the first error is logged, with its traceback, and so kept by pytest
                assert asked.acquire(timeout=30)
        client.close()


AWAITED: dict[str, Callable[[AsyncClient], Awaitable[object]]] = {
    "get": lambda client: client.kv.get("k"),
    "acquire": lambda client: AsyncLock(client, "k").acquire(timeout=0.3),
}


@pytest.mark.parametrize("call", AWAITED)
@pytest.mark.parametrize("agents", ADDRESSES)
def test_an_awaited_call_that_nobody_answers(agents: str, call: str) -> None:
    async def main() -> None:
        async with AsyncClient(ADDRESSES[agents], timeout=0.3) as client:
            with suppress(ConsulCoordError):
                await AWAITED[call](client)

    with no_error_in_a_circle():
        anyio.run(main)
