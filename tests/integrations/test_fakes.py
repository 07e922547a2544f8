"""The fakes behave as what they stand for: one contract, run on a fake and on the embedded server."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.lowlevel
import pytest

from consul_coord import (
    AcquireCancelled,
    AcquireTimeout,
    AlreadyHeld,
    AsyncClient,
    AsyncLeaderElection,
    AsyncLock,
    AsyncOnce,
    AsyncPermit,
    Client,
    HoldState,
    InvalidArgument,
    KeyConflict,
    LeaderElection,
    LeaderInfo,
    LeadershipLost,
    Lock,
    LockLost,
    LossReason,
    NotHeld,
    Once,
    ReleaseOutcome,
    RequestTimeout,
    Semaphore,
)
from consul_coord.protocols import (
    AsyncElectionLike,
    AsyncHoldLike,
    AsyncLockLike,
    AsyncLossEventLike,
    AsyncOnceLike,
    AsyncOnceRunLike,
    ElectionLike,
    HoldLike,
    LockLike,
    LossEventLike,
    OnceLike,
    OnceRunLike,
)
from consul_coord.server import ReferenceServer
from consul_coord.testing.fakes import (
    AsyncFakeElection,
    AsyncFakeHold,
    AsyncFakeLock,
    AsyncFakeOnce,
    AsyncFakeOnceRun,
    AsyncFakeSemaphore,
    FakeElection,
    FakeLock,
    FakeOnce,
    FakeOnceRun,
    FakeSemaphore,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

T = TypeVar("T")
PATIENCE = 60.0
KEY = "jobs/a"
REASON = LossReason.RELEASED_BY_OTHER


@dataclass(frozen=True)
class Case:
    """A lock and an election, and how each is lost by somebody's force."""

    lock: LockLike
    election: ElectionLike
    lose_lock: Callable[[], object]
    lose_election: Callable[[], object]


@pytest.fixture(params=["fake", "embedded server"])
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    if request.param == "fake":
        lock, election = FakeLock(KEY), FakeElection("e")
        yield Case(lock, election, lambda: lock.lose(REASON), lambda: election.lose(REASON))
        return
    with ReferenceServer() as server, Client(address=server.address) as client:

        def break_it(key: str) -> None:
            with Client(address=server.address) as operator:
                holder = Lock(operator, key).holder()
                assert holder is not None
                Lock(operator, key).break_lock(holder.session)

        real = LeaderElection(client, "e", retry_wait=(60, 60))
        yield Case(Lock(client, KEY), real, lambda: break_it(KEY), lambda: break_it("e"))


def in_a_thread(work: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(PATIENCE)


def test_a_hold_and_its_end(case: Case) -> None:
    hold = case.lock.acquire(timeout=PATIENCE)
    assert (hold.key, hold.state, hold.reason, hold.is_held) == (KEY, HoldState.HELD, None, True)
    assert hold.remaining() > 0
    hold.check()
    hold.ensure(1)
    assert not hold.lost.is_set()
    assert hold.release() is hold.release() is ReleaseOutcome.RELEASED
    assert (hold.state, hold.is_held, hold.remaining()) == (HoldState.RELEASED, False, 0.0)
    assert hold.lost.wait(PATIENCE) is False
    with pytest.raises(NotHeld, match="was released") as over:
        hold.check()
    assert (over.value.key, over.value.session) == (KEY, hold.session)
    with case.lock.hold(timeout=PATIENCE) as later:
        assert later.fence > hold.fence
        assert later.session


def test_one_thread_at_a_time(case: Case) -> None:
    with case.lock as hold:
        for take in (case.lock.acquire, case.lock.try_acquire):
            with pytest.raises(AlreadyHeld) as twice:
                take()
            assert twice.value.key == KEY
        assert in_a_thread(case.lock.try_acquire) is None
        with pytest.raises(AcquireTimeout) as late:
            in_a_thread(lambda: case.lock.acquire(timeout=0))
        assert late.value.blocker.kind in ("held", "queued")  # behind another thread of this client
        assert late.value.key == KEY
    assert not hold.is_held
    with pytest.raises(NotHeld) as over:
        case.lock.release()
    assert over.value.key == KEY


def test_a_waiter_gets_it_at_the_release(case: Case) -> None:
    waiting = threading.Event()

    def wait() -> int:
        waiting.set()
        with case.lock.hold(timeout=PATIENCE) as hold:
            return hold.fence

    hold = case.lock.acquire(timeout=PATIENCE)
    with ThreadPoolExecutor(1) as pool:
        later = pool.submit(wait)
        assert waiting.wait(PATIENCE)
        assert case.lock.release() is ReleaseOutcome.RELEASED
        assert later.result(PATIENCE) > hold.fence


def test_an_event_ends_one_that_waits(case: Case) -> None:
    stop = threading.Event()
    with case.lock, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(case.lock.acquire, timeout=PATIENCE, cancel=stop)
        stop.set()
        with pytest.raises(AcquireCancelled):
            waiting.result(PATIENCE)
        with pytest.raises(AcquireCancelled):
            pool.submit(case.lock.acquire, cancel=stop).result(PATIENCE)


def test_holds_with_an_end_are_taken_like_any(case: Case) -> None:
    with case.lock.hold(timeout=PATIENCE, max_hold=60, interrupt=True) as hold:
        hold.beat(30)
        assert hold.is_held
    with pytest.raises(NotHeld):
        hold.beat(30)
    assert case.lock.run(lambda hold: hold.is_held, max_hold=60)
    assert case.lock.wrap(max_hold=60, interrupt=True)(lambda: 1)() == 1
    hold_again = case.lock.try_acquire(max_hold=60)
    assert hold_again is not None
    hold_again.release()


def test_cancel_ends_those_that_wait(case: Case) -> None:
    with case.lock, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(case.lock.acquire, timeout=PATIENCE)
        while not waiting.done():  # it may not wait yet
            case.lock.cancel()
        with pytest.raises(AcquireCancelled):
            waiting.result()


def test_a_loss_is_told(case: Case) -> None:
    told: list[LossReason] = []
    hold = case.lock.acquire(timeout=PATIENCE)
    hold.on_lost(told.append)
    case.lose_lock()
    assert hold.lost.wait(PATIENCE)
    assert (hold.state, hold.reason, hold.is_held) == (HoldState.LOST, REASON, False)
    with pytest.raises(LockLost) as lost:
        hold.check()
    assert (lost.value.key, lost.value.fence, lost.value.reason) == (KEY, hold.fence, REASON)
    assert lost.value.session == hold.session
    with pytest.raises(LockLost):
        hold.ensure(1)
    assert hold.release() is ReleaseOutcome.ALREADY_LOST
    called = threading.Event()
    hold.on_lost(lambda _: called.set())
    assert called.wait(PATIENCE)
    assert told == [REASON]
    with case.lock.hold(timeout=PATIENCE) as later:
        assert later.fence > hold.fence


def test_leaving_a_block_after_a_loss(case: Case) -> None:
    def lose_it(error: BaseException | None) -> None:
        with case.lock.hold(timeout=PATIENCE) as hold:
            case.lose_lock()
            assert hold.lost.wait(PATIENCE)
            if error is not None:
                raise error

    with pytest.raises(LockLost):
        lose_it(None)
    with pytest.raises(LockLost) as lost:
        lose_it(KeyError("a bug"))
    assert isinstance(lost.value.__cause__, KeyError)
    with pytest.raises(KeyboardInterrupt):
        lose_it(KeyboardInterrupt())


def test_the_loss_of_another_hold_of_the_key_does_not_hide_that_of_the_block(case: Case) -> None:
    with case.lock.hold(timeout=PATIENCE) as first:
        pass
    other = LockLost(
        "lost", key=first.key, session=first.session, fence=first.fence, reason=LossReason.EXPIRED
    )

    def lose_it() -> None:
        with case.lock.hold(timeout=PATIENCE) as hold:
            case.lose_lock()
            assert hold.lost.wait(PATIENCE)
            raise other

    with pytest.raises(LockLost) as lost:
        lose_it()
    assert lost.value.fence > first.fence
    assert lost.value.__cause__ is other


def test_functions_under_a_lock(case: Case) -> None:
    @case.lock.wrap(timeout=PATIENCE)
    def add(one: int, *, other: int) -> int:
        """Add."""
        assert in_a_thread(case.lock.try_acquire) is None
        return one + other

    assert add(1, other=2) == 3
    assert (add.__name__, add.__doc__) == ("add", "Add.")
    assert case.lock.run(lambda hold: hold.key, timeout=PATIENCE) == KEY


def test_an_election(case: Case) -> None:
    election = case.election
    with pytest.raises(NotHeld):
        election.wait_for_loss(timeout=0)
    with pytest.raises(AcquireCancelled):
        election.wait_for_leadership(timeout=PATIENCE)
    assert election.resign() is ReleaseOutcome.ALREADY_LOST
    with election:
        me = election.wait_for_leadership(timeout=PATIENCE)
        assert (election.is_leader, election.term, election.key) == (True, me.fence, "e")
        with pytest.raises(TimeoutError):
            election.wait_for_loss(timeout=0)
        assert election.resign() is ReleaseOutcome.RELEASED
        assert (election.is_leader, election.term, election.leadership) == (False, None, None)
        assert election.wait_for_loss(timeout=PATIENCE) is LossReason.RESIGNED
        # To resign ends a leadership as a loss does: a loop on `lost` ends.
        assert me.lost.wait(PATIENCE)
        assert me.reason is LossReason.RESIGNED
        with pytest.raises(LeadershipLost):
            me.check()
        with pytest.raises(AcquireTimeout):
            election.wait_for_leadership(timeout=0)


def test_the_work_of_a_leader(case: Case) -> None:
    seen: list[bool] = []

    def work(me: HoldLike) -> None:
        seen.append(me.is_held)
        case.lose_election()
        assert me.lost.wait(PATIENCE)
        me.check()

    case.election.run(work, until=lambda: True)
    assert seen == [True]
    assert not case.election.is_leader


def test_the_work_of_a_leader_ends_with_the_candidacy(case: Case) -> None:
    def work(me: HoldLike) -> None:
        threading.Thread(target=case.election.stop).start()
        assert me.lost.wait(PATIENCE)

    case.election.run(work)
    assert not case.election.is_leader


# -- what only a fake has


def test_an_election_by_hand() -> None:
    election = FakeElection("e", leads=False)
    with pytest.raises(NotHeld, match="was not started"):
        election.elect()
    with election:
        assert not election.is_leader
        first = election.elect()
        with pytest.raises(NotHeld, match="leads already"):
            election.elect()
        election.lose()
        assert election.wait_for_loss() is LossReason.EXPIRED
        assert election.elect().term > first.term


def test_errors_of_a_leaders_work_come_out_of_a_fake() -> None:
    def work(me: HoldLike) -> None:
        raise KeyError("a bug")

    election = FakeElection()
    with pytest.raises(KeyError):
        election.run(work)
    assert not election.is_leader


def test_a_semaphore_has_its_limit() -> None:
    slots = FakeSemaphore("s", 2)
    first, second = slots.acquire(timeout=0), slots.acquire(timeout=0)
    assert [*slots.holds] == [first, second]
    assert slots.try_acquire() is None
    assert slots.release() is ReleaseOutcome.RELEASED
    assert [*slots.holds] == [first]
    with pytest.raises(InvalidArgument):
        FakeSemaphore("s", 0)


@pytest.mark.parametrize("kind", ["fake", "embedded server"])
def test_several_slots_at_once(kind: str) -> None:
    with ReferenceServer() as server, Client(address=server.address) as client:
        slots = FakeSemaphore("s", 3) if kind == "fake" else Semaphore(client, "s", 3)
        with slots.hold(permits=2, timeout=PATIENCE) as two:
            assert two.permits == 2
            assert slots.try_acquire(permits=2) is None
            with slots.hold(timeout=PATIENCE) as one:
                assert one.permits == 1
        assert slots.run(lambda hold: hold.permits, permits=3, timeout=PATIENCE) == 3
        assert slots.wrap(permits=3, timeout=PATIENCE)(lambda: 1)() == 1
        all_three = slots.acquire(permits=3, timeout=PATIENCE)
        with pytest.raises(AcquireTimeout):
            slots.acquire(permits=2, timeout=0)
        assert slots.release() is ReleaseOutcome.RELEASED
        assert all_three.state is HoldState.RELEASED
        for permits in (0, 4):
            with pytest.raises(InvalidArgument, match="from 1 to 3"):
                slots.acquire(permits=permits)


def test_who_leads_and_what_is_wrong(case: Case) -> None:
    election = case.election
    assert (election.leader, election.leader_age, election.problem) == (None, None, None)
    with election:
        me = election.wait_for_leadership(timeout=PATIENCE)
        leader = election.leader
        assert leader is not None
        assert (leader.session, leader.term) == (me.session, me.fence)
        assert (election.leader_age, election.problem) == (0.0, None)
    assert (election.leader, election.leader_age, election.problem) == (None, None, None)


def test_what_a_follower_sees_is_for_the_test_to_say() -> None:
    election = FakeElection("e", leads=False)
    other = LeaderInfo(b"10.0.0.5", "their session", term=7)
    trouble = RequestTimeout("no answer", method="GET", path="/", outcome_unknown=False)

    def told() -> tuple[object, object]:
        return election.leader, election.problem

    election.see(other, problem=trouble)
    assert told() == (None, None)
    with election:
        assert told() == (other, trouble)
        assert election.leader_age == 0.0
        me = election.elect()
        assert told() == (LeaderInfo(b"", me.session, term=me.term), None)
        election.lose()
        assert told() == (other, trouble)
        election.see(None)
        assert told() == (None, None)


# -- event loops


@dataclass(frozen=True)
class AsyncCase:
    """The same for event loops."""

    lock: AsyncLockLike
    election: AsyncElectionLike
    lose_lock: Callable[[], Awaitable[object]]


@pytest.fixture(params=["fake", "embedded server"])
async def async_case(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncIterator[AsyncCase]:
    if request.param == "fake":
        lock = AsyncFakeLock(KEY)

        async def lose() -> None:
            lock.lose(REASON)

        yield AsyncCase(lock, AsyncFakeElection("e"), lose)
        return
    with ReferenceServer() as server:
        async with (
            AsyncClient(address=server.address) as client,
            AsyncClient(address=server.address) as operator,
        ):

            async def break_it() -> None:
                holder = await AsyncLock(operator, KEY).holder()
                assert holder is not None
                await AsyncLock(operator, KEY).break_lock(holder.session)

            election = AsyncLeaderElection(client, "e", retry_wait=(60, 60))
            yield AsyncCase(AsyncLock(client, KEY), election, break_it)


@pytest.mark.anyio
async def test_an_async_hold_and_its_end(async_case: AsyncCase) -> None:
    lock = async_case.lock
    async with lock as hold:
        assert hold.is_held
        with pytest.raises(AlreadyHeld):
            await lock.try_acquire()
        await hold.ensure(1)
    assert hold.state is HoldState.RELEASED
    assert await hold.lost.wait(PATIENCE) is False
    with pytest.raises(NotHeld):
        await lock.release()
    assert await lock.run(fence_of, timeout=PATIENCE) > hold.fence


@pytest.mark.anyio
async def test_async_holds_with_an_end_are_taken_like_any(async_case: AsyncCase) -> None:
    lock, stop = async_case.lock, threading.Event()
    async with lock.hold(timeout=PATIENCE, max_hold=60, cancel=stop) as hold:
        hold.beat(30)
    with pytest.raises(NotHeld):
        hold.beat(30)
    stop.set()
    with pytest.raises(AcquireCancelled):
        await lock.acquire(cancel=stop, max_hold=60)
    assert await lock.run(fence_of, max_hold=60, interrupt=True) > hold.fence


async def fence_of(hold: AsyncHoldLike) -> int:
    return hold.fence


@pytest.mark.anyio
async def test_one_task_at_a_time(async_case: AsyncCase) -> None:
    lock, fences = async_case.lock, list[int]()

    @lock.wrap(timeout=PATIENCE)
    async def work() -> None:
        assert fences.count(0) == 0
        fences.append(0)
        await anyio.lowlevel.checkpoint()
        fences[-1] = 1

    async with anyio.create_task_group() as tasks:
        hold = await lock.acquire(timeout=PATIENCE)
        for _ in range(3):
            tasks.start_soon(work)
        await anyio.sleep(0.01)
        assert fences == []
        await hold.release()
    assert fences == [1, 1, 1]


@pytest.mark.anyio
async def test_an_async_timeout_and_a_cancel(async_case: AsyncCase) -> None:
    lock, ended = async_case.lock, list[type[BaseException]]()

    async def wait(timeout: float) -> None:
        try:
            await lock.acquire(timeout=timeout)
        except (AcquireTimeout, AcquireCancelled) as error:
            ended.append(type(error))

    async with lock:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, 0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, PATIENCE)
            while len(ended) < 2:
                await anyio.sleep(0.001)
                lock.cancel()
    assert ended == [AcquireTimeout, AcquireCancelled]


@pytest.mark.anyio
async def test_a_loss_cancels_the_block(async_case: AsyncCase) -> None:
    reached: list[bool] = []

    async def work() -> None:
        async with async_case.lock.hold(timeout=PATIENCE):
            await async_case.lose_lock()
            await anyio.sleep(PATIENCE)
            reached.append(True)

    with pytest.raises(LockLost) as lost:
        await work()
    assert lost.value.reason is REASON
    assert reached == []
    await anyio.lowlevel.checkpoint()  # nothing of the cancellation is left


@pytest.mark.anyio
async def test_a_blocks_own_error_is_the_cause_of_the_loss(async_case: AsyncCase) -> None:
    async def work() -> None:
        async with async_case.lock.hold(timeout=PATIENCE) as hold:
            await async_case.lose_lock()
            with anyio.CancelScope(shield=True):
                assert await hold.lost.wait(PATIENCE)
            raise KeyError("a bug")

    with pytest.raises(LockLost) as lost:
        await work()
    assert isinstance(lost.value.__cause__, KeyError)


@pytest.mark.anyio
async def test_cancelling_from_outside_goes_on(async_case: AsyncCase) -> None:
    with anyio.move_on_after(0.05) as scope:
        async with async_case.lock.hold(timeout=PATIENCE):
            await anyio.sleep(PATIENCE)
    assert scope.cancelled_caught
    async with async_case.lock.hold(timeout=PATIENCE):
        pass


@pytest.mark.anyio
async def test_an_async_election(async_case: AsyncCase) -> None:
    election, terms = async_case.election, list[int]()

    async def work(me: AsyncHoldLike) -> None:
        terms.append(me.fence)
        await election.resign()
        await anyio.sleep(PATIENCE)  # resigning ends the work
        terms.append(0)

    with pytest.raises(NotHeld):
        await election.wait_for_loss(timeout=0)
    async with election:
        me = await election.wait_for_leadership(timeout=PATIENCE)
        assert election.is_leader
        with pytest.raises(TimeoutError):
            await election.wait_for_loss(timeout=0)
        await election.run(work, until=lambda: True)
        assert terms == [me.fence]
        assert await election.wait_for_loss(timeout=PATIENCE) is LossReason.RESIGNED
        assert election.leadership is None
        with pytest.raises(LeadershipLost):
            me.check()
    with pytest.raises(AcquireCancelled):
        await election.wait_for_leadership(timeout=PATIENCE)


@pytest.mark.anyio
async def test_an_async_semaphore_has_its_limit() -> None:
    slots = AsyncFakeSemaphore("s", 2)
    first, second = await slots.acquire(timeout=0), await slots.acquire(timeout=0)
    assert [*slots.holds] == [first, second]
    assert await slots.try_acquire() is None
    slots.lose()
    assert [*slots.holds] == []
    async with slots as third:
        assert third.fence > second.fence


@pytest.mark.anyio
async def test_stopping_ends_the_waits_for_leadership() -> None:
    election, ended = AsyncFakeElection("e", leads=False), list[str]()

    async def wait() -> None:
        with pytest.raises(AcquireCancelled):
            await election.wait_for_leadership(timeout=PATIENCE)
        ended.append("it")

    await election.start()
    with anyio.fail_after(PATIENCE / 2):
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            await election.stop()
    assert ended == ["it", "it"]


async def permits_of(hold: AsyncFakeHold | AsyncPermit) -> int:
    return hold.permits


@pytest.mark.anyio
async def test_several_slots_at_once_for_tasks() -> None:
    slots = AsyncFakeSemaphore("s", 3)
    async with slots.hold(permits=2, timeout=PATIENCE) as two:
        assert two.permits == 2
        assert await slots.try_acquire(permits=2) is None
    assert await slots.run(permits_of, permits=3) == 3

    @slots.wrap(permits=3, timeout=PATIENCE)
    async def work() -> bool:
        return await slots.try_acquire() is None

    assert await work()
    await slots.acquire(permits=3, timeout=PATIENCE)
    assert await slots.release() is ReleaseOutcome.RELEASED
    with pytest.raises(InvalidArgument, match="from 1 to 3"):
        await slots.acquire(permits=4)


# -- jobs


@pytest.fixture(params=["fake", "embedded server"])
def job(request: pytest.FixtureRequest) -> Iterator[OnceLike]:
    if request.param == "fake":
        yield FakeOnce(KEY)
        return
    with ReferenceServer() as server, Client(address=server.address) as client:
        yield Once(client, KEY)


def test_a_job_runs_once_in_each_slot(job: OnceLike) -> None:
    assert job.last() is None
    first = job.run(lambda run: (run.slot, run.is_held), slot="1", timeout=PATIENCE)
    assert (first.ran, first.slot, first.failed, first.value) == (True, "1", False, ("1", True))
    again = job.run(lambda run: run.slot, slot="1", timeout=PATIENCE)
    assert (again.ran, again.slot, again.fence, again.value) == (False, "1", first.fence, None)
    later = job.run(lambda run: run.fence, slot="2", timeout=PATIENCE)
    assert later.value == later.fence
    assert later.fence > first.fence
    assert not job.run(lambda run: run.slot, slot="1", timeout=PATIENCE).ran
    last = job.last()
    assert last is not None
    assert (last.slot, last.fence) == ("2", later.fence)
    assert (job.forget(), job.forget(), job.last()) == (True, False, None)
    assert job.run(lambda run: run.slot, period=3600, timeout=PATIENCE).ran
    with pytest.raises(InvalidArgument):
        job.run(lambda run: run.slot)


def test_a_failed_run_is_recorded_and_run_again(job: OnceLike) -> None:
    def fail(_: OnceRunLike) -> None:
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        job.run(fail, slot="1", timeout=PATIENCE)
    last = job.last()
    assert last is not None
    assert last.failed
    assert job.run(lambda run: run.slot, slot="1", timeout=PATIENCE).ran


def test_a_recorded_success_is_final(job: OnceLike) -> None:
    def work(run: OnceRunLike) -> None:
        run.record()
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        job.run(work, slot="1", timeout=PATIENCE)
    again = job.run(lambda run: run.slot, slot="1", timeout=PATIENCE)
    assert (again.ran, again.failed) == (False, False)


def test_what_other_hosts_did_is_for_the_test_to_say() -> None:
    once = FakeOnce("k", wall=lambda: 7.0, retry_failed=False)
    once.ran_elsewhere("2", by="host b")
    found = once.run(lambda run: run.slot, slot="2")
    assert (found.ran, found.by, found.at) == (False, "host b", 7.0)
    once.ran_elsewhere("3", failed=True)
    assert once.run(lambda run: run.slot, slot="3").failed, "left alone, as was asked for"

    def work(run: FakeOnceRun) -> None:
        once.lose()
        run.check()

    with pytest.raises(LockLost):
        once.run(work, slot="4")
    last = once.last()
    assert last is not None
    assert last.slot == "3"
    begun = once.begin(slot="4")
    assert isinstance(begun, FakeOnceRun)
    assert begun.record().ran
    begun.release()
    with pytest.raises(NotHeld):
        begun.record()


def test_waiting_runs_are_cancelled_and_see_the_record() -> None:
    once = FakeOnce("k")
    begun = once.begin(slot="1")
    assert isinstance(begun, FakeOnceRun)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(once.run, lambda run: run.slot, slot="1", timeout=PATIENCE)
        begun.record()
        begun.release()
        assert not waiting.result(PATIENCE).ran
        begun = once.begin(slot="2")
        assert isinstance(begun, FakeOnceRun)
        waiting = pool.submit(once.run, lambda run: run.slot, slot="2", timeout=PATIENCE)
        while not waiting.done():
            once.cancel()
        with pytest.raises(AcquireCancelled):
            waiting.result()


@pytest.mark.anyio
async def test_a_period_that_conflicts_with_a_named_slot_leaves_the_lock_free() -> None:
    once = AsyncFakeOnce("k")
    begun = await once.begin(period=1)
    assert isinstance(begun, AsyncFakeOnceRun)

    async def wait() -> None:
        with pytest.raises(KeyConflict):
            await once.begin(period=1, timeout=PATIENCE)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        once.ran_elsewhere("nightly-7")
        await begun.release()
    assert isinstance(await once.begin(slot="nightly-8", timeout=0), AsyncFakeOnceRun)


@pytest.mark.anyio
async def test_async_jobs() -> None:
    once = AsyncFakeOnce("k")

    async def work(run: AsyncOnceRunLike) -> str:
        return run.slot

    async def fail(_: AsyncOnceRunLike) -> None:
        raise KeyError("a bug")

    async def lose(_: AsyncOnceRunLike) -> None:
        once.lose()
        await anyio.sleep(PATIENCE)

    assert await once.last() is None
    assert (await once.run(work, slot="1")).value == "1"
    assert not (await once.run(work, slot="1")).ran
    with pytest.raises(KeyError):
        await once.run(fail, slot="2")
    with pytest.raises(LockLost):
        await once.run(lose, slot="3")
    last = await once.last()
    assert last is not None
    assert (last.slot, last.failed) == ("2", True)
    once.ran_elsewhere("4")
    assert not (await once.run(work, slot="3")).ran
    assert await once.forget()
    once.cancel()
    begun = await once.begin(period=60)
    assert isinstance(begun, AsyncFakeOnceRun)
    assert (await begun.record()).ran
    await begun.release()


# -- the protocols


def test_everything_is_what_its_protocol_says() -> None:
    with ReferenceServer() as server, Client(address=server.address) as client:
        blocking = (Lock(client, "a"), Semaphore(client, "s", 2), FakeLock(), FakeSemaphore())
        for lock in blocking:
            assert isinstance(lock, LockLike)
            with lock as hold:
                assert isinstance(hold, HoldLike)
                assert isinstance(hold.lost, LossEventLike)
        for election in (LeaderElection(client, "e"), FakeElection()):
            assert isinstance(election, ElectionLike)
            with election:
                assert isinstance(election.wait_for_leadership(timeout=PATIENCE), HoldLike)
        for once in (Once(client, "o"), FakeOnce()):
            assert isinstance(once, OnceLike)
            assert once.run(lambda run: isinstance(run, OnceRunLike), slot="1").value
    unused = AsyncClient()
    for async_lock in (AsyncLock(unused, "a"), AsyncFakeLock()):
        assert isinstance(async_lock, AsyncLockLike)
    for async_election in (AsyncLeaderElection(unused, "e"), AsyncFakeElection()):
        assert isinstance(async_election, AsyncElectionLike)
    for async_once in (AsyncOnce(unused, "a"), AsyncFakeOnce()):
        assert isinstance(async_once, AsyncOnceLike)
    assert not isinstance(threading.Lock(), LockLike)


@pytest.mark.anyio
async def test_async_holds_are_what_their_protocol_says(async_case: AsyncCase) -> None:
    async with async_case.lock as hold:
        assert isinstance(hold, AsyncHoldLike)
        assert isinstance(hold.lost, AsyncLossEventLike)
