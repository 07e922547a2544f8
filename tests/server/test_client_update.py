"""``client.kv.update`` under contention and trouble, on the reference server and on a real agent."""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING

import anyio
import pytest

from consul_coord import AsyncClient, Client
from consul_coord.server import Fault, ReferenceServer
from consul_coord.server.faults import Effect

if TYPE_CHECKING:
    from collections.abc import Iterator

WRITERS, EACH = 20, 3


@pytest.fixture(params=["reference", "agent"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "agent":
        yield request.getfixturevalue("agent_address")
        return
    with ReferenceServer() as server:
        yield server.address


@pytest.fixture
def key() -> str:
    return f"count-{uuid.uuid4().hex[:8]}"


def count_up(value: bytes | None) -> bytes:
    return b"%d" % (int(value or 0) + 1)


def count_in_threads(address: str, key: str) -> int:
    """Count up from many clients at once; return what came of it."""
    failed: list[BaseException] = []

    def count() -> None:
        try:
            with Client(address=address) as client:
                for _ in range(EACH):
                    client.kv.update(key, count_up, timeout=60)
        except BaseException as error:  # noqa: BLE001 - told below
            failed.append(error)

    threads = [threading.Thread(target=count) for _ in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    with Client(address=address) as client:
        return int(client.kv.get_raw(key).value or 0)


def test_no_update_is_lost_and_none_is_made_twice(address: str, key: str) -> None:
    assert count_in_threads(address, key) == WRITERS * EACH


def test_nor_among_refusals_for_overload() -> None:
    with ReferenceServer() as server:
        for _ in range(40):
            server.faults.add(Fault(effect=Effect.RESPOND, status=429, path="/v1/(txn|kv)", times=1))
        assert count_in_threads(server.address, "count") == WRITERS * EACH


@pytest.mark.anyio
async def test_the_async_client_does_the_same_without_being_entered(address: str, key: str) -> None:
    client = AsyncClient(address=address)

    async def count() -> None:
        await client.kv.update(key, count_up, timeout=60)

    async with anyio.create_task_group() as tasks:
        for _ in range(WRITERS):
            tasks.start_soon(count)
    assert (await client.kv.get_raw(key)).value == b"%d" % WRITERS
    await client.close()


def test_a_held_key_keeps_its_holder_and_its_flags(address: str, key: str) -> None:
    with Client(address=address) as client:
        client.kv.put(key, "a", flags=7)
        pair = client.kv.update(key, lambda value: (value or b"") + b"b")
        assert pair is not None
        now = client.kv.get(key).value
        assert now is not None
        assert (now.value, now.flags, now.modify_index) == (b"ab", 7, pair.modify_index)
        client.kv.delete(key)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    backend: str = request.param
    return backend
