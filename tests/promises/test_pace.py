"""What fails again and again is tried again with pauses that grow: it costs the servers a few requests."""

from __future__ import annotations

import threading
from contextlib import AsyncExitStack, ExitStack, suppress
from typing import TYPE_CHECKING, Final

import anyio
import pytest

from consul_coord import (
    AsyncClient,
    AsyncLock,
    Client,
    ConsulCoordError,
    Group,
    LeaderElection,
    Lock,
    MultiLock,
    Partitioner,
    ReadWriteLock,
    Semaphore,
    observe,
)
from tests.promises.conftest import SPEC
from tests.support.proxy import Fault, Lose
from tests.support.sites import eventually, never

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from consul_coord.clock import SystemClock
    from consul_coord.server import ReferenceServer
    from tests.promises.conftest import MakeClient
    from tests.support.proxy import FaultProxy, Passed
    from tests.support.sites import Operator

WITHIN: Final = 1.0
"""Seconds for which it goes on failing."""
MOST: Final = 20
"""So many tries there are by then, at most: the first pauses are fractions of a second."""
FEW: Final = 3
MANY: Final = 40
"""Fewer and more things than have a query each."""
FOREVER: Final = 1_000_000


@pytest.fixture
def stack(proxy: FaultProxy) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack
        proxy.clear()


@pytest.fixture
def own(make_client: MakeClient, stack: ExitStack) -> Client:
    """Return a client, which is closed after all that is entered into the stack."""
    return make_client()


def some_tries(count: Callable[[], int]) -> None:
    """Look on for a while: it is tried again, but not again and again."""
    eventually(lambda: count() >= 2)
    never(lambda: count() > MOST, within=WITHIN)


def waiting(stack: ExitStack, lock: Lock | MultiLock | Semaphore, *, timeout: float | None = None) -> None:
    """Have another thread acquire something, until the test ends."""

    def wait() -> None:
        with suppress(ConsulCoordError):
            lock.acquire(timeout=timeout)

    thread = threading.Thread(target=wait)
    thread.start()
    stack.callback(thread.join)
    stack.callback(lock.cancel)


ACQUIRES: dict[str, Callable[[Client, str], Lock | MultiLock | Semaphore]] = {
    "lock": Lock,
    "fair lock": lambda client, key: Lock(client, key, fair=True),
    "multi": lambda client, key: MultiLock(client, [f"{key}/a", f"{key}/b"]),
    "read": lambda client, key: ReadWriteLock(client, key, session=SPEC).read,
    "write": lambda client, key: ReadWriteLock(client, key, session=SPEC).write,
    "permit": lambda client, key: Semaphore(client, key, 1),
}


@pytest.mark.parametrize("asked", ["/v1/txn", "/v1/session/create"])
@pytest.mark.parametrize("kind", ACQUIRES)
def test_an_acquire_that_is_not_served(  # noqa: PLR0917 - fixtures and a table
    proxy: FaultProxy, own: Client, stack: ExitStack, key: str, kind: str, asked: str
) -> None:
    fault = proxy.add(Fault(lose=Lose.AGENT, method="PUT", path=asked, times=FOREVER))
    waiting(stack, ACQUIRES[kind](own, key))
    some_tries(lambda: fault.hits)


@pytest.mark.parametrize("kind", ["lock", "fair lock", "write", "permit"])
def test_a_waiter_behind_a_holder_that_writes_is_no_failure_and_asks_as_seldom(  # noqa: PLR0917 - fixtures
    proxy: FaultProxy,
    own: Client,
    server: ReferenceServer[SystemClock],
    stack: ExitStack,
    key: str,
    kind: str,
) -> None:
    holder = stack.enter_context(Client(server.address, session=SPEC))
    hold = ACQUIRES[kind](holder, key).acquire(timeout=5)
    hold.put(b"written")
    waiting(stack, ACQUIRES[kind](own, key))
    eventually(lambda: any("index=" in each.path for each in list(proxy.requests)))
    before = len(proxy.requests)
    never(lambda: len(proxy.requests) - before > MOST, within=WITHIN)
    hold.put(b"once more")
    before = len(proxy.requests)
    never(lambda: len(proxy.requests) - before > MOST, within=WITHIN)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_waiters_and_a_hold_that_are_left_of_a_crowd_ask_as_seldom(
    proxy: FaultProxy, server: ReferenceServer[SystemClock], key: str
) -> None:
    """Each has a query of its own again."""
    keys = [f"{key}/{number}" for number in range(FEW)]
    async with AsyncExitStack() as stack:
        own, holder, first = [
            await stack.enter_async_context(AsyncClient(address, session=SPEC))
            for address in (proxy.address, server.address, server.address)
        ]
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        await stack.enter_async_context(AsyncLock(own, f"{key}/held").hold(timeout=5))
        crowd = [await AsyncLock(own, f"{key}/crowd-{number}").acquire(timeout=5) for number in range(MANY)]
        for each in keys:
            await stack.enter_async_context(AsyncLock(holder, each).hold(timeout=5))
        for client in (first, own):
            for each in keys:
                tasks.start_soon(AsyncLock(client, each).acquire)
            expected = FEW * (1 + (client is own))
            with anyio.fail_after(10):
                while await waiters(holder, keys) < expected:  # noqa: ASYNC110 - it gives no notice
                    await anyio.sleep(0.02)
        before = len(proxy.requests)
        for hold in crowd:
            await hold.release()
        with anyio.fail_after(10):
            while not have_asked(proxy.requests[before:]):  # noqa: ASYNC110 - as above
                await anyio.sleep(0.02)
        before = len(proxy.requests)
        await anyio.sleep(WITHIN)
        assert len(proxy.requests) - before <= MOST


def have_asked(requests: Sequence[Passed]) -> bool:
    """Return whether each waiter for the keys has asked by a query of its own."""
    latest = [each.path.partition("?") for each in requests]
    return len({path for path, _, query in latest if "/.wait/" in path and "index=" in query}) == FEW


async def waiters(client: AsyncClient, keys: list[str]) -> int:
    """Return how many wait for these keys."""
    return sum([len(await AsyncLock(client, key).contenders()) for key in keys])


def refuse(proxy: FaultProxy, about: str) -> Fault:
    """Have transactions about a key refused, for want of permission."""
    return proxy.add(
        Fault(
            lose=Lose.AGENT,
            method="PUT",
            path="/v1/txn",
            containing=about.encode(),
            times=FOREVER,
            status=403,
            body=b"Permission denied",
        )
    )


def test_a_candidate_that_is_refused(proxy: FaultProxy, own: Client, stack: ExitStack, key: str) -> None:
    fault = refuse(proxy, key)
    stack.enter_context(LeaderElection(own, key, retry_wait=(0.0, 0.0)))
    some_tries(lambda: fault.hits)


def test_a_partition_that_may_not_be_taken(
    proxy: FaultProxy, own: Client, stack: ExitStack, key: str
) -> None:
    group = stack.enter_context(Group(own, key))
    fault = refuse(proxy, f"{key}/partitions/")
    stack.enter_context(Partitioner(group, ["a"], settle=0.0))
    some_tries(lambda: fault.hits)


def test_an_owner_that_can_not_begin(own: Client, stack: ExitStack, key: str) -> None:
    begun: list[str] = []

    def begin(partition: str, _: object) -> None:
        begun.append(partition)
        raise ValueError("it can't")

    group = stack.enter_context(Group(own, key))
    stack.enter_context(Partitioner(group, ["a"], settle=0.0, on_acquired=begin))
    some_tries(lambda: len(begun))


def test_a_member_that_may_not_join_again(
    proxy: FaultProxy, own: Client, operator: Operator, stack: ExitStack, key: str
) -> None:
    stack.enter_context(Group(own, key))
    (member,) = operator.under(f"{key}/members/")
    fault = refuse(proxy, f"{key}/members/")
    operator.delete(member)
    some_tries(lambda: fault.hits)


def test_what_can_not_be_cleaned_up(proxy: FaultProxy, own: Client, key: str) -> None:
    hold = Lock(own, key).acquire(timeout=5)
    fault = proxy.add(Fault(lose=Lose.AGENT, method="PUT", path="/v1/txn", times=FOREVER))
    del hold
    some_tries(lambda: fault.hits)
    proxy.clear()


@pytest.mark.parametrize("what", ["leader", "members"])
def test_a_watch_that_is_not_served(
    proxy: FaultProxy, own: Client, stack: ExitStack, key: str, what: str
) -> None:
    watch = observe(own, key) if what == "leader" else Group(own, key).watch()
    stack.callback(watch.close)
    next(watch)
    fault = proxy.add(Fault(lose=Lose.AGENT, method="GET", path=f"/v1/kv/{key}", times=FOREVER))

    def see() -> None:
        with suppress(ConsulCoordError, StopIteration):
            next(watch)

    thread = threading.Thread(target=see)
    proxy.cut()
    thread.start()
    stack.callback(thread.join)
    stack.callback(watch.close)
    some_tries(lambda: fault.hits)
