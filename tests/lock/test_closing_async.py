"""Closing an async client: nothing of it is left, whoever closes it and whatever ends that."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from consul_coord import AsyncClient, AsyncLock, AsyncSemaphore, ClientClosed, LockLost, LossReason
from tests.lock.conftest import spec
from tests.lock.test_async import eventually, operate
from tests.support.proxy import Fault, Lose

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from consul_coord.http.messages import Response
    from tests.support.proxy import FaultProxy
    from tests.support.sites import Site

pytestmark = pytest.mark.anyio


async def test_a_session_that_is_just_being_made_is_destroyed_too(site: Site, proxy: FaultProxy) -> None:
    create = proxy.add(Fault(lose=Lose.TIME, path="/v1/session/create"))
    client = AsyncClient(address=proxy.address, session=spec(site))
    refused = anyio.Event()

    async def wait() -> None:
        with pytest.raises(ClientClosed):
            await AsyncLock(client, site.key).acquire()
        refused.set()

    async with client, anyio.create_task_group() as group:
        group.start_soon(wait)
        await eventually(create.hit.is_set)
        group.start_soon(client.close)
        await refused.wait()
        create.let_go()
    assert site.left_behind() == []
    assert client.pending_cleanup == 0


@pytest.mark.parametrize("after", [0.0, 0.003, 0.01, 0.03, 0.1])
async def test_a_client_closed_amid_its_users_leaves_nothing(site: Site, after: float) -> None:
    client = AsyncClient(address=site.address, session=spec(site))

    async def own_lock(number: int) -> None:
        async with AsyncLock(client, f"{site.key}/{number}", session=spec(site)):
            pass

    async def slot(number: int) -> None:
        async with AsyncSemaphore(client, f"{site.key}/slots", 2):
            pass

    async def use(cycle: Callable[[int], Awaitable[None]], number: int) -> None:
        with suppress(ClientClosed, LockLost):
            while True:
                await cycle(number)

    async with client, anyio.create_task_group() as group:
        for number in range(3):
            group.start_soon(use, own_lock, number)
            group.start_soon(use, slot, number)
        await anyio.sleep(after)
        await client.close()
        assert site.left_behind() == []
        assert client.pending_cleanup == 0


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("under_way", ["/v1/txn", "/v1/session/destroy"])
async def test_a_task_that_is_cancelled_while_it_closes_closes_first(
    site: Site, proxy: FaultProxy, under_way: str
) -> None:
    client = AsyncClient(address=proxy.address, session=spec(site, lock_delay=30.0))
    async with client:
        await AsyncLock(client, site.key).acquire(timeout=5)
        slow = proxy.add(Fault(lose=Lose.TIME, path=under_way))
        closing = asyncio.create_task(client.close())
        await eventually(slow.hit.is_set)
        for _ in range(2):
            closing.cancel()
            await asyncio.sleep(0)
        assert not closing.done()
        slow.let_go()
        with pytest.raises(asyncio.CancelledError):
            await closing
    assert site.left_behind() == []
    assert client.pending_cleanup == 0


async def test_closing_from_a_callback_is_possible(site: Site) -> None:
    client, closed = AsyncClient(address=site.address, session=spec(site)), anyio.Event()

    async def close(_: LossReason) -> None:
        await client.close()
        closed.set()

    async with client:
        hold = await AsyncLock(client, site.key).acquire(timeout=5)
        other = await AsyncLock(client, f"{site.key}/other", session=spec(site)).acquire(timeout=5)
        hold.on_lost(close)
        await operate(lambda: site.operator.destroy(hold.session))
        with anyio.fail_after(5):
            await closed.wait()
    assert other.reason is LossReason.CLIENT_CLOSED
    assert site.left_behind() == []


async def test_a_close_that_failed_goes_on_when_it_is_repeated(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncClient(address=site.address, session=spec(site, lock_delay=30.0)) as client:
        hold = await AsyncLock(client, site.key).acquire()
        send, failures = client._runner._transport.send, [MemoryError()]

        async def failing(*args: Any, **kwargs: Any) -> Response:
            if failures:
                raise failures.pop()
            return await send(*args, **kwargs)

        monkeypatch.setattr(client._runner._transport, "send", failing)
        with pytest.raises(MemoryError):
            await client.close()
        await client.close()
        assert site.left_behind() == []
        assert client.pending_cleanup == 0
        assert hold.reason is LossReason.CLIENT_CLOSED
