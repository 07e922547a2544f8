"""The async twin, on asyncio and trio: what differs from blocking code, and that the rest is there."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from consul_coord import (
    AcquireCancelled,
    AsyncClient,
    AsyncLeaderElection,
    InvalidArgument,
    LeadershipLost,
    LossReason,
    NotHeld,
    ReleaseOutcome,
    async_leader,
    async_observe,
)
from consul_coord.events import Failed
from tests.election.conftest import QUICK, SPEC
from tests.election.waiting import PATIENCE, Told
from tests.support.stalls import lasting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from consul_coord import AsyncLeadership

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


class World:
    """Clients and candidates that end with the test."""

    def __init__(self, stack: AsyncExitStack, address: str, key: str) -> None:
        self._stack = stack
        self.address = address
        self.key = key

    async def client(self, **settings: Any) -> AsyncClient:
        return await self._stack.enter_async_context(
            AsyncClient(address=self.address, session=SPEC, **settings)
        )

    async def stand(self, *, client: AsyncClient | None = None, **settings: Any) -> AsyncLeaderElection:
        client = client or await self.client()
        election = AsyncLeaderElection(client, self.key, **{"retry_wait": QUICK, **settings})
        return await self._stack.enter_async_context(election)


@asynccontextmanager
async def world(address: str, key: str) -> AsyncIterator[World]:
    with anyio.fail_after(PATIENCE * 2):
        async with AsyncExitStack() as stack:
            yield World(stack, address, key)


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(PATIENCE):
        while not condition():  # noqa: ASYNC110 - it gives no notice
            await anyio.sleep(0.005)


async def queued(election: AsyncLeaderElection, count: int) -> None:
    with anyio.fail_after(PATIENCE):
        while len(await election.candidates()) != count:  # noqa: ASYNC110 - it gives no notice
            await anyio.sleep(0.005)


async def test_leading_resigning_and_handing_over(address: str, key: str) -> None:
    async with world(address, key) as here:
        first = await here.stand(value="first")
        me = await first.wait_for_leadership(timeout=PATIENCE)
        assert (first.is_leader, first.term, first.leadership) == (True, me.term, me)
        second = await here.stand(value="second")
        await queued(first, 1)
        await first.proclaim("uno")
        watcher = await here.client()
        found = await async_leader(watcher, key)
        assert found is not None
        assert (found.text, found.term, found.session) == ("uno", me.term, me.session)
        await first.transfer_to((await first.candidates())[0].session)
        assert (await second.wait_for_leadership(timeout=PATIENCE)).term > me.term
        assert await first.wait_for_loss(timeout=PATIENCE) is LossReason.RESIGNED
        assert await second.resign(pause=60) is ReleaseOutcome.RELEASED
        await first.wait_for_leadership(timeout=PATIENCE)
        await first.stop()
        with pytest.raises(AcquireCancelled):
            await first.wait_for_leadership(timeout=PATIENCE)
        with pytest.raises(NotHeld):
            await first.proclaim("late")


@pytest.mark.parametrize("end", ["destroyed", "resigned elsewhere"])
async def test_the_end_of_the_leadership_cancels_the_work_and_is_no_error(
    address: str, key: str, end: str
) -> None:
    told = Told()
    async with world(address, key) as here:
        client = await here.client(observer=told)
        election = await here.stand(client=client)
        acts: dict[str, Callable[[str], Coroutine[Any, Any, object]]] = {
            "destroyed": client.session.destroy,
            "resigned elsewhere": lambda _: election.resign(),
        }

        async def work(me: AsyncLeadership) -> None:
            told.say("began")
            if len(told.news) == 1:
                async with anyio.create_task_group() as group:
                    group.start_soon(acts[end], me.session)
                    try:
                        await anyio.sleep_forever()
                    except anyio.get_cancelled_exc_class():
                        told.say("cancelled")
                        raise

        await election.run(work, until=lambda: told.news[-1] == "began")
        assert told.news == ["began", "cancelled", "began"]
        assert told.seen(Failed) == []


@pytest.mark.parametrize(
    ("end", "reason"), [("destroy", LossReason.SESSION_GONE), ("resign", LossReason.RESIGNED)]
)
async def test_a_block_is_cancelled_at_the_end_of_the_leadership(
    address: str, key: str, end: str, reason: LossReason
) -> None:
    async with world(address, key) as here:
        election = await here.stand()
        other = await here.client()
        ends: dict[str, Callable[[str], Coroutine[Any, Any, object]]] = {
            "destroy": other.session.destroy,
            "resign": lambda _: election.resign(),
        }
        terms = []

        async def block() -> None:
            async with await election.wait_for_leadership(timeout=PATIENCE) as me:
                terms.append(me.term)
                async with anyio.create_task_group() as group:
                    group.start_soon(ends[end], me.session)
                    await anyio.sleep_forever()

        with pytest.raises(LeadershipLost) as caught:
            await block()
        assert (caught.value.reason, caught.value.fence) == (reason, terms[0])
        await anyio.lowlevel.checkpoint()  # no cancellation is left over


async def test_blocks_may_be_nested(address: str, key: str) -> None:
    async with world(address, key) as here:
        election = await here.stand()
        async with await election.wait_for_leadership(timeout=PATIENCE) as me:
            async with me:
                assert me.is_held
            assert not me.is_held


async def test_an_error_of_the_work_is_reported_and_it_is_called_again(address: str, key: str) -> None:
    told = Told()
    async with world(address, key) as here:
        election = await here.stand(client=await here.client(observer=told))

        @election.leading
        async def work(me: AsyncLeadership) -> None:
            told.say(me.term)
            if len(told.news) == 1:
                raise ValueError("broken")
            await election.stop()

        await work()
        assert told.news == sorted(set(told.news))
        assert len(told.news) == 2
        (failed,) = told.seen(Failed)
        assert isinstance(failed, Failed)
        assert "ValueError: broken" in failed.error


async def test_work_that_can_not_be_awaited_is_refused_at_its_first_call(address: str, key: str) -> None:
    told = Told()
    async with world(address, key) as here:
        election = AsyncLeaderElection(await here.client(observer=told), key, retry_wait=QUICK)
        with pytest.raises(InvalidArgument, match="what fn returns must be something to await"):
            await election.run(lambda me: told.say(me.term))  # type: ignore[arg-type, return-value]
        assert len(told.news) == 1
        assert not election.is_leader
        assert told.seen(Failed) == []


async def test_a_cancellation_from_outside_goes_on_after_resigning(address: str, key: str) -> None:
    async with world(address, key) as here:
        election = AsyncLeaderElection(await here.client(), key)

        async def work(me: AsyncLeadership) -> None:
            scope.cancel()
            await anyio.sleep_forever()

        with anyio.CancelScope() as scope:
            await election.run(work)
        assert scope.cancelled_caught
        assert not election.is_leader
        other = await here.stand()
        with lasting(most=1.0):  # sooner than after a lock-delay
            await other.wait_for_leadership(timeout=PATIENCE)


async def test_coroutine_callbacks_run_in_order_one_at_a_time(address: str, key: str) -> None:
    told = Told()

    async def elected(me: AsyncLeadership) -> None:
        told.say("elected")
        await anyio.sleep(0.05)
        told.say("still")

    async with world(address, key) as here:
        election = await here.stand(on_elected=elected, on_lost=told.say)
        for _ in range(3):
            await election.wait_for_leadership(timeout=PATIENCE)
            await until(lambda: told.news[-1:] == ["still"])
            await election.resign()
        await until(lambda: len(told.news) >= 9)
        assert told.news[:9] == ["elected", "still", LossReason.RESIGNED] * 3


async def test_coroutine_callbacks_keep_their_order_when_it_is_stopped_and_started_again(
    address: str, key: str
) -> None:
    told = Told()

    async def lost(reason: LossReason) -> None:
        told.say("lost")
        await anyio.sleep(0.2)
        told.say("done")

    async with world(address, key) as here:
        election = await here.stand(on_elected=lambda _: told.say("elected"), on_lost=lost)
        await election.wait_for_leadership(timeout=PATIENCE)
        await election.stop()
        await election.start()
        await election.wait_for_leadership(timeout=PATIENCE)
        await until(lambda: len(told.news) >= 4)
        assert told.news[:4] == ["elected", "lost", "done", "elected"]


@pytest.mark.parametrize("awaits", [False, True], ids=["plain", "coroutine"])
async def test_an_on_elected_that_raises_resigns(address: str, key: str, awaits: bool) -> None:
    told = Told()

    def plain(me: AsyncLeadership) -> None:
        told.say(me.term)
        if len(told.news) == 1:
            raise ValueError("cannot start")

    async def coroutine(me: AsyncLeadership) -> None:
        await anyio.lowlevel.checkpoint()
        plain(me)

    elected = coroutine if awaits else plain
    async with world(address, key) as here:
        await here.stand(client=await here.client(observer=told), on_elected=elected)
        await until(lambda: len(told.news) == 2)
        await until(lambda: told.seen(Failed))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # on trio no function is cancelled without its task
async def test_callbacks_that_await_what_was_cancelled_end_no_candidacy(address: str, key: str) -> None:
    cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    cancelled.cancel()
    terms, looks = [], []

    async def elected(me: AsyncLeadership) -> None:
        terms.append(me.term)
        if len(terms) == 1:
            await cancelled

    async def health() -> bool:
        looks.append(1)
        if len(looks) == 1:
            await cancelled
        return True

    async with world(address, key) as here:
        await here.stand(on_elected=elected, health=health, health_interval=0.02)
        await until(lambda: len(terms) == 2)


async def test_health_may_be_a_coroutine_function(address: str, key: str) -> None:
    state = {"healthy": True}

    async def health() -> bool:
        await anyio.lowlevel.checkpoint()
        return state["healthy"]

    async with world(address, key) as here:
        election = await here.stand(health=health, health_interval=0.02)
        me = await election.wait_for_leadership(timeout=PATIENCE)
        state["healthy"] = False
        assert await me.lost.wait(PATIENCE)
        assert await election.candidates() == ()


async def test_leaders_are_observed(address: str, key: str) -> None:
    told = Told()
    async with world(address, key) as here:
        async with async_observe(await here.client(), key) as leaders:
            first = await here.stand(value="one")
            async for seen in leaders:
                told.say(None if seen.value is None else seen.value.text)
                if told.news[-1] == "one":
                    # Others may see it before its own reply comes.
                    await first.wait_for_leadership(timeout=PATIENCE)
                    await first.proclaim("uno")
                elif told.news[-1] == "uno":
                    await first.stop()
                elif "uno" in told.news:
                    break
        assert told.news in (["one", "uno", None], [None, "one", "uno", None])


async def test_a_client_must_have_been_entered(address: str, key: str) -> None:
    election = AsyncLeaderElection(AsyncClient(address=address), key)
    with pytest.raises(RuntimeError, match="enter the AsyncClient"):
        await election.start()


async def test_it_may_be_run_after_a_start_that_failed(address: str, key: str) -> None:
    client = AsyncClient(address=address, session=SPEC)
    election = AsyncLeaderElection(client, key)
    with pytest.raises(RuntimeError, match="enter the AsyncClient"):
        await election.start()
    with anyio.fail_after(PATIENCE):
        async with client:
            await election.run(lambda _: election.stop())


async def test_closing_the_client_ends_leading_and_is_told(address: str, key: str) -> None:
    told = Told()
    async with AsyncClient(address=address, session=SPEC) as client:
        election = AsyncLeaderElection(client, key, on_lost=told.say)
        await election.start()
        me = await election.wait_for_leadership(timeout=PATIENCE)
    assert told.news == [LossReason.CLIENT_CLOSED]
    assert not me.is_held
    await election.stop()


async def test_on_lost_is_not_cut_off_when_the_client_closes(address: str, key: str) -> None:
    told = Told()

    async def lost(reason: LossReason) -> None:
        told.say("lost", reason)
        await anyio.sleep(0.2)
        told.say("done")

    async with AsyncClient(address=address, session=SPEC) as client:
        election = AsyncLeaderElection(client, key, on_lost=lost)
        await election.start()
        me = await election.wait_for_leadership(timeout=PATIENCE)
        me.on_lost(lost)
    assert sorted(told.news, key=str) == [("lost", LossReason.CLIENT_CLOSED)] * 2 + ["done"] * 2


@pytest.mark.parametrize("how", ["resigned", "closed"])
async def test_on_elected_still_awaited_at_the_end_is_cancelled_before_on_lost(
    address: str, key: str, how: str
) -> None:
    told = Told()

    async def elected(me: AsyncLeadership) -> None:
        told.say("elected")
        try:
            await anyio.sleep_forever()
        finally:
            told.say("cancelled")

    async with world(address, key) as here:
        client = await here.client()
        election = await here.stand(client=client, on_elected=elected, on_lost=told.say)
        await election.wait_for_leadership(timeout=PATIENCE)
        await until(lambda: told.news)
        if how == "closed":
            await client.close()
        else:
            await election.resign()
            await until(lambda: len(told.news) >= 3)
        reason = LossReason.CLIENT_CLOSED if how == "closed" else LossReason.RESIGNED
        assert told.news[:3] == ["elected", "cancelled", reason]


async def test_a_callback_that_does_not_end_keeps_close_no_longer_than_its_time(
    address: str, key: str
) -> None:
    ended = anyio.Event()

    async def lost(reason: LossReason) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    async with world(address, key) as here:
        client = await here.client()
        election = await here.stand(client=client, on_lost=lost)
        await election.wait_for_leadership(timeout=PATIENCE)
        started = anyio.current_time()
        await client.close(timeout=0.5)
        assert anyio.current_time() - started < PATIENCE
        assert ended.is_set()


async def test_a_health_predicate_that_does_not_answer_keeps_no_client_from_closing(
    address: str, key: str
) -> None:
    asked = anyio.Event()

    async def health() -> bool:
        asked.set()
        await anyio.sleep_forever()
        return True

    async with world(address, key) as here:
        client = await here.client()
        await here.stand(client=client, health=health)
        await asked.wait()
        with anyio.fail_after(PATIENCE):
            await client.close(timeout=2 * PATIENCE)


async def test_a_callback_may_close_its_client(address: str, key: str) -> None:
    closed = anyio.Event()

    async with world(address, key) as here:
        client = await here.client()

        async def lost(reason: LossReason) -> None:
            await client.close(timeout=2 * PATIENCE)
            closed.set()

        election = await here.stand(client=client, on_lost=lost)
        await election.wait_for_leadership(timeout=PATIENCE)
        await election.resign()
        with anyio.fail_after(PATIENCE):
            await closed.wait()
