"""Waiters of one client pass on among themselves what it releases, also after the agent had no room."""

from __future__ import annotations

import threading
import uuid
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING

import anyio
import pytest

from consul_coord import (
    AcquireTimeout,
    AsyncClient,
    AsyncReadWriteLock,
    AsyncSemaphore,
    Client,
    ReadWriteLock,
    Semaphore,
    SessionSpec,
)
from consul_coord.events import ConnectionsRefused
from consul_coord.server import ReferenceServer, ServerConfig
from consul_coord.testing.agent import RealAgent
from tests.support.limits import full
from tests.support.sites import Operator, eventually
from tests.support.stalls import lasting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from consul_coord.events import Event

SMALL = 12
"""The agent's limit."""
CROWD = 8
"""Waiters: with a look a second, handing over to all of them would take as many seconds."""
QUICK = SessionSpec(ttl=10.0)


class Refusals:
    """Notes that the agent has refused connections."""

    def __init__(self) -> None:
        self.seen = threading.Event()

    def on_event(self, event: Event) -> None:
        if isinstance(event, ConnectionsRefused):
            self.seen.set()


@pytest.fixture(scope="module", params=["reference", pytest.param("agent", marks=pytest.mark.agent)])
def small(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "reference":
        with ReferenceServer(config=ServerConfig(http_max_conns_per_client=SMALL)) as server:
            yield server.address
    else:
        binary = request.getfixturevalue("consul_binary")
        limits = {"limits": {"http_max_conns_per_client": SMALL}}
        with RealAgent(binary=binary, config=limits) as agent:
            yield agent.address


@pytest.fixture
def key() -> str:
    return uuid.uuid4().hex[:12]


@pytest.fixture
def queued(small: str, key: str) -> Callable[[int], bool]:
    """Return whether so many have their places in the queue, with the holder."""

    def are_queued(many: int) -> bool:
        try:
            found = Operator(small).under(key)
        except OSError:
            return False  # the agent still counts the connections that were closed just now
        return len([each for each in found if not each.endswith("/.lock")]) == many

    return are_queued


@pytest.mark.parametrize("kind", ["semaphore", "write"])
def test_threads_are_woken_by_a_release_of_their_own_client(
    small: str, kind: str, queued: Callable[[int], bool], key: str
) -> None:
    refusals = Refusals()

    def take_and_release() -> None:
        with wanted.hold(timeout=60):
            pass

    with Client(address=small, session=QUICK, observer=refusals) as client:
        wanted = Semaphore(client, key, 1) if kind == "semaphore" else ReadWriteLock(client, key).write
        hold = wanted.acquire(timeout=10)
        threads = [threading.Thread(target=take_and_release) for _ in range(CROWD)]
        with full(small):
            for thread in threads:
                thread.start()
            assert refusals.seen.wait(30)
        assert eventually(partial(queued, CROWD + 1))
        with lasting(most=5.0, calls=CROWD):
            hold.release()
            for thread in threads:
                thread.join(60)


@pytest.mark.parametrize("kind", ["semaphore", "write"])
def test_tasks_are_woken_by_a_release_of_their_own_client(
    small: str, kind: str, queued: Callable[[int], bool], key: str
) -> None:
    refusals = Refusals()

    async def main() -> None:
        async with AsyncClient(address=small, session=QUICK, observer=refusals) as client:
            slots, both = AsyncSemaphore(client, key, 1), AsyncReadWriteLock(client, key)
            wanted = slots if kind == "semaphore" else both.write
            hold = await wanted.acquire(timeout=10)

            async def take_and_release() -> None:
                async with wanted.hold(timeout=60):
                    pass

            with ExitStack() as stack:
                async with anyio.create_task_group() as group:
                    with full(small):
                        for _ in range(CROWD):
                            group.start_soon(take_and_release)
                        assert await anyio.to_thread.run_sync(refusals.seen.wait, 30)
                    assert await anyio.to_thread.run_sync(eventually, partial(queued, CROWD + 1))
                    stack.enter_context(lasting(most=5.0, calls=CROWD))
                    await hold.release()

    anyio.run(main)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["semaphore", "write"])
def test_a_waiter_is_woken_by_one_of_its_own_client_that_gives_up(
    small: str, kind: str, queued: Callable[[int], bool], key: str
) -> None:
    refusals = Refusals()

    async def main() -> None:
        async with AsyncClient(address=small, session=QUICK, observer=refusals) as client:
            slots, both = AsyncSemaphore(client, key, 1), AsyncReadWriteLock(client, key)
            wanted = slots if kind == "semaphore" else both.write
            hold = await wanted.acquire(timeout=10)

            async def refused() -> None:
                with suppress(AcquireTimeout):
                    await wanted.acquire(timeout=2)

            async def wait_in_vain(scope: anyio.CancelScope) -> None:
                with scope:
                    await wanted.acquire()

            async def succeed() -> None:
                nonlocal hold
                hold = await wanted.acquire(timeout=30)

            async def places(many: int) -> None:
                await anyio.to_thread.run_sync(eventually, partial(queued, many))

            with full(small):
                async with anyio.create_task_group() as group:
                    for _ in range(CROWD):
                        group.start_soon(refused)
                assert refusals.seen.is_set()
            await places(1)
            with lasting(most=2.0, calls=CROWD * 4):
                for _ in range(CROWD):
                    scope = anyio.CancelScope()
                    async with anyio.create_task_group() as group:
                        group.start_soon(wait_in_vain, scope)
                        await places(2)
                        group.start_soon(succeed)
                        await places(3)
                        scope.cancel()
                        await places(2)
                        await hold.release()
            await hold.release()

    anyio.run(main)
