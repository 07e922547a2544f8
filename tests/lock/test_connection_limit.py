"""An agent that takes no more connections: what is held stays held, and all who wait are served."""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

import anyio
import pytest

from consul_coord import (
    AcquireTimeout,
    AsyncClient,
    AsyncLeaderElection,
    AsyncLock,
    AsyncSemaphore,
    BrokenReply,
    Client,
    Lock,
    ReleaseOutcome,
    Semaphore,
    SessionSpec,
    TooManyConnections,
    TransportError,
)
from consul_coord.events import ConnectionsRefused
from consul_coord.testing.agent import RealAgent
from tests.support.limits import full
from tests.support.sites import Operator, eventually
from tests.support.stalls import stalls

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from consul_coord.events import Event

pytestmark = pytest.mark.agent

SMALL = 12
"""The limit of the small agent."""
LEASE = 2.85
QUICK = SessionSpec(ttl=3.0, lock_delay=3.0)
CROWD_LEASE = 14.25
BESIDE_A_CROWD = SessionSpec(ttl=15.0, lock_delay=15.0)
"""Of holders in one process, and on one event loop, with hundreds of clients."""
PATIENCE = 120.0


@pytest.fixture(scope="module")
def small_agent(consul_binary: Path) -> Iterator[str]:
    limits = {"limits": {"http_max_conns_per_client": SMALL}}
    with RealAgent(binary=consul_binary, config=limits) as agent:
        yield agent.address


@pytest.fixture(scope="module")
def default_agent(consul_binary: Path) -> Iterator[str]:
    with RealAgent(binary=consul_binary) as agent:
        yield agent.address


class Watcher:
    """Notes what happens."""

    def __init__(self) -> None:
        self.seen: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.seen.append(event)

    def was_refused(self) -> bool:
        """Return whether the agent has refused connections."""
        return any(isinstance(event, ConnectionsRefused) for event in self.seen)


def at_most_one_duty(client: Client) -> bool:
    return client.pending_cleanup <= 1


def is_watching(client: Client) -> bool:
    """Return whether a blocking query of the client is under way."""
    return bool(client._runner.core.watches._queries)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Lock, Semaphore])
def test_what_is_held_stays_held_and_is_released(small_agent: str, kind: type[Lock | Semaphore]) -> None:
    with Client(address=small_agent, session=QUICK) as client:
        key = f"full/{kind.__name__}"
        lock = Lock(client, key) if kind is Lock else Semaphore(client, key, 1)
        hold = lock.acquire(timeout=10)
        assert eventually(partial(is_watching, client))
        with full(small_agent):
            assert not hold.lost.wait(2 * LEASE)
            assert hold.release() is ReleaseOutcome.RELEASED
        assert client.stats().lost == 0
    assert eventually(lambda: not Operator(small_agent).done("GET", "/v1/session/list"))


def test_a_release_waits_for_the_query_that_is_under_way(small_agent: str) -> None:
    with Client(address=small_agent) as client:
        hold = Lock(client, "full/released").acquire(timeout=10)
        assert eventually(partial(is_watching, client))
        with full(small_agent):
            assert hold.release() is ReleaseOutcome.RELEASED


def test_error_and_event_name_the_limit(small_agent: str) -> None:
    watcher = Watcher()
    with (
        full(small_agent),
        Client(address=small_agent, timeout=0.5, observer=watcher) as client,
    ):
        # Only newer versions answer: of an older one, the first refusal may as well be a lost reply.
        with pytest.raises(TransportError, match=r"limits\.http_max_conns_per_client") as first:
            client.kv.put("full/a", b"", cas=0)
        assert first.value.outcome_unknown is isinstance(first.value, BrokenReply)
        with pytest.raises(TooManyConnections, match=r"limits\.http_max_conns_per_client") as refused:
            client.kv.put("full/a", b"", cas=0)
        assert not refused.value.outcome_unknown
        eventually(lambda: watcher.seen)
        told = [event for event in watcher.seen if isinstance(event, ConnectionsRefused)]
        assert len(told) == 1
        assert "limits.http_max_conns_per_client" in told[0].describe()


@pytest.mark.slow
def test_a_call_gets_through_when_there_is_room_again(small_agent: str) -> None:
    with Client(address=small_agent) as client:
        with full(small_agent), pytest.raises(AcquireTimeout) as caught:
            Lock(client, "full/room").acquire(timeout=3.0)
        assert "limits.http_max_conns_per_client" in str(caught.value)
        with Lock(client, "full/room").hold(timeout=10):
            pass


@pytest.mark.slow
def test_the_limit_reached_and_left_leaves_nothing(small_agent: str) -> None:
    operator = Operator(small_agent)
    with Client(address=small_agent, session=QUICK) as holder, Lock(holder, "full/kept") as hold:
        for number in range(20):
            watcher = Watcher()
            with Client(address=small_agent, session=QUICK, observer=watcher) as client:
                lock = Lock(client, f"full/again-{number % 3}")
                with full(small_agent):
                    thread = threading.Thread(target=lambda lock=lock: lock.acquire(timeout=60).release())
                    thread.start()
                    assert eventually(watcher.was_refused)
                thread.join(60)
                assert not thread.is_alive()
                # But for the looks whether the first create, which was refused, was applied after all.
                assert eventually(partial(at_most_one_duty, client))
        assert hold.is_held
        assert len(operator.done("GET", "/v1/session/list")) == 1
        assert holder.stats().lost == 0


async def crowd(address: str, size: int) -> None:
    """Have five holders, and a crowd of clients that wait for one lock; see that all are served."""
    served: Counter[str] = Counter()

    async def wait_and_take() -> None:
        async with (
            AsyncClient(address=address) as client,
            AsyncLock(client, "crowd/lock").hold(timeout=PATIENCE),
        ):
            served["held"] += 1

    async with AsyncExitStack() as stack:
        holds = []
        for number in range(5):
            client = await stack.enter_async_context(AsyncClient(address=address, session=BESIDE_A_CROWD))
            holds.append(await AsyncLock(client, f"crowd/held-{number}").acquire(timeout=10))
        first = await stack.enter_async_context(AsyncClient(address=address))
        waited_for = await AsyncLock(first, "crowd/lock").acquire(timeout=10)
        async with anyio.create_task_group() as group:
            for _ in range(size):
                group.start_soon(wait_and_take)
            await anyio.sleep(1.5 * CROWD_LEASE)
            assert await waited_for.release() is ReleaseOutcome.RELEASED
        assert served["held"] == size
        assert all(hold.is_held for hold in holds)
        for hold in holds:
            assert await hold.release() is ReleaseOutcome.RELEASED


@pytest.mark.slow
@pytest.mark.parametrize("size", [150, pytest.param(400, marks=pytest.mark.long)])
def test_holders_lose_nothing_beside_a_crowd_that_waits(default_agent: str, size: int) -> None:
    anyio.run(crowd, default_agent, size)


@pytest.mark.slow
def test_a_turn_takes_no_more_than_twice_as_long(small_agent: str) -> None:
    # A release that waited for the end of its hold's long query would take 6 s each time.
    crowd, work = 18, 0.5
    served: list[float] = []

    async def take_a_turn() -> None:
        async with (
            AsyncClient(address=small_agent) as client,
            AsyncLock(client, "turns/lock").hold(timeout=PATIENCE),
        ):
            served.append(time.monotonic())
            await anyio.sleep(work)

    async def main() -> None:
        async with AsyncClient(address=small_agent) as first:
            wanted = await AsyncLock(first, "turns/lock").acquire()
            async with anyio.create_task_group() as group:
                for _ in range(crowd):
                    group.start_soon(take_a_turn)
                while len(await AsyncLock(first, "turns/lock").contenders()) < SMALL - 2:  # noqa: ASYNC110
                    await anyio.sleep(0.1)
                assert await wanted.release() is ReleaseOutcome.RELEASED

    with stalls() as measured:
        anyio.run(main)
    assert len(served) == crowd
    assert served[-1] - served[0] < 2 * work * crowd + crowd * measured.slack


@pytest.mark.slow
def test_clients_beyond_the_limit_get_their_turns(small_agent: str) -> None:
    # Those with a connection would keep it for ever, as they never have nothing to do for its idle time.
    crowd, enough = SMALL + 6, 3
    served: Counter[int] = Counter()

    async def take_turns(number: int) -> None:
        async with AsyncClient(address=small_agent, session=BESIDE_A_CROWD) as client:
            lock = AsyncLock(client, "shares/lock")
            while len(served) < crowd or min(served.values()) < enough:
                async with lock.hold(timeout=PATIENCE):
                    served[number] += 1
                    await anyio.sleep(0.01)
            assert client.stats().lost == 0

    async def main() -> None:
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                for number in range(crowd):
                    group.start_soon(take_turns, number)

    anyio.run(main)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["permits", "candidates"])
def test_a_crowd_in_one_client_leaves_room_for_others(small_agent: str, kind: str) -> None:
    async def main() -> None:
        async with (
            AsyncClient(address=small_agent, session=QUICK) as holder,
            AsyncClient(address=small_agent, session=QUICK) as client,
        ):
            hold = await AsyncLock(holder, "many/held").acquire(timeout=10)
            async with anyio.create_task_group() as group:
                for number in range(40):
                    if kind == "permits":
                        group.start_soon(take_a_permit, client)
                    else:
                        group.start_soon(lead, client, number % 20)
            assert hold.is_held

    async def take_a_permit(client: AsyncClient) -> None:
        async with AsyncSemaphore(client, "many/permits", 3).hold(timeout=PATIENCE):
            pass

    async def lead(client: AsyncClient, number: int) -> None:
        async with AsyncLeaderElection(client, f"many/led-{number}") as election:
            await election.wait_for_leadership(timeout=PATIENCE)

    anyio.run(main)
