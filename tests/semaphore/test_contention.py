"""Many contenders: never more holders than the limit, nobody starves, nothing stays."""

from __future__ import annotations

import asyncio
import functools
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio
import pytest

from consul_coord import AsyncClient, AsyncSemaphore, Client, LockLost, Semaphore
from consul_coord.recipes.semaphore import slots
from tests.semaphore.conftest import Place, spec
from tests.support.sites import Site, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.semaphore.conftest import MakeClient

CONTENDERS = 30
LIMIT = 3
STAY = 0.005
"""Seconds inside."""
PATIENCE = 30.0


class Room:
    """Counts who is inside, and never lets more in than fit."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._inside = 0
        self.most = 0
        self.entries = Counter[object]()
        self.fences: list[int] = []
        self.full = threading.Event()
        """Raised once as many as fit were inside at the same time; the first to come wait for that."""

    @contextmanager
    def entered(self, who: object, fence: int) -> Iterator[None]:
        with self._lock:
            self._inside += 1
            self.most = max(self.most, self._inside)
            self.entries[who] += 1
            self.fences.append(fence)
            inside = self._inside
            if inside == self._size:
                self.full.set()
        try:
            assert inside <= self._size, "too many inside"
            yield
        finally:
            with self._lock:
                self._inside -= 1

    def check(self, entries: int) -> None:
        assert self.entries.total() == entries
        assert self.most == self._size
        assert len(set(self.fences)) == entries


def use(semaphore: Semaphore, room: Room, *, who: int, times: int) -> None:
    for _ in range(times):
        with semaphore.hold(timeout=50) as permit, room.entered(who, permit.fence):
            assert room.full.wait(PATIENCE)
            time.sleep(STAY)


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False], ids=["one object", "a client each"])
def test_threads_keep_to_the_limit(make_client: MakeClient, place: Place, shared: bool) -> None:
    room, times = Room(LIMIT), 8 if shared else 5
    one = Semaphore(make_client(), place.prefix, LIMIT)
    semaphores = [one if shared else Semaphore(make_client(), place.prefix, LIMIT) for _ in range(CONTENDERS)]
    with ThreadPoolExecutor(CONTENDERS) as pool:
        calls = [pool.submit(use, each, room, who=who, times=times) for who, each in enumerate(semaphores)]
        for call in calls:
            call.result(50)
    room.check(CONTENDERS * times)
    assert set(room.entries.values()) == {times}
    assert place.contenders() == []


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_tasks_keep_to_the_limit(site: Site, backend: str) -> None:
    place, room = Place(site), Room(LIMIT)

    async def work(client: AsyncClient, who: int) -> None:
        semaphore = AsyncSemaphore(client, place.prefix, LIMIT)
        for _ in range(3):
            async with semaphore.hold(timeout=50) as permit:
                with room.entered(who, permit.fence):
                    if not room.full.is_set():
                        await anyio.to_thread.run_sync(room.full.wait, PATIENCE)
                    await anyio.sleep(STAY)

    async def main() -> None:
        async with AsyncClient(address=site.address, session=spec(site)) as client:
            async with anyio.create_task_group() as group:
                for who in range(CONTENDERS):
                    group.start_soon(work, client, who)
            assert place.contenders() == []

    anyio.run(main, backend=backend)
    room.check(CONTENDERS * 3)
    assert place.left_behind() == []


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_cancelled_task_leaves_nothing(site: Site, backend: str) -> None:
    place = Place(site)

    async def main() -> None:
        async with AsyncClient(address=site.address, session=spec(site)) as client:
            semaphore = AsyncSemaphore(client, place.prefix, 1)
            permit = await semaphore.acquire(timeout=5)
            with anyio.move_on_after(0.2) as scope:
                await semaphore.acquire()
            assert scope.cancelled_caught
            queue_is_empty = functools.partial(eventually, lambda: place.contenders() == [permit.session])
            await anyio.to_thread.run_sync(queue_is_empty)
            await semaphore.release()

    anyio.run(main, backend=backend)
    assert place.left_behind() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entries", "losses"), [(60, 4), pytest.param(150, 10, marks=pytest.mark.search)], ids=["some", "many"]
)
def test_holders_and_waiters_that_die_under_load_never_let_too_many_in(
    make_client: MakeClient, place: Place, entries: int, losses: int
) -> None:
    """A holder's session is destroyed when it believes in nothing any more: just outside the room."""
    chance = random.Random(7)
    room, lost, stop = Room(LIMIT), [0], threading.Event()
    session = spec(place.site, lock_delay=1.0)
    semaphores = [Semaphore(make_client(), place.prefix, LIMIT, session=session) for _ in range(4)]

    def work(who: int) -> None:
        while not stop.is_set():
            try:
                with semaphores[who % 4].hold(timeout=50) as permit:
                    with room.entered(who, permit.fence):
                        assert room.full.wait(PATIENCE)
                        time.sleep(STAY)
                    if chance.random() < 0.15:
                        place.operator.destroy(permit.session)
            except LockLost:
                lost[0] += 1

    def die_waiting() -> None:
        while not stop.is_set():
            # Queues as this package does, and never takes: a client that has come to a standstill.
            waiter = place.foreign(slots.waiting(b""))
            stop.wait(0.03)
            place.operator.destroy(waiter)

    with ThreadPoolExecutor(18) as pool:
        calls = [pool.submit(work, who) for who in range(16)] + [pool.submit(die_waiting) for _ in range(2)]
        try:
            # A call that ends early has failed: its own error says more than a time-out.
            eventually(
                lambda: (
                    (room.entries.total() > entries and lost[0] > losses)
                    or any(call.done() for call in calls)
                ),
                within=40,
            )
        finally:
            stop.set()
        for call in calls:
            call.result(20)
    room.check(room.entries.total())
    eventually(lambda: not place.contenders())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("contenders", "acquisitions"),
    [(20, 200), pytest.param(50, 1_000, marks=[pytest.mark.long, pytest.mark.timeout(300)])],
)
def test_nobody_starves(make_client: MakeClient, place: Place, contenders: int, acquisitions: int) -> None:
    room, left = Room(LIMIT), threading.Semaphore(acquisitions)
    semaphores = [Semaphore(make_client(), place.prefix, LIMIT) for _ in range(5)]

    def work(who: int) -> None:
        while left.acquire(blocking=False):
            use(semaphores[who % 5], room, who=who, times=1)

    with ThreadPoolExecutor(contenders) as pool:
        for call in [pool.submit(work, who) for who in range(contenders)]:
            call.result(280)
    room.check(acquisitions)
    fair_share = acquisitions / contenders
    assert len(room.entries) == contenders
    assert min(room.entries.values()) >= fair_share / 2
    assert max(room.entries.values()) <= fair_share * 2


def test_nothing_is_left_when_all_clients_are_closed(site: Site) -> None:
    place, room = Place(site), Room(LIMIT)
    clients = [Client(address=site.address, session=spec(site)) for _ in range(5)]
    with ThreadPoolExecutor(10) as pool:
        calls = [
            pool.submit(use, Semaphore(client, place.prefix, LIMIT), room, who=0, times=4)
            for client in clients * 2
        ]
        for call in calls:
            call.result(30)
    for client in clients:
        client.close()
    assert place.operator.under(place.prefix) == [place.record]
    assert place.operator.sessions(site.unique) == []


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_blocks_of_one_task_nest(site: Site, backend: str) -> None:
    place = Place(site)

    async def main() -> None:
        async with AsyncClient(address=site.address, session=spec(site)) as client:
            semaphore = AsyncSemaphore(client, place.prefix, 2)
            async with semaphore as outer, semaphore as inner:
                assert {outer.session, inner.session} == set(place.contenders())
            assert place.contenders() == []

    anyio.run(main, backend=backend)


def test_a_block_left_in_another_task_ends_and_is_refused(site: Site) -> None:
    place = Place(site)

    async def main() -> None:
        async with AsyncClient(address=site.address, session=spec(site)) as client:
            semaphore = AsyncSemaphore(client, place.prefix, 2)
            await asyncio.create_task(semaphore.__aenter__())
            with pytest.raises(RuntimeError, match="another task"):
                await semaphore.__aexit__(None, None, None)
            assert place.contenders() == []

    asyncio.run(main())
