"""A fake refuses the arguments that the real object refuses, in the same words."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord import (
    AsyncClient,
    AsyncLeaderElection,
    AsyncLock,
    AsyncOnce,
    AsyncSemaphore,
    Client,
    InvalidArgument,
    LeaderElection,
    Lock,
    Once,
    Semaphore,
)
from consul_coord.testing.fakes import (
    AsyncFakeElection,
    AsyncFakeLock,
    AsyncFakeOnce,
    AsyncFakeSemaphore,
    FakeElection,
    FakeLock,
    FakeOnce,
    FakeSemaphore,
)
from tests.unit.test_times import NOBODY

if TYPE_CHECKING:
    from collections.abc import Callable

USES: dict[str, Callable[[Any, Any, Any, Any], object]] = {
    "a text for a timeout": lambda lock, _s, _e, _o: lock.acquire(timeout="10"),
    "True for a timeout": lambda lock, _s, _e, _o: lock.acquire(timeout=True),
    "a timeout in the past": lambda _l, semaphore, _e, _o: semaphore.acquire(timeout=-1),
    "a text for max_hold": lambda lock, _s, _e, _o: lock.acquire(max_hold="10"),
    "no max_hold": lambda lock, _s, _e, _o: lock.try_acquire(max_hold=0),
    "no max_hold of a permit": lambda _l, semaphore, _e, _o: semaphore.try_acquire(max_hold=0),
    "cancel": lambda lock, _s, _e, _o: lock.acquire(cancel=True),
    "max_hold of work": lambda lock, _s, _e, _o: lock.run(bool, max_hold=-1),
    "max_hold of work with permits": lambda _l, semaphore, _e, _o: semaphore.run(bool, max_hold=-1),
    "a wait for leadership": lambda _l, _s, election, _o: election.wait_for_leadership(timeout="10"),
    "a pause": lambda _l, _s, election, _o: election.resign(pause="10"),
    "the time of a job": lambda _l, _s, _e, once: once.run(bool, slot="a", timeout="10"),
    "the limit of a job": lambda _l, _s, _e, once: once.begin(slot="a", max_hold=0),
}


def refusal(use: str, *given: object) -> str:
    with pytest.raises(InvalidArgument) as raised:
        USES[use](*given)
    return str(raised.value)


async def awaited(use: str, *given: object) -> str:
    async def call() -> None:
        result: Any = USES[use](*given)
        await result

    with pytest.raises(InvalidArgument) as raised:
        await call()
    return str(raised.value)


@pytest.mark.parametrize("use", USES)
def test_in_blocking_code(use: str) -> None:
    with Client(NOBODY) as client:
        real = Lock(client, "k"), Semaphore(client, "k", 1), LeaderElection(client, "k"), Once(client, "k")
        said = refusal(use, *real)
    assert refusal(use, FakeLock(), FakeSemaphore(), FakeElection(), FakeOnce()) == said


@pytest.mark.parametrize("use", USES)
def test_on_an_event_loop(use: str) -> None:
    async def main() -> tuple[str, str]:
        async with AsyncClient(NOBODY) as client:
            real = (
                AsyncLock(client, "k"),
                AsyncSemaphore(client, "k", 1),
                AsyncLeaderElection(client, "k"),
                AsyncOnce(client, "k"),
            )
            fakes = AsyncFakeLock(), AsyncFakeSemaphore(), AsyncFakeElection(), AsyncFakeOnce()
            return await awaited(use, *real), await awaited(use, *fakes)

    said, by_fake = asyncio.run(main())
    assert by_fake == said


MADE: list[tuple[Callable[[Any, Any], object], Callable[[Any], object]]] = [
    (Lock, FakeLock),
    (lambda client, key: Semaphore(client, key, 1), FakeSemaphore),
    (LeaderElection, FakeElection),
    (Once, FakeOnce),
]


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "a\nb", 5])
@pytest.mark.parametrize(("real", "fake"), MADE)
def test_a_key(real: Callable[[Any, Any], object], fake: Callable[[Any], object], key: Any) -> None:
    with Client(NOBODY) as client, pytest.raises(InvalidArgument) as said:
        real(client, key)
    with pytest.raises(InvalidArgument) as by_fake:
        fake(key)
    assert (type(by_fake.value), str(by_fake.value)) == (type(said.value), str(said.value))


@pytest.mark.parametrize("timeout", ["10", -1])
def test_a_wait_for_the_loss(timeout: Any) -> None:
    with pytest.raises(InvalidArgument, match="timeout must be a number of seconds, 0 or more, or None"):
        FakeLock().acquire().lost.wait(timeout)


@pytest.mark.parametrize("within", ["10", 0, -1, True])
def test_a_hold(within: Any) -> None:
    hold = FakeLock().acquire()
    with pytest.raises(InvalidArgument, match="within must be a number of seconds, more than 0, not "):
        hold.beat(within)
    with pytest.raises(InvalidArgument, match="seconds must be a number of seconds, 0 or more, not "):
        hold.ensure(-1)
    with pytest.raises(InvalidArgument, match="fn must be a function, not "):
        hold.on_lost(within)
