"""Failures leave nothing to the garbage collector.

A traceback refers to frames, and so to the caller's: to the locks that it has just dropped, for instance.
Those are to be given back at once, not when the collector happens to come.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from consul_coord import AsyncClient, AsyncLock, Client, ConsulCoordError, Lock, Semaphore, SessionSpec
from consul_coord.http.endpoints import kv
from consul_coord.http.retry import Failures, perform, send_once
from tests.support.circles import no_error_in_a_circle
from tests.support.fake_io import FakeIO
from tests.support.replies import lost, pairs, refusal, unreachable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from consul_coord.http.messages import Response
    from consul_coord.io import IO

NOBODY = "127.0.0.1:1"
OTHER = SessionSpec(ttl=20)
ENDS: dict[str, Callable[[], Response | ConsulCoordError]] = {
    "an answer": pairs,
    "a refusal": lambda: refusal(403, "Permission denied"),
    "overload": lambda: refusal(429),
    "no leader": lambda: refusal(500, "No cluster leader"),
    "a failure": lambda: refusal(500, "something odd"),
    "a cut": lost,
}


async def by_hand(io: IO) -> None:
    failures, deadline = Failures(io, io.now() + 0.7), io.now() + 0.7
    while True:
        try:
            await send_once(io, kv.get("k"), deadline=deadline)
        except ConsulCoordError as error:
            await failures.pause(error)
        else:
            return


async def performed(io: IO) -> None:
    await perform(io, kv.get("k"), deadline=io.now() + 0.7)


@pytest.mark.parametrize("program", [performed, by_hand])
@pytest.mark.parametrize("end", ENDS)
def test_a_call_that_is_sent_again(program: Callable[[IO], Any], end: str) -> None:
    with no_error_in_a_circle():
        io = FakeIO()
        io.expect("GET", "/v1/kv/k", unreachable(), lost(), ENDS[end](), *[ENDS[end]() for _ in range(20)])
        with suppress(ConsulCoordError):
            io.run(program(io))
        del io


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
