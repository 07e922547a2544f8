"""Signal handlers that call the client they have interrupted: nothing waits for itself."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord import AlreadyHeld, Client, ConsulCoordError, Lock, ReleaseOutcome, Semaphore
from consul_coord.sync import driver
from tests.interrupts.points import raises, strike
from tests.interrupts.stage import HARMLESS, SPEC, left_in, quiet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.support.sites import Site

LONGEST = 600
SOON = 2.0
"""Seconds: well below what a release waits for an answer."""


def each_place(act: Callable[[int], bool], places: Iterable[int]) -> None:
    for place in places:
        if not act(place):
            break


def drawn(number: int, seed: object) -> list[int]:
    return sorted(random.Random(f"{seed}").sample(range(LONGEST), number))


def releases_it_too(client: Client, key: str, place: int) -> bool:
    """Release a hold in the midst of its release."""
    hold = Lock(client, key).acquire(timeout=5)
    outcomes: list[ReleaseOutcome] = []
    began = time.monotonic()
    struck = strike(hold.release, place, handler=lambda: outcomes.append(hold.release()))
    assert time.monotonic() < began + SOON, struck.at
    assert set(outcomes) <= {ReleaseOutcome.RELEASED, ReleaseOutcome.UNKNOWN}
    assert not hold.is_held
    assert hold.release() is ReleaseOutcome.RELEASED
    return bool(struck.at)


def takes_it_again(client: Client, key: str, place: int) -> bool:
    """Try to take a lock in the midst of its acquire or release, while another thread waits for it."""
    lock = Lock(client, key)
    told = threading.Event()

    def wait_for_it() -> None:
        with Lock(client, key).hold(timeout=10):
            told.set()

    waiter = threading.Thread(target=wait_for_it)

    def act() -> None:
        with lock.hold(timeout=10):
            pass

    def handler() -> None:
        waiter.start()
        try:
            hold = Lock(client, key).try_acquire()
        except AlreadyHeld:
            return
        if hold is not None:
            hold.release()

    struck = strike(act, place, handler=handler)
    if struck.at:
        assert told.wait(SOON), struck.at
        waiter.join()
    return bool(struck.at)


def releases_another(client: Client, key: str, place: int) -> bool:
    """Release another permit of the same semaphore in the midst of an acquire."""
    semaphore = Semaphore(client, key, 2)
    earlier = semaphore.acquire(timeout=5)
    taken: list[object] = []
    struck = strike(lambda: taken.append(semaphore.acquire(timeout=5)), place, handler=earlier.release)
    assert earlier.release() is ReleaseOutcome.RELEASED
    assert semaphore.release() is ReleaseOutcome.RELEASED
    return bool(struck.at)


def closes(client: Client, key: str, place: int) -> bool:
    """Close a client of its own in the midst of a release, and raise: the next one has the key at once."""
    own = Client(address=client._runner.serving, session=SPEC)
    hold = Lock(own, key).acquire(timeout=5)

    def handler() -> None:
        own.close()
        raises()

    began = time.monotonic()
    with quiet() as dropped:
        struck = strike(hold.release, place, handler=handler)
    assert all(each.startswith(HARMLESS) for each in dropped)
    assert struck.raised == bool(struck.at)
    assert time.monotonic() < began + SOON, struck.at
    assert not hold.is_held
    with Lock(client, key).hold(timeout=SOON):
        own.close()
    return bool(struck.at)


def test_closing_amid_a_hand_over_to_the_background_waits_for_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The places where this happened are few: the handler strikes at one of them."""
    own = Client(address=site.address, session=SPEC)
    make = driver._Early.__init__

    def make_and_close(early: driver._Early, program: Any, name: str) -> None:
        make(early, program, name)
        own.close()

    monkeypatch.setattr(driver._Early, "__init__", make_and_close)
    monkeypatch.setattr(driver, "start_delay", 30.0)  # so that the loop does not run yet
    began = time.monotonic()
    with suppress(ConsulCoordError):
        Lock(own, site.key).acquire(timeout=5)
    assert time.monotonic() < began + SOON
    own.close()
    assert site.left_behind() == []


def test_closing_amid_the_start_of_the_background_waits_for_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Client(address=site.address, session=SPEC)
    start = driver.start_thread

    def close_and_start(run: Callable[[], object], *, name: str) -> None:
        monkeypatch.setattr(driver, "start_thread", start)
        own.close()
        start(run, name=name)

    monkeypatch.setattr(driver, "start_thread", close_and_start)
    began = time.monotonic()
    with suppress(ConsulCoordError):
        Lock(own, site.key).acquire(timeout=5)
    assert time.monotonic() < began + SOON
    own.close()
    assert site.left_behind() == []


HANDLERS = [releases_it_too, takes_it_again, releases_another, closes]


def check(site: Site, handler: Callable[[Client, str, int], bool], places: Iterable[int]) -> None:
    with Client(address=site.address, session=SPEC) as client:
        each_place(lambda place: handler(client, f"{site.unique}/{place}", place), places)
        assert left_in(client) == []


@pytest.mark.parametrize("handler", HANDLERS)
def test_a_handler_may_call_the_client_it_has_interrupted(
    site: Site, handler: Callable[[Client, str, int], bool]
) -> None:
    check(site, handler, drawn(12, handler.__name__))


@pytest.mark.search
@pytest.mark.parametrize("handler", HANDLERS)
def test_a_handler_may_do_so_at_many_places(
    site: Site, handler: Callable[[Client, str, int], bool], search_seed: int
) -> None:
    check(site, handler, drawn(300, f"{handler.__name__} {search_seed}"))
