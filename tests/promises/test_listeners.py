"""Whoever listens for the end of something stops listening with its own: a long life leaves nothing behind.

A course is what a program does again and again. After each the client may have callbacks on signals that are
still to be raised, but not more than after the one before.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final

import pytest

from consul_coord import (
    AcquireTimeout,
    Client,
    Group,
    LeaderElection,
    Lock,
    LockLost,
    MultiLock,
    Partitioner,
    ReadWriteLock,
    ReentrantLock,
    Semaphore,
    observe,
)
from consul_coord.io import Signal
from tests.promises.conftest import SPEC
from tests.promises.waiting import SETTLING, settled
from tests.support.sites import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.promises.conftest import MakeClient

TIMES: Final = 16
"""More than two clients at rest listen to: what they begin late is no leak."""
WARM: Final = 3
"""After so many times all that is begun once has begun."""
SOON: Final = 15.0
"""Seconds after which nothing listens any more. A session may lie idle for longer."""
_values = itertools.count()


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return how to count the callbacks on signals that are still to be raised."""
    known: list[weakref.ref[Signal]] = []
    subscribe = Signal.subscribe

    def noted(signal: Signal, callback: Callable[[], object]) -> Callable[[], object]:
        known.append(weakref.ref(signal))
        return subscribe(signal, callback)

    def count() -> int:
        gc.collect()
        alive = {id(signal): signal for each in list(known) if (signal := each()) is not None}
        waiting = [each for each in alive.values() if not each.is_set()]
        return sum(len(vars(each).get("_callbacks", ())) for each in waiting)

    monkeypatch.setattr(Signal, "subscribe", noted)
    return count


def wait_in_vain(client: Client, lock: Lock | MultiLock | Semaphore) -> None:
    with suppress(AcquireTimeout):
        lock.acquire(timeout=SETTLING / 2)


def watch_keys(client: Client, key: str) -> None:
    for watch in (client.kv.watch(key), client.kv.watch_tree(key)):
        with watch as changes:
            next(changes)
            client.kv.put(key, str(next(_values)))
            next(changes)
    with observe(client, key) as changes:
        next(changes)


def be_a_member(client: Client, key: str) -> None:
    group = Group(client, key, id="me")
    with group, group.watch() as changes:
        next(changes)


def lead(client: Client, key: str) -> None:
    election = LeaderElection(client, key, on_change=lambda _: None, health=lambda: True)
    election.start()
    election.wait_for_leadership(timeout=10)
    election.stop()


def share_out(client: Client, key: str) -> None:
    owned: list[str] = []
    with Group(client, key, id="me") as group:
        sharing = Partitioner(
            group, 2, on_acquired=lambda name, _: owned.append(name), on_released=lambda *_: None, settle=0.0
        )
        with sharing:
            eventually(lambda: len(owned) == 2)


COURSES: dict[str, Callable[[Client, str], object]] = {
    "lock": lambda client, key: Lock(client, key).acquire(timeout=5).release(),
    "multi": lambda client, key: MultiLock(client, [f"{key}/a", f"{key}/b"]).acquire(timeout=5).release(),
    "read": lambda client, key: ReadWriteLock(client, key, session=SPEC).read.acquire(timeout=5).release(),
    "permit": lambda client, key: Semaphore(client, key, 1).acquire(timeout=5).release(),
    "lock in vain": lambda client, key: wait_in_vain(client, Lock(client, f"{key}/held")),
    "permit in vain": lambda client, key: wait_in_vain(client, Semaphore(client, f"{key}/held", 1)),
    "watches": watch_keys,
    "member": be_a_member,
    "leader": lead,
    "partitions": share_out,
}
"""What is done with a client, again and again."""


@pytest.mark.parametrize("name", COURSES)
def test_nothing_goes_on_listening_after_its_end(
    make_client: MakeClient, listening: Callable[[], int], key: str, name: str
) -> None:
    client, other = make_client(), make_client()
    course = COURSES[name]
    with Lock(other, f"{key}/held") if name == "lock in vain" else Semaphore(other, f"{key}/held", 1):
        for _ in itertools.repeat(None, WARM):
            course(client, key)
        before = settled(listening)
        for _ in itertools.repeat(None, TIMES):
            course(client, key)
        eventually(lambda: listening() < before + TIMES, within=SOON)


@pytest.mark.parametrize("after", ["its hold ends with it", "its hold goes on", "its hold was lost"])
def test_a_block_that_may_be_interrupted_keeps_nothing_once_it_is_left(
    make_client: MakeClient, listening: Callable[[], int], key: str, after: str
) -> None:
    client, other = make_client(), make_client()
    lock = ReentrantLock(client, key)

    def course() -> None:
        with suppress(LockLost), lock.hold(timeout=5, interrupt=True) as hold:
            if after == "its hold was lost":
                other.kv.delete(key)
                hold.lost.wait(SOON)

    with lock if after == "its hold goes on" else nullcontext():
        for _ in itertools.repeat(None, WARM):
            course()
        before = settled(listening)
        for _ in itertools.repeat(None, 2 * TIMES):
            course()
        eventually(lambda: listening() < before + TIMES, within=SOON)


FOLLOWED: dict[str, Callable[[Client, str], Any]] = {
    "key": lambda client, key: client.kv.watch(key),
    "keys": lambda client, key: client.kv.watch_tree(key),
    "leader": observe,
    "members": lambda client, key: Group(client, key).watch(),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_a_watch_that_goes_on_keeps_nothing_of_each_change(
    make_client: MakeClient, listening: Callable[[], int], key: str, name: str
) -> None:
    client, other = make_client(), make_client()
    hold = Lock(other, key).acquire(timeout=5)
    group = Group(other, key, id="other")
    group.join()

    def change() -> None:
        value = str(next(_values))
        if name == "members":
            group.update(value)
        else:
            hold.put(value)
        next(changes)

    with FOLLOWED[name](client, key) as changes:
        next(changes)
        for _ in itertools.repeat(None, WARM):
            change()
        before = settled(listening)
        for _ in itertools.repeat(None, TIMES):
            change()
        eventually(lambda: listening() < before + TIMES, within=SOON)
    group.leave()
