"""Taking a lock from blocking code: what is got, what stands in the way, and what is left when it fails."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord import (
    LOCK_FLAGS,
    SEMAPHORE_FLAGS,
    AcquireCancelled,
    AcquireTimeout,
    AlreadyHeld,
    Client,
    ClientClosed,
    HoldState,
    InvalidArgument,
    InvalidKey,
    KeyConflict,
    Lock,
    MultiLock,
    NotHeld,
    ReleaseOutcome,
    RequestTimeout,
    SessionNotFound,
    SessionSpec,
    TransportError,
    UnsafeSession,
)
from consul_coord.events import TimedOut
from consul_coord.recipes.watch import engine
from tests.lock.conftest import spec
from tests.lock.test_hold import Notes
from tests.support.proxy import Fault, Lose
from tests.support.sites import eventually
from tests.support.stalls import lasting

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from consul_coord import Hold
    from tests.lock.conftest import MakeClient
    from tests.support.proxy import FaultProxy
    from tests.support.sites import Site

PROMPT = 0.1
"""A cancelled or closed call ends within this many seconds."""


def waiting(lock: Lock, pool: ThreadPoolExecutor, **arguments: Any) -> Future[Any]:
    """Start an acquire in a thread, and return when it is queued."""
    call = pool.submit(lock.acquire, **arguments)
    eventually(lambda: lock.contenders() or call.done())
    return call


def test_what_a_hold_tells(site: Site, client: Client) -> None:
    lock = Lock(client, site.key, value="me")
    with lock.hold(timeout=5) as hold:
        found = site.operator.entry(site.key)
        assert found is not None
        assert found["Session"] == hold.session
        assert found["Value"] == b"me"
        assert found["Flags"] == LOCK_FLAGS
        assert found["ModifyIndex"] == hold.fence
        assert hold.is_held
        assert hold.state is HoldState.HELD
        assert hold.reason is None
        assert 9.0 < hold.remaining() <= 9.5
        assert hold.deadline() == pytest.approx(client.now() + hold.remaining(), abs=0.05)
        assert not hold.lost.is_set()
        assert hold.sequencer.verify(client)
        holder = lock.holder()
        assert holder is not None
        assert (holder.session, holder.fence, holder.value) == (hold.session, hold.fence, b"me")
    assert [hold.is_held, hold.state, lock.holder()] == [False, HoldState.RELEASED, None]
    found = site.operator.entry(site.key)
    assert found is not None
    assert (found["Value"], found["Flags"]) == (b"me", LOCK_FLAGS)


def test_fences_rise_over_clients_and_over_the_keys_deletion(site: Site, make_client: MakeClient) -> None:
    fences = []
    for number in range(6):
        with Lock(make_client(), site.key) as hold:
            fences.append(hold.fence)
        if number % 2:
            site.operator.delete(site.key)
    assert fences == sorted(set(fences))


def test_a_warm_pair_costs_two_requests(site: Site, proxy: FaultProxy, make_client: MakeClient) -> None:
    lock = Lock(make_client(address=proxy.address), site.key)
    with lock:
        pass
    before = len(proxy.requests)
    with lock:
        pass
    assert len(proxy.requests) - before == 2


def test_try_acquire_gives_nothing_while_somebody_holds_it(site: Site, make_client: MakeClient) -> None:
    lock, other = Lock(make_client(), site.key), Lock(make_client(), site.key)
    hold = lock.try_acquire()
    assert hold is not None
    assert other.try_acquire() is None
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lock.try_acquire).result() is None
    hold.release()
    again = other.try_acquire()
    assert again is not None
    assert again.fence > hold.fence


def test_try_acquire_raises_what_stands_in_the_way_of_asking(
    site: Site, proxy: FaultProxy, make_client: MakeClient
) -> None:
    lock = Lock(make_client(address=proxy.address), site.key)
    lock.run(lambda _: None)
    proxy.go_down()
    with pytest.raises(TransportError):
        lock.try_acquire()
    proxy.come_up()
    assert eventually(lock.try_acquire)


@pytest.mark.parametrize("timeout", [0, 0.25])
def test_a_timeout_names_the_holder_and_takes_its_whole_time(
    site: Site, make_client: MakeClient, held: Hold, timeout: float
) -> None:
    lock = Lock(make_client(), site.key)
    with (
        lasting(least=timeout, most=timeout + 0.5),
        pytest.raises(AcquireTimeout, match=held.session) as told,
    ):
        lock.acquire(timeout=timeout)
    assert isinstance(told.value, TimeoutError)
    assert told.value.key == site.key
    assert told.value.blocker.kind == "held"
    eventually(lambda: lock.contenders() == ())
    assert site.operator.holder(site.key) == held.session


def test_giving_up_is_an_event(site: Site, make_client: MakeClient, held: Hold) -> None:
    notes = Notes()
    client = make_client(observer=notes)
    lock = Lock(client, site.key)
    began = time.monotonic()
    assert lock.try_acquire() is None
    between = time.monotonic()
    with pytest.raises(AcquireTimeout):
        lock.acquire(timeout=0.5)
    ended = time.monotonic()
    eventually(lambda: len(notes.of(TimedOut)) > 1)
    single, patient = notes.of(TimedOut)
    assert (single.key, single.blocker.kind, single.blocker.session) == (site.key, "held", held.session)
    assert patient.blocker.kind == "held"
    assert 0 < single.waited <= between - began
    assert 0.5 <= patient.waited <= ended - between


def test_requests_that_were_not_served_and_wake_ups_are_counted(
    site: Site, proxy: FaultProxy, make_client: MakeClient, held: Hold
) -> None:
    client = make_client(address=proxy.address)
    proxy.add(Fault(lose=Lose.AGENT, method="GET", path="/v1/kv/", times=2))
    client.kv.get(site.key)
    assert client.stats().failures == 2
    assert client.stats().retries == 2
    with ThreadPoolExecutor(1) as pool:
        call = waiting(Lock(client, site.key), pool, timeout=10)
        assert client.stats().wakeups == 0
        held.release()
        call.result(10)
    assert client.stats().wakeups >= 1
    assert client.stats().failures == 2


@pytest.mark.parametrize("timeout", [-1.0, float("nan")])
def test_a_timeout_that_is_no_time_is_refused(client: Client, site: Site, timeout: float) -> None:
    with pytest.raises(InvalidArgument):
        Lock(client, site.key).acquire(timeout=timeout)


@pytest.mark.usefixtures("held")
def test_a_timeout_is_not_restarted_by_wake_ups(site: Site, make_client: MakeClient) -> None:
    lock = Lock(make_client(), site.key)
    stop = threading.Event()

    def disturb() -> None:
        while not stop.wait(0.02):
            site.operator.put(site.key, b"noise", flags=LOCK_FLAGS)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(disturb)
        try:
            with lasting(least=0.4, most=0.8), pytest.raises(AcquireTimeout):
                lock.acquire(timeout=0.4)
        finally:
            stop.set()


def test_behind_another_client_the_blocker_is_who_is_ahead(
    site: Site, make_client: MakeClient, held: Hold
) -> None:
    first = Lock(make_client(), site.key)
    with ThreadPoolExecutor(1) as pool:
        call = waiting(first, pool, timeout=5)
        ahead = first.contenders()[0].session
        with pytest.raises(AcquireTimeout) as told:
            Lock(make_client(), site.key).acquire(timeout=1)
        blocker = told.value.blocker
        assert (blocker.kind, blocker.session, blocker.position) == ("queued", ahead, 2)
        held.release()
        assert call.result(5).is_held


def test_a_single_try_of_a_fair_lock_names_who_is_first_and_its_own_place(
    site: Site, make_client: MakeClient, client: Client
) -> None:
    waiting_ones = [client.session.create(spec(site)) for _ in range(2)]
    for each in waiting_ones:
        assert client.kv.acquire(f"{site.key}/.wait/{each}", each)
    lock = Lock(make_client(), site.key, fair=True)
    with pytest.raises(AcquireTimeout) as told:
        lock.acquire(timeout=0)
    blocker = told.value.blocker
    assert (blocker.kind, blocker.session, blocker.position) == ("queued", waiting_ones[0], 3)


def test_behind_another_thread_the_blocker_is_the_local_queue(
    site: Site, proxy: FaultProxy, make_client: MakeClient
) -> None:
    lock = Lock(make_client(address=proxy.address), site.key)
    hold = lock.acquire()
    before = proxy.count("PUT", "/v1/txn")
    with ThreadPoolExecutor(1) as pool, pytest.raises(AcquireTimeout) as told:
        pool.submit(lock.acquire, timeout=0.1).result()
    assert (told.value.blocker.kind, told.value.blocker.position) == ("queued", 1)
    assert proxy.count("PUT", "/v1/txn") == before
    assert hold.is_held


def test_a_lock_delay_is_named_waited_out_and_not_passed(site: Site, make_client: MakeClient) -> None:
    hold = Lock(make_client(lock_delay=0.6), site.key).acquire()
    lock = Lock(make_client(), site.key)
    site.operator.destroy(hold.session)
    with lasting(least=0.5, most=2.5):
        assert lock.try_acquire() is None
        with pytest.raises(AcquireTimeout) as told:
            lock.acquire(timeout=0.1)
        assert told.value.blocker.kind == "lock_delay"
        assert lock.acquire(timeout=5).fence > hold.fence


@pytest.mark.parametrize("kept", [True, False], ids=["key kept", "key deleted"])
def test_holder_tells_whether_a_lock_delay_is_in_force(
    site: Site, make_client: MakeClient, kept: bool
) -> None:
    lock = Lock(make_client(lock_delay=1.5), site.key, value="worker 7")
    assert lock.holder() is None
    assert site.operator.entry(site.key) is None, "asking has written something"
    hold = lock.acquire(timeout=5)
    holder = lock.holder()
    assert holder is not None
    assert (holder.session, holder.lock_delay_active) == (hold.session, False)
    assert lock.locked()
    site.operator.destroy(hold.session)
    if not kept:
        site.operator.delete(site.key)
    delayed = lock.holder()
    assert delayed is not None
    assert (delayed.session, delayed.lock_delay_active) == ("", True)
    assert delayed.value == (b"worker 7" if kept else b"")
    assert not lock.locked(), "nobody has it"
    assert not lock.break_lock(delayed.session)
    # Waited out by a lock of somebody else's: then it is over.
    Lock(make_client(), site.key).run(lambda _: None, timeout=10)
    assert lock.holder() is None


def test_an_unreachable_agent_is_named_with_its_cause(site: Site, make_client: MakeClient) -> None:
    lock = Lock(make_client(address="http://127.0.0.1:1"), site.key)
    with (
        lasting(least=0.3, most=0.8),
        pytest.raises(AcquireTimeout, match="could not be reached") as told,
    ):
        lock.acquire(timeout=0.3)
    assert told.value.blocker.kind == "unreachable"
    assert isinstance(told.value.__cause__, TransportError)
    assert "Is an agent running there?" in str(told.value)
    assert "CONSUL_HTTP_ADDR" in str(told.value)


def test_an_agent_that_comes_back_in_time_is_no_failure(
    site: Site, proxy: FaultProxy, make_client: MakeClient
) -> None:
    lock = Lock(make_client(address=proxy.address), site.key)
    proxy.go_down()
    timer = threading.Timer(0.3, proxy.come_up)
    timer.start()
    assert lock.acquire(timeout=5).is_held
    timer.join()


def test_a_thread_that_holds_it_is_told_so(site: Site, client: Client) -> None:
    lock = Lock(client, site.key)
    hold = lock.acquire()
    for call in (lock.acquire, lock.try_acquire, Lock(client, site.key).acquire):
        with pytest.raises(AlreadyHeld, match="ReentrantLock"):
            call()
    assert hold.is_held
    assert lock.release() is ReleaseOutcome.RELEASED
    assert lock.acquire(timeout=5).is_held


def test_a_thread_that_holds_nothing_can_release_nothing(site: Site, client: Client) -> None:
    lock = Lock(client, site.key)
    with pytest.raises(NotHeld) as told:
        lock.release()
    assert told.value.key == site.key
    lock.acquire()
    with ThreadPoolExecutor(1) as pool, pytest.raises(NotHeld, match=r"hold\.release\(\), from any thread"):
        pool.submit(lock.release).result()
    assert lock.release() is ReleaseOutcome.RELEASED
    with pytest.raises(NotHeld):
        lock.release()


def test_cancel_ends_all_waiting_calls_at_once(site: Site, make_client: MakeClient, held: Hold) -> None:
    lock = Lock(make_client(), site.key)
    with ThreadPoolExecutor(3) as pool:
        calls = [waiting(lock, pool) for _ in range(3)]
        with lasting(most=PROMPT, calls=len(calls)):
            lock.cancel()
            for call in calls:
                with pytest.raises(AcquireCancelled):
                    call.result(5)
    assert eventually(lambda: lock.contenders() == ())
    held.release()
    assert lock.acquire(timeout=5).is_held


@pytest.mark.usefixtures("held")
def test_closing_ends_waiting_calls_at_once(site: Site, make_client: MakeClient) -> None:
    client = make_client()
    lock = Lock(client, site.key)
    with ThreadPoolExecutor(2) as pool:
        calls = [waiting(lock, pool) for _ in range(2)]
        with lasting(most=5 * PROMPT, calls=len(calls)):
            client.close()
            for call in calls:
                with pytest.raises(ClientClosed):
                    call.result(5)
    assert Lock(make_client(), site.key).contenders() == ()
    with pytest.raises(ClientClosed):
        lock.acquire()


def test_cancel_without_anybody_waiting_does_nothing(site: Site, client: Client) -> None:
    lock = Lock(client, site.key)
    lock.cancel()
    assert lock.acquire(timeout=5).is_held


def test_a_semaphores_record_is_called_so(site: Site, client: Client) -> None:
    """Its flags, accepted, would have a lock overwrite it."""
    site.operator.put(site.key, b"{}", flags=SEMAPHORE_FLAGS)
    with pytest.raises(KeyConflict, match=r"but a semaphore's record\. Use another key$"):
        Lock(client, site.key).acquire()


@pytest.mark.parametrize("flags", [0, 7, 2**64 - 1])
def test_a_key_of_somebody_elses_is_not_touched(site: Site, client: Client, flags: int) -> None:
    site.operator.put(site.key, b"theirs", flags=flags)
    with pytest.raises(KeyConflict, match=f"{flags:#x}") as told:
        Lock(client, site.key).acquire()
    assert told.value.flags == flags
    with pytest.raises(KeyConflict):
        Lock(client, site.key).destroy()
    found = site.operator.entry(site.key)
    assert found is not None
    assert (found["Value"], found["Flags"], found.get("Session")) == (b"theirs", flags, None)
    assert site.operator.under(f"{site.key}/") == []
    assert Lock(client, site.key, accept_flags=[flags]).acquire(timeout=5).is_held


def test_a_bad_key_is_refused_before_anything_is_sent(client: Client) -> None:
    for key in ("", "/a", "a/", "a//b", "a/../b", "a\nb"):
        with pytest.raises(InvalidKey) as refused:
            Lock(client, key)
        assert refused.value.key == key, "the caller's own words, not a key made of them"


def test_destroy_removes_an_unused_lock_only(site: Site, make_client: MakeClient) -> None:
    lock = Lock(make_client(), site.key)
    with lock:
        assert not lock.destroy()
    assert lock.destroy()
    assert site.operator.entry(site.key) is None
    assert lock.destroy()
    assert lock.acquire(timeout=5).is_held


def test_a_lock_may_have_a_session_of_its_own(site: Site, client: Client) -> None:
    own = SessionSpec(ttl=20.0, lock_delay=0, name=site.unique, allow_unbounded=True)
    with Lock(client, site.key, session=own) as one, Lock(client, f"{site.key}2") as shared:
        assert one.session != shared.session
        assert one.remaining() > 15.0 > shared.remaining()
    client.close()
    assert site.left_behind() == []


def test_a_lock_may_use_a_session_made_elsewhere(site: Site, client: Client) -> None:
    outside = site.operator.create(ttl="30s", lock_delay="20s")
    with Lock(client, site.key, session=outside) as hold:
        assert hold.session == outside
        assert 15.0 < hold.remaining() <= 19.0
    client.close()
    assert site.operator.exists(outside)
    site.operator.destroy(outside)


BY_ITS_ID: dict[str, Callable[[Client, str, str], Lock | MultiLock]] = {
    "lock": lambda client, key, session: Lock(client, key, session=session),
    "lock, in turn": lambda client, key, session: Lock(client, key, session=session, fair=True),
    "several keys": lambda client, key, session: MultiLock(client, [key, f"{key}2"], session=session),
}


@pytest.mark.parametrize("used", [False, True], ids=["before its first use", "between two uses"])
@pytest.mark.parametrize("kind", BY_ITS_ID)
def test_a_session_made_elsewhere_that_has_ended_is_named_and_not_replaced(
    site: Site, client: Client, kind: str, *, used: bool
) -> None:
    outside = site.operator.create(ttl="30s", lock_delay="20s")
    lock = BY_ITS_ID[kind](client, site.key, outside)
    if used:
        lock.acquire(timeout=5).release()
    site.operator.destroy(outside)
    with pytest.raises(SessionNotFound, match=outside):
        lock.acquire(timeout=5)
    assert site.left_behind() == []


def test_an_outside_session_without_a_bound_is_refused(site: Site, client: Client) -> None:
    outside = site.operator.done("PUT", "/v1/session/create", {"NodeChecks": []})["ID"]
    with pytest.raises(UnsafeSession):
        Lock(client, site.key, session=outside).acquire()
    site.operator.destroy(outside)
    assert site.operator.entry(site.key) is None


def test_break_lock_names_whom_it_means(site: Site, make_client: MakeClient) -> None:
    hold = Lock(make_client(lock_delay=30.0), site.key).acquire()
    lock = Lock(make_client(), site.key)
    assert not lock.break_lock(site.operator.create())
    assert hold.verify()
    assert lock.break_lock(hold.session)
    assert lock.acquire(timeout=10).fence > hold.fence  # a lock-delay would last longer
    assert hold.lost.wait(10)


def test_run_and_wrap_hold_it_while_the_function_runs(site: Site, client: Client) -> None:
    lock = Lock(client, site.key)
    assert (
        lock.run(lambda hold: (hold.is_held, site.operator.holder(site.key) == hold.session)) == (True,) * 2
    )

    @lock.wrap(timeout=5)
    def work(number: int, *, more: int = 1) -> tuple[int, str | None]:
        """Work."""
        return number + more, site.operator.holder(site.key)

    assert work.__name__ == "work"
    assert work.__doc__ == "Work."
    total, session = work(1, more=2)
    assert total == 3
    assert session is not None
    assert site.operator.holder(site.key) is None


# -- lost requests and replies

LOCKING = b'"lock"'


@pytest.mark.parametrize("lose", [Lose.REQUEST, Lose.REPLY])
@pytest.mark.parametrize("times", [1, 2])
def test_a_lost_exchange_while_taking_it_ends_in_one_hold_with_the_right_fence(
    site: Site, proxy: FaultProxy, make_client: MakeClient, lose: Lose, times: int
) -> None:
    fault = proxy.add(Fault(lose=lose, path="/v1/txn", containing=LOCKING, times=times))
    hold = Lock(make_client(address=proxy.address), site.key).acquire(timeout=5)
    # Without a reply it looks, finds that it has the key, and does not ask again.
    assert fault.hits == (1 if lose is Lose.REPLY else times)
    found = site.operator.entry(site.key)
    assert found is not None
    assert (found["Session"], found["ModifyIndex"]) == (hold.session, hold.fence)
    assert hold.verify()
    assert site.operator.under(f"{site.key}/") == []
    assert hold.release() is ReleaseOutcome.RELEASED
    assert site.operator.holder(site.key) is None


@pytest.mark.parametrize("lose", [Lose.REQUEST, Lose.REPLY])
def test_a_lost_reply_to_a_waiter_ends_in_one_hold(
    site: Site, proxy: FaultProxy, make_client: MakeClient, held: Hold, lose: Lose
) -> None:
    lock = Lock(make_client(address=proxy.address), site.key)
    with ThreadPoolExecutor(1) as pool:
        call = waiting(lock, pool, timeout=10)
        fault = proxy.add(Fault(lose=lose, path="/v1/txn", containing=LOCKING))
        held.release()
        hold = call.result(10)
    assert fault.hits == 1
    found = site.operator.entry(site.key)
    assert found is not None
    assert (found["Session"], found["ModifyIndex"]) == (hold.session, hold.fence)
    assert site.operator.under(f"{site.key}/") == []


def test_an_abandoned_take_leaves_nothing_locked(
    site: Site, proxy: FaultProxy, make_client: MakeClient
) -> None:
    client = make_client(address=proxy.address, timeout=0.3)
    lock = Lock(client, site.key)
    lock.run(lambda _: None)
    proxy.add(Fault(lose=Lose.REPLY, path="/v1/txn", containing=LOCKING, times=50))
    with pytest.raises(TransportError):
        lock.try_acquire()
    assert eventually(lambda: site.operator.holder(site.key) is None)
    other = Lock(make_client(), site.key)
    assert other.acquire(timeout=5).is_held


def test_a_take_that_arrives_after_its_client_gave_up_leaves_nothing_locked(
    site: Site, proxy: FaultProxy, make_client: MakeClient
) -> None:
    client = make_client(address=proxy.address, timeout=0.3)
    lock = Lock(client, site.key)
    lock.run(lambda _: None)
    late = proxy.add(Fault(lose=Lose.TIME, path="/v1/txn", containing=LOCKING))
    with pytest.raises(RequestTimeout):
        lock.try_acquire()
    assert client.pending_cleanup > 0
    late.let_go()
    assert late.passed_on.wait(5)
    assert eventually(lambda: site.operator.holder(site.key) is None)
    assert eventually(lambda: site.operator.under(f"{site.key}/") == [])


def test_a_late_take_of_an_earlier_attempt_does_not_pass_the_queue(
    site: Site, proxy: FaultProxy, make_client: MakeClient, held: Hold
) -> None:
    lock = Lock(make_client(address=proxy.address, timeout=1.0), site.key)
    with ThreadPoolExecutor(1) as pool:
        call = waiting(lock, pool, timeout=10)
        late = proxy.add(Fault(lose=Lose.TIME, path="/v1/txn", containing=b'"check-index"'))
        held.release()
        assert late.hit.wait(5)
        hold = call.result(10)
        late.let_go()
        assert late.passed_on.wait(5)
    found = site.operator.entry(site.key)
    assert found is not None
    assert (found["Session"], found["ModifyIndex"]) == (hold.session, hold.fence)
    assert hold.release() is ReleaseOutcome.RELEASED
    assert site.operator.holder(site.key) is None


@pytest.mark.parametrize("lose", [Lose.REPLY, Lose.TIME])
def test_a_session_that_an_unanswered_create_has_made_is_found_and_destroyed(
    site: Site, proxy: FaultProxy, make_client: MakeClient, lose: Lose
) -> None:
    create = proxy.add(Fault(lose=lose, path="/v1/session/create"))
    client = make_client(address=proxy.address, timeout=0.5)
    with pytest.raises(TransportError):
        Lock(client, site.key).try_acquire()
    eventually(lambda: client.pending_cleanup == 1)
    create.let_go()
    assert create.passed_on.wait(5)
    assert eventually(lambda: proxy.count("PUT", "/v1/session/destroy/") == 1)
    assert eventually(lambda: site.operator.sessions(site.unique) == [])
    assert eventually(lambda: client.pending_cleanup == 0)


@pytest.mark.parametrize(("status", "body"), [(500, b"No cluster leader"), (429, b""), (500, b"odd")])
def test_refusals_for_a_while_are_ridden_out(
    site: Site, proxy: FaultProxy, make_client: MakeClient, status: int, body: bytes
) -> None:
    proxy.add(Fault(lose=Lose.AGENT, times=4, status=status, body=body))
    assert Lock(make_client(address=proxy.address), site.key).acquire(timeout=10).is_held


# -- many keys


def test_a_client_that_waits_for_many_keys_shares_connections_and_gets_them_all(
    site: Site, proxy: FaultProxy, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "MOST", 2)
    holder, client = make_client(), make_client(address=proxy.address)
    keys = [f"{site.key}/{number}" for number in range(6)]
    holds = [Lock(holder, key).acquire(timeout=5) for key in keys]
    with ThreadPoolExecutor(len(keys)) as pool:
        got = [waiting(Lock(client, key), pool, timeout=20) for key in keys]
        queries = {each.path.split("?")[0] for each in proxy.requests if "index=" in each.path}
        assert len(queries) == 2
        for hold in holds:
            hold.release()
        assert all(each.result().release() is ReleaseOutcome.RELEASED for each in got)
