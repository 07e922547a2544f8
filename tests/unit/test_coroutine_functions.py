"""Blocking code refuses coroutine functions: at the call, or where that is too early, by their results."""

from __future__ import annotations

import asyncio
import re
import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock, MagicMock

import pytest

import consul_coord as cc
from consul_coord.errors import InvalidArgument
from consul_coord.events import Failed
from consul_coord.server import ReferenceServer
from consul_coord.testing.fakes import FakeElection, FakeLock, FakeOnce, FakeSemaphore
from tests.unit.test_times import NOBODY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from contextlib import AbstractContextManager

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")
"""A coroutine that was never awaited."""


async def coroutine(*_: object) -> None:
    raise AssertionError("it ran")


def hidden(*_: object) -> Any:
    """Return a coroutine, and do not look as if."""
    return coroutine()


async def async_generator(*_: object) -> AsyncIterator[int]:
    yield 1


def generator(*_: object) -> Iterator[int]:
    yield 1


class Callable_:  # noqa: N801 - the name is taken
    async def __call__(self, *_: object) -> None:
        """Do nothing."""

    async def method(self, *_: object) -> None:
        """Do nothing."""


class Observer:
    async def on_event(self, event: object) -> None:
        """Do nothing."""


COROUTINE_FUNCTIONS: dict[str, Any] = {
    "a function": coroutine,
    "an async generator function": async_generator,
    "a partial": partial(partial(coroutine, 1), 2),
    "a partial of a method": partial(Callable_().method, 1),
    "a method": Callable_().method,
    "an object": Callable_(),
    "a mock": AsyncMock(),
}
WORK: dict[str, tuple[str, Callable[[Any, Any], object]]] = {
    "Lock.run": ("fn", lambda client, fn: cc.Lock(client, "k").run(fn)),
    "Lock.wrap": ("function", lambda client, fn: cc.Lock(client, "k").wrap(timeout=2)(fn)),
    "ReadWriteLock": ("fn", lambda client, fn: cc.ReadWriteLock(client, "k").read.run(fn)),
    "Semaphore.run": ("fn", lambda client, fn: cc.Semaphore(client, "k", 2).run(fn)),
    "Semaphore.wrap": ("function", lambda client, fn: cc.Semaphore(client, "k", 2).wrap()(fn)),
    "Once.run": ("fn", lambda client, fn: cc.Once(client, "k").run(fn, slot="1")),
    "every": ("function", lambda client, fn: cc.every(client, "k", period=60)(fn)),
    "LeaderElection.run": ("fn", lambda client, fn: cc.LeaderElection(client, "k").run(fn)),
    "LeaderElection.leading": ("fn", lambda client, fn: cc.LeaderElection(client, "k").leading(fn)),
}
WORK |= {
    "FakeLock.run": ("fn", lambda _, fn: FakeLock("k").run(fn)),
    "FakeLock.wrap": ("function", lambda _, fn: FakeLock("k").wrap()(fn)),
    "FakeSemaphore.run": ("fn", lambda _, fn: FakeSemaphore("k", 2).run(fn)),
    "FakeOnce.run": ("fn", lambda _, fn: FakeOnce("k").run(fn, slot="1")),
    "FakeElection.run": ("fn", lambda _, fn: FakeElection("k").run(fn)),
}
CALLBACKS: dict[str, tuple[str, Callable[[Any, Any], object]]] = {
    name: (name, lambda client, fn, name=name: cc.LeaderElection(client, "k", **{name: fn}))  # type: ignore[misc]
    for name in ("on_elected", "on_lost", "on_change", "health")
}
CALLBACKS |= {
    name: (
        name,
        lambda client, fn, name=name: cc.Partitioner(cc.Group(client, "g"), 2, **{name: fn}),  # type: ignore[misc]
    )
    for name in ("on_acquired", "on_released", "weight")
}
PLAIN: dict[str, tuple[str, Callable[[Any, Any], object]]] = {
    "until": ("until", lambda client, fn: cc.LeaderElection(client, "k").run(print, until=fn)),
    "update": ("fn", lambda client, fn: client.kv.update("k", fn)),
}
USES = WORK | CALLBACKS | PLAIN


@pytest.fixture(scope="module")
def client() -> Iterator[cc.Client]:
    with cc.Client(NOBODY) as client:
        yield client


@pytest.fixture(scope="module")
def server() -> Iterator[cc.Client]:
    with ReferenceServer() as server, cc.Client(server.address) as client:
        yield client


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", COROUTINE_FUNCTIONS)
def test_is_refused_at_the_call(client: cc.Client, use: str, kind: str) -> None:
    name, call = USES[use]
    with pytest.raises(InvalidArgument, match=rf"^{name} is (a coroutine|an async generator) function, "):
        call(client, COROUTINE_FUNCTIONS[kind])


def test_the_error_names_the_ways_out(client: cc.Client) -> None:
    told = "fn is a coroutine function, and nothing awaits it here: give a plain function, or use AsyncClient"
    with pytest.raises(InvalidArgument, match=re.escape(told)):
        cc.Lock(client, "k").run(coroutine)  # type: ignore[unused-coroutine]


@pytest.mark.parametrize("use", WORK)
def test_a_generator_function_is_no_work(client: cc.Client, use: str) -> None:
    name, call = WORK[use]
    with pytest.raises(InvalidArgument, match=rf"^{name} is a generator function, whose body would"):
        call(client, generator)


@pytest.mark.parametrize("use", WORK)
def test_what_cannot_be_called_is_no_work(client: cc.Client, use: str) -> None:
    name, call = WORK[use]
    with pytest.raises(InvalidArgument, match=rf"^{name} must be a function, not int"):
        call(client, 5)


def test_functions_of_every_other_kind_are_work(server: cc.Client) -> None:
    class Plain:
        def __call__(self, *_: object) -> str:
            return "done"

        @classmethod
        def method(cls, *_: object) -> str:
            return "done"

    for fn in (Plain(), Plain.method, partial(Plain(), 1), MagicMock(return_value="done"), lambda _: "done"):
        assert cc.Lock(server, "kinds").run(fn) == "done"
    assert cc.Lock(server, "kinds").run(type) is cc.Hold
    with pytest.raises(TypeError):
        cc.Lock(server, "kinds").run(len)  # type: ignore[arg-type]


def test_work_that_returns_a_coroutine_releases_and_says_so(server: cc.Client) -> None:
    lock = cc.Lock(server, "returned")
    told = pytest.raises(InvalidArgument, match=r"^fn returned coroutine, and nothing awaits it here")
    with told:
        lock.run(hidden)
    with pytest.raises(InvalidArgument, match=r"^function returned coroutine"):
        lock.wrap()(hidden)()
    with told:
        cc.Semaphore(server, "returned-too", 2).run(hidden)
    assert not lock.locked()


def test_a_run_that_returns_a_coroutine_is_no_success(server: cc.Client) -> None:
    once = cc.Once(server, "once")
    with pytest.raises(InvalidArgument, match=r"^fn returned coroutine"):
        once.run(hidden, slot="1")
    last = once.last()
    assert last is not None
    assert last.failed
    with pytest.raises(InvalidArgument, match=r"^function returned coroutine"):
        cc.every(server, "every", period=60)(hidden)()
    assert once.run(lambda _: "done", slot="1").ran


def test_the_function_for_a_loss_can_be_called(server: cc.Client) -> None:
    odd: Any = None
    with cc.Lock(server, "loss") as hold:
        with pytest.raises(InvalidArgument, match=r"^fn must be a function, not NoneType"):
            hold.on_lost(odd)
        with pytest.raises(InvalidArgument, match=r"^fn must be a function, or None, not int|^fn must be"):
            hold.on_lost(5)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match=r"^fn is a coroutine function, and nothing awaits it here"):
            hold.on_lost(coroutine)
    with cc.LeaderElection(server, "leads") as election:
        leadership = election.wait_for_leadership(timeout=10)
        with pytest.raises(InvalidArgument, match=r"^fn must be a function, not NoneType"):
            leadership.on_lost(odd)
        with pytest.raises(InvalidArgument, match=r"^fn is a coroutine function"):
            leadership.on_lost(coroutine)


@contextmanager
def called_when_elected(client: cc.Client) -> Iterator[None]:
    with cc.LeaderElection(client, "k", on_elected=hidden):
        yield


@contextmanager
def called_at_the_loss_of_a_lock(client: cc.Client) -> Iterator[None]:
    hold = cc.Lock(client, "k").acquire(timeout=20)
    hold.on_lost(hidden)
    client.session.destroy(hold.session)
    yield


@contextmanager
def called_at_the_loss_of_a_leadership(client: cc.Client) -> Iterator[None]:
    with cc.LeaderElection(client, "k") as election:
        leadership = election.wait_for_leadership(timeout=20)
        leadership.on_lost(hidden)
        client.session.destroy(leadership.session)
        yield


@pytest.mark.parametrize(
    "called", [called_when_elected, called_at_the_loss_of_a_lock, called_at_the_loss_of_a_leadership]
)
def test_a_callback_that_returns_a_coroutine_is_reported(
    called: Callable[[cc.Client], AbstractContextManager[None]],
) -> None:
    failures: list[str] = []
    reported = threading.Event()

    class Eyes:
        def on_event(self, event: object) -> None:
            if isinstance(event, Failed):
                failures.append(event.describe())
                reported.set()

    with (
        ReferenceServer() as theirs,
        cc.Client(theirs.address, observer=Eyes()) as watched,
        called(watched),
    ):
        assert reported.wait(20)
    assert "returned coroutine, and nothing awaits it here" in failures[0]


@pytest.mark.parametrize("kind", [cc.Client, cc.AsyncClient])
def test_an_observer_is_not_awaited(kind: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^observer\.on_event is a coroutine function"):
        kind(observer=Observer())


def test_on_an_event_loop_they_are_welcome() -> None:
    async def work(*_: object) -> str:
        return "done"

    def plain(*_: object) -> Any:
        return work()

    async def main() -> None:
        with ReferenceServer() as server:
            async with cc.AsyncClient(server.address) as client:
                lock = cc.AsyncLock(client, "k")
                for fn in (work, partial(work, 1), plain, AsyncMock(return_value="done")):
                    assert await lock.run(fn) == "done"
                assert await lock.wrap()(plain)() == "done"
                assert (await cc.AsyncOnce(client, "o").run(work, slot="1")).value == "done"
                async with lock as hold:
                    hold.on_lost(work)
                    hold.on_lost(print)
                for health in (work, bool):
                    cc.AsyncLeaderElection(client, "e", on_elected=work, on_lost=print, health=health)  # type: ignore[arg-type]
                with pytest.raises(InvalidArgument, match=r"^what fn returns must be something to await"):
                    await lock.run(lambda _: None)  # type: ignore[arg-type, return-value]
                for odd in (generator, async_generator):
                    with pytest.raises(InvalidArgument, match=r"^function is an? .*generator function"):
                        lock.wrap()(odd)  # type: ignore[arg-type]
                with pytest.raises(InvalidArgument, match=r"^until is a coroutine function"):
                    await cc.AsyncLeaderElection(client, "e").run(work, until=work)  # type: ignore[arg-type]
                assert not await lock.locked()

    asyncio.run(main())
