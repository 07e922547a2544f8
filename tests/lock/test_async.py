"""Locks from event loops, asyncio's and trio's: as from blocking code, and what only an event loop can do."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import anyio.lowlevel
import pytest

from consul_coord import (
    AcquireCancelled,
    AcquireTimeout,
    AlreadyHeld,
    AsyncClient,
    AsyncHold,
    AsyncLeaderElection,
    AsyncLock,
    AsyncSemaphore,
    ClientClosed,
    HoldState,
    LockLost,
    LossReason,
    NotHeld,
    ReleaseOutcome,
    TxnFailed,
    TxnOp,
)
from consul_coord.events import Lost
from tests.lock.conftest import spec
from tests.lock.test_closing import descriptors
from tests.lock.test_hold import Notes
from tests.lock.test_loss import CAUSES, PROMPT
from tests.support.proxy import Fault, Lose
from tests.support.sites import PATIENCE, Operator, Site
from tests.support.stalls import lasting, stalls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from contextlib import AbstractAsyncContextManager

    from consul_coord import Event
    from tests.support.proxy import FaultProxy

pytestmark = pytest.mark.anyio


class MakeClient(Protocol):
    def __call__(
        self, *, address: str = ..., ttl: float = ..., lock_delay: float = ..., **settings: Any
    ) -> AbstractAsyncContextManager[AsyncClient]: ...


@pytest.fixture
def make_client(site: Site) -> MakeClient:
    def make(
        *, address: str = site.address, ttl: float = 10.0, lock_delay: float = 0.0, **settings: Any
    ) -> AsyncClient:
        return AsyncClient(address=address, session=spec(site, ttl=ttl, lock_delay=lock_delay), **settings)

    return make


async def eventually(condition: Callable[[], object], *, within: float = PATIENCE) -> None:
    """Wait until the condition, which may block for a moment, is true."""
    with anyio.fail_after(within):
        while not await anyio.to_thread.run_sync(condition):  # noqa: ASYNC110 - the server raises no event
            await anyio.sleep(0.004)


def is_watching(client: AsyncClient) -> bool:
    """Return whether a blocking query of the client is under way."""
    return bool(client._runner.core.watches._queries)


async def operate(action: Callable[[], object]) -> None:
    await anyio.to_thread.run_sync(action)


async def test_a_hold_and_its_end(site: Site, make_client: MakeClient) -> None:
    async with make_client() as client:
        lock = AsyncLock(client, site.key, value="me")
        async with lock.hold(timeout=5) as hold:
            assert hold.is_held
            assert await hold.verify()
            await hold.put("mine")
            await client.txn(*hold.guard(), TxnOp.set(f"{site.unique}/result", b"x"))
            await hold.ensure(1.0)
            holder = await lock.holder()
            assert holder is not None
            assert (holder.session, holder.value) == (hold.session, b"mine")
        assert await hold.release() is ReleaseOutcome.RELEASED
        with pytest.raises(TxnFailed):
            await client.txn(*hold.guard())
    assert site.left_behind() == []


async def test_tasks_and_clients_exclude_each_other(site: Site, make_client: MakeClient) -> None:
    inside, fences = 0, list[int]()

    async def work(client: AsyncClient) -> None:
        nonlocal inside
        lock = AsyncLock(client, site.key)
        for _ in range(6):
            async with lock.hold(timeout=20) as hold:
                inside += 1
                assert inside == 1
                await anyio.lowlevel.checkpoint()
                assert inside == 1
                fences.append(hold.fence)
                inside -= 1

    async with make_client() as one, make_client() as two, anyio.create_task_group() as group:
        for client in (one, one, one, two, two):
            group.start_soon(work, client)
    assert len(fences) == 30
    assert fences == sorted(set(fences))


async def test_timeouts_and_blockers(site: Site, make_client: MakeClient) -> None:
    async with make_client() as one, make_client() as two:
        lock, other = AsyncLock(one, site.key), AsyncLock(two, site.key)
        async with lock as hold:
            assert await other.try_acquire() is None
            with lasting(least=1.0, most=1.5), pytest.raises(AcquireTimeout) as told:
                await other.acquire(timeout=1.0)
            assert (told.value.blocker.kind, told.value.blocker.session) == ("held", hold.session)
            with pytest.raises(AlreadyHeld):
                await lock.acquire()
            queued: list[AcquireTimeout] = []

            async def queue() -> None:
                with pytest.raises(AcquireTimeout) as timeout:
                    await lock.acquire(timeout=0.05)
                queued.append(timeout.value)

            async with anyio.create_task_group() as group:
                group.start_soon(queue)
            assert queued[0].blocker.kind == "queued"
            with pytest.raises(NotHeld):
                await other.release()
        assert await other.contenders() == ()


async def test_cancel_close_and_cancellation_end_a_wait_at_once(site: Site, make_client: MakeClient) -> None:
    began, took = list[float](), list[float]()

    async def wait(lock: AsyncLock, error: type[Exception]) -> None:
        with pytest.raises(error):
            await lock.acquire()
        took.append(time.monotonic())

    async with make_client() as holder, make_client() as two:
        held, lock = AsyncLock(holder, site.key), AsyncLock(two, site.key)
        async with held:
            with stalls() as measured:
                async with anyio.create_task_group() as group:
                    group.start_soon(wait, lock, AcquireCancelled)
                    group.start_soon(wait, lock, AcquireCancelled)
                    await eventually(lambda: site.operator.under(f"{site.key}/.wait/"))
                    began.append(time.monotonic())
                    lock.cancel()
            assert max(took) - began[-1] < 0.1 + measured.slack
            with anyio.move_on_after(0.1) as scope:
                await lock.acquire()
            assert scope.cancelled_caught
            await eventually(lambda: site.operator.under(f"{site.key}/.wait/") == [])
            took.clear()
            with stalls() as measured:
                async with anyio.create_task_group() as group:
                    group.start_soon(wait, lock, ClientClosed)
                    await eventually(lambda: site.operator.under(f"{site.key}/.wait/"))
                    began.append(time.monotonic())
                    await two.close()
            assert max(took) - began[-1] < 0.5 + measured.slack
    assert site.left_behind() == []


@pytest.mark.parametrize("delay", [0.0, 0.0005, 0.001, 0.002, 0.004, 0.008])
async def test_a_cancellation_at_any_moment_leaves_nothing(
    site: Site, make_client: MakeClient, delay: float
) -> None:
    async with make_client() as client:
        lock = AsyncLock(client, site.key)
        async with lock:
            pass
        for _ in range(4):
            with anyio.move_on_after(delay):
                async with lock:
                    await anyio.sleep(10)
            async with lock.hold(timeout=5) as hold:
                assert await hold.verify()
        await eventually(lambda: site.operator.holder(site.key) is None)
        # A join that was cancelled may reach the server after all else: its place is looked for again.
        await eventually(lambda: site.operator.under(f"{site.key}/") == [])
    assert site.left_behind() == []


async def test_a_cancellation_while_the_session_is_made_leaves_none(
    site: Site, proxy: FaultProxy, make_client: MakeClient
) -> None:
    create = proxy.add(Fault(lose=Lose.TIME, path="/v1/session/create"))
    async with make_client(address=proxy.address) as client:
        with anyio.move_on_after(0.1) as scope:
            await AsyncLock(client, site.key).acquire()
        assert scope.cancelled_caught
        create.let_go()
        await eventually(create.passed_on.is_set)
    assert proxy.count("PUT", "/v1/session/destroy/") == 1
    assert site.left_behind() == []
    assert client.pending_cleanup == 0


# -- losses


@pytest.mark.parametrize("name", CAUSES)
async def test_a_loss_cancels_the_body_and_is_told(site: Site, make_client: MakeClient, name: str) -> None:
    cause, reasons = CAUSES[name]
    notes, told, done = Notes(), list[LossReason](), time.monotonic()
    async with make_client(observer=notes) as client:
        with stalls() as measured, pytest.raises(LockLost) as error:  # noqa: PT012 - the block is what is tested
            async with AsyncLock(client, site.key) as hold:
                hold.on_lost(told.append)
                await eventually(partial(is_watching, client))
                await operate(lambda: cause(site.operator, hold))
                done = time.monotonic()
                with anyio.fail_after(PATIENCE):
                    await anyio.sleep_forever()
        assert time.monotonic() - done < PROMPT + measured.slack
        assert error.value.reason in reasons
        assert error.value.__cause__ is None
        assert told == [error.value.reason]
        assert len(notes.of(Lost)) == 1
        await anyio.lowlevel.checkpoint()  # the cancellation was the block's own, and has ended with it


async def lose(site: Site, hold: AsyncHold) -> None:
    await operate(lambda: site.operator.destroy(hold.session))


async def test_a_loss_has_the_bodys_exception_as_its_cause(site: Site, make_client: MakeClient) -> None:
    async with make_client() as client:
        with pytest.raises(LockLost) as error:  # noqa: PT012 - the block is what is tested
            async with AsyncLock(client, site.key).hold(timeout=5) as hold:
                try:
                    await lose(site, hold)
                    await anyio.sleep_forever()
                finally:
                    raise ValueError("from the body")
        assert isinstance(error.value.__cause__, ValueError)


async def test_what_the_body_raises_goes_on(site: Site, make_client: MakeClient) -> None:
    async with make_client() as client:
        lock = AsyncLock(client, site.key)
        with pytest.raises(ValueError, match="from the body"):
            async with lock:
                raise ValueError("from the body")
        assert await lock.try_acquire() is not None


async def test_a_cancellation_from_outside_goes_on_unchanged(site: Site, make_client: MakeClient) -> None:
    async with make_client() as client:
        reached, holds = False, list[AsyncHold]()
        with anyio.CancelScope() as scope:
            async with AsyncLock(client, site.key) as hold:
                holds.append(hold)
                scope.cancel()
                await anyio.sleep_forever()
            reached = True
        assert scope.cancelled_caught
        assert not reached
        assert [hold.state for hold in holds] == [HoldState.RELEASED]
        assert site.operator.holder(site.key) is None


async def test_a_cancellation_from_outside_is_not_replaced_by_a_loss(
    site: Site, make_client: MakeClient
) -> None:
    holds: list[AsyncHold] = []
    async with make_client() as client:
        with anyio.CancelScope() as scope:
            async with AsyncLock(client, site.key) as hold:
                holds.append(hold)
                try:
                    await lose(site, hold)
                    await anyio.sleep_forever()
                finally:
                    scope.cancel()
        assert scope.cancelled_caught
        assert [hold.reason for hold in holds] == [LossReason.SESSION_GONE]


async def test_acquire_without_a_block_cancels_nothing(site: Site, make_client: MakeClient) -> None:
    async with make_client() as client:
        hold = await AsyncLock(client, site.key).acquire(timeout=5)
        await lose(site, hold)
        assert await hold.lost.wait(PATIENCE)
        await anyio.sleep(0.05)
        with pytest.raises(LockLost):
            hold.check()
        assert await hold.release() is ReleaseOutcome.ALREADY_LOST


async def test_a_hiccup_is_jeopardy_and_then_loss_without_contact(
    site: Site, proxy: FaultProxy, make_client: MakeClient
) -> None:
    async with make_client(address=proxy.address, ttl=2.4) as client:
        lock = AsyncLock(client, site.key)
        hold = await lock.acquire(timeout=5)
        proxy.go_down()
        await eventually(lambda: hold.state is HoldState.JEOPARDY, within=2.2)
        assert hold.is_held
        proxy.come_up()
        await eventually(lambda: hold.state is HoldState.HELD, within=2.2)
        with stalls() as machine:
            proxy.go_down()
            assert await hold.lost.wait(4)
            assert client.now() <= hold.deadline() + 0.1 + machine.slack
        assert hold.reason is LossReason.EXPIRED
        proxy.come_up()
        again = await lock.acquire(timeout=5)
        assert again.fence > hold.fence


async def test_a_callback_that_fails_is_reported_only(
    site: Site, make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    told = anyio.Event()

    def fail(_: LossReason) -> None:
        raise ValueError("made up")

    async def tell_later(_: LossReason) -> None:
        await anyio.lowlevel.checkpoint()
        told.set()

    async with make_client() as client:
        hold = await AsyncLock(client, site.key).acquire(timeout=5)
        hold.on_lost(fail)
        hold.on_lost(tell_later)
        await lose(site, hold)
        with anyio.fail_after(2):
            await told.wait()
    assert "ValueError: made up" in caplog.text


ON_ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"])
"""trio ends a task with an error of its own when it leaves a scope open; so it can't go on to be tested.

And there a function can't be cancelled without its task.
"""


@ON_ASYNCIO
@pytest.mark.parametrize("at_once", [True, False])
async def test_a_callback_that_was_cancelled_by_itself_is_reported_and_ends_nothing(
    site: Site, make_client: MakeClient, caplog: pytest.LogCaptureFixture, at_once: bool
) -> None:
    cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    cancelled.cancel()
    told: list[LossReason] = []

    async def await_it() -> None:
        await cancelled

    def fail(_: LossReason) -> object:
        return cancelled.result() if at_once else await_it()

    def heard(times: int) -> bool:
        return len(told) == times

    async with make_client() as client:
        for number in range(2):  # what ended the background would be noticed by the second one
            hold = await AsyncLock(client, f"{site.key}/{number}").acquire(timeout=5)
            hold.on_lost(fail)
            hold.on_lost(told.append)
            await lose(site, hold)
            await eventually(partial(heard, number + 1))
        await eventually(lambda: caplog.text.count("a callback raised CancelledError") == 2)


class Panic(BaseException):
    """As what test frameworks and other languages' runtimes raise."""


@pytest.mark.parametrize("where", ["a callback", "a coroutine callback", "an observer", "a health function"])
@pytest.mark.parametrize("error", [Panic, SystemExit])
async def test_whatever_a_users_function_raises_ends_nothing_else(
    site: Site, make_client: MakeClient, where: str, error: type[BaseException]
) -> None:
    raised: list[str] = []
    told = anyio.Event()

    def fail(*_: object) -> Any:
        raised.append(where)
        raise error

    async def fail_later(*_: object) -> None:
        await anyio.lowlevel.checkpoint()
        fail()

    class Observer:
        def on_event(self, event: Event) -> None:
            if isinstance(event, Lost):
                fail()

    async with make_client(observer=Observer() if where == "an observer" else None) as client:
        other = await AsyncLock(client, f"{site.key}.other").acquire(timeout=5)
        if where == "a health function":
            asked: list[None] = []

            def health() -> bool:
                asked.append(None)
                return not election.is_leader or fail()

            async with AsyncLeaderElection(client, site.key, health=health, health_interval=0.2) as election:
                me = await election.wait_for_leadership(timeout=10)
                assert await me.lost.wait(10)
                await eventually(lambda: len(asked) > 4)
        else:
            hold = await AsyncLock(client, site.key).acquire(timeout=5)
            if where != "an observer":
                hold.on_lost(fail if where == "a callback" else fail_later)
            hold.on_lost(lambda _: told.set())
            await anyio.to_thread.run_sync(site.operator.delete, site.key)
            with anyio.fail_after(10):
                await told.wait()
        await eventually(lambda: bool(raised))
        assert await other.verify()
        assert (await AsyncLock(client, f"{site.key}.new").acquire(timeout=5)).is_held
        assert client.ready()


# -- misuse


@ON_ASYNCIO
async def test_leaving_in_another_task_is_told_and_still_releases(
    site: Site, make_client: MakeClient
) -> None:
    async with make_client() as client:
        for block in (AsyncLock(client, site.key), AsyncLock(client, site.key).hold(timeout=5)):

            async def enter(block: Any = block) -> None:
                await block.__aenter__()

            async def leave(block: Any = block) -> None:
                with pytest.raises(RuntimeError, match="left in another task"):
                    await block.__aexit__(None, None, None)

            await asyncio.create_task(enter())
            await asyncio.create_task(leave())
            assert site.operator.holder(site.key) is None


@ON_ASYNCIO
async def test_a_block_around_a_yield_is_told_and_still_releases(site: Site, make_client: MakeClient) -> None:
    async def holding(client: AsyncClient) -> AsyncIterator[int]:
        async with AsyncLock(client, site.key) as hold:
            yield hold.fence

    async with make_client() as client:
        generator: Any = holding(client)
        await generator.__anext__()

        async def finish() -> None:
            with pytest.raises(RuntimeError, match="yield"):
                await generator.aclose()

        await asyncio.create_task(finish())
        assert site.operator.holder(site.key) is None


async def test_leaving_in_the_wrong_order_is_told_and_still_releases(
    site: Site, make_client: MakeClient
) -> None:
    async with make_client() as client:
        names = [f"{site.key}/{number}" for number in range(2)]
        outer, inner = (AsyncLock(client, name).hold(timeout=5) for name in names)
        await outer.__aenter__()
        await inner.__aenter__()
        with pytest.raises(RuntimeError, match="not in order"):
            await outer.__aexit__(None, None, None)
        await inner.__aexit__(None, None, None)
        assert [site.operator.holder(name) for name in names] == [None, None]


async def test_leaving_in_another_task_while_the_first_goes_on(site: Site, make_client: MakeClient) -> None:
    """The misuse is told where it happens, and by the loop once more where the block's task ends."""
    async with make_client() as client:
        block = AsyncLock(client, site.key).hold(timeout=5)
        entered, left = anyio.Event(), anyio.Event()

        async def enter() -> None:
            await block.__aenter__()
            entered.set()
            await left.wait()

        async def in_two_tasks() -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(enter)
                await entered.wait()
                with pytest.raises(RuntimeError, match="left in another task"):
                    await block.__aexit__(None, None, None)
                left.set()

        with pytest.raises(BaseExceptionGroup) as told:
            await in_two_tasks()
        assert told.group_contains(RuntimeError, match="cancel scope|Cancel scope")
        assert site.operator.holder(site.key) is None
    assert site.left_behind() == []


async def test_who_leaves_what_two_other_tasks_are_in_ends_neither(
    site: Site, make_client: MakeClient
) -> None:
    async with make_client() as client:
        block = AsyncSemaphore(client, site.key, 2).hold(timeout=5)
        permits, left = list[AsyncHold](), anyio.Event()

        async def work() -> None:
            async with block as permit:
                permits.append(permit)
                await left.wait()
                assert permit.is_held

        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(work)
            await eventually(lambda: len(permits) == 2)
            with pytest.raises(RuntimeError, match="left in another task"):
                await block.__aexit__(None, None, None)
            assert all(permit.is_held for permit in permits)
            left.set()


async def test_a_client_must_be_entered_before_its_recipes_are_used(site: Site) -> None:
    client = AsyncClient(address=site.address, session=spec(site))
    with pytest.raises(RuntimeError, match="async with AsyncClient"):
        await AsyncLock(client, site.key).acquire()
    assert (await client.kv.get(site.key)).value is None
    written = await client.kv.update(site.key, lambda value: (value or b"") + b"new")
    assert written is not None
    assert written.value == b"new"
    assert await client.kv.delete(site.key)
    await client.close()
    assert site.left_behind() == []


async def test_a_client_may_be_entered_and_closed_in_different_tasks(site: Site) -> None:
    client = AsyncClient(address=site.address, session=spec(site))
    lock, holds = AsyncLock(client, site.key), list[AsyncHold]()

    async def enter() -> None:
        await client.__aenter__()
        holds.append(await lock.acquire(timeout=5))

    async with anyio.create_task_group() as group:
        group.start_soon(enter)
    assert await holds[0].verify()
    async with anyio.create_task_group() as group:
        group.start_soon(client.close)
    assert site.left_behind() == []
    with pytest.raises(ClientClosed):
        await lock.acquire()


async def test_a_forgotten_hold_is_given_back(site: Site, make_client: MakeClient) -> None:
    async with make_client() as client:
        assert (await AsyncLock(client, site.key).acquire(timeout=5)).is_held
        await eventually(lambda: site.operator.holder(site.key) is None)


@pytest.mark.slow
async def test_an_unanswered_release_is_finished_in_the_background(
    site: Site, proxy: FaultProxy, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consul_coord.recipes.hold.holds.BUDGET", 0.2)
    async with make_client(address=proxy.address) as client:
        lock = AsyncLock(client, site.key)
        hold = await lock.acquire(timeout=5)
        proxy.go_down()
        assert await hold.release() is ReleaseOutcome.UNKNOWN
        assert client.pending_cleanup == 1
        proxy.come_up()
        async with lock.hold(timeout=10) as again:
            assert again.fence > hold.fence
        assert client.pending_cleanup == 0


@pytest.mark.parametrize("lose", [Lose.REQUEST, Lose.REPLY])
async def test_a_lost_exchange_ends_in_one_hold_with_the_right_fence(
    site: Site, proxy: FaultProxy, make_client: MakeClient, lose: Lose
) -> None:
    proxy.add(Fault(lose=lose, path="/v1/txn", containing=b'"lock"', times=2))
    async with make_client(address=proxy.address) as client:
        hold = await AsyncLock(client, site.key).acquire(timeout=5)
        found = site.operator.entry(site.key)
        assert found is not None
        assert (found["Session"], found["ModifyIndex"]) == (hold.session, hold.fence)


async def test_run_and_wrap(site: Site, make_client: MakeClient) -> None:
    async with make_client() as client:
        lock = AsyncLock(client, site.key)

        async def session(hold: AsyncHold) -> str:
            assert hold.is_held
            return hold.session

        @lock.wrap(timeout=5)
        async def work(number: int, *, more: int = 1) -> int:
            """Work."""
            assert site.operator.holder(site.key) is not None
            return number + more

        assert await lock.run(session)
        assert await work(1, more=2) == 3
        assert work.__doc__ == "Work."
        assert site.operator.holder(site.key) is None


def count_tasks(backend: str) -> int:
    if backend == "asyncio":
        return len(asyncio.all_tasks())
    import trio

    return trio.lowlevel.current_statistics().tasks_living


async def test_no_task_and_no_descriptor_is_left(site: Site, anyio_backend_name: str) -> None:
    async def use() -> None:
        async with AsyncClient(address=site.address, session=spec(site)) as client:
            lock = AsyncLock(client, site.key)
            async with lock as hold:
                await eventually(partial(is_watching, client))
                with anyio.move_on_after(0.05):
                    await AsyncLock(client, f"{site.key}2", session=spec(site)).acquire()
            with pytest.raises(LockLost):  # noqa: PT012 - the block is what is tested
                async with lock as hold:
                    await lose(site, hold)
                    await anyio.sleep_forever()

    await use()
    before, open_before = count_tasks(anyio_backend_name), len(descriptors())
    for _ in range(3):
        await use()
    assert count_tasks(anyio_backend_name) == before
    await eventually(lambda: len(descriptors()) <= open_before)
    assert site.left_behind() == []


async def test_a_client_that_is_cancelled_while_it_is_entered_leaves_no_task(
    site: Site, anyio_backend_name: str
) -> None:
    before = count_tasks(anyio_backend_name)
    with anyio.CancelScope() as scope:
        scope.cancel()
        async with AsyncClient(address=site.address):
            raise AssertionError("it was entered")
    await anyio.wait_all_tasks_blocked()
    assert count_tasks(anyio_backend_name) == before


async def test_two_tasks_that_enter_one_client_at_once_share_its_background(
    site: Site, anyio_backend_name: str
) -> None:
    before = count_tasks(anyio_backend_name)
    client = AsyncClient(address=site.address, session=spec(site))
    async with anyio.create_task_group() as group:
        group.start_soon(client.__aenter__)
        group.start_soon(client.__aenter__)
    async with AsyncLock(client, site.key):
        pass
    await client.close()
    await anyio.wait_all_tasks_blocked()
    assert count_tasks(anyio_backend_name) == before


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_entering_a_client_that_is_closed_leaves_no_task(
    site: Site, anyio_backend_name: str, when: str
) -> None:
    before = count_tasks(anyio_backend_name)
    client = AsyncClient(address=site.address, session=spec(site))

    async def enter() -> None:
        async with client:
            with pytest.raises(ClientClosed):
                await AsyncLock(client, site.key).acquire(timeout=5)

    if when == "before":
        await client.close()
        await enter()
    else:
        async with anyio.create_task_group() as group:
            group.start_soon(enter)
            await anyio.lowlevel.checkpoint()
            await client.close()
    await anyio.wait_all_tasks_blocked()
    assert count_tasks(anyio_backend_name) == before


def close_under(program: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Run a program in a loop that is closed with no task of it ended."""
    loop = asyncio.new_event_loop()
    loop.run_until_complete(program())
    loop.close()


@ON_ASYNCIO
@pytest.mark.parametrize("run", [lambda program: asyncio.run(program()), close_under], ids=["run", "closed"])
async def test_a_client_whose_loop_has_ended_acquires_nothing_and_is_not_ready(
    site: Site, run: Callable[[Callable[[], Coroutine[Any, Any, object]]], object]
) -> None:
    client = AsyncClient(address=site.address, session=spec(site))

    async def enter() -> None:
        await client.__aenter__()
        await client.kv.get(site.key)
        assert client.ready()

    await anyio.to_thread.run_sync(run, enter)
    assert (client.connected, client.ready()) == (False, False)
    lock = AsyncLock(client, site.key)
    for acquire in (partial(lock.acquire, timeout=1), lock.try_acquire):
        with pytest.raises(RuntimeError, match="make an AsyncClient in the loop that uses it"):
            await acquire()
    assert await client.kv.get(site.key) is not None
    await client.close()
    with pytest.raises(ClientClosed):
        await lock.acquire()


@ON_ASYNCIO
async def test_a_client_whose_tasks_were_all_cancelled_says_so_at_each_call(site: Site) -> None:
    """Without its background a hold would not be renewed."""
    before = asyncio.all_tasks()
    client = AsyncClient(address=site.address, session=spec(site))
    await client.__aenter__()
    background = asyncio.all_tasks() - before
    for task in background:
        task.cancel()
    await asyncio.wait(background)
    assert (client.connected, client.ready()) == (False, False)
    lock, election = AsyncLock(client, site.key), AsyncLeaderElection(client, f"{site.key}-leader")
    for begin in (partial(lock.acquire, timeout=1), lock.try_acquire, election.start):
        with pytest.raises(RuntimeError, match="the background of this AsyncClient has ended"):
            await begin()
    await client.close()
    assert site.left_behind() == []


async def test_two_loops_use_two_clients(site: Site) -> None:
    operator = Operator(site.address)

    async def once() -> int:
        async with (
            AsyncClient(address=site.address, session=spec(site)) as client,
            AsyncLock(client, site.key) as hold,
        ):
            return hold.fence

    fences = [await once(), await anyio.to_thread.run_sync(lambda: anyio.run(once))]
    assert fences == sorted(set(fences))
    assert operator.holder(site.key) is None
