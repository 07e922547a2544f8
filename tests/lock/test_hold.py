"""What a holder can do with its hold: check, guard, write, verify, extend, give back."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord import (
    LOCK_FLAGS,
    HoldState,
    InvalidArgument,
    KeyConflict,
    Lock,
    LockLost,
    LossReason,
    NoLeader,
    ReleaseOutcome,
    Semaphore,
    Sequencer,
    TxnFailed,
    TxnOp,
)
from consul_coord.events import FencesRestarted, Overwritten
from tests.support.proxy import Fault, Lose
from tests.support.sites import eventually

if TYPE_CHECKING:
    from consul_coord import Client, Event, Hold
    from tests.lock.conftest import MakeClient
    from tests.support.proxy import FaultProxy
    from tests.support.sites import Site


class Notes:
    """An observer that writes down what it is told."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in list(self.events) if isinstance(event, kind)]


def fenced(client: Client, hold: Hold, site: Site, value: bytes = b"x") -> None:
    """Write beside the lock, in one transaction with the hold's guard."""
    client.txn(*hold.guard(), TxnOp.set(f"{site.unique}/result", value))


def test_put_writes_the_value_and_keeps_fence_guard_and_sequencer_good(site: Site, client: Client) -> None:
    with Lock(client, site.key).hold(timeout=5) as hold:
        fence = hold.fence
        for value in (b"one", "zwei", b"one"):
            hold.put(value)
            found = site.operator.entry(site.key)
            assert found is not None
            assert found["Value"] == (value if isinstance(value, bytes) else value.encode())
            assert (found["Flags"], found["Session"]) == (LOCK_FLAGS, hold.session)
            assert hold.sequencer.verify(client)
            fenced(client, hold, site)
        assert hold.fence == fence
    found = site.operator.entry(site.key)
    assert found is not None
    assert found["Value"] == b"one"


def test_a_strangers_write_is_an_event_and_stops_the_guard_until_the_next_put(
    site: Site, make_client: MakeClient
) -> None:
    notes = Notes()
    client = make_client(observer=notes)
    hold = Lock(client, site.key).acquire(timeout=5)
    before = hold.sequencer
    site.operator.put(site.key, b"theirs", flags=LOCK_FLAGS)
    eventually(lambda: notes.of(Overwritten))
    assert hold.is_held
    assert hold.verify()
    assert not before.verify(client)
    assert not hold.sequencer.verify(client)
    with pytest.raises(TxnFailed):
        fenced(client, hold, site)
    hold.put(b"mine")
    assert hold.sequencer.verify(client)
    fenced(client, hold, site)
    site.operator.put(site.key, b"theirs again", flags=LOCK_FLAGS)
    assert hold.release() is ReleaseOutcome.RELEASED
    found = site.operator.entry(site.key)
    assert found is not None
    assert (found["Value"], found.get("Session")) == (b"theirs again", None)


def test_own_writes_are_no_event(site: Site, make_client: MakeClient) -> None:
    notes = Notes()
    hold = Lock(make_client(observer=notes), site.key).acquire(timeout=5)
    assert not hold.lost.wait(0.1)
    for number in range(30):
        hold.put(str(number))
    assert not hold.lost.wait(0.2)
    assert notes.of(Overwritten) == []


def test_a_strangers_value_that_no_unlock_can_carry_keeps_nothing_locked(
    site: Site, make_client: MakeClient
) -> None:
    hold = Lock(make_client(), site.key).acquire(timeout=5)
    site.operator.put(site.key, b"v" * 512 * 1024, flags=LOCK_FLAGS)
    assert hold.release() is ReleaseOutcome.RELEASED
    Lock(make_client(), site.key).acquire(timeout=5).release()


def test_a_strangers_value_that_no_unlock_can_carry_keeps_no_holder_in(site: Site, client: Client) -> None:
    hold = Lock(client, site.key).acquire(timeout=5)
    site.operator.put(site.key, b"v" * 512 * 1024, flags=LOCK_FLAGS)
    assert Lock(client, site.key).break_lock(hold.session)
    assert site.operator.holder(site.key) is None


def test_a_loser_passes_no_guard_not_even_with_the_same_session(site: Site, client: Client) -> None:
    lock = Lock(client, site.key)
    old = lock.acquire()
    fenced(client, old, site, b"old")
    old.release()
    with pytest.raises(TxnFailed):
        fenced(client, old, site)
    with lock.hold(timeout=5) as new:
        assert new.session == old.session
        with pytest.raises(TxnFailed):
            fenced(client, old, site)
        fenced(client, new, site, b"new")


def test_a_sequencer_travels_as_text(site: Site, client: Client) -> None:
    lock = Lock(client, site.key)
    with lock.hold(timeout=5) as hold:
        text = str(hold.sequencer)
        assert Sequencer.parse(text).verify(client)
    assert not Sequencer.parse(text).verify(client)
    with lock.hold(timeout=5):
        assert not Sequencer.parse(text).verify(client)


def test_a_write_whose_reply_is_lost_is_made_once_more(
    site: Site, proxy: FaultProxy, make_client: MakeClient
) -> None:
    client = make_client(address=proxy.address)
    hold = Lock(client, site.key).acquire(timeout=5)
    proxy.add(Fault(lose=Lose.REPLY, path="/v1/txn", times=2))
    hold.put(b"new")
    found = site.operator.entry(site.key)
    assert found is not None
    assert found["Value"] == b"new"
    fenced(client, hold, site)


def test_a_lost_hold_writes_nothing(site: Site, client: Client, make_client: MakeClient) -> None:
    hold = Lock(client, site.key).acquire(timeout=5)
    site.operator.put(site.key, b"", release=hold.session, flags=LOCK_FLAGS)
    with Lock(make_client(), site.key, value="other").hold(timeout=5):
        with pytest.raises(LockLost) as told:
            hold.put(b"mine")
        assert told.value.reason in {LossReason.TAKEN_OVER, LossReason.RELEASED_BY_OTHER}
        assert told.value.fence == hold.fence
        assert not hold.verify()
        found = site.operator.entry(site.key)
        assert found is not None
        assert found["Value"] == b"other"


def test_ensure_renews_when_less_is_left_and_refuses_what_can_never_be(
    site: Site, proxy: FaultProxy, make_client: MakeClient
) -> None:
    hold = Lock(make_client(address=proxy.address), site.key).acquire(timeout=5)
    hold.ensure(1.0)
    assert proxy.count("PUT", "/v1/session/renew") == 0
    eventually(lambda: hold.remaining() < 9.45)
    hold.ensure(9.45)
    assert proxy.count("PUT", "/v1/session/renew") == 1
    with pytest.raises(InvalidArgument, match=r"9\.5 s at most"):
        hold.ensure(9.6)
    hold.release()


def test_ensure_goes_on_through_passing_trouble(
    site: Site, proxy: FaultProxy, make_client: MakeClient
) -> None:
    hold = Lock(make_client(address=proxy.address), site.key).acquire(timeout=5)
    eventually(lambda: hold.remaining() < 9.45)
    election = proxy.add(Fault(lose=Lose.AGENT, method="PUT", path="/v1/session/renew/", times=2))
    end = time.monotonic() + hold.remaining()
    hold.ensure(9.45)
    assert election.hits == 2
    assert time.monotonic() + hold.remaining() > end + 0.1, "no renewal has moved the end of the lease"


def test_ensure_gives_up_when_the_clients_time_is_over(
    site: Site, proxy: FaultProxy, make_client: MakeClient
) -> None:
    client = make_client(address=proxy.address, timeout=0.5)
    hold = Lock(client, site.key).acquire(timeout=5)
    eventually(lambda: hold.remaining() < 9.45)
    proxy.add(Fault(lose=Lose.AGENT, method="PUT", path="/v1/session/renew/", times=1_000))
    began = client.now()
    with pytest.raises(NoLeader):
        hold.ensure(9.45)
    assert client.now() < began + 3.0
    assert hold.is_held


def test_verify_asks_the_leader(site: Site, client: Client) -> None:
    hold = Lock(client, site.key).acquire(timeout=5)
    assert hold.verify()
    hold.release()
    assert not hold.verify()


def test_release_tells_the_truth_and_always_the_same(site: Site, make_client: MakeClient) -> None:
    lock = Lock(make_client(), site.key)
    hold = lock.acquire()
    assert [hold.release() for _ in range(3)] == [ReleaseOutcome.RELEASED] * 3
    with Lock(make_client(), site.key).hold(timeout=5) as other:
        assert hold.release() is ReleaseOutcome.RELEASED
        assert other.verify()
    taken = lock.acquire()
    site.operator.delete(site.key)
    assert {taken.release(), taken.release()} == {ReleaseOutcome.ALREADY_LOST}
    assert taken.reason is LossReason.KEY_DELETED


@pytest.mark.parametrize("lose", [Lose.REQUEST, Lose.REPLY])
def test_a_lost_exchange_in_a_release_is_still_a_release(
    site: Site, proxy: FaultProxy, make_client: MakeClient, lose: Lose
) -> None:
    hold = Lock(make_client(address=proxy.address), site.key).acquire(timeout=5)
    fault = proxy.add(Fault(lose=lose, path="/v1/txn", times=2))
    assert hold.release() is ReleaseOutcome.RELEASED
    assert fault.hits == 2
    assert site.operator.holder(site.key) is None


def test_a_late_copy_of_an_unlock_frees_no_later_hold(
    site: Site, proxy: FaultProxy, make_client: MakeClient
) -> None:
    lock = Lock(make_client(address=proxy.address, timeout=0.4), site.key)
    hold = lock.acquire(timeout=5)
    late = proxy.add(Fault(lose=Lose.TIME, path="/v1/txn"))
    with ThreadPoolExecutor(1) as pool:
        release = pool.submit(hold.release)
        assert late.hit.wait(5)
        proxy.cut()
        assert release.result(10) is ReleaseOutcome.RELEASED
    again = lock.acquire(timeout=5)
    late.let_go()
    assert late.passed_on.wait(5)
    assert again.verify()
    assert again.release() is ReleaseOutcome.RELEASED


@pytest.mark.slow
def test_an_unanswered_release_is_finished_in_the_background(
    site: Site, proxy: FaultProxy, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consul_coord.recipes.hold.holds.BUDGET", 0.2)
    client = make_client(address=proxy.address)
    lock = Lock(client, site.key)
    hold = lock.acquire(timeout=5)
    proxy.go_down()
    assert hold.release() is ReleaseOutcome.UNKNOWN
    assert not hold.is_held
    assert hold.state is HoldState.RELEASED
    assert client.pending_cleanup == 1
    assert site.operator.holder(site.key) == hold.session
    proxy.come_up()
    again = lock.acquire(timeout=10)
    assert again.fence > hold.fence
    assert client.pending_cleanup == 0
    assert hold.release() is ReleaseOutcome.UNKNOWN


def test_many_threads_release_one_hold_once(site: Site, client: Client) -> None:
    hold = Lock(client, site.key).acquire(timeout=5)
    start = threading.Barrier(4)

    def release() -> ReleaseOutcome:
        start.wait(5)
        return hold.release()

    with ThreadPoolExecutor(4) as pool:
        outcomes = [pool.submit(release) for _ in range(4)]
        assert {each.result(5) for each in outcomes} == {ReleaseOutcome.RELEASED}
    assert client.stats().released == 1


def test_a_forgotten_hold_is_given_back(
    site: Site, make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    client = make_client()
    assert Lock(client, site.key).acquire(timeout=5).is_held
    assert eventually(lambda: site.operator.holder(site.key) is None)
    (warning,) = (each.getMessage() for each in caplog.records if "dropped" in each.getMessage())
    assert f"the hold of {site.key} (fence " in warning
    assert warning.endswith("use `with`, or call its release()")
    assert Lock(client, site.key).acquire(timeout=5).is_held


@pytest.mark.parametrize("kind", ["lock", "semaphore"])
def test_a_forgotten_hold_is_given_back_without_the_garbage_collector(
    site: Site, proxy: FaultProxy, make_client: MakeClient, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    client = make_client(address=proxy.address)
    first = proxy.add(Fault(lose=Lose.REPLY, path="/v1/txn"))
    gc.disable()
    try:
        if kind == "lock":
            Lock(client, site.key).acquire(timeout=5)
        else:
            Semaphore(client, site.key, limit=1).acquire(timeout=5)
        # What failed before must not be kept: its traceback refers to all that its frames ever had.
        assert first.hit.is_set()
        assert eventually(lambda: "dropped" in caplog.text)
    finally:
        gc.enable()


@pytest.mark.parametrize("interrupt", [True, False])
def test_what_else_a_lost_body_held_is_given_back_without_the_garbage_collector(
    site: Site, client: Client, make_client: MakeClient, interrupt: bool
) -> None:
    """The traceback of a loss refers to the body, and so to all that it had."""

    def body() -> None:
        with Lock(client, site.key).hold(timeout=5, interrupt=interrupt, max_hold=0.05) as hold:
            other = Lock(client, f"{site.key}.2").acquire(timeout=5)
            hold.lost.wait(30)
            if interrupt:
                time.sleep(30)
            assert other.is_held

    lost: list[str] = []
    gc.disable()
    try:
        try:
            body()
        except LockLost as error:
            lost.append(error.key)
        Lock(make_client(), f"{site.key}.2").acquire(timeout=15).release()
    finally:
        gc.enable()
    assert lost == [site.key]


def test_an_acquire_that_is_refused_leaves_no_circle(site: Site, client: Client) -> None:
    """A circle would keep the application's own objects alive until the garbage collector comes."""
    client.kv.put(site.key, "of another program", flags=7)

    class InHand:
        pass

    def refused() -> weakref.ref[InHand]:
        in_hand = InHand()
        found = weakref.ref(in_hand)
        try:
            Lock(client, site.key).acquire(timeout=5)
        except KeyConflict:
            return found
        raise AssertionError("it was not refused")

    gc.disable()
    try:
        assert refused()() is None
    finally:
        gc.enable()


def test_fences_that_rise_are_no_news(site: Site, make_client: MakeClient) -> None:
    notes = Notes()
    lock = Lock(make_client(observer=notes), site.key)
    fences = [lock.run(lambda hold: hold.fence, timeout=5) for _ in range(3)]
    assert fences == sorted(set(fences))
    assert notes.of(FencesRestarted) == []


def test_waiting_for_a_loss_ends_at_the_release(site: Site, client: Client) -> None:
    hold = Lock(client, site.key).acquire(timeout=5)
    assert not hold.lost.wait(0.05)
    with ThreadPoolExecutor(1) as pool:
        wait = pool.submit(hold.lost.wait)
        hold.release()
        assert wait.result(2) is False
    assert not hold.lost.is_set()
    assert hold.reason is None
