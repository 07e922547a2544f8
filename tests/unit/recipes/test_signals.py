"""Signal, Once and Interrupt: each callback once, one winner for each settling, from any thread."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord.errors import AcquireCancelled, ClientClosed
from consul_coord.io import Calls, Interrupt, Once, OnDemand, Signal, run
from consul_coord.models import SessionSpec
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.contend.recipe import LOOK, Cancellable, Waiting
from tests.support.fake_io import FakeIO

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from consul_coord.io import IO

THREADS = 8


def race(*actions: Callable[[], object]) -> None:
    """Run all actions at once, each in its own thread."""
    start = threading.Barrier(len(actions))

    def run(action: Callable[[], object]) -> None:
        start.wait(5)
        action()

    threads = [threading.Thread(target=run, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)


def test_a_signal_calls_back_once_whenever_subscribed() -> None:
    signal, called = Signal(), Counter[str]()
    signal.subscribe(lambda: called.update(["before"]))
    assert not signal.is_set()
    signal.set()
    signal.set()
    signal.subscribe(lambda: called.update(["after"]))
    assert signal.is_set()
    assert called == {"before": 1, "after": 1}


def test_an_unsubscribed_callback_is_not_called() -> None:
    signal, called = Signal(), Counter[str]()
    unsubscribe = signal.subscribe(lambda: called.update(["it"]))
    unsubscribe()
    unsubscribe()
    signal.set()
    assert not called


def test_unsubscribing_takes_back_only_its_own() -> None:
    signal, called = Signal(), Counter[int]()

    def callback() -> None:
        called.update([0])

    first = signal.subscribe(callback)
    signal.subscribe(callback)
    first()
    signal.set()
    assert called == {0: 1}


def test_a_callback_may_subscribe_again() -> None:
    signal, called = Signal(), Counter[str]()
    signal.subscribe(lambda: signal.subscribe(lambda: called.update(["inner"])))
    signal.set()
    assert called == {"inner": 1}


def repeat(times: int, action: Callable[[], object]) -> None:
    """Try again and again what shows itself by chance only."""
    for _ in range(times):
        action()


def test_no_callback_is_lost_between_threads() -> None:
    def once() -> None:
        signal, called, lock = Signal(), Counter[int](), threading.Lock()

        def note(number: int) -> None:
            with lock:
                called.update([number])

        def subscribe(number: int) -> None:
            signal.subscribe(lambda: note(number))

        race(signal.set, signal.set, lambda: subscribe(1), lambda: subscribe(2))
        assert called.keys() == {1, 2}  # where two threads raise it, one of them may be called twice

    repeat(200, once)


def test_calls_begin_and_end_while_all_are_ended() -> None:
    def one_race() -> None:
        calls = Calls()

        def begin_and_end() -> None:
            for _ in range(50):
                interrupt = Interrupt()
                calls.enter(interrupt)
                calls.pop(interrupt)

        def end_all() -> None:
            for _ in range(100):
                calls.end(ValueError)

        race(begin_and_end, begin_and_end, end_all)
        assert not calls

    repeat(50, one_race)


def test_once_has_one_winner_among_threads() -> None:
    def one_race() -> None:
        once: Once[int] = Once()
        won: list[int] = []

        def settle(number: int) -> None:
            if once.settle(number):
                won.append(number)

        race(*(partial(settle, number) for number in range(THREADS)))
        assert won == [once.value]

    repeat(100, one_race)


def test_once_tells_an_equal_value_from_its_own() -> None:
    once: Once[int] = Once()
    assert once.value is None
    assert once.settle(1)
    assert not once.settle(1)


def test_once_may_be_settled_with_none() -> None:
    once: Once[None] = Once()
    assert once.settle(None)
    assert not once.settle(None)


def test_an_interrupt_raises_what_fired_first() -> None:
    interrupt = Interrupt()
    interrupt.raise_if_fired()
    interrupt.fire(lambda: ClientClosed("first"))
    interrupt.fire(lambda: AcquireCancelled("second", key="k"))
    for _ in range(2):
        with pytest.raises(ClientClosed, match="first"):
            interrupt.raise_if_fired()


def test_an_interrupt_makes_a_new_error_for_each_raise() -> None:
    interrupt = Interrupt()
    interrupt.fire(lambda: ClientClosed("again"))
    with pytest.raises(ClientClosed) as one:
        interrupt.raise_if_fired()
    with pytest.raises(ClientClosed) as other:
        interrupt.raise_if_fired()
    assert one.value is not other.value


def test_calls_are_over_when_they_are_refused_and_the_last_one_has_ended() -> None:
    calls, first, last = Calls(), Interrupt(), Interrupt()
    calls.enter(first)
    calls.enter(last)
    calls.pop(first)
    calls.left()
    assert not calls.over.is_set(), "none is refused"
    calls.enter(first)
    assert calls.refuse(ClientClosed)
    assert not calls.refuse(ClientClosed)
    for interrupt, over in ((first, False), (last, True)):
        calls.pop(interrupt)
        calls.left()
        assert calls.over.is_set() is over
    with pytest.raises(ClientClosed):
        calls.enter(first)


def test_work_that_comes_as_its_program_ends_starts_that_again() -> None:
    spawned: list[Callable[[IO], Awaitable[object]]] = []
    work, late, done = ["first"], ["late"], list[str]()

    class Host:
        def spawn(self, program: Callable[[IO], Awaitable[object]], *, name: str) -> None:
            spawned.append(program)

    async def program(_: IO) -> None:
        done.extend(work)
        work[:] = [late.pop()] if late else []  # what comes when it has looked for the last time
        if work:
            on_demand.start()  # which finds it running

    host: Any = Host()
    on_demand = OnDemand(host, program, has_work=lambda: work, name="it")
    on_demand.start()
    while spawned:
        begun: Any = spawned.pop(0)
        run(begun(None))
    assert done == ["first", "late"]


@pytest.mark.parametrize("is_set", [True, False])
def test_a_users_event_is_looked_at_until_its_call_is_over(is_set: bool) -> None:
    io, flag = FakeIO(), threading.Event()
    client = ClientState(io, spec=SessionSpec(), timeout=10.0)
    waiting = Waiting(Cancellable("jobs/a"), flag)
    client.calls.enter(waiting)
    waiting.heed(flag, io, client)
    began = io.time
    if is_set:
        io.at(began + 1.0, flag.set)
    io.at(began + 2.0, lambda: client.calls.pop(waiting))
    io.run_spawned("heed")
    assert began + 2.0 <= io.time <= began + 2.0 + LOOK
    with pytest.raises(AcquireCancelled, match="jobs/a") if is_set else nullcontext():
        waiting.raise_if_fired()
