"""A failure to connect is told in a few lines: what happened, on which call, and where in the user's code."""

from __future__ import annotations

import re
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import anyio
import pytest

from consul_coord import (
    AcquireTimeout,
    AsyncClient,
    AsyncLock,
    Client,
    ConnectFailed,
    InvalidRequest,
    Lock,
    SessionSpec,
)
from consul_coord.server import ReferenceServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

MOST_LINES = 15
NOBODY = "127.0.0.1:1"
TOO_SHORT = SessionSpec(ttl=1.0, lock_delay=1.0)
"""Shorter than the servers take."""


@pytest.fixture
def reference_address() -> Iterator[str]:
    with ReferenceServer() as server:
        yield server.address


def _lines(error: BaseException) -> list[str]:
    """Return what a program that made the call in one line would print."""
    trace = error.__traceback__
    assert trace is not None
    shown = traceback.format_exception(error.with_traceback(trace.tb_next))
    return "".join(shown).splitlines()


def in_a_block(client: Client) -> None:
    with Lock(client, "k").hold(timeout=0.1):
        pass


@pytest.mark.parametrize(
    "work",
    [
        lambda client: client.kv.get("k"),
        lambda client: Lock(client, "k").acquire(timeout=0.1),
        lambda client: Lock(client, "k").try_acquire(),
        lambda client: Lock(client, "k").holder(),
        lambda client: Lock(client, "k").run(lambda hold: hold.fence, timeout=0.1),
        in_a_block,
    ],
)
def test_blocking(work: Callable[[Client], object]) -> None:
    with Client(NOBODY, timeout=0.2) as client:
        with pytest.raises((ConnectFailed, AcquireTimeout)) as refused:
            work(client)
        told = _lines(refused.value)
    assert len(told) <= MOST_LINES, "\n".join(told)
    # On a busy machine a call's time may be over before the agent's port has refused it.
    assert re.search("refused|could not be reached", told[-1])
    assert refused.value.__cause__ is not None or isinstance(refused.value, ConnectFailed)


def test_threads_that_fail_for_one_reason_have_an_error_each(reference_address: str) -> None:
    """They share the session that can't be made, and not the error: each raises and keeps its own."""
    together = threading.Barrier(8)

    def fail(number: int) -> BaseException:
        together.wait()
        with pytest.raises(InvalidRequest) as refused:
            Lock(client, f"k/{number}").acquire(timeout=5)
        return refused.value

    with Client(reference_address, session=TOO_SHORT) as client, ThreadPoolExecutor(8) as threads:
        errors = list(threads.map(fail, range(8)))
        for error in errors:
            lines = "".join(traceback.format_exception(error)).splitlines()
            assert sum("in fail" in line for line in lines) == 1, "\n".join(lines)
    assert len({id(error) for error in errors}) == len(errors)
    assert len({str(error) for error in errors}) == 1


async def in_an_async_block(client: AsyncClient) -> None:
    async with AsyncLock(client, "k").hold(timeout=0.1):
        pass


def test_in_coroutines() -> None:
    calls: tuple[Callable[[AsyncClient], Awaitable[object]], ...] = (
        lambda client: client.kv.get("k"),
        lambda client: AsyncLock(client, "k").acquire(timeout=0.1),
        in_an_async_block,
    )

    async def work() -> list[list[str]]:
        told = []
        async with AsyncClient(NOBODY, timeout=0.2) as client:
            for call in calls:
                with pytest.raises((ConnectFailed, AcquireTimeout)) as refused:
                    await call(client)
                told.append(_lines(refused.value))
        return told

    for told in anyio.run(work):
        assert len(told) <= MOST_LINES, "\n".join(told)
