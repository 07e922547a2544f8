"""Closing a client: nothing of it is left, on the server or in the process."""

from __future__ import annotations

import gc
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord import (
    Client,
    ClientClosed,
    HoldState,
    LeaderElection,
    Lock,
    LockLost,
    LossReason,
    ReleaseOutcome,
    Semaphore,
)
from consul_coord.events import Lost, Released
from tests.lock.conftest import spec
from tests.lock.test_hold import Notes
from tests.support.proxy import Fault, Lose
from tests.support.sites import eventually, never
from tests.support.stalls import lasting

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.http.messages import Response
    from tests.lock.conftest import MakeClient
    from tests.support.proxy import FaultProxy
    from tests.support.sites import Site


def descriptors() -> set[str]:
    """Return the sockets and pipes of this process."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = str(link.readlink())
        except FileNotFoundError:
            continue
        if not target.startswith("/"):
            found.add(target)
    return found


def test_close_releases_destroys_and_is_idempotent(site: Site) -> None:
    client = Client(address=site.address, session=spec(site, lock_delay=30.0))
    holds = [Lock(client, f"{site.key}/{number}").acquire(timeout=5) for number in range(3)]
    own = Lock(client, f"{site.key}/own", session=spec(site)).acquire(timeout=5)
    client.close()
    client.close()
    assert site.left_behind() == []
    assert client.pending_cleanup == 0
    for hold in (*holds, own):
        assert hold.reason is LossReason.CLIENT_CLOSED
        assert not hold.is_held
        assert hold.release() is ReleaseOutcome.RELEASED
    # Released before the session was destroyed: no lock-delay stands in the way.
    with Client(address=site.address, session=spec(site)) as other:
        assert Lock(other, f"{site.key}/0").try_acquire() is not None


@pytest.mark.usefixtures("without_an_end")
def test_a_client_may_close_without_a_limit(site: Site) -> None:
    client = Client(address=site.address, session=spec(site))
    hold = Lock(client, site.key).acquire(timeout=5)
    client.close(timeout=float("inf"))
    assert hold.release() is ReleaseOutcome.RELEASED
    assert site.left_behind() == []


def test_what_a_closing_client_gives_back_is_released_not_lost(site: Site) -> None:
    notes = Notes()
    client = Client(address=site.address, session=spec(site), observer=notes)
    hold = Lock(client, site.key).acquire(timeout=5)
    client.close()
    assert client.stats().lost == 0
    assert client.stats().released == 1
    eventually(lambda: notes.of(Released))
    assert [(each.fence, each.outcome) for each in notes.of(Released)] == [
        (hold.fence, ReleaseOutcome.RELEASED)
    ]
    assert notes.of(Lost) == []


def test_a_hold_that_was_broken_unnoticed_before_the_closing_says_so(
    site: Site, make_client: MakeClient
) -> None:
    client = make_client()
    hold = Lock(client, site.key).acquire(timeout=5)
    # Nothing is watched in the first 50 ms of a hold.
    site.operator.done("PUT", f"/v1/kv/{site.key}?release={hold.session}")
    client.close()
    assert hold.state is HoldState.LOST
    assert hold.reason is LossReason.RELEASED_BY_OTHER
    assert hold.release() is ReleaseOutcome.ALREADY_LOST


def test_a_closed_client_refuses_everything(site: Site) -> None:
    client = Client(address=site.address)
    lock = Lock(client, site.key)
    hold = lock.acquire(timeout=5)
    watch = client.kv.watch(site.key)
    next(watch)
    client.close()
    for call in (lock.acquire, lock.try_acquire, lock.holder, lock.destroy, hold.verify):
        with pytest.raises(ClientClosed):
            call()
    with pytest.raises(ClientClosed):
        client.kv.get("k")
    with pytest.raises(ClientClosed):
        next(watch)
    with pytest.raises((LockLost, ClientClosed)):
        hold.put(b"x")
    assert client.healthy()


def test_a_client_that_did_nothing_closes_silently(site: Site) -> None:
    before = threading.active_count()
    client = Client(address="http://127.0.0.1:1")
    assert threading.active_count() == before
    client.close()


def test_no_thread_and_no_descriptor_is_left(site: Site) -> None:
    def use() -> None:
        with Client(address=site.address, session=spec(site)) as client:
            hold = Lock(client, site.key).acquire(timeout=5)
            hold.on_lost(lambda _: None)
            assert not hold.lost.wait(0.12)
            with ThreadPoolExecutor(2) as pool:
                waiting = [pool.submit(Lock(client, f"{site.key}2").run, lambda _: None) for _ in range(4)]
                for call in waiting:
                    call.result(5)
            site.operator.destroy(hold.session)
            assert hold.lost.wait(10)

    use()
    threads, open_before = set(threading.enumerate()), descriptors()
    for _ in range(3):
        use()
    assert set(threading.enumerate()) <= threads
    # The server in this process notices a moment later that its ends are closed.
    eventually(lambda: len(descriptors()) <= len(open_before))
    assert site.left_behind() == []


def test_one_loop_thread_serves_any_number_of_locks(site: Site) -> None:
    before = set(threading.enumerate())
    with Client(address=site.address, session=spec(site)) as client:
        holds = [Lock(client, f"{site.key}/{number}").acquire(timeout=5) for number in range(50)]
        assert not holds[0].lost.wait(0.2)
        assert [thread.name for thread in set(threading.enumerate()) - before] == ["consul-coord-loop"]
        assert client.stats().sessions_created == 1
        assert len(site.operator.sessions(site.unique)) == 1


def test_a_server_that_is_gone_does_not_hold_up_the_closing(
    site: Site, proxy: FaultProxy, make_client: MakeClient
) -> None:
    client = make_client(address=proxy.address)
    hold = Lock(client, site.key).acquire(timeout=5)
    proxy.go_down()
    with lasting(most=1.0):
        client.close(timeout=0.5)
    assert hold.reason is LossReason.CLIENT_CLOSED
    assert client.pending_cleanup == 2
    site.operator.destroy(hold.session)


def test_a_server_and_a_callback_that_are_slow_take_the_time_of_closing_once(
    site: Site, proxy: FaultProxy, make_client: MakeClient
) -> None:
    client, over = make_client(address=proxy.address), threading.Event()
    hold = Lock(client, site.key).acquire(timeout=5)
    hold.on_lost(lambda _: over.wait(20))
    proxy.go_down()
    try:
        with lasting(most=3.5):
            client.close(timeout=2.0)
    finally:
        over.set()
    site.operator.destroy(hold.session)


def test_closing_from_a_callback_is_possible(site: Site) -> None:
    client = Client(address=site.address, session=spec(site))
    hold, closed = Lock(client, site.key).acquire(timeout=5), threading.Event()

    def close(_: LossReason) -> None:
        client.close()
        closed.set()

    hold.on_lost(close)
    site.operator.destroy(hold.session)
    assert closed.wait(5)
    assert site.left_behind() == []


def test_two_threads_may_close(site: Site) -> None:
    client = Client(address=site.address, session=spec(site))
    Lock(client, site.key).run(lambda _: None)
    with ThreadPoolExecutor(4) as pool:
        for call in [pool.submit(client.close) for _ in range(4)]:
            call.result(5)
    assert eventually(lambda: site.left_behind() == [])


def test_closing_lets_a_release_under_way_come_first(site: Site, proxy: FaultProxy) -> None:
    client = Client(address=proxy.address, session=spec(site, lock_delay=30.0))
    hold = Lock(client, site.key).acquire(timeout=5)
    slow = proxy.add(Fault(lose=Lose.TIME, path="/v1/txn", containing=b'"unlock"'))
    with ThreadPoolExecutor(2) as pool:
        release = pool.submit(hold.release)
        assert slow.hit.wait(5)
        close = pool.submit(client.close)
        try:
            never(lambda: proxy.count("PUT", "/v1/session/destroy"), within=0.3)
        finally:
            slow.let_go()
        close.result(10)
        assert release.result(10) is ReleaseOutcome.RELEASED
    with Client(address=site.address, session=spec(site)) as other:
        assert Lock(other, site.key).try_acquire() is not None, "the lock-delay is in force"


def test_a_lock_that_is_gone_leaves_no_session(site: Site, client: Client) -> None:
    for number in range(3):
        Lock(client, f"{site.key}/{number}", session=spec(site)).run(lambda _: None)
    eventually(lambda: site.operator.sessions(site.unique) == [], within=5)  # half of its TTL


# -- what is under way when it closes


def test_a_session_that_is_just_being_made_is_destroyed_too(site: Site, proxy: FaultProxy) -> None:
    client = Client(address=proxy.address, session=spec(site))
    create = proxy.add(Fault(lose=Lose.TIME, path="/v1/session/create"))
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(Lock(client, site.key).acquire)
        assert create.hit.wait(5)
        close = pool.submit(client.close)
        with pytest.raises(ClientClosed):
            waiting.result(5)
        create.let_go()
        close.result(10)
    assert site.left_behind() == []
    assert client.pending_cleanup == 0


def test_a_candidates_session_that_is_just_being_made_is_destroyed_too(site: Site, proxy: FaultProxy) -> None:
    client = Client(address=proxy.address, session=spec(site))
    create = proxy.add(Fault(lose=Lose.TIME, path="/v1/session/create"))
    candidacy = LeaderElection(client, site.key)
    candidacy.start()
    assert create.hit.wait(5)
    with ThreadPoolExecutor(1) as pool:
        close = pool.submit(client.close)
        # It is looked for, and not found: the agent hears of it after that.
        eventually(lambda: proxy.count("GET", "/v1/session/list"))
        create.let_go()
        close.result(10)
    assert site.left_behind() == []
    assert client.pending_cleanup == 0


def test_a_session_that_can_not_be_looked_for_stays_counted(site: Site, proxy: FaultProxy) -> None:
    client = Client(address=proxy.address, session=spec(site))
    create = proxy.add(Fault(lose=Lose.TIME, path="/v1/session/create"))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(Lock(client, site.key).acquire)
        assert create.hit.wait(5)
        proxy.add(Fault(lose=Lose.AGENT, path="/v1/session/list", times=99))
        with lasting(most=4.0):
            client.close(timeout=2.0)
        with pytest.raises(ClientClosed):
            waiting.result(5)
    assert client.pending_cleanup == 1


@pytest.mark.parametrize("after", [0.0, 0.003, 0.01, 0.03, 0.1])
def test_a_client_closed_amid_its_users_leaves_nothing(site: Site, after: float) -> None:
    client = Client(address=site.address, session=spec(site))

    def own_lock(number: int) -> None:
        Lock(client, f"{site.key}/{number}", session=spec(site)).run(lambda _: None)

    def slot(number: int) -> None:
        Semaphore(client, f"{site.key}/slots", 2).run(lambda _: None)

    def use(cycle: Callable[[int], None], number: int) -> None:
        with suppress(ClientClosed, LockLost):
            while True:
                cycle(number)

    with ThreadPoolExecutor(6) as pool:
        users = [pool.submit(use, cycle, number) for number in range(3) for cycle in (own_lock, slot)]
        time.sleep(after)
        client.close()
        left, pending = site.left_behind(), client.pending_cleanup
        for user in users:
            user.result(10)
    assert (left, pending) == ([], 0)


def test_a_hold_dropped_while_the_client_closes_is_unlocked(
    site: Site, proxy: FaultProxy, make_client: MakeClient
) -> None:
    client = make_client(address=proxy.address, lock_delay=30.0)
    first = Lock(client, f"{site.key}/first").acquire(timeout=5)
    dropped = [Lock(client, site.key).acquire(timeout=5)]
    client._runner.core.closing.subscribe(dropped.clear)
    client.close()
    assert first.reason is LossReason.CLIENT_CLOSED
    with Client(address=site.address, session=spec(site)) as other:
        assert Lock(other, site.key).try_acquire() is not None, "the lock-delay is in force"


@pytest.mark.parametrize("is_held", [False, True])
def test_a_client_that_nobody_refers_to_any_more_closes_by_itself(site: Site, is_held: bool) -> None:
    before = set(threading.enumerate())
    client = Client(address=site.address, session=spec(site, lock_delay=30.0))
    hold = Lock(client, site.key).acquire(timeout=5)
    if not is_held:
        hold.release()
    assert site.left_behind()
    del client, hold
    eventually(lambda: not gc.collect() and site.left_behind() == [])
    eventually(lambda: set(threading.enumerate()) <= before)
    with Client(address=site.address, session=spec(site)) as other:
        assert Lock(other, site.key).try_acquire() is not None, "the lock-delay is in force"


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("request_number", [1, 2])
def test_a_close_that_was_interrupted_goes_on_when_it_is_repeated(
    site: Site, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], request_number: int
) -> None:
    client = Client(address=site.address, session=spec(site, lock_delay=30.0))
    holds = [Lock(client, f"{site.key}/{number}").acquire(timeout=5) for number in range(2)]
    transport = client._runner._transport
    send, sent = transport.send, itertools.count(1)

    def interrupted(*args: Any, **kwargs: Any) -> Response:
        if next(sent) == request_number:
            raise error
        return send(*args, **kwargs)

    monkeypatch.setattr(transport, "send", interrupted)
    with pytest.raises(error):
        client.close()
    client.close()
    assert site.left_behind() == []
    assert client.pending_cleanup == 0
    assert {hold.reason for hold in holds} == {LossReason.CLIENT_CLOSED}
    with Client(address=site.address, session=spec(site)) as other:  # released, so without a lock-delay
        assert all(Lock(other, f"{site.key}/{number}").try_acquire() for number in range(2))
    sent_before = next(sent)
    client.close()
    assert next(sent) == sent_before + 1
