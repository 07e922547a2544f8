"""Losing a permit: whatever happens to it on the server, its holder is told, once, with the reason."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import anyio
import pytest

from consul_coord import (
    SEMAPHORE_FLAGS,
    AcquireTimeout,
    AsyncClient,
    AsyncPermit,
    AsyncSemaphore,
    Client,
    HoldState,
    LockLost,
    LossReason,
    Permit,
    ReleaseOutcome,
    Semaphore,
    SessionSpec,
    failover_bound,
)
from consul_coord.testing.agent import RealAgent
from tests.semaphore.conftest import Place, spec
from tests.support.proxy import FaultProxy
from tests.support.sites import Operator, Site, eventually
from tests.support.stalls import lasting

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.semaphore.conftest import MakeClient


def remove_slot(place: Place, permit: Permit) -> None:
    record = place.read()
    del record["Holders"][permit.session]
    place.write(record)


DEEDS: dict[str, tuple[Callable[[Place, Permit], object], LossReason]] = {
    "slot removed": (remove_slot, LossReason.SLOT_REMOVED),
    "record overwritten": (lambda place, _: place.write(b"nonsense"), LossReason.SLOT_REMOVED),
    "record deleted": (lambda place, _: place.operator.delete(place.record), LossReason.KEY_DELETED),
    "contender deleted": (lambda place, permit: place.operator.delete(permit.key), LossReason.KEY_DELETED),
    "contender released": (
        lambda place, permit: place.operator.put(permit.key, b"", release=permit.session),
        LossReason.RELEASED_BY_OTHER,
    ),
    "session destroyed": (
        lambda place, permit: place.operator.destroy(permit.session),
        LossReason.SESSION_GONE,
    ),
}


@pytest.mark.parametrize("deed", DEEDS)
def test_the_holder_is_told_and_nothing_stays(semaphore: Semaphore, place: Place, deed: str) -> None:
    act, reason = DEEDS[deed]
    permit = semaphore.acquire(timeout=5)
    told: list[LossReason] = []
    permit.on_lost(told.append)
    assert not permit.lost.wait(0.2)
    with lasting(most=4.0):
        act(place, permit)
        assert permit.lost.wait(5)
    assert (permit.state, permit.reason) == (HoldState.LOST, reason)
    with pytest.raises(LockLost) as caught:
        permit.check()
    assert (caught.value.reason, caught.value.fence) == (reason, permit.fence)
    assert permit.release() is ReleaseOutcome.ALREADY_LOST
    eventually(lambda: told == [reason])
    eventually(lambda: not place.operator.exists(permit.session))
    assert place.operator.entry(permit.key) is None or deed == "contender released"


def test_a_key_that_nobody_holds_is_removed_by_whoever_comes_next(semaphore: Semaphore, place: Place) -> None:
    permit = semaphore.acquire(timeout=5)
    place.operator.put(permit.key, b"", release=permit.session, flags=SEMAPHORE_FLAGS)
    assert permit.release() is ReleaseOutcome.ALREADY_LOST
    eventually(lambda: not place.operator.exists(permit.session))
    assert place.contenders() == [permit.session]
    semaphore.acquire(timeout=5).release()
    eventually(lambda: place.contenders() == [])


@pytest.mark.parametrize("deed", [deed for deed in DEEDS if deed != "record overwritten"])
def test_a_release_that_finds_the_loss_first_tells_it(semaphore: Semaphore, place: Place, deed: str) -> None:
    act, reason = DEEDS[deed]
    # Too short to be watched.
    permit = semaphore.acquire(timeout=5)
    act(place, permit)
    outcome = permit.release()
    assert outcome is ReleaseOutcome.ALREADY_LOST
    assert permit.reason is reason
    eventually(lambda: place.operator.holder(permit.key) is None)


@pytest.mark.parametrize("deed", ["slot removed", "contender deleted", "session destroyed"])
def test_a_block_is_left_with_the_loss(semaphore: Semaphore, place: Place, deed: str) -> None:
    act, reason = DEEDS[deed]
    with pytest.raises(LockLost) as caught, semaphore as permit:  # noqa: PT012 - the block is the subject
        act(place, permit)
        assert permit.lost.wait(5)
        raise KeyError
    assert caught.value.reason is reason
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_lost_slot_is_free_for_the_next(
    semaphore: Semaphore, place: Place, make_client: MakeClient
) -> None:
    permits = [semaphore.acquire(timeout=5), semaphore.acquire(timeout=5)]
    remove_slot(place, permits[0])
    permit = Semaphore(make_client(), place.prefix, 2).acquire(timeout=5)
    assert set(place.read()["Holders"]) == {permits[1].session, permit.session}
    permits[1].release()
    permit.release()


def test_a_holder_never_makes_its_key_again(semaphore: Semaphore, place: Place) -> None:
    permit = semaphore.acquire(timeout=5)
    place.operator.delete(permit.key)
    with pytest.raises(LockLost):
        permit.put(b"still here")
    assert place.operator.entry(permit.key) is None


def test_verify_asks_for_key_and_record(semaphore: Semaphore, place: Place) -> None:
    first, second = semaphore.acquire(timeout=5), semaphore.acquire(timeout=5)
    assert first.verify()
    remove_slot(place, first)
    assert not first.verify()
    place.operator.delete(second.key)
    assert not second.verify()


def test_losing_contact_is_jeopardy_then_expiry(
    make_client: MakeClient, place: Place, proxy: FaultProxy
) -> None:
    permit = Semaphore(make_client(address=proxy.address, ttl=0.6), place.prefix, 1).acquire(timeout=5)
    proxy.go_down()
    eventually(lambda: permit.state is HoldState.JEOPARDY)
    assert permit.lost.wait(5)
    assert permit.reason is LossReason.EXPIRED
    proxy.come_up()
    eventually(lambda: not place.contenders())


DELAY = 1.5
"""Lock-delay in tests of what happens behind a dead holder, in seconds."""
LATE = 2.0
"""Seconds more than promised, for a machine that is busy."""


class TestLockDelay:
    """Whatever has ended a holder's session, its slot stays closed for as long as it may be trusted."""

    def rivals(self, site: Site, client: Client, other: Client, *, limit: int = 1) -> list[Semaphore]:
        session = spec(site, lock_delay=DELAY)
        prefix = Place(site).prefix
        return [Semaphore(one, prefix, limit, session=session) for one in (client, other)]

    def test_a_destroyed_holders_slot_is_taken_after_its_lease_and_soon_after_the_delay(
        self, site: Site, make_client: MakeClient
    ) -> None:
        place = Place(site)
        first, second = self.rivals(site, make_client(), make_client())
        permit = first.acquire(timeout=5)
        assert permit.remaining() <= DELAY
        place.operator.destroy(permit.session)
        destroyed = time.monotonic()
        with pytest.raises(AcquireTimeout) as caught:
            second.acquire(timeout=0)
        assert (caught.value.blocker.kind, caught.value.blocker.session) == ("lock_delay", permit.session)
        assert place.read()["Holders"] == {permit.session: True}
        with second.hold(timeout=10):
            assert not permit.is_held
            assert time.monotonic() - destroyed >= DELAY
        assert place.contenders() == []

    @pytest.mark.slow
    def test_the_slot_of_a_holder_that_died_is_taken_within_the_bound(
        self, site: Site, make_client: MakeClient, proxy: FaultProxy
    ) -> None:
        session = spec(site, ttl=2.0, lock_delay=DELAY)
        first, second = (
            Semaphore(client, Place(site).prefix, 1, session=session)
            for client in (make_client(address=proxy.address), make_client())
        )
        permit = first.acquire(timeout=5)
        proxy.go_down()
        died = time.monotonic()
        with second.hold(timeout=30):
            took = time.monotonic() - died
            assert not permit.is_held
        proxy.come_up()
        assert took < failover_bound(session) + LATE

    def test_a_waiter_behind_a_dead_holder_takes_what_gets_free_meanwhile(
        self, site: Site, make_client: MakeClient
    ) -> None:
        place = Place(site)
        session = spec(site, lock_delay=30.0)
        one = Semaphore(make_client(), place.prefix, 2, session=session)
        dead, alive = one.acquire(timeout=5), one.acquire(timeout=5)
        place.operator.destroy(dead.session)
        two = Semaphore(make_client(), place.prefix, 2, session=session)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(two.acquire, timeout=20)
            assert eventually(lambda: two.position() == 1)
            assert not waiting.done()
            with lasting(most=5.0):
                alive.release()
                permit = waiting.result(20)
        assert set(place.read()["Holders"]) >= {dead.session, permit.session}
        permit.release()

    def test_a_slot_that_was_given_back_is_free_at_once_however_it_was(
        self, site: Site, make_client: MakeClient
    ) -> None:
        place = Place(site)
        session = spec(site, lock_delay=30.0)
        other = Semaphore(make_client(), place.prefix, 1, session=session)
        permit = Semaphore(make_client(), place.prefix, 1, session=session).acquire(timeout=5)
        permit.put(b"")  # so that its session ends with it
        permit.release()
        with lasting(most=5.0), other.hold(timeout=20):
            pass
        forgotten = [Semaphore(make_client(), place.prefix, 1, session=session).acquire(timeout=5)]
        forgotten.clear()
        gc.collect()
        with lasting(most=8.0), other.hold(timeout=20):
            pass

    def test_a_semaphore_is_not_destroyed_while_a_dead_holder_may_trust_its_slot(
        self, site: Site, make_client: MakeClient
    ) -> None:
        place = Place(site)
        first, second = self.rivals(site, make_client(), make_client())
        permit = first.acquire(timeout=5)
        place.operator.destroy(permit.session)
        assert not second.destroy()
        assert permit.lost.wait(5)
        assert eventually(second.destroy)
        assert place.operator.under(f"{place.prefix}/") == []

    def test_sessions_may_have_checks(self, site: Site, client: Client) -> None:
        place = Place(site)
        checked = spec(site, node_checks=("serfHealth",), lock_delay=2.0)
        with Semaphore(client, place.prefix, 1, session=checked) as permit:
            assert permit.remaining() <= 2.0
            (session,) = site.operator.done("GET", f"/v1/session/info/{permit.session}")
            assert session["NodeChecks"] == ["serfHealth"]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_async_block_is_cancelled_at_the_loss(site: Site, backend: str) -> None:
    place, reached = Place(site), list[str]()

    async def work(permit: AsyncPermit) -> None:
        site.operator.delete(permit.key)
        with anyio.fail_after(10):
            await anyio.sleep_forever()

    async def main() -> None:
        async with AsyncClient(address=site.address, session=spec(site)) as client:
            semaphore = AsyncSemaphore(client, place.prefix, 1)
            with pytest.raises(LockLost) as caught:
                await semaphore.run(work)
            reached.append(caught.value.reason)

    anyio.run(main, backend=backend)
    assert reached == [LossReason.KEY_DELETED]
    assert place.left_behind() == []


@pytest.mark.slow
def test_two_holders_of_the_last_slot_never_believe_at_once_over_a_stopped_agent(
    consul_binary: Path,
) -> None:
    """The agent stands still for longer than the lease: when it goes on, sessions end, and slots pass on."""
    with RealAgent(binary=consul_binary) as agent:
        session = SessionSpec(ttl=0.4, lock_delay=0.4, name="stopped")
        with (
            Client(address=agent.address, session=session) as one,
            Client(address=agent.address, session=session) as other,
        ):
            semaphores = [Semaphore(one, "stopped/slots", 1), Semaphore(other, "stopped/slots", 1)]
            believers: list[Permit] = []
            for turn in range(10):
                permit = semaphores[turn % 2].acquire(timeout=20)
                assert not any(earlier.is_held for earlier in believers), "two believe in the last slot"
                believers.append(permit)
                agent.pause()
                assert permit.lost.wait(5)
                assert permit.reason is LossReason.EXPIRED
                agent.resume()
        operator = Operator(agent.address)
        eventually(lambda: operator.under("stopped/") == ["stopped/slots/.lock"])
        eventually(lambda: operator.sessions("stopped") == [])


@pytest.mark.slow
def test_when_sessions_are_destroyed_no_two_believe_in_the_last_slot(
    make_client: MakeClient, place: Place
) -> None:
    """Each holder's session is destroyed, and its client can't hear of it; the next one takes over."""
    session = spec(place.site, lock_delay=0.4)
    proxies = [FaultProxy(place.site.address) for _ in range(2)]
    with proxies[0], proxies[1]:
        semaphores = [
            Semaphore(make_client(address=proxy.address), place.prefix, 1, session=session)
            for proxy in proxies
        ]
        permits = [semaphores[0].acquire(timeout=5)]
        for turn in range(1, 9):
            proxies[(turn - 1) % 2].go_down()
            place.operator.destroy(permits[-1].session)
            permits.append(semaphores[turn % 2].acquire(timeout=10))
            assert not [permit for permit in permits[:-1] if permit.is_held]
            proxies[(turn - 1) % 2].come_up()
        permits[-1].release()
    assert [permit.fence for permit in permits] == sorted({permit.fence for permit in permits})


FORKS = """
import os, sys
from consul_coord import Client, Semaphore

client = Client(address=sys.argv[1])
semaphore = Semaphore(client, sys.argv[2], 2)
permit = semaphore.acquire(timeout=10)
child = os.fork()
if child == 0:
    told = permit.reason == "forked" and permit.release() == "already_lost"
    with semaphore.hold(timeout=10) as own:
        apart = own.session != permit.session and own.verify()
    client.close()
    os._exit(0 if told and apart else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert permit.verify()
assert permit.release() == "released"
client.close()
"""


def test_a_forked_child_has_lost_what_it_inherited_and_starts_afresh(place: Place) -> None:
    command = [sys.executable, "-c", FORKS, place.site.address, place.prefix]
    done = subprocess.run(command, capture_output=True, text=True, timeout=40, check=False)
    assert done.returncode == 0, done.stderr
    assert place.contenders() == []


WAITS = """
import os, sys, threading
from consul_coord import Client, Semaphore

client = Client(address=sys.argv[1])
semaphore = Semaphore(client, sys.argv[2], 1)
permit = semaphore.acquire(timeout=10)
waiting = threading.Thread(target=lambda: semaphore.acquire(timeout=10).release())
waiting.start()
while semaphore.position() != 1:
    pass
child = os.fork()
if child == 0:
    os._exit(0 if semaphore.position() is None else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert semaphore.position() == 1
permit.release()
waiting.join()
client.close()
"""


def test_a_forked_child_does_not_wait_in_its_parents_place(place: Place) -> None:
    command = [sys.executable, "-c", WAITS, place.site.address, place.prefix]
    done = subprocess.run(command, capture_output=True, text=True, timeout=40, check=False)
    assert done.returncode == 0, done.stderr
