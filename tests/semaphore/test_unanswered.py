"""Requests that are lost, whose replies are lost, or that arrive late: one slot, one holder, nothing left."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from consul_coord import AcquireCancelled, AcquireTimeout, HoldState, ReleaseOutcome, Semaphore
from consul_coord.errors import ConsulCoordError
from consul_coord.http.failures import outcome_unknown
from consul_coord.recipes.hold import holds as release_recipe
from tests.support.proxy import Fault, FaultProxy, Lose
from tests.support.sites import eventually

if TYPE_CHECKING:
    from tests.semaphore.conftest import MakeClient, Place

JOIN = b'"get-tree"'
TAKE = b'"check-index"'
LEAVE = b'"delete-cas"'
AT_ONCE = b'[{"KV":{"Verb":"cas"'
LOST = [Lose.REQUEST, Lose.REPLY]
SHORT = 1.0
"""Seconds of a call that gives up: enough for its last request to be sent on a busy machine."""


@pytest.fixture
def semaphore(make_client: MakeClient, place: Place, proxy: FaultProxy) -> Semaphore:
    """A semaphore of one slot, behind the proxy."""
    return Semaphore(make_client(address=proxy.address), place.prefix, 1)


def txn(lose: Lose, containing: bytes) -> Fault:
    return Fault(lose=lose, method="PUT", path="/v1/txn", containing=containing)


@pytest.mark.parametrize("lose", LOST)
@pytest.mark.parametrize("containing", [JOIN, TAKE], ids=["join", "take"])
def test_acquiring_goes_on_and_the_session_is_not_used_again(
    semaphore: Semaphore, place: Place, proxy: FaultProxy, containing: bytes, lose: Lose
) -> None:
    fault = proxy.add(txn(lose, containing))
    with semaphore.hold(timeout=10) as permit:
        assert fault.hits == 1
        assert place.contenders() == [permit.session]
        assert permit.verify()
    assert place.contenders() == []
    eventually(lambda: not place.operator.exists(permit.session))


@pytest.mark.parametrize("lose", LOST)
def test_taking_at_once_is_given_up_with_its_session(
    semaphore: Semaphore, place: Place, proxy: FaultProxy, lose: Lose
) -> None:
    semaphore.run(lambda _: None)
    fault = proxy.add(txn(lose, AT_ONCE))
    with semaphore.hold(timeout=10) as permit:
        assert fault.hits == 1
        assert place.contenders() == [permit.session]
    assert place.contenders() == []


@pytest.mark.parametrize("lose", LOST)
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "with others"])
def test_leaving_is_settled_by_the_end_of_the_session(
    semaphore: Semaphore, place: Place, proxy: FaultProxy, lose: Lose, alone: bool
) -> None:
    other = None if alone else place.foreign()
    permit = semaphore.acquire(timeout=5)
    fault = proxy.add(txn(lose, LEAVE))
    assert permit.release() is ReleaseOutcome.RELEASED
    assert fault.hits == 1
    assert not place.operator.exists(permit.session)
    assert place.contenders() == ([] if other is None else [other])
    semaphore.acquire(timeout=5).release()
    if other is not None:
        place.operator.destroy(other)


def test_a_session_that_could_not_be_made_is_made_again(
    semaphore: Semaphore, place: Place, proxy: FaultProxy
) -> None:
    proxy.add(Fault(lose=Lose.REQUEST, method="PUT", path="/v1/session/create", times=2))
    semaphore.acquire(timeout=10).release()
    assert place.contenders() == []


@pytest.mark.parametrize("containing", [JOIN, TAKE], ids=["join", "take"])
def test_a_late_request_of_who_gave_up_brings_nothing(
    semaphore: Semaphore, place: Place, proxy: FaultProxy, make_client: MakeClient, containing: bytes
) -> None:
    late = proxy.add(txn(Lose.TIME, containing))
    with pytest.raises(AcquireTimeout):
        semaphore.acquire(timeout=SHORT)
    eventually(lambda: not place.contenders())
    permit = Semaphore(make_client(), place.prefix, 1).acquire(timeout=5)
    late.let_go()
    assert late.passed_on.wait(10)
    eventually(lambda: place.contenders() == [permit.session])
    assert list(place.read()["Holders"]) == [permit.session]
    assert permit.verify()
    permit.release()


def test_a_late_take_at_once_brings_nothing(
    semaphore: Semaphore, place: Place, proxy: FaultProxy, make_client: MakeClient
) -> None:
    semaphore.run(lambda _: None)
    late = proxy.add(txn(Lose.TIME, AT_ONCE))
    with pytest.raises(AcquireTimeout):
        semaphore.acquire(timeout=SHORT)
    session = eventually(lambda: Semaphore(make_client(), place.prefix, 1).acquire(timeout=5))
    late.let_go()
    assert late.passed_on.wait(10)
    assert place.contenders() == [session.session]
    session.release()


def test_a_late_join_of_who_was_cancelled_brings_nothing(
    semaphore: Semaphore, place: Place, proxy: FaultProxy
) -> None:
    late = proxy.add(txn(Lose.TIME, JOIN))
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(semaphore.acquire, timeout=20)
        assert late.hit.wait(10)
        semaphore.cancel()
        with pytest.raises(AcquireCancelled):
            call.result(5)
        late.let_go()
        assert late.passed_on.wait(10)
    eventually(lambda: not place.contenders())
    semaphore.acquire(timeout=5).release()


@pytest.mark.slow
def test_a_late_leave_takes_nothing_from_the_next_hold(
    semaphore: Semaphore, place: Place, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release_recipe, "BUDGET", 0.5)
    permit = semaphore.acquire(timeout=5)
    late = proxy.add(txn(Lose.TIME, LEAVE))
    assert permit.release() is ReleaseOutcome.UNKNOWN
    eventually(lambda: not place.contenders())
    following = semaphore.acquire(timeout=5)
    late.let_go()
    assert late.passed_on.wait(10)
    assert following.verify()
    assert following.state is HoldState.HELD
    assert following.release() is ReleaseOutcome.RELEASED


@pytest.mark.slow
def test_what_can_not_be_given_back_now_is_given_back_in_the_background(
    semaphore: Semaphore,
    make_client: MakeClient,
    place: Place,
    proxy: FaultProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(release_recipe, "BUDGET", 0.3)
    permit = semaphore.acquire(timeout=5)
    proxy.go_down()
    assert permit.release() is ReleaseOutcome.UNKNOWN
    assert place.contenders() == [permit.session]
    proxy.come_up()
    eventually(lambda: not place.contenders())


def watches(proxy: FaultProxy) -> list[str]:
    """Return the paths of the blocking queries on keys so far."""
    paths = [request.path for request in list(proxy.requests)]
    return [path for path in paths if "index=" in path and path.startswith("/v1/kv/")]


def watched_keys(proxy: FaultProxy) -> set[str]:
    """Return the last part of each key that was watched by itself."""
    alone = [path for path in watches(proxy) if "recurse" not in path]
    return {path.partition("?")[0].rpartition("/")[2] for path in alone}


class TestTheQueue:
    """What wakes whom: every wait here would last 30 s without the event that ends it."""

    def others(self, make_client: MakeClient, place: Place) -> Semaphore:
        return Semaphore(make_client(), place.prefix, 1)

    def test_only_the_front_watches_the_prefix(
        self, semaphore: Semaphore, make_client: MakeClient, place: Place, proxy: FaultProxy
    ) -> None:
        permit = self.others(make_client, place).acquire(timeout=5)
        with ThreadPoolExecutor(6) as pool:
            calls = [pool.submit(semaphore.run, lambda _: None, timeout=20) for _ in range(6)]
            eventually(lambda: len(place.contenders()) == 7)
            queue = [one.session for one in semaphore.contenders()]
            eventually(lambda: watched_keys(proxy) == set(queue[:-1]))
            # One at first, and one more for each of the five that wake the front by joining.
            assert len([path for path in watches(proxy) if "recurse" in path]) <= 6
            permit.release()
            for call in calls:
                call.result(10)

    def test_whoever_dies_in_the_queue_is_succeeded(self, make_client: MakeClient, place: Place) -> None:
        permit = self.others(make_client, place).acquire(timeout=5)
        # Who waits in the middle learns of its session's end at the next renewal.
        semaphore = Semaphore(make_client(ttl=1.0), place.prefix, 1)
        with ThreadPoolExecutor(5) as pool:
            calls = [pool.submit(semaphore.run, lambda _: None, timeout=20) for _ in range(5)]
            eventually(lambda: len(place.contenders()) == 6)
            queue = [one.session for one in semaphore.contenders()]
            for victim in (queue[0], queue[2]):
                place.operator.destroy(victim)
                # It comes again, at the end, with another session.
                eventually(lambda: len(place.contenders()) == 6)
            following = [one.session for one in semaphore.contenders()]
            assert following[:3] == [queue[1], queue[3], queue[4]]
            permit.release()
            for call in calls:
                call.result(10)

    def test_a_waiter_whose_key_was_deleted_never_comes_back_with_its_session(
        self, semaphore: Semaphore, make_client: MakeClient, place: Place
    ) -> None:
        permit = self.others(make_client, place).acquire(timeout=5)
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(semaphore.acquire, timeout=20)
            eventually(lambda: len(place.contenders()) == 2)
            (waiter,) = (one.session for one in semaphore.contenders())
            place.operator.delete(f"{place.prefix}/{waiter}")
            eventually(lambda: len(place.contenders()) == 2)
            assert waiter not in place.contenders()
            eventually(lambda: not place.operator.exists(waiter))
            permit.release()
            call.result(10).release()

    def test_the_death_of_a_holder_changes_no_record_and_wakes_the_front(
        self, semaphore: Semaphore, place: Place
    ) -> None:
        holder = place.foreign()
        place.write({"Limit": 1, "Holders": {holder: True}})
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(semaphore.acquire, timeout=20)
            eventually(lambda: len(place.contenders()) == 2)
            index = place.operator.entry(place.record)
            place.operator.destroy(holder)
            permit = call.result(10)
        assert index is not None
        assert list(place.read()["Holders"]) == [permit.session]
        permit.release()

    def test_all_holders_dying_at_once_lets_as_many_in(self, make_client: MakeClient, place: Place) -> None:
        semaphore = Semaphore(make_client(), place.prefix, 3)
        holders = [place.foreign() for _ in range(3)]
        place.write({"Limit": 3, "Holders": dict.fromkeys(holders, True)})
        with ThreadPoolExecutor(4) as pool:
            calls = [pool.submit(semaphore.acquire, timeout=20) for _ in range(4)]
            eventually(lambda: len(place.contenders()) == 7)
            for holder in holders:
                place.operator.destroy(holder)
            eventually(lambda: sum(call.done() for call in calls) == 3)
            for _ in range(4):
                done = eventually(lambda: [call for call in calls if call.done()])[0]
                calls.remove(done)
                done.result().release()


class Begins(threading.Event):
    """The hit of one fault, with which another one begins."""

    def __init__(self, other: Fault) -> None:
        super().__init__()
        self._other = other

    def set(self) -> None:
        self._other.times = 1_000
        super().set()


@pytest.mark.parametrize("refused", [500, 429])
def test_a_resize_that_may_have_been_made_says_so_though_it_can_not_be_read(
    make_client: MakeClient, place: Place, proxy: FaultProxy, refused: int
) -> None:
    semaphore = Semaphore(make_client(address=proxy.address, timeout=SHORT), place.prefix, 3)
    semaphore.run(lambda _: None)
    unread = Fault(lose=Lose.AGENT, method="GET", status=refused, body=b"", times=0)
    unanswered = Fault(lose=Lose.REQUEST, method="PUT", path="/v1/kv/")
    unanswered.hit = Begins(unread)
    for fault in (unread, unanswered):
        proxy.add(fault)
    with pytest.raises(ConsulCoordError) as raised:
        semaphore.resize(2)
    proxy.clear()
    assert unread.hits
    assert outcome_unknown(raised.value)
