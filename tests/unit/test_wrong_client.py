"""A client of the other world is refused at once, before a block could run without its lock."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pytest

import consul_coord as cc
from consul_coord import config
from consul_coord.errors import InvalidArgument
from consul_coord.server import ReferenceServer

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCKING: dict[str, Callable[[Any], object]] = {
    "Lock": lambda client: cc.Lock(client, "k"),
    "ReentrantLock": lambda client: cc.ReentrantLock(client, "k"),
    "MultiLock": lambda client: cc.MultiLock(client, ["k", "l"]),
    "ReadWriteLock": lambda client: cc.ReadWriteLock(client, "k"),
    "Semaphore": lambda client: cc.Semaphore(client, "k", 2),
    "LeaderElection": lambda client: cc.LeaderElection(client, "k"),
    "leader": partial(cc.leader, key="k"),
    "observe": partial(cc.observe, key="k"),
}
ASYNC: dict[str, Callable[[Any], object]] = {
    "AsyncLock": lambda client: cc.AsyncLock(client, "k"),
    "AsyncReentrantLock": lambda client: cc.AsyncReentrantLock(client, "k"),
    "AsyncMultiLock": lambda client: cc.AsyncMultiLock(client, ["k", "l"]),
    "AsyncReadWriteLock": lambda client: cc.AsyncReadWriteLock(client, "k"),
    "AsyncSemaphore": lambda client: cc.AsyncSemaphore(client, "k", 2),
    "AsyncLeaderElection": lambda client: cc.AsyncLeaderElection(client, "k"),
    "async_leader": lambda client: cc.async_leader(client, "k").send(None),
    "async_observe": partial(cc.async_observe, key="k"),
}


@pytest.mark.parametrize("name", BLOCKING)
def test_blocking_code_takes_a_client_only(name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{name} needs a Client, not an AsyncClient: .*AsyncLock"):
        BLOCKING[name](cc.AsyncClient())


@pytest.mark.parametrize("name", ASYNC)
def test_coroutines_take_an_async_client_only(name: str) -> None:
    refused = f"^{name} needs an AsyncClient, not a Client: "
    with cc.Client() as client, pytest.raises(InvalidArgument, match=refused):
        ASYNC[name](client)


@pytest.mark.parametrize("name", BLOCKING)
def test_what_is_no_client_is_named(name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{name} needs a Client, not a str$"):
        BLOCKING[name]("http://127.0.0.1:8500")


def test_a_class_of_ones_own_is_a_client_too() -> None:
    class Ours(cc.Client):
        pass

    with Ours() as client:
        assert cc.Lock(client, "k").key == "k"


ENTERED: dict[str, Callable[[Any], Any]] = {
    "Client": lambda client: client,
    "Lock": lambda client: cc.Lock(client, "k"),
    "ReentrantLock": lambda client: cc.ReentrantLock(client, "k"),
    "RwSide": lambda client: cc.ReadWriteLock(client, "k").read,
    "Semaphore": lambda client: cc.Semaphore(client, "k", 2),
    "Held": lambda client: cc.Lock(client, "k").hold(timeout=1),
    "LeaderElection": lambda client: cc.LeaderElection(client, "k"),
    "Group": lambda client: cc.Group(client, "k"),
    "Partitioner": lambda client: cc.Partitioner(cc.Group(client, "k"), 4),
    "Watch": lambda client: client.kv.watch("k"),
}
ASYNC_ENTERED: dict[str, Callable[[Any], Any]] = {
    "AsyncClient": lambda client: client,
    "AsyncLock": lambda client: cc.AsyncLock(client, "k"),
    "AsyncRwSide": lambda client: cc.AsyncReadWriteLock(client, "k").read,
    "AsyncSemaphore": lambda client: cc.AsyncSemaphore(client, "k", 2),
    "AsyncHeld": lambda client: cc.AsyncLock(client, "k").hold(timeout=1),
    "AsyncLeaderElection": lambda client: cc.AsyncLeaderElection(client, "k"),
    "AsyncGroup": lambda client: cc.AsyncGroup(client, "k"),
    "AsyncPartitioner": lambda client: cc.AsyncPartitioner(cc.AsyncGroup(client, "k"), 4),
    "AsyncWatch": lambda client: client.kv.watch("k"),
}


@pytest.mark.parametrize("name", ENTERED)
def test_the_wrong_async_with_says_what_is_right(name: str) -> None:
    async def main(thing: Any) -> None:
        async with thing:
            pass

    right = rf"^{name} is entered with 'with'; a coroutine uses AsyncClient, AsyncLock and so on$"
    with cc.Client() as client, pytest.raises(TypeError, match=right):
        asyncio.run(main(ENTERED[name](client)))


@pytest.mark.parametrize("name", ASYNC_ENTERED)
def test_the_wrong_with_says_what_is_right(name: str) -> None:
    right = rf"^{name} is entered with 'async with'; blocking code uses Client, Lock and so on$"
    with ExitStack() as stack, pytest.raises(TypeError, match=right):
        stack.enter_context(ASYNC_ENTERED[name](cc.AsyncClient()))


def test_a_hold_in_a_with_names_the_block() -> None:
    right = r"^Hold is what acquire\(\) returns, .*'with lock\.hold\(timeout=\.\.\.\) as hold'$"
    with ReferenceServer() as server, cc.Client(server.address) as client, ExitStack() as stack:
        hold: Any = cc.Lock(client, "k").acquire(timeout=5)
        with pytest.raises(TypeError, match=right):
            stack.enter_context(hold)


def test_what_hold_returns_names_the_block_if_it_is_taken_for_a_hold() -> None:
    right = r"has no 'fence' and .* write 'with lock\.hold\(\.\.\.\) as hold', or 'hold = lock\.acquire\("
    with cc.Client() as client, pytest.raises(AttributeError, match=right):
        _ = attrgetter("fence")(cc.Lock(client, "k").hold(timeout=5))


def test_a_closed_client_says_what_to_do() -> None:
    client = cc.Client()
    lock = cc.Lock(client, "k")
    client.close()
    for use in (partial(client.kv.get, "k"), partial(lock.acquire, timeout=1)):
        with pytest.raises(cc.ClientClosed, match="make a new one, and new locks with it"):
            use()


def test_an_async_client_of_another_loop_says_so() -> None:
    """Not by waiting for ever: its background makes no step while the other loop runs."""
    client = cc.AsyncClient("127.0.0.1:3")

    async def enter() -> None:
        await client.__aenter__()

    async def use() -> None:
        with pytest.raises(RuntimeError, match="entered in another event loop"):
            await cc.AsyncLock(client, "k").acquire(timeout=0.1)

    with asyncio.Runner() as one, asyncio.Runner() as other:
        one.run(enter())
        other.run(use())
        one.run(client.close())


@pytest.mark.parametrize(
    ("address", "environment", "where"),
    [
        (None, None, r"http://127\.0\.0\.1:3 \(the default address\): "),
        (None, "127.0.0.1:1", r"http://127\.0\.0\.1:1 \(CONSUL_HTTP_ADDR\): "),
        ("127.0.0.1:1", "127.0.0.1:2", r"http://127\.0\.0\.1:1: "),
    ],
)
def test_no_agent_is_told_with_the_address_its_origin_and_the_next_step(
    monkeypatch: pytest.MonkeyPatch, address: str | None, environment: str | None, where: str
) -> None:
    monkeypatch.delenv("CONSUL_HTTP_ADDR", raising=False)
    if environment is not None:
        monkeypatch.setenv("CONSUL_HTTP_ADDR", environment)
    monkeypatch.setattr(config, "DEFAULT_ADDRESS", "http://127.0.0.1:3")
    words = rf"^GET /v1/kv/k: no connection to {where}.*refused\. Is an agent running there\? "
    with cc.Client(address) as client, pytest.raises(cc.ConnectFailed, match=words):
        client.kv.get("k", timeout=0.2)

    async def main() -> None:
        async with cc.AsyncClient(address) as client:
            with pytest.raises(cc.ConnectFailed, match=words):
                await client.kv.get("k", timeout=0.2)

    asyncio.run(main())
