"""Getting slots and giving them back, and what can be seen and changed meanwhile."""

from __future__ import annotations

import inspect
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from consul_coord import (
    SEMAPHORE_FLAGS,
    AcquireCancelled,
    AcquireTimeout,
    AsyncClient,
    AsyncSemaphore,
    Client,
    ClientClosed,
    HoldState,
    InvalidArgument,
    InvalidKey,
    NotHeld,
    Permit,
    ReleaseOutcome,
    Semaphore,
    SessionSpec,
    TxnFailed,
    TxnOp,
    ValueTooLarge,
)
from tests.support.sites import eventually
from tests.support.stalls import lasting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.semaphore.conftest import MakeClient, Place
    from tests.support.proxy import FaultProxy

RELEASED = ReleaseOutcome.RELEASED


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def waiting(pool: ThreadPoolExecutor, semaphore: Semaphore, place: Place) -> Future[Permit]:
    """Return a call of acquire that has queued."""
    before = len(place.contenders())
    call = pool.submit(semaphore.acquire, timeout=20)
    eventually(lambda: len(place.contenders()) > before)
    return call


def test_a_permit_is_a_line_in_the_record_and_a_key_held_by_its_session(
    semaphore: Semaphore, place: Place
) -> None:
    permit = semaphore.acquire(timeout=5)
    assert place.read() == {"Limit": 2, "Holders": {permit.session: True}}
    assert permit.key == f"{place.prefix}/{permit.session}"
    contender = place.operator.entry(permit.key)
    record = place.operator.entry(place.record)
    assert contender is not None
    assert record is not None
    assert contender["Session"] == permit.session
    assert contender["Flags"] == record["Flags"] == SEMAPHORE_FLAGS
    assert permit.fence == contender["ModifyIndex"] == record["ModifyIndex"]
    assert permit.state is HoldState.HELD
    assert permit.verify()
    assert permit.release() is RELEASED
    assert permit.release() is RELEASED
    assert place.contenders() == []
    assert place.read() == {"Limit": 2, "Holders": {}}


def test_fences_rise_over_the_permits_of_a_semaphore(semaphore: Semaphore) -> None:
    fences = []
    for _ in range(5):
        with semaphore as permit:
            fences.append(permit.fence)
    assert fences == sorted(set(fences))


def test_an_object_for_each_call_costs_no_session_for_each_call(client: Client, place: Place) -> None:
    for _ in range(20):
        with Semaphore(client, place.prefix, 2).hold(timeout=5):
            pass
    # One in use, one resting until the record was seen without it, one made ahead.
    assert len(place.operator.sessions(place.site.unique)) <= 3


def test_a_pair_costs_two_requests(make_client: MakeClient, place: Place, proxy: FaultProxy) -> None:
    client = make_client(address=proxy.address)
    semaphore = Semaphore(client, place.prefix, 2)
    for _ in range(3):
        with semaphore:
            pass
    eventually(lambda: len(place.operator.sessions(place.site.unique)) > 1)  # that of the next pair is there
    before = len(proxy.requests)
    with semaphore:
        pass
    client.close()  # what the background has begun is done by then
    asked = [(request.method, request.path) for request in proxy.requests[before:]]
    upkeep = [(method, path) for method, path in asked if path.startswith("/v1/session/")]
    assert [each for each in asked if each not in upkeep] == [("PUT", "/v1/txn")] * 2


def test_one_thread_may_have_several_permits_and_gives_up_the_latest_first(
    semaphore: Semaphore, place: Place
) -> None:
    first, second = semaphore.acquire(timeout=5), semaphore.acquire(timeout=5)
    assert first.session != second.session
    assert semaphore.try_acquire() is None
    assert {one.session for one in semaphore.holders()} == {first.session, second.session}
    assert semaphore.release() is RELEASED
    assert (first.state, second.state) == (HoldState.HELD, HoldState.RELEASED)
    assert semaphore.release() is RELEASED
    with pytest.raises(NotHeld):
        semaphore.release()
    assert place.contenders() == []


def test_another_thread_has_nothing_to_release(semaphore: Semaphore, pool: ThreadPoolExecutor) -> None:
    semaphore.acquire(timeout=5)
    with pytest.raises(NotHeld):
        pool.submit(semaphore.release).result()


def test_all_forms_of_holding_release_at_the_end(semaphore: Semaphore, place: Place) -> None:
    @semaphore.wrap(timeout=5)
    def wrapped(number: int) -> tuple[int, int]:
        return number, len(place.contenders())

    with semaphore as outer, semaphore as inner:
        assert outer.session != inner.session
        with pytest.raises(AcquireTimeout):
            semaphore.acquire(timeout=0.05)
    with pytest.raises(KeyError), semaphore.hold(timeout=5):
        raise KeyError
    assert semaphore.run(lambda permit: permit.is_held, timeout=5)
    assert wrapped(3) == (3, 1)
    assert list(inspect.signature(wrapped).parameters) == ["number"]
    assert place.contenders() == []


@pytest.mark.parametrize("form", ["with semaphore", "with semaphore.hold()"])
def test_of_blocks_within_each_other_the_inner_one_ends_first(semaphore: Semaphore, form: str) -> None:
    block = semaphore if form == "with semaphore" else semaphore.hold(timeout=5)
    with block as outer:
        for _ in range(2):
            with block as inner:
                assert (outer.is_held, inner.is_held) == (True, True)
            assert (outer.state, inner.state) == (HoldState.HELD, HoldState.RELEASED)
    assert outer.state is HoldState.RELEASED


@pytest.mark.anyio
@pytest.mark.parametrize("form", ["with semaphore", "with semaphore.hold()"])
async def test_of_blocks_of_a_task_the_inner_one_ends_first(place: Place, form: str) -> None:
    async with AsyncClient(address=place.site.address) as client:
        semaphore = AsyncSemaphore(client, place.prefix, 2)
        block = semaphore if form == "with semaphore" else semaphore.hold(timeout=5)
        async with block as outer:
            async with block as inner:
                assert (outer.is_held, inner.is_held) == (True, True)
            assert (outer.state, inner.state) == (HoldState.HELD, HoldState.RELEASED)
        assert outer.state is HoldState.RELEASED


def test_the_value_is_shown_to_operators_and_can_be_changed(client: Client, place: Place) -> None:
    semaphore = Semaphore(client, place.prefix, 2, value="worker 7")
    with semaphore as permit:
        (holder,) = semaphore.holders()
        assert (holder.session, holder.value, holder.fence) == (permit.session, b"worker 7", permit.fence)
        assert holder.node
        permit.put("busy")
        (holder,) = semaphore.holders()
        assert holder.value == b"busy"
        assert holder.since_index > permit.fence
        assert permit.is_held
    # Sessions come and go for a moment: what is left is compared when it has settled.
    assert eventually(lambda: place.left_behind() == place.operator.sessions(place.site.unique))


def test_a_guarded_write_succeeds_under_the_permit_only(
    semaphore: Semaphore, client: Client, place: Place
) -> None:
    key = f"{place.site.unique}/guarded"
    permit = semaphore.acquire(timeout=5)
    client.txn(*permit.guard(), TxnOp.set(key, b"1"))
    permit.put("changed")
    client.txn(*permit.guard(), TxnOp.set(key, b"2"))
    guard = permit.guard()
    permit.release()
    with pytest.raises(TxnFailed):
        client.txn(*guard, TxnOp.set(key, b"3"))
    again = semaphore.acquire(timeout=5)
    with pytest.raises(TxnFailed):
        client.txn(*guard, TxnOp.set(key, b"4"))
    again.release()


class TestWaiting:
    def test_waiters_are_served_in_order(
        self, semaphore: Semaphore, place: Place, pool: ThreadPoolExecutor
    ) -> None:
        held = [semaphore.acquire(timeout=5), semaphore.acquire(timeout=5)]
        calls = [waiting(pool, semaphore, place) for _ in range(4)]
        queue = [one.session for one in semaphore.contenders()]
        assert len(queue) == 4
        held[0].release()
        for place_in_queue, call in enumerate(calls):
            permit = call.result(10)
            assert permit.session == queue[place_in_queue]
            permit.release()
        held[1].release()

    def test_the_queue_and_the_own_place_in_it_can_be_seen(
        self, semaphore: Semaphore, make_client: MakeClient, place: Place, pool: ThreadPoolExecutor
    ) -> None:
        held = [semaphore.acquire(timeout=5), semaphore.acquire(timeout=5)]
        first = Semaphore(make_client(), place.prefix, 2, value="first")
        second = Semaphore(make_client(), place.prefix, 2, value="second")
        assert first.position() is None
        calls = [waiting(pool, first, place), waiting(pool, second, place)]
        assert [(one.position, one.value) for one in semaphore.contenders()] == [
            (1, b"first"),
            (2, b"second"),
        ]
        assert (first.position(), second.position(), semaphore.position()) == (1, 2, None)
        for permit in held:
            permit.release()
        for call in calls:
            call.result(10).release()
        assert first.position() is None

    def test_time_is_up_for_the_front_and_for_who_waits_behind(
        self, semaphore: Semaphore, place: Place, pool: ThreadPoolExecutor
    ) -> None:
        held = [semaphore.acquire(timeout=5), semaphore.acquire(timeout=5)]
        front = waiting(pool, semaphore, place)
        with lasting(least=1.0, most=3.0), pytest.raises(AcquireTimeout) as caught:
            semaphore.acquire(timeout=1.0)  # long enough to read the holders' nodes on a busy machine
        assert (caught.value.blocker.kind, caught.value.blocker.position) == ("queued", 2)
        assert {one.session for one in caught.value.blocker.holders} == {one.session for one in held}
        assert all(
            one.node and f"node {one.node}" in str(caught.value) for one in caught.value.blocker.holders
        )
        semaphore.cancel()
        with pytest.raises(AcquireCancelled):
            front.result(5)
        eventually(lambda: len(place.contenders()) == 2)
        with pytest.raises(AcquireTimeout) as caught:
            semaphore.acquire(timeout=0.5)
        assert caught.value.blocker.kind == "held"
        assert caught.value.blocker.session in {permit.session for permit in held}
        eventually(lambda: len(place.contenders()) == 2)
        for permit in held:
            permit.release()

    def test_cancel_ends_every_waiting_call_within_100_ms(
        self, semaphore: Semaphore, place: Place, pool: ThreadPoolExecutor
    ) -> None:
        held = [semaphore.acquire(timeout=5), semaphore.acquire(timeout=5)]
        calls = [waiting(pool, semaphore, place) for _ in range(4)]
        with lasting(most=1.0):  # the time of four, on a busy machine
            semaphore.cancel()
            for call in calls:
                with pytest.raises(AcquireCancelled):
                    call.result(5)
        eventually(lambda: len(place.contenders()) == 2)
        assert semaphore.contenders() == ()
        for permit in held:
            permit.release()

    def test_trying_once_waits_for_nothing_and_leaves_nothing(
        self, semaphore: Semaphore, place: Place
    ) -> None:
        first, second = semaphore.try_acquire(), semaphore.try_acquire()
        assert first is not None
        assert second is not None
        assert semaphore.try_acquire() is None
        with pytest.raises(AcquireTimeout):
            semaphore.acquire(timeout=0)
        eventually(lambda: len(place.contenders()) == 2)
        first.release()
        third = semaphore.try_acquire()
        assert third is not None
        second.release()
        third.release()

    def test_closing_the_client_ends_waiting_and_gives_everything_back(
        self, make_client: MakeClient, place: Place, pool: ThreadPoolExecutor
    ) -> None:
        client = make_client()
        semaphore = Semaphore(client, place.prefix, 2)
        held = [semaphore.acquire(timeout=5), semaphore.acquire(timeout=5)]
        call = waiting(pool, semaphore, place)
        client.close()
        with pytest.raises(ClientClosed):
            call.result(5)
        assert {permit.state for permit in held} == {HoldState.LOST}
        assert client.pending_cleanup == 0
        eventually(lambda: not place.left_behind())

    def test_a_forgotten_permit_is_given_back(self, client: Client, place: Place) -> None:
        permit = Semaphore(client, place.prefix, 1).acquire(timeout=5)
        assert place.contenders() == [permit.session]
        del permit
        eventually(lambda: not place.contenders())


class TestArguments:
    @pytest.mark.parametrize("limit", [0, -1, True, 2.5])
    def test_a_limit_is_a_positive_integer(self, client: Client, limit: int) -> None:
        with pytest.raises(InvalidArgument):
            Semaphore(client, "a/b", limit)

    def test_a_record_that_can_not_be_kept_is_refused_at_once(self, client: Client) -> None:
        with pytest.raises(ValueTooLarge):
            Semaphore(client, "a/b", 10_000)
        with pytest.raises(ValueTooLarge):
            Semaphore(client, "a/b", 1, value=bytes(400_000))
        with pytest.raises(ValueTooLarge):
            Semaphore(client, "a/b", 1).resize(10_000)

    @pytest.mark.parametrize("prefix", ["", "/a", "a//b", "a/../b", "a/b/"])
    def test_a_prefix_is_a_clean_key(self, client: Client, prefix: str) -> None:
        with pytest.raises(InvalidKey):
            Semaphore(client, prefix, 2)

    def test_a_users_session_settings_still_vanish_with_their_keys(
        self, client: Client, place: Place
    ) -> None:
        session = SessionSpec(ttl=20.0, lock_delay=20.0, name=place.site.unique, behavior="release")
        with Semaphore(client, place.prefix, 2, session=session) as permit:
            (found,) = place.operator.done("GET", f"/v1/session/info/{permit.session}")
            assert (found["TTL"], found["Behavior"], found["NodeChecks"]) == ("20s", "delete", [])
            assert permit.remaining() > 15


def test_threads_are_told_apart_by_the_object_they_share(
    semaphore: Semaphore, pool: ThreadPoolExecutor
) -> None:
    inside = threading.Barrier(2, timeout=10)

    def work() -> ReleaseOutcome:
        semaphore.acquire(timeout=10)
        inside.wait()
        return semaphore.release()

    assert [call.result(15) for call in [pool.submit(work), pool.submit(work)]] == [RELEASED, RELEASED]
