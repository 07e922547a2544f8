"""``remove=True``: no key is left behind, unless somebody else has written to it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from consul_coord import Lock, MultiLock, ReentrantLock, ReleaseOutcome, RequestTimeout
from tests.support.proxy import Fault, Lose
from tests.support.sites import eventually

if TYPE_CHECKING:
    from consul_coord import Client
    from tests.lock.conftest import MakeClient
    from tests.support.proxy import FaultProxy
    from tests.support.sites import Site

DELETING = b'"delete"'
LOCKING = b'"Verb":"lock"'


def test_a_release_deletes_the_key_with_as_many_requests(
    site: Site, proxy: FaultProxy, make_client: MakeClient
) -> None:
    lock = Lock(make_client(address=proxy.address), site.key, remove=True)
    lock.run(lambda _: None)
    before = len(proxy.requests)
    with lock as hold:
        assert site.operator.holder(site.key) == hold.session
    assert len(proxy.requests) - before == 2
    assert site.operator.under(site.key) == []


def test_without_it_the_key_stays(site: Site, client: Client) -> None:
    Lock(client, site.key).run(lambda _: None)
    assert site.operator.under(site.key) == [site.key]


def test_a_waiter_gets_the_deleted_key_with_a_higher_fence(site: Site, make_client: MakeClient) -> None:
    first = Lock(make_client(), site.key, remove=True).acquire(timeout=5)
    second = Lock(make_client(), site.key, remove=True)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(second.acquire, timeout=20)
        eventually(lambda: site.operator.under(f"{site.key}/.wait/"))
        assert first.release() is ReleaseOutcome.RELEASED
        hold = waiting.result(20)
    assert hold.fence > first.fence
    assert hold.release() is ReleaseOutcome.RELEASED
    assert site.operator.under(site.key) == []


def test_what_the_holder_wrote_is_deleted(site: Site, client: Client) -> None:
    with Lock(client, site.key, value="a", remove=True) as hold:
        hold.put("b")
    assert site.operator.entry(site.key) is None


def test_what_somebody_else_wrote_is_kept(site: Site, client: Client) -> None:
    hold = Lock(client, site.key, remove=True).acquire(timeout=5)
    site.operator.put(site.key, b"a note", flags=7)
    assert hold.release() is ReleaseOutcome.RELEASED
    found = site.operator.entry(site.key)
    assert found is not None
    assert (found["Value"], found.get("Session")) == (b"a note", None)


@pytest.mark.parametrize("lose", [Lose.REQUEST, Lose.REPLY])
def test_a_lost_release_is_repeated_and_told_truthfully(
    site: Site, proxy: FaultProxy, make_client: MakeClient, lose: Lose
) -> None:
    hold = Lock(make_client(address=proxy.address), site.key, remove=True).acquire(timeout=5)
    fault = proxy.add(Fault(lose=lose, path="/v1/txn", containing=DELETING))
    assert hold.release() is ReleaseOutcome.RELEASED
    assert fault.hits == 1
    assert site.operator.under(site.key) == []


@pytest.mark.slow
def test_a_late_copy_of_the_release_deletes_no_later_hold(
    site: Site, proxy: FaultProxy, make_client: MakeClient
) -> None:
    lock = Lock(make_client(address=proxy.address, timeout=0.5), site.key, remove=True)
    hold = lock.acquire(timeout=5)
    late = proxy.add(Fault(lose=Lose.TIME, path="/v1/txn", containing=DELETING))
    hold.release()
    with lock.hold(timeout=10) as later:
        late.let_go()
        assert late.passed_on.wait(5)
        assert later.verify()


def test_a_forgotten_hold_leaves_no_key(site: Site, client: Client) -> None:
    hold = Lock(client, site.key, remove=True).acquire(timeout=5)
    hold.put("a word of its own")
    del hold
    eventually(lambda: site.operator.under(site.key) == [])


def test_a_take_that_arrives_after_its_client_gave_up_leaves_no_key(
    site: Site, proxy: FaultProxy, make_client: MakeClient
) -> None:
    lock = Lock(make_client(address=proxy.address, timeout=0.3), site.key, remove=True)
    lock.run(lambda _: None)
    late = proxy.add(Fault(lose=Lose.TIME, path="/v1/txn", containing=LOCKING))
    with pytest.raises(RequestTimeout):
        lock.try_acquire()
    late.let_go()
    assert late.passed_on.wait(5)
    eventually(lambda: site.operator.under(site.key) == [])


def test_the_last_of_a_reentrant_locks_releases_deletes_it(site: Site, client: Client) -> None:
    lock = ReentrantLock(client, site.key, remove=True)
    with lock:
        with lock:
            pass
        assert site.operator.holder(site.key)
    assert site.operator.under(site.key) == []


def test_several_keys_are_deleted_together(site: Site, client: Client) -> None:
    names = [f"{site.key}/{name}" for name in "ab"]
    with MultiLock(client, names, remove=True):
        assert site.operator.under(f"{site.key}/") == names
    assert site.operator.under(f"{site.key}/") == []
