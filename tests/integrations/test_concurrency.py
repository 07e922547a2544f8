"""What the page on threads and event loops says in its tables, where its own programs do not show it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from consul_coord import AsyncClient, AsyncHold, AsyncLock, Client, Lock
from consul_coord.server import ReferenceServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator


PATIENCE = 30.0


@pytest.fixture
def address() -> Iterator[str]:
    with ReferenceServer() as server:
        yield server.address


@pytest.fixture
def on_asyncio(address: str) -> Callable[[Callable[[AsyncLock], Coroutine[Any, Any, None]]], None]:
    """Run a coroutine function with a lock, on asyncio itself; afterwards nobody has it."""

    def start(work: Callable[[AsyncLock], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            async with AsyncClient(address=address) as client:
                lock = AsyncLock(client, "a")
                await work(lock)
                assert not await lock.locked()

        asyncio.run(main())

    return start


def test_a_timeout_of_asyncio(on_asyncio: Any) -> None:
    async def work(lock: AsyncLock) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), lock:
                await asyncio.sleep(PATIENCE)

    on_asyncio(work)


def test_a_task_that_waits_is_cancelled(on_asyncio: Any) -> None:
    async def work(lock: AsyncLock) -> None:
        hold = await lock.acquire(timeout=PATIENCE)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(lock.acquire())
            await asyncio.sleep(0.05)
            waiting.cancel()
        await hold.release()
        assert await lock.contenders() == ()

    on_asyncio(work)


def test_entered_in_one_task_and_left_in_another(on_asyncio: Any) -> None:
    async def work(lock: AsyncLock) -> None:
        block = lock.hold(timeout=PATIENCE)
        hold = await asyncio.create_task(enter(block))
        with pytest.raises(RuntimeError):
            await block.__aexit__(None, None, None)
        await hold.release()

    async def enter(block: contextlib.AbstractAsyncContextManager[AsyncHold, None]) -> AsyncHold:
        return await block.__aenter__()

    on_asyncio(work)


def test_around_a_yield(on_asyncio: Any) -> None:
    async def work(lock: AsyncLock) -> None:
        async def generator() -> AsyncIterator[int]:
            async with lock:
                yield 1

        numbers = generator()
        await asyncio.create_task(anext(numbers))  # type: ignore[arg-type]
        with pytest.raises(RuntimeError):
            await anext(numbers)

    on_asyncio(work)


def test_an_async_exit_stack(on_asyncio: Any) -> None:
    async def work(lock: AsyncLock) -> None:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(lock.hold(timeout=PATIENCE))
            assert await lock.locked()

    on_asyncio(work)


def test_a_blocking_hold_in_another_thread(address: str) -> None:
    with Client(address=address) as client, concurrent.futures.ThreadPoolExecutor(1) as pool:
        hold = Lock(client, "a").acquire(timeout=PATIENCE)
        assert pool.submit(hold.verify).result(PATIENCE)
        pool.submit(hold.release).result(PATIENCE)
        assert not Lock(client, "a").locked()


def test_no_negative_timeout(address: str) -> None:
    with Client(address=address) as client, pytest.raises(ValueError, match="timeout"):
        Lock(client, "a").acquire(timeout=-1)


@pytest.mark.anyio
async def test_cancel_scopes_inside_and_outside(address: str, anyio_backend: str) -> None:
    async with AsyncClient(address=address) as client:
        lock = AsyncLock(client, "a")
        async with lock:
            with anyio.move_on_after(0.01):
                await anyio.sleep(PATIENCE)
            assert await lock.locked()
        with anyio.move_on_after(0.05):
            async with lock:
                await anyio.sleep(PATIENCE)
        assert not await lock.locked()
