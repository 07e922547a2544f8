"""``interrupt=True``: a loss is raised into the body of a block in the main thread, and nowhere else."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord import (
    Client,
    InvalidArgument,
    LeaderElection,
    LeadershipLost,
    Lock,
    LockLost,
    LossReason,
    ReentrantLock,
    ReleaseOutcome,
    Semaphore,
)
from consul_coord.sync import interrupting
from tests.support.sites import eventually
from tests.support.stalls import stalls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from consul_coord import Hold
    from tests.lock.conftest import MakeClient
    from tests.support.sites import Site

WITHIN = 0.05
"""Seconds from the loss to its arrival in the body, apart from what the machine is late."""
LONG = 30.0
SIGNAL = signal.SIGURG


def sleep() -> None:
    time.sleep(LONG)


def read_socket() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.recv(1)


def read_pipe() -> None:
    ours, theirs = os.pipe()
    with os.fdopen(ours, "rb") as file, os.fdopen(theirs, "wb"):
        file.read(1)


def compute() -> None:
    until = time.monotonic() + LONG
    while time.monotonic() < until:
        sum(range(100))


def wait_for_a_thread() -> None:
    threading.Lock().acquire()
    latch = threading.Lock()
    latch.acquire()
    latch.acquire(timeout=LONG)


BODIES = [sleep, read_socket, read_pipe, compute, wait_for_a_thread]


@pytest.fixture(autouse=True)
def handler() -> Iterator[list[int]]:
    """Handle the signal as an application would, and see that it is handled so again afterwards."""
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        received.append(number)

    before = signal.signal(SIGNAL, handle)
    try:
        yield received
        assert signal.getsignal(SIGNAL) is handle
    finally:
        signal.signal(SIGNAL, before)


@pytest.mark.parametrize("body", BODIES)
def test_a_loss_is_raised_into_whatever_the_main_thread_does(
    site: Site, client: Client, body: Callable[[], None]
) -> None:
    told: list[float] = []
    arrived: list[float] = []

    def work() -> None:
        with Lock(client, site.key).hold(timeout=5, interrupt=True, max_hold=0.2) as hold:
            hold.on_lost(lambda _: told.append(time.monotonic()))
            try:
                body()
            finally:
                arrived.append(time.monotonic())

    with stalls() as measured, pytest.raises(LockLost) as caught:
        work()
    assert caught.value.reason is LossReason.MAX_HOLD
    eventually(lambda: told)
    assert arrived[0] - told[0] < WITHIN + measured.slack


def test_every_cause_of_a_loss_is(site: Site, client: Client) -> None:
    with (  # noqa: PT012
        pytest.raises(LockLost) as caught,
        ThreadPoolExecutor() as pool,
        Lock(client, site.key).hold(timeout=5, interrupt=True) as hold,
    ):
        pool.submit(site.operator.destroy, hold.session)
        sleep()
    assert caught.value.reason is LossReason.SESSION_GONE


def test_run_wrap_and_semaphores_take_it_too(site: Site, client: Client) -> None:
    lock = Lock(client, site.key)
    with pytest.raises(LockLost):
        lock.run(lambda _: sleep(), timeout=5, interrupt=True, max_hold=0.1)

    @lock.wrap(timeout=5, interrupt=True, max_hold=0.1)
    def work(seconds: float) -> None:
        time.sleep(seconds)

    with pytest.raises(LockLost):
        work(LONG)
    with pytest.raises(LockLost):
        Semaphore(client, f"{site.key}.s", 1).run(lambda _: sleep(), timeout=5, interrupt=True, max_hold=0.1)


@pytest.mark.parametrize("reason", [LossReason.STALLED, LossReason.RESIGNED])
def test_a_leader_is_interrupted_likewise(site: Site, client: Client, reason: LossReason) -> None:
    raised: list[BaseException] = []
    election = LeaderElection(client, site.key)

    def lead(leadership: Hold) -> None:
        if reason is LossReason.STALLED:
            leadership.beat(0.1)
        else:
            threading.Timer(0.1, election.resign).start()
        try:
            sleep()
        except LeadershipLost as lost:
            raised.append(lost)
            raise

    election.run(lead, until=lambda: True, interrupt=True)
    (lost,) = raised
    assert isinstance(lost, LeadershipLost)
    assert lost.reason is reason


def test_in_another_thread_it_is_refused_before_any_io(site: Site, client: Client) -> None:
    def enter() -> None:
        with Lock(client, site.key).hold(timeout=5, interrupt=True):
            raise AssertionError("entered")

    with ThreadPoolExecutor() as pool, pytest.raises(InvalidArgument, match="main thread only"):
        pool.submit(enter).result()
    assert client.stats().requests == 0


@pytest.mark.parametrize("missing", ["the signal", "a way to one thread"])
def test_where_the_system_can_not_do_it_it_is_refused_before_any_io(
    site: Site, client: Client, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    if missing == "the signal":
        monkeypatch.setattr(interrupting, "SIGNAL", None)
    else:
        monkeypatch.delattr(signal, "pthread_kill")
    with pytest.raises(InvalidArgument, match="this system can't"):
        Lock(client, site.key).hold(timeout=5, interrupt=True).__enter__()
    assert client.stats().requests == 0


def test_a_block_that_is_forgotten_in_another_thread_gives_the_handler_back(
    site: Site, client: Client, handler: list[int]
) -> None:
    before = signal.getsignal(SIGNAL)
    blocks = [Lock(client, site.key).hold(timeout=5, interrupt=True)]
    blocks[0].__enter__()
    assert signal.getsignal(SIGNAL) is not before
    with ThreadPoolExecutor(1) as pool:
        pool.submit(blocks.clear).result()
    eventually(lambda: signal.getsignal(SIGNAL) is before)
    signal.raise_signal(SIGNAL)
    assert handler == [SIGNAL], "only that of somebody else"


def test_it_is_raised_once(site: Site, client: Client) -> None:
    lock = Lock(client, site.key)
    seen: list[LockLost] = []
    with pytest.raises(LockLost) as caught, lock.hold(timeout=5, interrupt=True, max_hold=0.1):  # noqa: PT012
        try:
            sleep()
        except LockLost as lost:
            seen.append(lost)
        time.sleep(0.2)  # a body that goes on is not interrupted again, and is told at its end
    assert len(seen) == 1
    assert caught.value is not seen[0]


def test_a_body_that_has_ended_is_not_interrupted(site: Site, make_client: MakeClient) -> None:
    client = make_client(lock_delay=5.0)
    for _ in range(20):
        try:
            with Lock(client, site.key).hold(timeout=5, interrupt=True, max_hold=0.03):
                time.sleep(0.027)
        except LockLost:
            pass
        time.sleep(0.005)  # would be hit by a signal that comes late


def test_what_is_given_back_is_given_back(site: Site, client: Client, proxy: object) -> None:
    """The loss of the outer hold waits for the end of the inner one's release."""
    inner = Lock(client, f"{site.key}.inner")
    with pytest.raises(LockLost) as caught, Lock(client, site.key).hold(timeout=5, interrupt=True) as outer:  # noqa: PT012
        with inner.hold(timeout=5, interrupt=True) as hold:
            outer.beat(0.000_1)
        assert hold.reason is None
        sleep()
    assert caught.value.fence == outer.fence
    assert inner.try_acquire() is not None


@pytest.mark.parametrize("kind", [Lock, Semaphore])
def test_no_code_runs_where_an_interrupt_would_be_lost(
    site: Site, client: Client, kind: type[Lock | Semaphore]
) -> None:
    """The interpreter drops what is raised in the callback of a weak reference."""
    lock = Lock(client, site.key) if kind is Lock else Semaphore(client, site.key, 1)
    called: set[str] = set()
    gc.disable()  # what is garbage of other tests may have callbacks
    sys.setprofile(lambda frame, event, _: called.add(frame.f_code.co_name) if event == "call" else None)
    try:
        with lock.hold(timeout=10, interrupt=True):
            pass
    finally:
        sys.setprofile(None)
        gc.enable()
    assert "interrupt_at_loss" in called
    assert called.isdisjoint({"_gone", "_remove"})


class Finalized:
    """Waits in its finalizer."""

    def __del__(self) -> None:
        sleep()


def in_a_finalizer() -> None:
    Finalized()


def in_a_callback() -> None:
    doomed = threading.Event()
    ref = weakref.ref(doomed, lambda _: sleep())
    del doomed
    assert ref() is None


def in_the_garbage_collector() -> None:
    doomed = [Finalized()]
    doomed.append(doomed)  # type: ignore[arg-type]
    del doomed
    gc.collect()


@pytest.mark.parametrize("there", [in_a_finalizer, in_a_callback, in_the_garbage_collector])
def test_a_loss_that_the_interpreter_drops_is_raised_again(
    site: Site, client: Client, there: Callable[[], None]
) -> None:
    before, began = sys.unraisablehook, time.monotonic()
    with pytest.raises(LockLost), Lock(client, site.key).hold(timeout=5, interrupt=True, max_hold=0.1):  # noqa: PT012
        there()
        sleep()
    assert time.monotonic() - began < LONG  # neither there nor after it was slept to the end
    assert sys.unraisablehook is before


def test_it_is_raised_again_as_soon_as_the_interrupted_finalizer_has_ended(
    site: Site, client: Client
) -> None:
    class Slow:
        def __del__(self) -> None:
            try:
                sleep()
            finally:
                time.sleep(0.7)

    ended: list[float] = []
    with stalls() as stalled:
        with pytest.raises(LockLost), Lock(client, site.key).hold(timeout=5, interrupt=True, max_hold=0.1):  # noqa: PT012
            Slow()
            ended.append(time.monotonic())
            sleep()
        late = time.monotonic() - ended[0]
    assert late < WITHIN + stalled.slack


def test_it_is_raised_again_also_where_another_loss_came_of_it(
    site: Site, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: told.append(unraisable.exc_value))
    key, began = f"{site.key}.inner", time.monotonic()

    class WithALock:
        def __del__(self) -> None:
            with Lock(client, key).hold(timeout=5, max_hold=0.01) as hold:
                hold.lost.wait(5)
                sleep()

    with pytest.raises(LockLost) as caught, Lock(client, site.key).hold(timeout=5, interrupt=True) as outer:  # noqa: PT012
        threading.Timer(0.2, site.operator.destroy, [outer.session]).start()
        WithALock()
        sleep()
    assert caught.value.fence == outer.fence
    assert [type(each) for each in told] == [LockLost]
    assert time.monotonic() - began < LONG


def test_a_hook_that_others_put_back_is_ours_again_when_it_is_needed(site: Site, client: Client) -> None:
    before = ours = sys.unraisablehook
    for _ in range(3):
        with pytest.raises(LockLost), Lock(client, site.key).hold(timeout=5, interrupt=True, max_hold=0.1):  # noqa: PT012
            ours = sys.unraisablehook
            sys.unraisablehook = before
            in_a_finalizer()
            sleep()
        assert sys.unraisablehook is before
        sys.unraisablehook = ours  # as one who began inside the block, and ends after it
        with Lock(client, site.key).hold(timeout=5, interrupt=True):
            assert sys.unraisablehook is ours
        assert sys.unraisablehook is before


def test_what_else_is_dropped_is_told_as_ever(
    site: Site, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: told.append(unraisable.exc_value))
    error = ValueError("of the application")

    class Failing:
        def __del__(self) -> None:
            raise error

    with Lock(client, site.key).hold(timeout=5, interrupt=True):
        Failing()
    assert told == [error]


def test_nested_blocks_get_one_each_the_inner_one_first(site: Site, client: Client) -> None:
    seen: list[tuple[str, int]] = []
    inner: Hold | None = None
    with pytest.raises(LockLost) as caught, Lock(client, site.key).hold(timeout=5, interrupt=True) as outer:  # noqa: PT012
        try:
            with Lock(client, f"{site.key}.2").hold(timeout=5, interrupt=True) as inner:
                threading.Thread(target=site.operator.destroy, args=(inner.session,)).start()
                try:
                    sleep()
                except LockLost as lost:
                    seen.append(("inner body", lost.fence))
                    raise
        except LockLost as lost:
            seen.append(("outer body", lost.fence))
            try:
                sleep()
            except LockLost as again:
                seen.append(("outer body", again.fence))
                raise
    assert inner is not None
    assert seen[0] == ("inner body", inner.fence)
    assert seen[-1] == ("outer body", outer.fence)
    assert caught.value.fence == outer.fence


def test_the_signal_may_come_at_any_line_of_putting_the_handler_back(site: Site, client: Client) -> None:
    lock, struck = Lock(client, site.key), list[int]()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code is not interrupting._restore.__code__:
            return None
        if event == "line" and frame.f_lineno not in struck and len(struck) < runs:
            struck.append(frame.f_lineno)
            signal.raise_signal(SIGNAL)
        return trace

    runs = 0
    while runs == len(struck):  # each run strikes one more line; the last run finds no new one
        runs += 1
        with lock.hold(timeout=5, interrupt=True) as hold:
            sys.settrace(trace)
        sys.settrace(None)
        assert hold.release() is ReleaseOutcome.RELEASED
        assert site.operator.holder(site.key) is None
    assert runs > 5


def test_only_the_block_whose_hold_is_lost_is_meant(site: Site, client: Client) -> None:
    holds: list[Hold] = []
    with pytest.raises(LockLost) as caught:  # noqa: PT012, SIM117
        with Lock(client, site.key).hold(timeout=5, interrupt=True, max_hold=0.2) as hold:
            holds.append(hold)
            with Lock(client, f"{site.key}.2").hold(timeout=5, interrupt=True) as other:
                holds.append(other)
                sleep()
    outer, inner = holds
    assert (caught.value.key, caught.value.fence) == (outer.key, outer.fence)
    assert inner.reason is None
    assert caught.value.__cause__ is None


def test_one_hold_in_two_blocks_of_a_reentrant_lock(site: Site, client: Client) -> None:
    lock = ReentrantLock(client, site.key)
    seen: list[str] = []
    with pytest.raises(LockLost), lock.hold(timeout=5, interrupt=True, max_hold=0.2):  # noqa: PT012
        try:
            with lock.hold(timeout=5, interrupt=True):
                sleep()
        except LockLost:
            seen.append("inner")
            sleep()
    assert seen == ["inner"]


def test_waiting_for_another_lock_ends_too(site: Site, client: Client, held: Hold) -> None:
    began = time.monotonic()
    with (
        pytest.raises(LockLost) as caught,
        Lock(client, f"{site.key}.mine").hold(timeout=5, interrupt=True, max_hold=0.2),
    ):
        Lock(client, held.key).acquire(timeout=LONG)
    assert caught.value.key == f"{site.key}.mine"
    assert time.monotonic() - began < LONG / 2
    eventually(lambda: not client._runner.core.calls)


def test_the_signals_of_others_reach_their_handler(site: Site, client: Client, handler: list[int]) -> None:
    with Lock(client, site.key).hold(timeout=5, interrupt=True):
        os.kill(os.getpid(), SIGNAL)
        eventually(lambda: handler)
    assert handler == [SIGNAL]


def test_a_handler_that_is_not_python_is_left_alone(
    site: Site, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "getsignal", lambda _: None)
    with pytest.raises(InvalidArgument, match="SIGURG"), Lock(client, site.key).hold(interrupt=True):
        pass
    monkeypatch.undo()
    assert client.stats().requests == 0


def test_a_forked_child_is_not_interrupted(site: Site, client: Client) -> None:
    with Lock(client, site.key).hold(timeout=5, interrupt=True) as hold:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                time.sleep(0.1)
                code = 0 if hold.reason is LossReason.FORKED and not interrupting._open else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert hold.is_held


def test_a_client_that_is_closed_in_the_body_interrupts_it(site: Site, make_client: MakeClient) -> None:
    client = make_client()
    with pytest.raises(LockLost) as caught, Lock(client, site.key).hold(timeout=5, interrupt=True):  # noqa: PT012
        threading.Timer(0.1, client.close).start()
        sleep()
    assert caught.value.reason is LossReason.CLIENT_CLOSED
