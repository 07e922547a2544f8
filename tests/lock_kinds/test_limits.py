"""Holds that end though their session goes on: after ``max_hold``, and for want of a beat.

Rules
- The one who holds too long is stuck: nothing here lets go of a hold before its test says so.
- Time between a loss and the giving back is asserted as at least the lock-delay: a slow machine makes it only
  longer.
"""

from __future__ import annotations

import math
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from consul_coord import (
    AcquireTimeout,
    AsyncClient,
    AsyncHold,
    AsyncLock,
    Client,
    HoldState,
    InvalidArgument,
    Lock,
    LockLost,
    LossReason,
    MultiLock,
    NotHeld,
    ReadWriteLock,
    ReentrantLock,
    ReleaseOutcome,
    Semaphore,
)
from consul_coord.events import Cleaned, Lost
from tests.lock.conftest import spec
from tests.lock.test_hold import Notes
from tests.support.sites import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.lock.conftest import MakeClient
    from tests.support.sites import Site

SHORT = 0.2
"""Seconds that a hold may last."""
DELAY = 1.0
"""The lock-delay of the sessions here, in seconds: what is left of their leases is longer than ``SHORT``."""
RENEWED = 2.0
"""One for leases that are renewed in a test: a busy machine may be too late for a shorter one."""
LONG_DELAY = 30.0
"""One that is not over before a test has looked, however busy the machine is."""

KINDS: dict[str, Callable[[Client, str], Any]] = {
    "lock": Lock,
    "reentrant": ReentrantLock,
    "multi": lambda client, key: MultiLock(client, [key, f"{key}.2"]),
    "read": lambda client, key: ReadWriteLock(client, key).read,
    "write": lambda client, key: ReadWriteLock(client, key).write,
    "semaphore": lambda client, key: Semaphore(client, key, 1),
}
RIVALS = KINDS | {"read": KINDS["write"]}
"""What can't be taken beside it."""


@pytest.fixture
def stuck(make_client: MakeClient) -> Client:
    return make_client(lock_delay=DELAY, observer=Notes())


@pytest.fixture
def rival(make_client: MakeClient) -> Client:
    return make_client(lock_delay=DELAY)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stuck_hold_ends_for_its_holder_first_and_is_given_back_after_the_lock_delay(
    site: Site, stuck: Client, rival: Client, kind: str
) -> None:
    told: list[LossReason] = []
    hold = KINDS[kind](stuck, site.key).acquire(timeout=5, max_hold=SHORT)
    hold.on_lost(told.append)
    assert hold.remaining() <= SHORT
    ends_at = hold.deadline()
    assert ends_at <= stuck.now() + SHORT
    assert hold.lost.wait(timeout=5)
    assert (hold.state, hold.reason, hold.is_held) == (HoldState.LOST, LossReason.MAX_HOLD, False)
    with pytest.raises(LockLost, match="max_hold") as caught:
        hold.check()
    assert caught.value.reason is LossReason.MAX_HOLD
    eventually(lambda: stuck.pending_cleanup == 1)
    with RIVALS[kind](rival, site.key).hold(timeout=15) as next_one:
        assert stuck.now() - ends_at >= DELAY - 0.02
        assert next_one.fence > hold.fence
    eventually(lambda: stuck.pending_cleanup == 0)
    assert told == [LossReason.MAX_HOLD]
    assert hold.release() is ReleaseOutcome.ALREADY_LOST


@pytest.mark.parametrize("kind", KINDS)
def test_a_holder_that_has_left_delays_nobody(site: Site, make_client: MakeClient, kind: str) -> None:
    slow = make_client(lock_delay=30.0)
    began = time.monotonic()
    with (
        pytest.raises(LockLost) as caught,
        KINDS[kind](slow, site.key).hold(timeout=5, max_hold=SHORT) as hold,
    ):
        assert hold.lost.wait(timeout=5)
    assert caught.value.reason is LossReason.MAX_HOLD
    RIVALS[kind](make_client(), site.key).acquire(timeout=15).release()
    assert time.monotonic() - began < 10, "nobody waits for a lock-delay of 30 s"


def test_a_hold_that_ends_in_time_is_as_any(site: Site, make_client: MakeClient, rival: Client) -> None:
    with Lock(make_client(lock_delay=8.0), site.key).hold(timeout=5, max_hold=30) as hold:
        assert hold.remaining() < 8  # the lease comes first
    assert hold.state is HoldState.RELEASED
    Lock(rival, site.key).acquire(timeout=5).release()


def test_the_session_and_its_other_holds_go_on(site: Site, make_client: MakeClient) -> None:
    stuck = make_client(lock_delay=RENEWED)
    other = Lock(stuck, f"{site.key}.other").acquire(timeout=5)
    hold = Lock(stuck, site.key).acquire(timeout=5, max_hold=SHORT)
    assert hold.lost.wait(timeout=5)
    assert other.is_held
    assert site.operator.holder(site.key) == hold.session
    eventually(lambda: site.operator.holder(site.key) is None)
    assert other.is_held
    other.release()


def test_in_its_own_client_too_the_next_one_waits_for_the_lock_delay(
    site: Site, make_client: MakeClient
) -> None:
    stuck = make_client(lock_delay=RENEWED)
    hold = Lock(stuck, site.key).acquire(timeout=5, max_hold=SHORT)
    ends_at = hold.deadline()
    assert hold.lost.wait(timeout=5)
    with pytest.raises(AcquireTimeout):
        Lock(stuck, site.key).acquire(timeout=0.2)
    with Lock(stuck, site.key).hold(timeout=15):
        assert stuck.now() - ends_at >= RENEWED - 0.02


def test_of_several_acquires_of_one_hold_the_earliest_end_counts(site: Site, make_client: MakeClient) -> None:
    stuck = make_client(lock_delay=LONG_DELAY)
    lock = ReentrantLock(stuck, site.key)
    outer = lock.acquire(timeout=5, max_hold=60)
    inner = lock.acquire(timeout=5, max_hold=SHORT)
    assert inner.fence == outer.fence
    assert outer.lost.wait(timeout=5)
    with pytest.raises(LockLost):
        lock.acquire(timeout=5)
    assert inner.release() is ReleaseOutcome.ALREADY_LOST
    # Noted a moment after its event is set: the outer one may be at work still.
    eventually(lambda: stuck.pending_cleanup)
    outer.release()
    eventually(lambda: not stuck.pending_cleanup, within=LONG_DELAY / 2)


# -- beats


def test_beats_keep_a_hold_and_the_one_that_fails_to_come_ends_it(
    site: Site, make_client: MakeClient
) -> None:
    stuck, rival = make_client(lock_delay=RENEWED), make_client(lock_delay=RENEWED)
    hold = Lock(stuck, site.key).acquire(timeout=5)
    for _ in range(6):
        hold.beat(2.0)
        time.sleep(0.02)
    assert hold.remaining() <= 2.0
    hold.beat(SHORT)
    ends_at = hold.deadline()
    assert hold.lost.wait(timeout=5)
    assert hold.reason is LossReason.STALLED
    with pytest.raises(LockLost, match="beat"):
        hold.beat(60.0)
    with Lock(rival, site.key).hold(timeout=15):
        assert stuck.now() - ends_at >= RENEWED - 0.02


def test_a_promise_can_be_taken_back(site: Site, make_client: MakeClient) -> None:
    hold = Lock(make_client(lock_delay=LONG_DELAY), site.key).acquire(timeout=5)
    hold.beat(1.0)
    hold.beat(math.inf)
    assert not hold.lost.wait(timeout=1.3)
    hold.release()
    with pytest.raises(NotHeld):
        hold.beat(1.0)


@pytest.mark.parametrize("seconds", [0, -1.0, math.nan])
def test_what_is_no_time_is_refused_before_any_io(site: Site, stuck: Client, seconds: float) -> None:
    lock = Lock(stuck, site.key)
    calls: list[Callable[[], object]] = [
        lambda: lock.acquire(max_hold=seconds),
        lambda: lock.try_acquire(max_hold=seconds),
        lambda: lock.run(print, max_hold=seconds),
        lambda: Semaphore(stuck, site.key, 1).acquire(max_hold=seconds),
    ]
    for call in calls:
        with pytest.raises(InvalidArgument, match="max_hold"):
            call()
    assert stuck.stats().requests == 0
    with lock.hold(timeout=5) as hold, pytest.raises(InvalidArgument, match="within"):
        hold.beat(seconds)


def test_more_than_is_left_can_not_be_made_sure_of(site: Site, make_client: MakeClient) -> None:
    with Lock(make_client(lock_delay=8.0), site.key).hold(timeout=5, max_hold=5.0) as hold:
        hold.ensure(0.2)
        with pytest.raises(InvalidArgument, match=r"the hold ends in [0-5]\.\d s, because of its max_hold"):
            hold.ensure(5.5)


# -- what may happen while a key is owed


def owed(site: Site, client: Client, kind: str = "lock") -> Any:
    hold = KINDS[kind](client, site.key).acquire(timeout=5, max_hold=0.05)
    assert hold.lost.wait(timeout=5)
    eventually(lambda: client.pending_cleanup)
    return hold


def test_an_operators_release_in_the_delay_is_left_alone(site: Site, make_client: MakeClient) -> None:
    client, rival = make_client(lock_delay=DELAY), make_client()
    hold = owed(site, client)
    assert Lock(rival, site.key).break_lock(hold.session)
    with Lock(rival, site.key).hold(timeout=5) as next_one:
        eventually(lambda: client.pending_cleanup == 0)
        assert next_one.verify()
        assert next_one.is_held


def test_a_session_that_ends_in_the_delay_leaves_the_key_to_the_servers(
    site: Site, make_client: MakeClient
) -> None:
    client = make_client(lock_delay=DELAY)
    hold = owed(site, client)
    began = time.monotonic()  # the answer may be late on a busy machine
    site.operator.destroy(hold.session)
    eventually(lambda: client.pending_cleanup == 0)
    with Lock(make_client(), site.key).hold(timeout=15):
        assert time.monotonic() - began >= DELAY - 0.05


def test_a_dropped_hold_of_a_session_made_elsewhere_is_given_back(
    site: Site, make_client: MakeClient
) -> None:
    """Its session is renewed here until then, though nobody here has the lock any more."""
    notes = Notes()
    session = site.operator.create(ttl="1s", lock_delay="2s")
    client = make_client(observer=notes)
    hold = Lock(client, site.key, session=session).acquire(timeout=5, max_hold=0.05)
    assert hold.lost.wait(5)
    del hold
    assert eventually(lambda: notes.of(Cleaned)) == [Cleaned(site.key, session, found=True)]


def test_a_hold_that_another_process_goes_on_with_is_not_given_back_in_the_delay(
    site: Site, make_client: MakeClient
) -> None:
    client = make_client(lock_delay=RENEWED)
    session = client.keep_session(spec(site, lock_delay=RENEWED))
    hold = Lock(client, site.key, session=session.id).acquire(timeout=5, max_hold=0.05)
    assert hold.lost.wait(timeout=5)
    lost_at = time.monotonic()
    session.export()
    eventually(lambda: client.pending_cleanup == 0)
    assert time.monotonic() - lost_at >= RENEWED - 0.05
    session.close()
    client.close()
    assert site.operator.holder(site.key) == session.id


@pytest.mark.parametrize("kind", KINDS)
def test_closing_in_the_delay_leaves_the_lock_delay_to_the_servers(
    site: Site, make_client: MakeClient, kind: str
) -> None:
    client = make_client(lock_delay=DELAY)
    hold = owed(site, client, kind)
    client.close()
    closed_at = time.monotonic()
    assert client.pending_cleanup == 0
    assert not site.operator.exists(hold.session)
    with RIVALS[kind](make_client(), site.key).hold(timeout=15):
        assert time.monotonic() - closed_at >= DELAY - 0.2
    assert hold.release() is ReleaseOutcome.ALREADY_LOST


def test_a_forked_child_leaves_it_to_its_parent(site: Site, make_client: MakeClient) -> None:
    client = make_client(lock_delay=DELAY)
    hold = owed(site, client)
    lost_at = time.monotonic()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            outcome = hold.release()
            code = 0 if (outcome, client.pending_cleanup) == (ReleaseOutcome.ALREADY_LOST, 0) else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    with Lock(make_client(), site.key).hold(timeout=15):
        assert time.monotonic() - lost_at >= DELAY - 0.1


@pytest.mark.slow
def test_without_contact_the_key_is_given_back_when_it_comes_back(
    site: Site, make_client: MakeClient, proxy: Any
) -> None:
    client = make_client(address=proxy.address, lock_delay=1.0)
    other = Lock(client, f"{site.key}.other").acquire(timeout=5)
    hold = Lock(client, site.key).acquire(timeout=5, max_hold=0.1)
    proxy.go_down()
    assert hold.lost.wait(timeout=5)
    eventually(lambda: other.reason is LossReason.EXPIRED)
    assert hold.reason is LossReason.MAX_HOLD, (
        "the end of the session changes nothing for those who were told"
    )
    proxy.come_up()
    Lock(make_client(), site.key).acquire(timeout=20).release()
    eventually(lambda: client.pending_cleanup == 0)


def test_the_loss_is_an_event_and_so_is_the_giving_back(site: Site, make_client: MakeClient) -> None:
    notes = Notes()
    client = make_client(lock_delay=0.0, observer=notes)
    hold = owed(site, client)
    eventually(lambda: client.pending_cleanup == 0)
    (lost,) = eventually(lambda: notes.of(Lost))
    assert (lost.key, lost.fence, lost.reason) == (site.key, hold.fence, LossReason.MAX_HOLD)
    (cleaned,) = eventually(lambda: notes.of(Cleaned))
    assert (cleaned.key, cleaned.found) == (site.key, True)
    assert client.stats().lost == 1


def test_many_threads_with_one_lock_each_hold_for_its_time_only(site: Site, make_client: MakeClient) -> None:
    client = make_client(lock_delay=0.0)
    lock = Lock(client, site.key)
    fences: list[int] = []

    def work() -> None:
        hold = lock.acquire(timeout=20, max_hold=0.05)
        fences.append(hold.fence)
        assert hold.lost.wait(timeout=5)

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fences == sorted(fences)
    assert len(fences) == 5


@pytest.mark.anyio
async def test_an_async_block_is_cancelled_and_gives_back_at_once(
    site: Site, make_client: MakeClient
) -> None:
    async with AsyncClient(address=site.address, session=spec(site, lock_delay=30.0)) as client:
        began = time.monotonic()
        with pytest.raises(LockLost) as caught:
            async with AsyncLock(client, site.key).hold(timeout=5, max_hold=SHORT, interrupt=True):
                await anyio.sleep(60)
        assert caught.value.reason is LossReason.MAX_HOLD

        async def stall(hold: AsyncHold) -> None:
            hold.beat(SHORT)
            await anyio.sleep(60)

        with pytest.raises(LockLost) as caught:
            await AsyncLock(client, site.key).run(stall, timeout=5)
        assert caught.value.reason is LossReason.STALLED
    assert time.monotonic() - began < 10, "nobody waits for a lock-delay of 30 s"
    Lock(make_client(), site.key).acquire(timeout=5).release()
