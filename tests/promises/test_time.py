"""Deadlines count from the time of sending, whatever the reply takes; and waiting ends when it is said to."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

import pytest

from consul_coord import (
    AcquireCancelled,
    AcquireTimeout,
    Client,
    LeaderElection,
    Lock,
    MultiLock,
    ReadWriteLock,
    Semaphore,
)
from tests.promises.conftest import SPEC, TTL
from tests.promises.waiting import settled
from tests.support.proxy import Fault, Lose
from tests.support.sites import eventually
from tests.support.stalls import stalls

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord import Hold, Permit
    from consul_coord.clock import SystemClock
    from consul_coord.server import ReferenceServer
    from tests.promises.conftest import MakeClient
    from tests.support.proxy import FaultProxy
    from tests.support.sites import Operator

LEASE: Final = 0.95 * TTL
SLOW: Final = 0.7
"""Seconds that a reply takes."""
ENDED: Final = 0.1
"""Seconds within which a call ends that is to end."""


def answered_late(proxy: FaultProxy, path: str) -> Fault:
    """Have the next request to a path take ``SLOW`` seconds."""
    fault = proxy.add(Fault(lose=Lose.TIME, method="PUT", path=path))

    def answer() -> None:
        if fault.hit.wait(10):
            time.sleep(SLOW)
        fault.let_go()

    threading.Thread(target=answer, daemon=True).start()
    return fault


CLOSED = 5.0 + 3.0
"""Within so many seconds a connection is closed after its last use; some more for a busy machine."""

TAKES: dict[str, Callable[[Client, str], Hold | Permit]] = {
    "lock": lambda client, key: Lock(client, key).acquire(timeout=5),
    "fair lock": lambda client, key: Lock(client, key, fair=True).acquire(timeout=5),
    "multi": lambda client, key: MultiLock(client, [f"{key}/a", f"{key}/b"]).acquire(timeout=5),
    "read": lambda client, key: ReadWriteLock(client, key, session=SPEC).read.acquire(timeout=5),
    "write": lambda client, key: ReadWriteLock(client, key, session=SPEC).write.acquire(timeout=5),
    "permit": lambda client, key: Semaphore(client, key, 1).acquire(timeout=5),
}


@pytest.mark.parametrize("kind", TAKES)
def test_a_slow_create_costs_the_lease_its_time(
    proxy: FaultProxy, client: Client, key: str, kind: str
) -> None:
    fault = answered_late(proxy, "/v1/session/create")
    asked_at = client.now()
    hold = TAKES[kind](client, key)
    assert fault.hits == 1
    # The request was sent a moment after it was asked for, and long before it was answered.
    assert hold.deadline() < asked_at + LEASE + SLOW / 2
    assert hold.remaining() <= LEASE - SLOW


def test_a_slow_create_costs_a_leadership_its_time(proxy: FaultProxy, client: Client, key: str) -> None:
    answered_late(proxy, "/v1/session/create")
    asked_at = client.now()
    with LeaderElection(client, key) as election:
        me = election.wait_for_leadership(timeout=10)
        assert me.deadline() < asked_at + LEASE + SLOW / 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", TAKES)
def test_a_slow_renewal_extends_the_lease_from_its_sending(
    proxy: FaultProxy, client: Client, key: str, kind: str
) -> None:
    hold = TAKES[kind](client, key)
    fault = answered_late(proxy, "/v1/session/renew/")
    asked_at = client.now()
    hold.ensure(LEASE - 5 * SLOW)
    if fault.hit.wait(0.05):
        assert hold.deadline() < asked_at + LEASE + SLOW / 2
    time.sleep(2 * SLOW)
    renewed_at = client.now()
    hold.ensure(LEASE - SLOW)
    assert hold.deadline() < renewed_at + LEASE + SLOW / 2


@pytest.mark.slow
def test_a_renewal_without_an_answer_extends_nothing(proxy: FaultProxy, client: Client, key: str) -> None:
    hold = Lock(client, key).acquire(timeout=5)
    proxy.add(Fault(lose=Lose.REPLY, method="PUT", path="/v1/session/renew/", times=1_000))
    before = hold.deadline()
    with pytest.raises(Exception, match="renew"):
        hold.ensure(LEASE - 0.001)
    assert hold.deadline() == before


@pytest.mark.slow
@pytest.mark.parametrize("ended_by", ["time-out", "cancel"])
@pytest.mark.parametrize("kind", TAKES)
def test_an_acquire_that_ended_leaves_no_query_with_the_agent(
    server: ReferenceServer[SystemClock],
    make_client: MakeClient,
    key: str,
    kind: str,
    ended_by: str,
) -> None:
    straight = {"address": server.address}  # the proxy would keep a query that its client has hung up
    keeper = make_client(**straight)
    blocking = (
        ReadWriteLock(keeper, key).write.acquire(timeout=5) if kind == "read" else TAKES[kind](keeper, key)
    )
    waiter = make_client(**straight)
    quiet = settled(lambda: server.state.blocked)
    locks: dict[str, Lock | MultiLock | Semaphore] = {
        "lock": Lock(waiter, key),
        "fair lock": Lock(waiter, key, fair=True),
        "multi": MultiLock(waiter, [f"{key}/a", f"{key}/b"]),
        "permit": Semaphore(waiter, key, 1),
    }
    rwlock = ReadWriteLock(waiter, key)
    lock = locks.get(kind) or (rwlock.read if kind == "read" else rwlock.write)
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            lock.acquire(timeout=1.0 if ended_by == "time-out" else 60.0)
        except Exception as error:  # noqa: BLE001 - looked at below
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    eventually(lambda: server.state.blocked > quiet)
    if ended_by == "cancel":
        lock.cancel()
    thread.join(5)
    assert ended
    assert ended_by == "cancel" or isinstance(ended[0], AcquireTimeout)
    eventually(lambda: server.state.blocked <= quiet, within=CLOSED)
    assert blocking.is_held


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["never applied", "applied late"])
@pytest.mark.parametrize("ended_by", ["time-out", "cancel"])
def test_a_withdrawal_without_an_answer_holds_no_caller_up_and_is_made_up_for(
    proxy: FaultProxy,
    make_client: MakeClient,
    operator: Operator,
    ended_by: str,
    lost: str,
) -> None:
    key = "promises/withdrawn"
    held = Lock(make_client(), key).acquire(timeout=5)
    lock = Lock(make_client(), key)
    # All that giving up sends: none of it is answered for as long as this lasts.
    faults = [
        proxy.add(Fault(lose=Lose.TIME, method=method, path=path, containing=containing, times=2))
        for method, path, containing in (
            ("PUT", "/v1/txn", b"delete-cas"),
            ("DELETE", f"/v1/kv/{key}", b""),
        )
    ]
    took: list[float] = []

    def wait() -> None:
        began = time.monotonic()
        with pytest.raises((AcquireTimeout, AcquireCancelled)):
            lock.acquire(timeout=0.8 if ended_by == "time-out" else 60.0)
        took.append(time.monotonic() - began)

    thread = threading.Thread(target=wait)
    with stalls() as measured:
        thread.start()
        eventually(lambda: operator.under(f"{key}/.wait/"))
        began = time.monotonic()
        if ended_by == "cancel":
            lock.cancel()
        thread.join(5)
        ended = time.monotonic() - began
    assert took, "giving up waits for an answer"
    if ended_by == "cancel":
        assert ended < ENDED + measured.slack
    else:
        assert took[0] < 0.8 + ENDED + measured.slack
    assert any(fault.hits for fault in faults), "it gave up without a word"
    if lost == "never applied":
        proxy.cut()
    else:
        for fault in faults:
            fault.let_go()
    eventually(lambda: not operator.under(f"{key}/.wait/"), within=15)
    held.release()
    assert Lock(make_client(), key).acquire(timeout=5).is_held
