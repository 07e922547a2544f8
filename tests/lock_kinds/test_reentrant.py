"""``ReentrantLock``: taken again by who holds it, given up by the last release, and dead after a loss."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from consul_coord import (
    AlreadyHeld,
    AsyncClient,
    AsyncReentrantLock,
    Client,
    InvalidArgument,
    Lock,
    LockLost,
    LossReason,
    NotHeld,
    ReentrantLock,
    ReleaseOutcome,
)
from tests.lock.conftest import spec
from tests.lock.test_async import eventually as eventually_so
from tests.support.sites import eventually

if TYPE_CHECKING:
    from consul_coord import Hold
    from tests.lock.conftest import MakeClient
    from tests.support.proxy import FaultProxy
    from tests.support.sites import Site


def test_blocks_within_blocks_are_one_hold(site: Site, client: Client) -> None:
    lock = ReentrantLock(client, site.key)
    with lock as outer:
        with lock.hold(timeout=5) as inner:
            assert (inner.fence, inner.session) == (outer.fence, outer.session)
            with lock:
                assert site.operator.holder(site.key) == outer.session
            assert site.operator.holder(site.key) == outer.session
        assert outer.is_held
        assert site.operator.holder(site.key) == outer.session
    assert site.operator.holder(site.key) is None


def test_as_many_releases_as_acquires(site: Site, client: Client) -> None:
    lock = ReentrantLock(client, site.key)
    holds = [lock.acquire(timeout=5) for _ in range(4)]
    assert len({hold.fence for hold in holds}) == 1
    for _ in range(3):
        assert lock.release() is ReleaseOutcome.RELEASED
        assert site.operator.holder(site.key) == holds[0].session
    assert holds[0].release() is ReleaseOutcome.RELEASED
    assert site.operator.holder(site.key) is None
    with pytest.raises(NotHeld):
        lock.release()
    assert lock.acquire(timeout=5).fence > holds[0].fence


def test_taking_it_again_asks_nobody(site: Site, proxy: FaultProxy, make_client: MakeClient) -> None:
    client = make_client(address=proxy.address)
    lock = ReentrantLock(client, site.key)
    with lock:
        before = proxy.count("PUT", "/v1/txn")
        for _ in range(5):
            lock.acquire(timeout=5)
            lock.try_acquire()
        for _ in range(10):
            lock.release()
        assert proxy.count("PUT", "/v1/txn") == before
    assert proxy.count("PUT", "/v1/txn") == before + 1


@pytest.mark.parametrize("timeout", [-1.0, float("nan"), "1"])
def test_what_is_no_time_is_refused_also_when_it_is_taken_again(
    site: Site, client: Client, timeout: Any
) -> None:
    lock = ReentrantLock(client, site.key)
    with lock:
        with pytest.raises(InvalidArgument, match="timeout"):
            lock.acquire(timeout=timeout)
        assert lock.release() is ReleaseOutcome.RELEASED
        assert site.operator.holder(site.key) is None, "it was taken once"


def test_a_function_may_call_itself_under_the_lock(site: Site, client: Client) -> None:
    lock = ReentrantLock(client, site.key)

    @lock.wrap(timeout=5)
    def factorial(number: int) -> int:
        return 1 if number == 0 else number * factorial(number - 1)

    assert factorial(5) == 120
    assert site.operator.holder(site.key) is None


def test_an_exception_on_the_way_out_releases_each_level_once(site: Site, client: Client) -> None:
    lock = ReentrantLock(client, site.key)
    with pytest.raises(ValueError, match="made up"), lock, lock, lock:
        raise ValueError("made up")
    assert site.operator.holder(site.key) is None


def test_another_thread_waits_for_the_last_release(site: Site, client: Client) -> None:
    lock = ReentrantLock(client, site.key)
    with ThreadPoolExecutor(1) as pool, lock as outer:
        with lock:
            other = pool.submit(lambda: lock.run(lambda hold: hold.fence, timeout=20))
            eventually(lambda: len(client._runner.core.tickets.queue(site.key)) == 2)
        assert site.operator.holder(site.key) == outer.session
        assert not other.done()
        outer.release()
        assert other.result(10) > outer.fence


def test_threads_exclude_each_other(site: Site, make_client: MakeClient) -> None:
    one, inside = make_client(), threading.Semaphore(1)

    def work(lock: ReentrantLock) -> None:
        for _ in range(5):
            with lock:
                assert inside.acquire(blocking=False), "two threads hold it"
                with lock, lock:
                    pass
                inside.release()

    shared = ReentrantLock(one, site.key)
    with ThreadPoolExecutor(4) as pool:
        locks = [shared, shared, ReentrantLock(one, site.key), ReentrantLock(make_client(), site.key)]
        for call in [pool.submit(work, lock) for lock in locks]:
            call.result(50)
    assert site.operator.holder(site.key) is None


def test_only_the_same_object_can_be_taken_again(site: Site, client: Client) -> None:
    with ReentrantLock(client, site.key):
        with pytest.raises(AlreadyHeld, match="use one ReentrantLock object for both"):
            ReentrantLock(client, site.key).acquire(timeout=5)
        with pytest.raises(AlreadyHeld):
            Lock(client, site.key).acquire(timeout=5)


def lose(site: Site, hold: Hold) -> None:
    site.operator.destroy(hold.session)
    assert hold.lost.wait(5)


def test_a_lost_hold_can_not_be_entered_again(site: Site, client: Client) -> None:
    lock = ReentrantLock(client, site.key)

    def again() -> None:
        with lock as hold:
            lose(site, hold)
            with pytest.raises(LockLost) as refused:
                lock.acquire(timeout=5)
            assert refused.value.fence == hold.fence

    with pytest.raises(LockLost) as told:
        again()
    assert told.value.reason is LossReason.SESSION_GONE


def test_who_was_told_of_the_loss_and_acquires_once_more_gets_the_lock(site: Site, client: Client) -> None:
    lock = ReentrantLock(client, site.key)
    hold = lock.acquire(timeout=5)
    lose(site, hold)
    with pytest.raises(LockLost):
        lock.acquire(timeout=5)
    assert lock.acquire(timeout=5).fence > hold.fence


def test_each_level_is_told_of_the_loss(site: Site, client: Client) -> None:
    lock, told = ReentrantLock(client, site.key), list[LossReason]()

    def inner(hold: Hold) -> None:
        with lock:
            lose(site, hold)

    def outer() -> None:
        with lock as hold:
            with pytest.raises(LockLost) as error:
                inner(hold)
            told.append(error.value.reason)
            with pytest.raises(LockLost):
                lock.acquire(timeout=5)

    with pytest.raises(LockLost) as error:
        outer()
    assert [*told, error.value.reason] == [LossReason.SESSION_GONE] * 2


@pytest.mark.parametrize("levels", [1, 3])
def test_after_a_loss_that_was_left_it_can_be_taken_anew(site: Site, client: Client, levels: int) -> None:
    lock = ReentrantLock(client, site.key)
    holds = [lock.acquire(timeout=5) for _ in range(levels)]
    lose(site, holds[0])
    for _ in holds:
        with pytest.raises(LockLost):
            lock.acquire(timeout=5)
        assert lock.release() is ReleaseOutcome.ALREADY_LOST
    with pytest.raises(NotHeld):
        lock.release()
    with lock.hold(timeout=5) as again:
        assert again.fence > holds[0].fence


@pytest.mark.anyio
async def test_tasks_take_it_again_and_wait_for_each_other(site: Site) -> None:
    order: list[str] = []
    async with AsyncClient(address=site.address, session=spec(site)) as client:
        lock = AsyncReentrantLock(client, site.key)

        async def other() -> None:
            async with lock.hold(timeout=20):
                order.append("other")

        async def nested() -> None:
            async with lock as outer:
                group.start_soon(other)
                async with lock as inner:
                    assert inner.fence == outer.fence
                    await eventually_so(lambda: len(client._runner.core.tickets.queue(site.key)) == 2)
                order.append("inner left")
                again = await lock.acquire(timeout=5)
                await again.release()
                assert outer.is_held
                order.append("outer left")

        async with anyio.create_task_group() as group:
            await nested()
        assert order == ["inner left", "outer left", "other"]
        with pytest.raises(NotHeld):
            await lock.release()
    assert site.left_behind() == []


@pytest.mark.anyio
async def test_a_task_can_not_enter_a_lost_hold_again(site: Site) -> None:
    async with AsyncClient(address=site.address, session=spec(site)) as client:
        lock = AsyncReentrantLock(client, site.key)
        hold = await lock.acquire(timeout=5)
        await anyio.to_thread.run_sync(site.operator.destroy, hold.session)
        assert await hold.lost.wait(5)
        with pytest.raises(LockLost):
            await lock.acquire(timeout=5)
        assert await lock.release() is ReleaseOutcome.ALREADY_LOST
        async with lock.hold(timeout=5) as again:
            assert again.fence > hold.fence
