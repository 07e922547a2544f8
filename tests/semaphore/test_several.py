"""Several slots in one take: all or none, in the queue's order, lost and given back as one."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from consul_coord import (
    AcquireCancelled,
    AcquireTimeout,
    AsyncClient,
    AsyncPermit,
    AsyncSemaphore,
    Client,
    HoldState,
    InvalidArgument,
    LockLost,
    LossReason,
    NotHeld,
    Permit,
    ReleaseOutcome,
    Semaphore,
    SemaphoreLimitConflict,
    SessionSpec,
    TxnFailed,
    TxnOp,
    ValueTooLarge,
)
from consul_coord.recipes.semaphore import slots
from tests.semaphore.conftest import Place, spec
from tests.support.proxy import Fault, FaultProxy, Lose
from tests.support.sites import Site, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.semaphore.conftest import MakeClient

RELEASED = ReleaseOutcome.RELEASED
JOIN = b'"get-tree"'
TAKE = b'"check-index"'
LEAVE = b'"delete-cas"'
AT_ONCE = b'[{"KV":{"Verb":"cas"'


@pytest.fixture
def semaphore(client: Client, place: Place) -> Semaphore:
    """A semaphore with three slots, whose holders look at its record every two seconds."""
    return Semaphore(client, place.prefix, 3, session=SessionSpec(ttl=5.0))


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def waiting(
    pool: ThreadPoolExecutor, semaphore: Semaphore, place: Place, *, permits: int = 1
) -> Future[Permit]:
    """Return a call of acquire that has queued."""
    before = len(place.contenders())
    call = pool.submit(semaphore.acquire, permits=permits, timeout=30)
    eventually(lambda: len(place.contenders()) > before)
    return call


def others_of(place: Place, permit: Permit | AsyncPermit) -> list[str]:
    """Return the sessions of the only permit that is held, but for its first."""
    return [session for session in place.read()["Holders"] if session != permit.session]


class TestTaking:
    def test_it_is_a_line_and_a_key_for_each_slot_by_one_write(
        self, semaphore: Semaphore, place: Place
    ) -> None:
        permit = semaphore.acquire(permits=2, timeout=5)
        assert permit.permits == 2
        (other,) = others_of(place, permit)
        assert place.read() == {"Limit": 3, "Holders": {permit.session: True, other: True}}
        for session in (permit.session, other):
            contender = place.operator.entry(f"{place.prefix}/{session}")
            assert contender is not None
            assert (contender["Session"], contender["ModifyIndex"]) == (session, permit.fence)
        assert {one.session for one in semaphore.holders()} == {permit.session, other}
        assert permit.verify()
        assert semaphore.release() is RELEASED
        assert permit.release() is RELEASED
        assert place.contenders() == []
        assert place.read() == {"Limit": 3, "Holders": {}}

    def test_one_permit_is_one_slot(self, semaphore: Semaphore, place: Place) -> None:
        with semaphore as permit:
            assert permit.permits == 1
            assert list(place.read()["Holders"]) == [permit.session]

    def test_all_forms_of_holding_take_several(self, semaphore: Semaphore, place: Place) -> None:
        @semaphore.wrap(permits=3, timeout=5)
        def wrapped(number: int) -> tuple[int, int]:
            return number, len(place.contenders())

        assert wrapped(7) == (7, 3)
        with semaphore.hold(permits=2, timeout=5):
            assert len(place.contenders()) == 2
        assert semaphore.run(lambda permit: permit.permits, permits=3, timeout=5) == 3
        permit = semaphore.try_acquire(permits=2)
        assert permit is not None
        assert semaphore.try_acquire(permits=2) is None
        assert len(place.contenders()) == 2
        assert permit.release() is RELEASED
        assert place.contenders() == []

    def test_fences_rise_whatever_was_taken(self, semaphore: Semaphore) -> None:
        fences = []
        for permits in (1, 3, 2, 1, 3):
            with semaphore.hold(permits=permits, timeout=5) as permit:
                fences.append(permit.fence)
        assert fences == sorted(set(fences))

    @pytest.mark.parametrize("permits", [0, -1, 4, 32, True, 1.0, "1", None])
    def test_what_can_never_be_had_is_refused_before_anything_is_sent(
        self, make_client: MakeClient, place: Place, proxy: FaultProxy, permits: Any
    ) -> None:
        semaphore = Semaphore(make_client(address=proxy.address), place.prefix, 3)
        acquire: Callable[..., object] = semaphore.acquire
        before = len(proxy.requests)
        with pytest.raises(InvalidArgument, match="permits must be an integer from 1 to 3"):
            acquire(permits=permits)
        assert len(proxy.requests) == before

    def test_as_many_as_fit_into_one_transaction(self, client: Client, place: Place) -> None:
        semaphore = Semaphore(client, place.prefix, 40)
        dead = [place.foreign() for _ in range(5)]
        place.write({"Limit": 40, "Holders": dict.fromkeys(dead, True)})
        for session in dead:
            place.operator.destroy(session)
        with semaphore.hold(permits=slots.MOST_PERMITS, timeout=20) as permit:
            assert len(place.contenders()) == permit.permits == slots.MOST_PERMITS
            client.txn(*permit.guard(), TxnOp.set(f"{place.site.unique}/done", b"x"))
        assert place.contenders() == []
        with pytest.raises(InvalidArgument, match="one transaction"):
            semaphore.acquire(permits=slots.MOST_PERMITS + 1)

    def test_a_value_that_fits_once_may_not_fit_so_often(self, client: Client, place: Place) -> None:
        semaphore = Semaphore(client, place.prefix, 20, value=b"v" * 30_000)
        semaphore.acquire(timeout=5).release()
        with pytest.raises(ValueTooLarge):
            semaphore.acquire(permits=20)

    def test_where_nothing_has_happened_it_is_one_request(
        self, make_client: MakeClient, place: Place, proxy: FaultProxy
    ) -> None:
        semaphore = Semaphore(make_client(address=proxy.address), place.prefix, 3)
        semaphore.run(lambda _: None, permits=2, timeout=5)
        before = proxy.count("PUT", "/v1/txn")
        with semaphore.hold(permits=2, timeout=5):
            assert proxy.count("PUT", "/v1/txn") == before + 1
        assert proxy.count("PUT", "/v1/txn") == before + 2
        semaphore.run(lambda _: None, permits=3, timeout=5)


class TestWaiting:
    def test_it_holds_nothing_while_it_waits_and_nobody_passes(
        self, semaphore: Semaphore, place: Place, pool: ThreadPoolExecutor
    ) -> None:
        first, second = semaphore.acquire(timeout=5), semaphore.acquire(timeout=5)
        large = waiting(pool, semaphore, place, permits=3)
        small = waiting(pool, semaphore, place)
        assert semaphore.try_acquire() is None
        assert set(place.read()["Holders"]) == {first.session, second.session}
        first.release()
        assert semaphore.try_acquire() is None
        assert not large.done()
        second.release()
        permit = large.result(10)
        assert permit.permits == 3
        assert not small.done()
        permit.release()
        small.result(10).release()
        eventually(lambda: place.contenders() == [])

    def test_those_that_fit_take_together(
        self, semaphore: Semaphore, place: Place, pool: ThreadPoolExecutor
    ) -> None:
        all_three = semaphore.acquire(permits=3, timeout=5)
        calls = [waiting(pool, semaphore, place, permits=permits) for permits in (2, 1)]
        all_three.release()
        permits = [call.result(10) for call in calls]
        assert [permit.permits for permit in permits] == [2, 1]
        assert all(permit.verify() for permit in permits)
        for permit in permits:
            permit.release()

    def test_takers_of_two_of_three_never_wait_for_each_other(
        self, make_client: MakeClient, place: Place, pool: ThreadPoolExecutor
    ) -> None:
        inside, most, mutex = [0], [0], threading.Lock()

        def work(semaphore: Semaphore, permits: int) -> None:
            for _ in range(6):
                with semaphore.hold(permits=permits, timeout=30) as permit:
                    with mutex:
                        inside[0] += permit.permits
                        most[0] = max(most[0], inside[0])
                    time.sleep(0.002)
                    with mutex:
                        inside[0] -= permit.permits

        semaphores = [Semaphore(make_client(), place.prefix, 3) for _ in range(3)]
        calls = [pool.submit(work, one, permits) for one in semaphores for permits in (2, 1)]
        for call in calls:
            call.result(50)
        assert most[0] <= 3
        assert place.contenders() == []

    def test_who_gives_up_leaves_nothing_and_lets_the_next_take(
        self, client: Client, semaphore: Semaphore, place: Place, pool: ThreadPoolExecutor
    ) -> None:
        held = semaphore.acquire(timeout=5)
        with pytest.raises(AcquireTimeout) as caught:
            semaphore.acquire(permits=3, timeout=0.5)
        assert caught.value.blocker.kind == "held"
        large = waiting(pool, semaphore, place, permits=3)
        small = waiting(pool, Semaphore(client, place.prefix, 3), place)
        semaphore.cancel()
        with pytest.raises(AcquireCancelled):
            large.result(5)
        small.result(10).release()
        assert place.contenders() == [held.session]
        held.release()

    def test_a_limit_lowered_below_it_ends_its_wait(
        self, semaphore: Semaphore, place: Place, pool: ThreadPoolExecutor, make_client: MakeClient
    ) -> None:
        held = semaphore.acquire(timeout=5)
        large = waiting(pool, semaphore, place, permits=3)
        small = waiting(pool, semaphore, place)
        Semaphore(make_client(), place.prefix, 3).resize(2)
        with pytest.raises(SemaphoreLimitConflict, match="permits=3") as caught:
            large.result(10)
        assert (caught.value.local, caught.value.remote) == (3, 2)
        small.result(10).release()
        held.release()
        assert place.contenders() == []

    def test_a_limit_that_lets_nobody_in_ends_every_wait(
        self, semaphore: Semaphore, place: Place, pool: ThreadPoolExecutor
    ) -> None:
        held = semaphore.acquire(timeout=5, permits=3)
        waiters = [waiting(pool, semaphore, place) for _ in range(2)]
        place.write(place.read() | {"Limit": 0})
        for call in waiters:
            with pytest.raises(SemaphoreLimitConflict, match=r"permits=1\. Raise the limit with resize\(1\)"):
                call.result(10)
        held.release()
        with pytest.raises(
            SemaphoreLimitConflict, match=r"not 3: change it for all clients with resize\(3\)"
        ):
            semaphore.try_acquire()
        semaphore.resize(3)
        semaphore.acquire(timeout=5).release()

    def test_a_session_that_ends_in_the_queue_is_replaced_with_the_others(
        self, make_client: MakeClient, place: Place, pool: ThreadPoolExecutor
    ) -> None:
        semaphore = Semaphore(make_client(), place.prefix, 2)
        held = semaphore.acquire(timeout=5)
        before = set(place.operator.sessions(place.site.unique))
        large = waiting(pool, semaphore, place, permits=2)
        (first,) = set(place.contenders()) - {held.session}
        for session in set(place.operator.sessions(place.site.unique)) - before - {first}:
            place.operator.destroy(session)
        held.release()
        permit = large.result(20)
        assert permit.verify()
        permit.release()
        eventually(lambda: place.contenders() == [])


def remove_slot(place: Place, session: str) -> None:
    record = place.read()
    del record["Holders"][session]
    place.write(record)


DEEDS: dict[str, tuple[Callable[[Place, str], object], LossReason]] = {
    "slot removed": (remove_slot, LossReason.SLOT_REMOVED),
    "contender deleted": (
        lambda place, session: place.operator.delete(f"{place.prefix}/{session}"),
        LossReason.KEY_DELETED,
    ),
    "contender released": (
        lambda place, session: place.operator.put(f"{place.prefix}/{session}", b"", release=session),
        LossReason.RELEASED_BY_OTHER,
    ),
    "session destroyed": (
        lambda place, session: place.operator.destroy(session),
        LossReason.SESSION_GONE,
    ),
}


class TestLoss:
    @pytest.mark.parametrize("deed", DEEDS)
    def test_the_loss_of_one_is_the_loss_of_all(self, semaphore: Semaphore, place: Place, deed: str) -> None:
        act, reason = DEEDS[deed]
        permit = semaphore.acquire(permits=3, timeout=5)
        others = others_of(place, permit)
        told: list[LossReason] = []
        permit.on_lost(told.append)
        act(place, others[-1])
        assert not permit.verify()
        assert permit.lost.wait(8)
        assert (permit.state, permit.reason) == (HoldState.LOST, reason)
        with pytest.raises(LockLost) as caught:
            permit.check()
        assert (caught.value.reason, caught.value.fence) == (reason, permit.fence)
        assert permit.release() is ReleaseOutcome.ALREADY_LOST
        eventually(lambda: told == [reason])
        for session in (permit.session, *others):
            eventually(lambda session=session: not place.operator.exists(session))  # type: ignore[misc]

    @pytest.mark.parametrize("deed", DEEDS)
    def test_a_release_that_finds_the_loss_first_tells_it(
        self, semaphore: Semaphore, place: Place, deed: str
    ) -> None:
        act, reason = DEEDS[deed]
        permit = semaphore.acquire(permits=2, timeout=5)
        (other,) = others_of(place, permit)
        act(place, other)
        assert permit.release() is ReleaseOutcome.ALREADY_LOST
        assert permit.reason is reason
        eventually(lambda: place.operator.holder(f"{place.prefix}/{permit.session}") is None)

    @pytest.mark.slow
    def test_no_slot_of_it_opens_before_its_holder_has_stopped(
        self, site: Site, place: Place, make_client: MakeClient
    ) -> None:
        with FaultProxy(site.address) as proxy:
            settings = spec(site, ttl=2.0, lock_delay=2.0)
            with Client(address=proxy.address, session=settings) as cut_off:
                permit = Semaphore(cut_off, place.prefix, 2).acquire(permits=2, timeout=5)
                (other,) = others_of(place, permit)
                proxy.go_down()
                place.operator.destroy(other)
                single = Semaphore(make_client(), place.prefix, 2)
                with single.hold(timeout=20):
                    assert not permit.is_held
                assert permit.reason is LossReason.EXPIRED
                proxy.come_up()

    def test_the_lease_is_as_short_as_the_shortest(self, semaphore: Semaphore, place: Place) -> None:
        permit = semaphore.acquire(permits=2, timeout=5)
        assert 0 < permit.remaining() <= 4.75
        permit.ensure(4.0)
        assert permit.remaining() >= 4.0
        assert permit.release() is RELEASED

    def test_the_guard_covers_every_slot(self, client: Client, semaphore: Semaphore, place: Place) -> None:
        permit = semaphore.acquire(permits=2, timeout=5)
        (other,) = others_of(place, permit)
        done = f"{place.site.unique}/done"
        client.txn(*permit.guard(), TxnOp.set(done, b"1"))
        permit.put("busy")
        client.txn(*permit.guard(), TxnOp.set(done, b"2"))
        place.operator.delete(f"{place.prefix}/{other}")
        with pytest.raises(TxnFailed):
            client.txn(*permit.guard(), TxnOp.set(done, b"3"))
        permit.release()

    def test_max_hold_and_beat_end_it_whole(self, semaphore: Semaphore, place: Place) -> None:
        permit = semaphore.acquire(permits=2, timeout=5, max_hold=0.2)
        assert permit.lost.wait(5)
        assert permit.reason is LossReason.MAX_HOLD
        assert len(place.contenders()) == 2  # for the lock-delay, or until its holder leaves
        assert permit.release() is ReleaseOutcome.ALREADY_LOST
        eventually(lambda: place.contenders() == [])
        permit = semaphore.acquire(permits=3, timeout=10)
        permit.beat(0.1)
        assert permit.lost.wait(5)
        assert permit.reason is LossReason.STALLED
        assert semaphore.release() is ReleaseOutcome.ALREADY_LOST
        with pytest.raises(NotHeld):
            semaphore.release()
        eventually(lambda: place.contenders() == [])

    def test_a_blocked_main_thread_is_interrupted_at_the_loss_of_any(
        self, semaphore: Semaphore, place: Place
    ) -> None:
        def destroy_second(permit: Permit) -> None:
            place.operator.destroy(others_of(place, permit)[0])

        def work(permit: Permit) -> None:
            threading.Thread(target=destroy_second, args=(permit,)).start()
            time.sleep(20)

        with pytest.raises(LockLost) as caught:
            semaphore.run(work, permits=2, timeout=5, interrupt=True)
        assert caught.value.reason is LossReason.SESSION_GONE

    def test_a_permit_that_is_dropped_is_given_back(self, semaphore: Semaphore, place: Place) -> None:
        threading.Thread(target=lambda: semaphore.acquire(permits=2, timeout=5)).start()
        eventually(lambda: len(place.contenders()) == 2)
        eventually(lambda: place.contenders() == [])

    def test_closing_gives_it_back(self, make_client: MakeClient, place: Place) -> None:
        client = make_client()
        permit = Semaphore(client, place.prefix, 3).acquire(permits=3, timeout=5)
        client.close()
        assert permit.reason is LossReason.CLIENT_CLOSED
        assert place.left_behind() == []


class TestUnanswered:
    @pytest.fixture
    def semaphore(self, make_client: MakeClient, place: Place, proxy: FaultProxy) -> Semaphore:
        """A semaphore of two slots, behind the proxy."""
        return Semaphore(make_client(address=proxy.address), place.prefix, 2)

    @pytest.mark.parametrize("lose", [Lose.REQUEST, Lose.REPLY])
    @pytest.mark.parametrize("containing", [JOIN, TAKE, LEAVE], ids=["join", "take", "leave"])
    def test_nothing_is_left_and_nothing_is_closed(
        self, semaphore: Semaphore, place: Place, proxy: FaultProxy, containing: bytes, lose: Lose
    ) -> None:
        fault = proxy.add(Fault(lose=lose, method="PUT", path="/v1/txn", containing=containing))
        with semaphore.hold(permits=2, timeout=10) as permit:
            assert len(place.contenders()) == 2
            assert permit.verify()
            sessions = place.contenders()
        assert fault.hits == 1
        assert place.contenders() == []
        for session in sessions:
            eventually(lambda session=session: not place.operator.exists(session))  # type: ignore[misc]
        semaphore.acquire(permits=2, timeout=5).release()

    @pytest.mark.parametrize("lose", [Lose.REQUEST, Lose.REPLY])
    def test_taking_at_once_is_given_up_with_its_sessions(
        self, semaphore: Semaphore, place: Place, proxy: FaultProxy, lose: Lose
    ) -> None:
        semaphore.run(lambda _: None, permits=2)
        fault = proxy.add(Fault(lose=lose, method="PUT", path="/v1/txn", containing=AT_ONCE))
        with semaphore.hold(permits=2, timeout=10) as permit:
            assert fault.hits == 1
            assert len(place.contenders()) == 2
            assert permit.verify()
        assert place.contenders() == []

    def test_a_late_take_of_who_gave_up_brings_nothing(
        self,
        semaphore: Semaphore,
        place: Place,
        proxy: FaultProxy,
        make_client: MakeClient,
        pool: ThreadPoolExecutor,
    ) -> None:
        late = proxy.add(Fault(lose=Lose.TIME, method="PUT", path="/v1/txn", containing=TAKE))
        call = pool.submit(semaphore.acquire, permits=2, timeout=20)
        assert late.hit.wait(10)
        semaphore.cancel()
        with pytest.raises(AcquireCancelled):
            call.result(5)
        eventually(lambda: not place.contenders())
        permit = Semaphore(make_client(), place.prefix, 2).acquire(permits=2, timeout=5)
        before = set(place.contenders())
        late.let_go()
        assert late.passed_on.wait(10)
        assert set(place.contenders()) == set(place.read()["Holders"]) == before
        assert permit.verify()
        permit.release()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_tasks_take_several(site: Site, backend: str) -> None:
    place = Place(site)

    async def main() -> None:
        async with AsyncClient(address=site.address, session=spec(site)) as client:
            semaphore = AsyncSemaphore(client, place.prefix, 3)

            async def work(permits: int) -> None:
                async with semaphore.hold(permits=permits, timeout=20) as permit:
                    assert permit.permits == permits
                    assert len(place.contenders()) >= permits

            async with anyio.create_task_group() as group:
                for permits in (2, 3, 1, 2):
                    group.start_soon(work, permits)

            permit = await semaphore.acquire(permits=2, timeout=5)
            assert await semaphore.try_acquire(permits=2) is None
            assert await permit.release() is RELEASED

            @semaphore.wrap(permits=3, timeout=5)
            async def wrapped() -> int:
                return len(place.contenders())

            assert await wrapped() == 3

            async def lose(permit: AsyncPermit) -> None:
                place.operator.destroy(others_of(place, permit)[0])
                await anyio.sleep(20)

            with pytest.raises(LockLost):
                await semaphore.run(lose, permits=2, timeout=5)

    anyio.run(main, backend=backend)
    eventually(lambda: place.contenders() == [])
