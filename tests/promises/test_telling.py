"""Reports about a hold are true: its holder, the outcome of its release, and its leftovers."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

from consul_coord import (
    AcquireTimeout,
    Client,
    ConsulCoordError,
    Group,
    Lock,
    LossReason,
    MultiLock,
    Partitioner,
    ReadWriteLock,
    ReleaseOutcome,
    Semaphore,
)
from consul_coord.events import Acquired
from tests.promises.conftest import SPEC
from tests.promises.test_time import SLOW, TAKES, answered_late
from tests.support.proxy import Fault, Lose
from tests.support.sites import eventually
from tests.support.stalls import stalls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from consul_coord import Holder
    from consul_coord.events import Event
    from tests.promises.conftest import MakeClient
    from tests.support.proxy import FaultProxy
    from tests.support.sites import Operator

SOON: Final = 10.0
"""Within so many seconds happens what would take most of a minute if it went by the lease."""

HOLDERS: dict[str, Callable[[Client, str], Holder | None]] = {
    "lock": lambda client, key: Lock(client, key).holder(),
    "fair lock": lambda client, key: Lock(client, key).holder(),
    "multi": lambda client, key: MultiLock(client, [f"{key}/a", f"{key}/b"]).holder(),
    "read": lambda client, key: ReadWriteLock(client, key, session=SPEC).holders()[0],
    "write": lambda client, key: ReadWriteLock(client, key, session=SPEC).holders()[0],
    "permit": lambda client, key: Semaphore(client, key, 1).holders()[0],
}


@pytest.mark.parametrize("kind", TAKES)
def test_a_holder_is_told_with_the_fence_that_it_knows_itself(
    make_client: MakeClient, operator: Operator, key: str, kind: str
) -> None:
    client, other = make_client(), make_client()
    TAKES[kind](client, key).release()  # the key is there already
    hold = TAKES[kind](client, key)
    found = HOLDERS[kind](other, key)
    assert found is not None
    assert (found.session, found.fence) == (hold.session, hold.fence)
    assert found.since_index == hold.fence
    operator.put(f"{key}/beside", b"")
    assert HOLDERS[kind](other, key) == found


class Acquisitions:
    """An observer that keeps what is acquired."""

    def __init__(self) -> None:
        self.seen: list[Acquired] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, Acquired):
            self.seen.append(event)


@pytest.mark.parametrize("kind", TAKES)
def test_an_acquire_is_reported_with_the_time_that_it_took(
    proxy: FaultProxy, make_client: MakeClient, key: str, kind: str
) -> None:
    observer = Acquisitions()
    client = make_client(observer=observer)
    answered_late(proxy, "/v1/session/create")
    began = time.monotonic()
    hold = TAKES[kind](client, key)
    took = time.monotonic() - began
    eventually(lambda: observer.seen)
    (acquired,) = observer.seen
    assert SLOW <= acquired.waited <= took
    assert (acquired.session, acquired.fence) == (hold.session, hold.fence)


@contextmanager
def waits(wanted: Lock | Semaphore) -> Iterator[None]:
    """Have another thread wait for something."""

    def wait() -> None:
        with suppress(ConsulCoordError):
            wanted.acquire()

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield
    finally:
        wanted.cancel()
        thread.join()


QUEUES: dict[str, tuple[str, int]] = {
    "lock": ("lock", 1),
    "fair lock": ("fair lock", 1),
    "read": ("write", 1),
    "write": ("read", 3),
    "permit": ("permit", 2),
}
"""By the kind of the calls that wait: what holds, and how often."""


def place_of(client: Client, key: str, kind: str) -> Lock | Semaphore:
    side = ReadWriteLock(client, key, session=SPEC)
    places: dict[str, Lock | Semaphore] = {
        "lock": Lock(client, key),
        "fair lock": Lock(client, key, fair=True),
        "read": side.read,
        "write": side.write,
        "permit": Semaphore(client, key, 2),
    }
    return places[kind]


@pytest.mark.parametrize("kind", QUEUES)
def test_a_timeout_names_all_holders_and_the_place_among_those_that_wait(
    make_client: MakeClient, operator: Operator, key: str, kind: str
) -> None:
    held, number = QUEUES[kind]
    other = make_client()
    holds = [place_of(make_client(), key, held).acquire(timeout=5) for _ in range(number)]
    keys = len(operator.under(f"{key}/"))
    with ExitStack() as stack:
        for place in (1, 2):
            with pytest.raises(AcquireTimeout) as raised:
                place_of(other, key, kind).acquire(timeout=1.5)
            blocker = raised.value.blocker
            assert {each.session for each in blocker.holders} == {hold.session for hold in holds}
            assert blocker.position == place
            stack.enter_context(waits(place_of(make_client(), key, "write" if kind == "read" else kind)))
            eventually(partial(is_longer, operator, f"{key}/", keys + place - 1))


def is_longer(operator: Operator, folder: str, than: int) -> bool:
    return len(operator.under(folder)) > than


@pytest.mark.parametrize("kind", TAKES)
def test_the_release_of_what_an_operator_has_deleted_says_that_it_was_lost(
    client: Client, operator: Operator, key: str, kind: str
) -> None:
    hold = TAKES[kind](client, key)
    operator.delete(hold.key)  # before it is watched
    assert hold.release() is ReleaseOutcome.ALREADY_LOST
    assert hold.reason is LossReason.KEY_DELETED


@pytest.mark.parametrize("kind", ["read", "write", "permit"])
def test_a_session_that_stood_for_one_hold_ends_with_its_loss(
    client: Client, operator: Operator, key: str, kind: str
) -> None:
    hold = TAKES[kind](client, key)
    operator.delete(hold.key)
    assert hold.lost.wait(SOON)
    eventually(lambda: not operator.exists(hold.session), within=SOON)


def test_a_partition_that_an_operator_takes_away_is_owned_again_at_once(
    client: Client, operator: Operator, key: str
) -> None:
    owned: list[Any] = []
    with (
        Group(client, key) as group,
        Partitioner(group, ["a"], settle=0.0, on_acquired=lambda _, hold: owned.append(hold)) as partitioner,
    ):
        eventually(lambda: owned)
        first = owned[0]
        operator.put(first.key, b"", release=first.session)
        eventually(lambda: len(owned) > 1, within=SOON)
        second = owned[1]
        assert second.fence > first.fence
        found = partitioner.owners()["a"]
        assert found is not None
        assert (found.session, found.fence, found.since_index) == (
            second.session,
            second.fence,
            second.fence,
        )


TIMEOUT: Final = 0.4


@pytest.mark.parametrize("kind", ["lock", "multi", "read", "write", "permit"])
def test_an_acquire_ends_in_time_while_its_session_is_not_answered(
    proxy: FaultProxy, client: Client, key: str, kind: str
) -> None:
    locks: dict[str, Any] = {
        "lock": Lock(client, key),
        "multi": MultiLock(client, [f"{key}/a", f"{key}/b"]),
        "read": ReadWriteLock(client, key, session=SPEC).read,
        "write": ReadWriteLock(client, key, session=SPEC).write,
        "permit": Semaphore(client, key, 1),
    }
    proxy.add(Fault(lose=Lose.TIME, method="PUT", path="/v1/session/create", times=1_000))
    with stalls() as measured:
        began = time.monotonic()
        with pytest.raises((AcquireTimeout, ConsulCoordError)):
            locks[kind].acquire(timeout=TIMEOUT)
        took = time.monotonic() - began
    assert took < TIMEOUT + 1.0 + measured.slack
