"""Sessions that users keep: shared by locks, handed to another process, closed without a lock-delay, lost."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import anyio
import pytest

from consul_coord import (
    AcquireTimeout,
    AsyncClient,
    AsyncLock,
    Client,
    HoldState,
    InvalidArgument,
    LeaderElection,
    Lock,
    LockLost,
    LossReason,
    MultiLock,
    ReentrantLock,
    ReleaseOutcome,
    RequestTimeout,
    ResponseError,
    SessionNotFound,
    SessionSpec,
)
from consul_coord.events import Elected, HandedOver, Lost, OutageBegan, Released, TimedOut, Waiting
from consul_coord.recipes.cleanup.tasks import SWEEPS
from tests.lock import programs
from tests.lock.conftest import spec
from tests.lock.test_hold import Notes
from tests.support.proxy import Fault, Lose
from tests.support.sites import eventually

if TYPE_CHECKING:
    from tests.lock.conftest import MakeClient
    from tests.support.proxy import FaultProxy
    from tests.support.sites import Site


def kept(site: Site, *, ttl: float = 10.0, lock_delay: float = 30.0) -> SessionSpec:
    """Return a spec with a lock-delay, so that a destroy before the release would be seen."""
    return spec(site, ttl=ttl, lock_delay=lock_delay)


def test_several_locks_share_it(site: Site, client: Client) -> None:
    with client.keep_session(kept(site)) as session:
        assert site.operator.exists(session.id)
        assert 0 < session.remaining() <= 10
        locks = [Lock(client, f"{site.key}/{number}", session=session.id) for number in range(3)]
        several = MultiLock(client, [f"{site.key}/x", f"{site.key}/y"], session=session.id)
        holds = [lock.acquire(timeout=5) for lock in (*locks, several)]
        assert {hold.session for hold in holds} == {session.id}
        assert all(hold.is_held for hold in holds)
        holds[0].release()
        assert holds[1].is_held
    assert site.left_behind() == []


def test_closing_releases_and_then_destroys(site: Site, client: Client, make_client: MakeClient) -> None:
    session = client.keep_session(kept(site))
    hold = Lock(client, site.key, session=session.id).acquire(timeout=5)
    session.close()
    assert hold.state is HoldState.RELEASED
    assert not session.lost.is_set()
    # With the session destroyed first, the key would be in its lock-delay now.
    assert Lock(make_client(), site.key).acquire(timeout=5).fence > hold.fence
    eventually(lambda: not site.operator.exists(session.id))
    session.close()


def test_closing_gives_many_keys_back_too(site: Site, client: Client, make_client: MakeClient) -> None:
    keys = [f"{site.key}/{number}" for number in range(3)]
    with client.keep_session(kept(site)) as session:
        hold = MultiLock(client, keys, session=session.id).acquire(timeout=5)
    assert hold.state is HoldState.RELEASED
    assert MultiLock(make_client(), keys).acquire(timeout=5).is_held


def test_closing_gives_back_at_once_what_was_acquired_several_times(
    site: Site, client: Client, make_client: MakeClient
) -> None:
    session = client.keep_session(kept(site))
    lock = ReentrantLock(client, site.key, session=session.id)
    hold = lock.acquire(timeout=5)
    lock.acquire()
    session.close()
    assert hold.state is HoldState.RELEASED
    assert Lock(make_client(), site.key).acquire(timeout=5).fence > hold.fence


def test_what_was_forgotten_is_given_back_before_the_destroy(
    site: Site, proxy: FaultProxy, make_client: MakeClient
) -> None:
    client = make_client(address=proxy.address)
    late = proxy.add(Fault(lose=Lose.TIME, path="/v1/txn", containing=b'"unlock"'))
    session = client.keep_session(kept(site))
    hold = Lock(client, site.key, session=session.id).acquire(timeout=5)
    fence = hold.fence
    del hold
    gc.collect()
    assert late.hit.wait(5)
    session.close()
    assert site.operator.holder(site.key) == session.id
    late.let_go()
    assert Lock(make_client(), site.key).acquire(timeout=5).fence > fence
    eventually(lambda: not site.operator.exists(session.id))


@pytest.mark.parametrize("exported", [False, True])
def test_closing_waits_for_a_release_under_way_in_another_thread(
    site: Site, proxy: FaultProxy, make_client: MakeClient, *, exported: bool
) -> None:
    """Else the key gets the lock-delay, or the release frees the hold of whoever resumes the session."""
    client = make_client(address=proxy.address)
    late = proxy.add(Fault(lose=Lose.TIME, path="/v1/txn", containing=b'"unlock"'))
    session = client.keep_session(kept(site))
    hold = Lock(client, site.key, session=session.id).acquire(timeout=5)
    with ThreadPoolExecutor(2) as threads:
        releasing = threads.submit(hold.release)
        assert late.hit.wait(5)
        text = session.export() if exported else ""
        closing = threads.submit(session.close)
        with pytest.raises(TimeoutError):
            closing.result(0.3)
        late.let_go()
        assert releasing.result() is ReleaseOutcome.RELEASED
        closing.result()
    again = Lock(make_client(), site.key).acquire(timeout=5)
    assert again.fence > hold.fence
    if exported:
        client.keep_session(kept(site), resume=text).close()


def test_who_waits_here_for_what_closing_releases_gets_nothing_with_the_session(
    site: Site, proxy: FaultProxy, make_client: MakeClient
) -> None:
    seen = Notes()
    client = make_client(address=proxy.address, observer=seen)
    session = client.keep_session(kept(site))
    hold = Lock(client, site.key, session=session.id).acquire(timeout=5)
    other = Lock(client, f"{site.key}.2", session=session.id).acquire(timeout=5)
    unlock = f'"check-index","Key":"{other.key}"'.encode()
    late = proxy.add(Fault(lose=Lose.TIME, path="/v1/txn", containing=unlock))
    with ThreadPoolExecutor(2) as threads:
        waiting = threads.submit(Lock(client, site.key, session=session.id).acquire, timeout=20)
        assert eventually(lambda: seen.of(Waiting))
        closing = threads.submit(session.close)
        assert late.hit.wait(5)
        with pytest.raises(SessionNotFound):
            waiting.result(5)
        late.let_go()
        closing.result()
    assert {hold.state, other.state} == {HoldState.RELEASED}
    assert Lock(make_client(), site.key).acquire(timeout=5).fence > hold.fence


@pytest.mark.parametrize("what", ["session", "client"])
def test_a_handler_that_closes_amid_a_release_makes_no_loss_of_it(
    site: Site, proxy: FaultProxy, make_client: MakeClient, what: str
) -> None:
    """The background gives the key back then, and the interrupted release finds it free."""
    client = make_client(address=proxy.address)
    session = client.keep_session(kept(site))
    hold = Lock(client, site.key, session=session.id).acquire(timeout=5)
    late = proxy.add(Fault(lose=Lose.TIME, path="/v1/txn", containing=b'"unlock"'))

    def close(*_: object) -> None:
        session.close() if what == "session" else client.close()
        eventually(lambda: site.operator.holder(site.key) is None)
        late.let_go()

    def interrupt() -> None:
        assert late.hit.wait(5)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, close)
    try:
        with ThreadPoolExecutor(1) as threads:
            threads.submit(interrupt)
            outcome = hold.release()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert outcome is hold.release() is ReleaseOutcome.UNKNOWN
    assert (hold.state, hold.reason) == (HoldState.RELEASED, None)
    eventually(lambda: not site.operator.exists(session.id))
    assert Lock(make_client(), site.key).acquire(timeout=5).fence > hold.fence


def test_who_waits_with_a_session_that_is_being_closed_gets_nothing_with_it(
    site: Site, proxy: FaultProxy, make_client: MakeClient
) -> None:
    client = make_client(address=proxy.address)
    other = Lock(make_client(), site.key).acquire(timeout=5)
    late = proxy.add(Fault(lose=Lose.TIME, path="/v1/session/destroy"))
    session = client.keep_session(kept(site))
    with ThreadPoolExecutor(2) as threads:
        waiting = threads.submit(Lock(client, site.key, session=session.id).acquire, timeout=20)
        assert eventually(partial(site.operator.under, f"{site.key}/.wait/"))
        closing = threads.submit(session.close)
        assert late.hit.wait(5)
        other.release()
        with pytest.raises(SessionNotFound) as told:
            waiting.result(5)
        assert told.value.session == session.id
        assert site.operator.holder(site.key) is None
        late.let_go()
        closing.result()
    Lock(make_client(), site.key).acquire(timeout=5)


def test_a_client_that_closes_releases_first_too(site: Site, make_client: MakeClient) -> None:
    client = make_client()
    session = client.keep_session(kept(site))
    hold = Lock(client, site.key, session=session.id).acquire(timeout=5)
    client.close()
    assert hold.reason is LossReason.CLIENT_CLOSED
    assert not site.operator.exists(session.id)
    assert Lock(make_client(), site.key).acquire(timeout=5).is_held


def test_it_is_renewed_while_it_is_kept(site: Site, client: Client) -> None:
    with client.keep_session(kept(site, ttl=0.6)) as session:
        assert not session.lost.wait(1.5)
        assert site.operator.exists(session.id)
        assert session.remaining() > 0


def test_its_loss_is_told_once_and_is_final(site: Site, client: Client) -> None:
    session = client.keep_session(kept(site, ttl=1.0))
    lock = Lock(client, site.key, session=session.id)
    hold = lock.acquire(timeout=5)
    site.operator.destroy(session.id)
    assert session.lost.wait(5)
    assert session.lost.is_set()
    assert session.remaining() == 0
    assert hold.reason is LossReason.SESSION_GONE
    with pytest.raises(LockLost):
        hold.check()
    with pytest.raises(SessionNotFound):
        lock.acquire(timeout=1)
    session.close()
    assert session.lost.is_set()


def test_locks_that_begin_at_once_share_a_session_given_by_its_id(
    site: Site, proxy: FaultProxy, make_client: MakeClient
) -> None:
    seen = Notes()
    client = make_client(address=proxy.address, observer=seen)
    outside = site.operator.create(ttl="2s", lock_delay="1s")
    keys = (f"{site.key}/0", f"{site.key}/1")
    late = proxy.add(Fault(lose=Lose.TIME, path="/v1/session/renew", times=2))
    with ThreadPoolExecutor(2) as threads:
        taking = [threads.submit(Lock(client, key, session=outside).acquire, timeout=5) for key in keys]
        assert eventually(lambda: late.hits == len(keys))
        late.let_go()
        holds = [each.result() for each in taking]
    proxy.go_down()
    (began,) = eventually(lambda: seen.of(OutageBegan))
    assert began.keys == keys, "with two sessions, each outage, fork and close would concern one of them"
    proxy.come_up()
    assert all(hold.verify() for hold in holds)


# -- handing over


def lock_of(client: Client, keys: list[str], session: str) -> Lock | MultiLock:
    given = session or None
    return MultiLock(client, keys, session=given) if len(keys) > 1 else Lock(client, keys[0], session=given)


def test_an_exported_session_outlives_its_client(site: Site, make_client: MakeClient) -> None:
    client = make_client()
    session = client.keep_session(kept(site))
    hold = Lock(client, site.key, session=session.id).acquire(timeout=5)
    text = session.export()
    session.close()
    client.close()
    assert site.operator.exists(session.id)
    assert site.operator.holder(site.key) == session.id

    successor = make_client()
    with successor.keep_session(kept(site), resume=text) as resumed:
        assert resumed.id == session.id
        again = Lock(successor, site.key, session=resumed.id).acquire(timeout=5)
        assert again.fence == hold.fence
        assert again.verify()
        again.put(b"still mine")
    assert site.left_behind() == []


def test_a_hold_that_was_dropped_after_the_export_is_told_as_handed_over(
    site: Site, make_client: MakeClient
) -> None:
    notes = Notes()
    client = make_client(observer=notes)
    session = client.keep_session(kept(site))
    hold = Lock(client, site.key, session=session.id).acquire(timeout=5)
    fence = hold.fence
    session.export()
    del hold
    gc.collect()
    assert eventually(lambda: notes.of(HandedOver) == [HandedOver(site.key, session.id, fence)])
    client.close()
    assert site.operator.holder(site.key) == session.id


def test_a_candidate_does_not_lead_on_with_a_session_that_was_handed_over(
    site: Site, client: Client, make_client: MakeClient
) -> None:
    session = client.keep_session(kept(site))
    with LeaderElection(client, site.key, session=session.id, retry_wait=(0.0, 0.1)) as election:
        term = election.wait_for_leadership(timeout=5).term
        text = session.export()
        session.close()
        assert eventually(lambda: isinstance(election.problem, SessionNotFound))
        after = make_client()
        with (
            after.keep_session(kept(site), resume=text) as resumed,
            LeaderElection(after, site.key, session=resumed.id) as successor,
        ):
            assert successor.wait_for_leadership(timeout=5).term == term
            assert not election.is_leader
            assert isinstance(election.problem, SessionNotFound)
    assert site.left_behind() == []


@pytest.mark.parametrize("others", [0, 1], ids=["one key", "two keys"])
def test_who_waits_with_a_session_that_is_handed_over_gets_nothing_with_it(
    site: Site, make_client: MakeClient, others: int
) -> None:
    seen = Notes()
    client = make_client(observer=seen)
    keys = [site.key, *(f"{site.key}/{number}" for number in range(others))]
    before = make_client()
    other = lock_of(before, keys, "").acquire(timeout=5)
    session = client.keep_session(kept(site))
    lock = lock_of(client, keys, session.id)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lock.acquire, timeout=20)
        assert eventually(lambda: seen.of(Waiting))
        text = session.export()
        session.close()
        other.release()
        with pytest.raises(SessionNotFound, match="keep_session") as told:
            waiting.result()
    assert told.value.session == session.id
    with pytest.raises(SessionNotFound):
        lock.acquire(timeout=1)
    assert {site.operator.holder(key) for key in keys} == {None}
    with client.keep_session(kept(site), resume=text):
        lock.acquire(timeout=5).release()
    before.close()
    assert site.left_behind() == []


@pytest.mark.parametrize("lost", ["granted", "withdrawn"])
def test_a_client_that_has_handed_a_session_over_does_not_tidy_up_behind_the_next_one(
    site: Site, proxy: FaultProxy, make_client: MakeClient, lost: str
) -> None:
    """It looks again and again for what a request without an answer may have left; then it is another's."""
    client = make_client(address=proxy.address)
    session = client.keep_session(kept(site))
    if lost == "granted":
        proxy.add(Fault(lose=Lose.REPLY, path="/v1/txn", containing=b'"lock"'))
        Lock(client, site.key, session=session.id).acquire(timeout=5)
    else:
        other = Lock(make_client(), site.key).acquire(timeout=5)
        proxy.add(Fault(lose=Lose.REPLY, path="/v1/txn", containing=b'"lock"', times=2))
        with pytest.raises(AcquireTimeout):
            Lock(client, site.key, session=session.id).acquire(timeout=0.5)
        other.release()
    assert client.pending_cleanup
    text = session.export()
    session.close()
    after = make_client()
    with after.keep_session(kept(site), resume=text) as resumed:
        again = Lock(after, site.key, session=resumed.id).acquire(timeout=5)
        assert not again.lost.wait(SWEEPS[0] + 0.5)
        assert again.verify()
    assert client.pending_cleanup == 0


@pytest.mark.slow
@pytest.mark.parametrize("amid", ["a wait", "a release"])
def test_a_client_that_has_handed_a_session_over_in_trouble_does_nothing_afterwards(
    site: Site, proxy: FaultProxy, make_client: MakeClient, amid: str
) -> None:
    """A clean-up that has failed before is left undone: the next client may have the key by then."""
    client = make_client(address=proxy.address)
    session = client.keep_session(kept(site))
    lock = Lock(client, site.key, session=session.id)
    trouble = [Fault(lose=Lose.AGENT, path=path, times=1_000) for path in ("/v1/kv/", "/v1/txn")]
    other = Lock(make_client(), site.key).acquire(timeout=5) if amid == "a wait" else None
    with ThreadPoolExecutor(1) as threads:
        if other is not None:
            waiting = threads.submit(lock.acquire, timeout=30)
            assert eventually(partial(site.operator.under, f"{site.key}/.wait/"))
            text = session.export()
            for fault in trouble:
                proxy.add(fault)
            session.close()
            with pytest.raises(SessionNotFound):
                waiting.result()
            other.release()
        else:
            hold = lock.acquire(timeout=5)
            for fault in trouble:
                proxy.add(fault)
            releasing = threads.submit(hold.release)
            assert trouble[-1].hit.wait(5)
            text = session.export()
            session.close()
            assert releasing.result() is ReleaseOutcome.UNKNOWN
    after = make_client()
    with after.keep_session(kept(site), resume=text) as resumed:
        again = Lock(after, site.key, session=resumed.id).acquire(timeout=5)
        proxy.clear()
        assert not again.lost.wait(2.5)
        assert again.verify()
    assert eventually(lambda: client.pending_cleanup == 0)


@pytest.mark.parametrize("others", [0, 1], ids=["one key", "two keys"])
def test_what_is_granted_late_to_a_session_that_was_handed_over_is_left_to_the_next_client(
    site: Site, proxy: FaultProxy, make_client: MakeClient, others: int
) -> None:
    client = make_client(address=proxy.address)
    session = client.keep_session(kept(site))
    keys = [site.key, *(f"{site.key}/{number}" for number in range(others))]
    late = proxy.add(Fault(lose=Lose.TIME, path="/v1/txn", containing=b'"lock"'))
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lock_of(client, keys, session.id).acquire, timeout=20)
        assert late.hit.wait(5)
        text = session.export()
        session.close()
        after = make_client()
        with after.keep_session(kept(site), resume=text) as resumed:
            again = lock_of(after, keys, resumed.id).acquire(timeout=5)
            late.let_go()
            with pytest.raises(SessionNotFound):
                waiting.result()
            assert not again.lost.wait(0.3)
            assert again.verify()
    assert client.pending_cleanup == 0


def test_who_has_joined_a_queue_without_an_answer_leaves_it_though_the_session_is_handed_over(
    site: Site, proxy: FaultProxy, make_client: MakeClient
) -> None:
    """The session lives on, and so would a contender that stands for nobody: all behind it would wait."""
    client = make_client(address=proxy.address, timeout=1.0)
    other = Lock(make_client(), site.key).acquire(timeout=5)
    session = client.keep_session(kept(site))
    proxy.add(Fault(lose=Lose.REPLY, path="/v1/txn", containing=b'"lock"'))
    late = proxy.add(Fault(lose=Lose.TIME, path="/v1/txn", containing=b'"lock"'))
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(Lock(client, site.key, session=session.id).acquire, timeout=20)
        assert late.hit.wait(5)
        assert site.operator.under(f"{site.key}/.wait/")
        session.export()
        session.close()
        with pytest.raises(SessionNotFound):
            waiting.result()
    assert site.operator.exists(session.id)
    eventually(lambda: not site.operator.under(f"{site.key}/.wait/"))
    other.release()
    site.operator.destroy(session.id)


def test_a_session_that_is_resumed_here_while_it_is_handed_over_is_of_use(
    site: Site, proxy: FaultProxy, make_client: MakeClient
) -> None:
    client = make_client(address=proxy.address)
    session = client.keep_session(kept(site))
    hold = Lock(client, site.key, session=session.id).acquire(timeout=5)
    late = proxy.add(Fault(lose=Lose.TIME, path="/v1/txn", containing=b'"unlock"'))
    del hold
    gc.collect()
    assert late.hit.wait(5)
    text = session.export()
    with ThreadPoolExecutor(1) as threads:
        closing = threads.submit(session.close)
        with pytest.raises(TimeoutError):
            closing.result(0.3)
        with client.keep_session(kept(site), resume=text) as resumed:
            late.let_go()
            closing.result()
            assert Lock(client, site.key, session=resumed.id).acquire(timeout=5).verify()


@pytest.mark.parametrize("contact", ["lost", "back"])
def test_a_candidate_does_not_lead_on_with_a_session_that_was_handed_over_after_an_outage(
    site: Site, proxy: FaultProxy, make_client: MakeClient, contact: str
) -> None:
    """Its lease is over here, and it lives on in Consul: there it may be taken up again by its id."""
    client, after = make_client(address=proxy.address), make_client()
    session = client.keep_session(kept(site, ttl=4.0, lock_delay=2.0))
    with LeaderElection(client, site.key, session=session.id, retry_wait=(0.0, 0.1)) as election:
        election.wait_for_leadership(timeout=5)
        text = session.export()
        proxy.go_down()
        assert session.lost.wait(5)
        if contact == "back":
            proxy.come_up()
            election.wait_for_leadership(timeout=5)
        session.close()
        with after.keep_session(kept(site, ttl=4.0, lock_delay=2.0), resume=text) as resumed:
            successor = Lock(after, site.key, session=resumed.id).acquire(timeout=5)
            proxy.come_up()
            assert eventually(lambda: isinstance(election.problem, SessionNotFound))
            assert not election.is_leader
            assert successor.verify()


def test_a_session_that_is_handed_over_just_as_it_is_taken_up_again_by_its_id_is_not_used(
    site: Site, proxy: FaultProxy, make_client: MakeClient
) -> None:
    """Its lease is over here, and it lives on in Consul. The renewal that takes it up is answered late."""
    client, after = make_client(address=proxy.address), make_client()
    session = client.keep_session(kept(site, ttl=4.0, lock_delay=2.0))
    text = session.export()
    lock = Lock(client, site.key, session=session.id)
    proxy.go_down()
    assert session.lost.wait(5)
    late = proxy.add(Fault(lose=Lose.TIME, path="/v1/session/renew"))
    proxy.come_up()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lock.acquire, timeout=20)
        assert late.hit.wait(5)
        session.close()
        with after.keep_session(kept(site, ttl=4.0, lock_delay=2.0), resume=text) as resumed:
            again = Lock(after, site.key, session=resumed.id).acquire(timeout=5)
            late.let_go()
            with pytest.raises(SessionNotFound, match="was exported and closed"):
                waiting.result()
            assert again.verify()


def test_an_unlock_under_way_is_waited_for_also_where_the_lease_is_over(
    site: Site, proxy: FaultProxy, make_client: MakeClient
) -> None:
    """The next client may get the key as it is: the unlock would free it then."""
    client, after = make_client(address=proxy.address), make_client()
    session = client.keep_session(kept(site, ttl=8.0, lock_delay=4.0))
    hold = Lock(client, site.key, session=session.id).acquire(timeout=5)
    late = proxy.add(Fault(lose=Lose.TIME, path="/v1/txn", containing=b'"unlock"'))
    del hold
    gc.collect()
    assert late.hit.wait(5)
    text = session.export()
    proxy.add(Fault(lose=Lose.AGENT, path="/v1/session/renew", times=1_000))
    assert session.lost.wait(10)
    with ThreadPoolExecutor(1) as threads:
        closing = threads.submit(session.close)
        with pytest.raises(TimeoutError):
            closing.result(0.3)
        late.let_go()
        closing.result()
    with after.keep_session(kept(site, ttl=8.0, lock_delay=4.0), resume=text) as resumed:
        again = Lock(after, site.key, session=resumed.id).acquire(timeout=5)
        assert not again.lost.wait(0.3)
        assert again.verify()


def test_a_candidate_does_not_lead_on_with_a_session_that_is_about_to_be_destroyed(
    site: Site, proxy: FaultProxy, make_client: MakeClient
) -> None:
    """Its lease was over in an outage. Elected again, it would lose that at once, with the lock-delay."""
    seen = Notes()
    client = make_client(address=proxy.address, observer=seen)
    session = client.keep_session(kept(site, ttl=4.0, lock_delay=2.0))
    with LeaderElection(client, site.key, session=session.id, retry_wait=(0.0, 0.1)) as election:
        election.wait_for_leadership(timeout=5)
        proxy.go_down()
        assert session.lost.wait(5)
        proxy.come_up()
        eventually(lambda: not site.operator.exists(session.id))
        assert eventually(lambda: isinstance(election.problem, SessionNotFound))
    assert len(seen.of(Elected)) == len(seen.of(Lost)) == 1


def test_closing_the_client_alone_leaves_an_exported_session_as_it_is(
    site: Site, make_client: MakeClient
) -> None:
    notes = Notes()
    client = make_client(observer=notes)
    session = client.keep_session(kept(site))
    single = Lock(client, site.key, session=session.id).acquire(timeout=5)
    many = MultiLock(client, [f"{site.key}/a", f"{site.key}/b"], session=session.id).acquire(timeout=5)
    session.export()
    client.close()
    assert {single.state, many.state} == {HoldState.LOST}
    assert site.operator.exists(session.id)
    names = [site.key, f"{site.key}/a", f"{site.key}/b"]
    assert {site.operator.holder(name) for name in names} == {session.id}
    eventually(lambda: len(notes.of(HandedOver)) > 1)
    assert {each.fence for each in notes.of(HandedOver)} == {single.fence, many.fence}
    assert [*notes.of(Lost), *notes.of(Released)] == []
    site.operator.destroy(session.id)


def test_an_exported_hold_that_nobody_refers_to_is_not_given_back(
    site: Site, make_client: MakeClient
) -> None:
    client = make_client()
    session = client.keep_session(kept(site))
    hold = Lock(client, site.key, session=session.id).acquire(timeout=5)
    session.export()
    del hold
    gc.collect()
    assert client.pending_cleanup == 0
    assert site.operator.holder(site.key) == session.id
    site.operator.destroy(session.id)


def test_the_client_itself_may_go_on_with_it(site: Site, client: Client) -> None:
    with client.keep_session(kept(site)) as before:
        hold = Lock(client, site.key, session=before.id).acquire(timeout=5)
        text = before.export()
        after = client.keep_session(kept(site), resume=text)
        assert hold.state is HoldState.LOST
        again = Lock(client, site.key, session=after.id).acquire(timeout=5)
        assert (again.session, again.fence) == (hold.session, hold.fence)
    assert again.is_held, "leaving the first block ends nothing"
    assert again.verify()
    after.close()
    assert site.left_behind() == []


def test_a_session_that_can_not_be_resumed_here_yet_stays_with_who_has_it(
    site: Site, proxy: FaultProxy, make_client: MakeClient
) -> None:
    client = make_client(address=proxy.address, timeout=0.5)
    session = client.keep_session(kept(site))
    hold = Lock(client, site.key, session=session.id).acquire(timeout=5)
    text = session.export()
    proxy.add(Fault(lose=Lose.AGENT, path="/v1/session/renew", times=1_000))
    with pytest.raises((ResponseError, RequestTimeout)):  # its last try may have little time
        client.keep_session(kept(site), resume=text)
    assert hold.is_held
    proxy.clear()
    with client.keep_session(kept(site), resume=text):
        assert hold.reason is LossReason.CLIENT_CLOSED


@pytest.mark.parametrize("others", [0, 1], ids=["one key", "two keys"])
def test_who_waits_here_for_a_resumed_session_does_not_keep_it_from_its_keys(
    site: Site, client: Client, make_client: MakeClient, others: int
) -> None:
    """One caller of a client waits for the session, and only another caller of it can give the keys back."""
    keys = [site.key, *(f"{site.key}/{number}" for number in range(others))]
    before = make_client()
    session = before.keep_session(kept(site))
    fence = lock_of(before, keys, session.id).acquire(timeout=5).fence
    text = session.export()
    session.close()
    with (
        ThreadPoolExecutor(len(keys) + 1) as threads,
        client.keep_session(kept(site), resume=text) as resumed,
    ):
        waiting = [threads.submit(Lock(client, key).acquire, timeout=30) for key in keys]
        for key in keys:
            assert eventually(partial(site.operator.under, f"{key}/.wait/"))
        again = lock_of(client, keys, resumed.id).acquire(timeout=5)
        assert (again.session, again.fence) == (resumed.id, fence)
        with pytest.raises(AcquireTimeout):  # one session, two threads: still one at a time
            threads.submit(Lock(client, site.key, session=resumed.id).acquire, timeout=0.2).result()
        again.release()
        for holding in waiting:
            holding.result().release()
    client.close()
    assert site.left_behind() == []


def test_a_caller_that_can_not_see_who_has_the_key_reports_its_end_once(
    site: Site, proxy: FaultProxy, make_client: MakeClient
) -> None:
    notes = Notes()
    client = make_client(address=proxy.address, observer=notes)
    with client.keep_session(kept(site)) as session, ThreadPoolExecutor(1) as threads:
        hold = Lock(client, site.key).acquire(timeout=5)
        lost = Fault(lose=Lose.AGENT, method="GET", path=f"/v1/kv/{site.key}?consistent", times=1_000)
        proxy.add(lost)
        with pytest.raises(AcquireTimeout):
            threads.submit(Lock(client, site.key, session=session.id).acquire, timeout=0.5).result()
        proxy.clear()
        hold.release()
    assert lost.hits
    assert len(notes.of(TimedOut)) == 1


def test_another_process_goes_on_with_it(site: Site) -> None:
    first = """
session = client.keep_session(SessionSpec(ttl=10, lock_delay=30, name=NAME))
hold = Lock(client, KEY, session=session.id).acquire(timeout=5)
say(session.id, hold.fence, session.export())
"""
    ((session, fence, text),) = [line.split() for line in programs.run(first, site)]
    assert site.operator.holder(site.key) == session
    second = f"""
with client.keep_session(SessionSpec(ttl=10, lock_delay=30, name=NAME), resume={text!r}) as session:
    hold = Lock(client, KEY, session=session.id).acquire(timeout=5)
    say(session.id, hold.fence, hold.verify())
"""
    assert programs.run(second, site) == [f"{session} {fence} True"]
    assert site.left_behind() == []


def test_a_session_that_has_ended_can_not_be_resumed(site: Site, make_client: MakeClient) -> None:
    client = make_client()
    session = client.keep_session(kept(site))
    text = session.export()
    session.close()
    site.operator.destroy(session.id)
    with pytest.raises(SessionNotFound) as told:
        make_client().keep_session(kept(site), resume=text)
    assert told.value.session == session.id


@pytest.mark.parametrize("ended", ["closed", "destroyed"])
def test_a_session_that_has_ended_can_not_be_exported(site: Site, client: Client, ended: str) -> None:
    session = client.keep_session(kept(site, ttl=1.0))
    if ended == "closed":
        session.close()
    else:
        site.operator.destroy(session.id)
        assert session.lost.wait(5)
    with pytest.raises(SessionNotFound, match="exported") as told:
        session.export()
    assert told.value.session == session.id


def test_an_exported_session_that_was_closed_has_the_same_text(site: Site, client: Client) -> None:
    session = client.keep_session(kept(site))
    text = session.export()
    session.close()
    assert session.export() == text
    site.operator.destroy(session.id)


@pytest.mark.parametrize("text", ["", "nonsense", "consul-coord-session:1:", "consul-coord-session:2:abc"])
def test_only_an_exports_text_is_resumed(site: Site, client: Client, text: str) -> None:
    with pytest.raises(InvalidArgument):
        client.keep_session(kept(site), resume=text)


def test_a_forked_child_can_not_export_its_parents_session(site: Site) -> None:
    program = """
session = client.keep_session(SessionSpec(ttl=10, lock_delay=30, name=NAME))
read, write = os.pipe()
if (child := os.fork()) == 0:
    try:
        os.write(write, session.export().encode())
    except SessionNotFound as error:
        os.write(write, str(error).encode())
    os._exit(0)
os.waitpid(child, 0)
say("parent" in os.read(read, 1000).decode(), session.remaining() > 0)
session.close()
"""
    assert programs.run(program, site) == ["True True"]


def test_without_a_successor_the_ttl_ends_it(site: Site, make_client: MakeClient) -> None:
    client = make_client()
    session = client.keep_session(kept(site, ttl=0.4, lock_delay=0.0))
    hold = Lock(client, site.key, session=session.id).acquire(timeout=5)
    session.export()
    session.close()
    assert site.operator.holder(site.key) == hold.session
    assert Lock(make_client(), site.key).acquire(timeout=5).fence > hold.fence


def test_a_resumed_session_keeps_the_servers_settings(site: Site, make_client: MakeClient) -> None:
    client = make_client()
    session = client.keep_session(kept(site, ttl=1.0))
    text = session.export()
    session.close()
    with make_client().keep_session(kept(site, ttl=600.0), resume=text) as resumed:
        assert resumed.remaining() <= 1.0
        assert not resumed.lost.wait(1.3)


# -- on an event loop


@pytest.mark.anyio
async def test_async_closing_releases_and_then_destroys(site: Site) -> None:
    async with AsyncClient(address=site.address, session=spec(site)) as client:
        async with await client.keep_session(kept(site)) as session:
            hold = await AsyncLock(client, site.key, session=session.id).acquire(timeout=5)
            assert hold.session == session.id
            assert not session.lost.is_set()
        assert hold.state is HoldState.RELEASED
        async with AsyncLock(client, site.key).hold(timeout=5) as again:
            assert again.fence > hold.fence
    assert site.left_behind() == []


def test_a_task_that_is_cancelled_while_it_closes_a_session_leaves_the_rest_to_the_background(
    site: Site, proxy: FaultProxy
) -> None:
    async def main() -> None:
        async with AsyncClient(address=proxy.address, session=spec(site)) as client:
            session = await client.keep_session(kept(site))
            locks = [AsyncLock(client, f"{site.key}/{number}", session=session.id) for number in range(2)]
            holds = [await lock.acquire(timeout=5) for lock in locks]
            late = proxy.add(Fault(lose=Lose.TIME, path="/v1/txn", containing=b'"unlock"'))
            closing = asyncio.create_task(session.close())
            assert await asyncio.to_thread(late.hit.wait, 5)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            late.let_go()
            assert await asyncio.to_thread(eventually, lambda: not site.operator.exists(session.id))
            assert {hold.state for hold in holds} == {HoldState.RELEASED}
            for hold in holds:
                async with AsyncLock(client, hold.key).hold(timeout=5):
                    """With the session destroyed first, the key would be in its lock-delay now."""

    asyncio.run(main())
    assert site.left_behind() == []


@pytest.mark.anyio
async def test_async_handing_over(site: Site) -> None:
    async with AsyncClient(address=site.address, session=spec(site)) as client:
        session = await client.keep_session(kept(site))
        hold = await AsyncLock(client, site.key, session=session.id).acquire(timeout=5)
        text = session.export()
    async with (
        AsyncClient(address=site.address, session=spec(site)) as client,
        await client.keep_session(kept(site), resume=text) as resumed,
    ):
        again = await AsyncLock(client, site.key, session=resumed.id).acquire(timeout=5)
        assert (again.fence, resumed.id) == (hold.fence, hold.session)
    assert site.left_behind() == []


@pytest.mark.anyio
async def test_async_loss(site: Site) -> None:
    async with AsyncClient(address=site.address, session=spec(site)) as client:
        session = await client.keep_session(kept(site, ttl=1.0))
        await anyio.to_thread.run_sync(site.operator.destroy, session.id)
        assert await session.lost.wait(5)
        with pytest.raises(SessionNotFound):
            await AsyncLock(client, site.key, session=session.id).acquire(timeout=1)
        await session.close()
