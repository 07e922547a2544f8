"""What a host promises: never blocked by its own counting, callbacks whatever they raise, no thread left."""

from __future__ import annotations

import logging
import math
import signal
import threading
from collections import deque
from contextlib import nullcontext
from functools import partial
from inspect import CORO_CLOSED, getcoroutinestate
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest

from consul_coord import events, threads
from consul_coord.aio.callbacks import AsyncCallbacks
from consul_coord.aio.driver import AsyncIO, Supervisor
from consul_coord.aio.runner import AsyncHost
from consul_coord.clock import SystemClock, VirtualClock
from consul_coord.errors import AcquireCancelled, BackgroundFailed, ClientClosed, RequestTimeout
from consul_coord.events import Failed
from consul_coord.http.messages import Request, Response
from consul_coord.io import Interrupt, Signal, run
from consul_coord.sync import driver
from consul_coord.sync.driver import BlockingIO, ThreadHost, wait_for_any
from tests.support.counted import Counted
from tests.support.sites import eventually
from tests.support.stalls import lasting

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from consul_coord.events import Event
    from consul_coord.io import IO

PATIENCE = 20.0
EVENT = events.Retried("GET", "/", "trouble")


class Notes:
    """An observer that writes down what it is told."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.got_one = threading.Event()

    def on_event(self, event: Event) -> None:
        self.events.append(event)
        self.got_one.set()


class NoTransport:
    """For programs that send nothing."""

    async def sweep(self) -> float:
        return math.inf

    async def aclose(self) -> None:
        pass


def make_host(observer: Notes | None = None) -> ThreadHost:
    return ThreadHost(clock=SystemClock(), observer=observer, background=lambda: cast("Any", NoTransport()))


@pytest.fixture
def host() -> Iterator[ThreadHost]:
    before = set(threading.enumerate())
    host = make_host()
    yield host
    host.stop(timeout=PATIENCE)
    assert set(threading.enumerate()) <= before


def within(seconds: float, action: Any) -> bool:
    """Run an action in a thread; return whether it came to its end in time."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def test_counting_can_be_interrupted_by_counting(host: ThreadHost) -> None:
    # The garbage collector may run a forgotten hold's end, which counts, in the middle of a count.
    def count_within_a_count() -> None:
        with host._counting:
            host.emit(EVENT)

    assert within(PATIENCE, count_within_a_count)
    assert host.counted("Retried") == 1


def test_starting_a_thread_can_be_interrupted_by_a_callback(host: ThreadHost) -> None:
    called = threading.Event()

    def call_back_while_starting() -> None:
        with host._starting:
            host.call_back(called.set)

    assert within(PATIENCE, call_back_while_starting)
    assert called.wait(PATIENCE)


def test_counts_from_many_threads_are_all_there(host: ThreadHost) -> None:
    def count() -> None:
        for _ in range(500):
            host.count("x")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert host.counted("x") == 2000


@pytest.mark.parametrize("error", [ValueError("made up"), SystemExit(3), KeyboardInterrupt()])
def test_whatever_a_callback_raises_is_reported_and_the_next_one_runs(
    host: ThreadHost, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    next_one = threading.Event()

    def fail() -> None:
        raise error

    with caplog.at_level(logging.ERROR, "consul_coord"):
        host.call_back(fail)
        host.call_back(next_one.set)
        assert next_one.wait(PATIENCE)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert type(error).__name__ in caplog.text
    assert host.counted("Failed") == 1


def test_callbacks_run_one_after_the_other_on_one_thread_of_their_own(host: ThreadHost) -> None:
    seen: list[tuple[int, str]] = []
    done = threading.Event()

    def note(number: int) -> None:
        seen.append((number, threading.current_thread().name))

    for number in range(5):
        host.call_back(partial(note, number))
    host.call_back(done.set)
    assert done.wait(PATIENCE)
    assert seen == [(number, "consul-coord-callbacks") for number in range(5)]


def test_a_host_that_has_stopped_still_calls_back_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    host, called = make_host(), threading.Event()
    host.stop(timeout=PATIENCE)
    host.call_back(called.set)
    assert called.wait(PATIENCE)
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
    assert set(threading.enumerate()) <= before


def test_stopping_waits_for_the_callbacks_handed_over_before() -> None:
    host, called = make_host(), list[int]()
    for number in range(100):
        host.call_back(partial(called.append, number))
    host.stop(timeout=PATIENCE)
    assert called == list(range(100))


def test_a_host_that_has_stopped_starts_no_program() -> None:
    host = make_host()
    host.stop(timeout=PATIENCE)

    async def program(_: IO) -> None:
        raise AssertionError("it was started")

    assert host.spawn(program, name="late").done.is_set()


def test_a_background_that_can_not_start_fails_at_once_and_tells_the_observer() -> None:
    def no_transport() -> Any:
        raise OSError("Too many open files")

    notes = Notes()
    host = ThreadHost(clock=SystemClock(), observer=notes, background=no_transport)

    async def program(_: IO) -> None:
        raise AssertionError("it was started")

    with lasting(most=5.0), pytest.raises(BackgroundFailed, match="Too many open files"):
        host.spawn(program, name="it")
    assert notes.got_one.wait(PATIENCE)
    host.stop(timeout=PATIENCE)
    assert [type(event) for event in notes.events] == [Failed]


def test_a_wait_without_a_background_goes_on_after_that_could_not_start() -> None:
    """As between two tries of a request, long after."""
    troubles = [OSError("Too many open files")]

    def transport() -> Any:
        if troubles:
            raise troubles.pop()
        return NoTransport()

    async def program(_: IO) -> None:
        pass

    host = ThreadHost(clock=SystemClock(), observer=None, background=transport)
    io = BlockingIO(host, cast("Any", NoTransport()))
    with pytest.raises(BackgroundFailed):
        host.spawn(program, name="it")
    run(io.sleep(0.01))
    assert run(io.wait(host.spawn(program, name="it").done, deadline=io.now() + PATIENCE))
    host.stop(timeout=PATIENCE)


def test_a_bug_in_a_program_is_reported_and_ends_no_other(
    host: ThreadHost, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_: IO) -> None:
        raise ZeroDivisionError

    async def wait(io: IO) -> None:
        await io.sleep(3600)

    other = host.spawn(wait, name="other")
    failing = host.spawn(fail, name="failing")
    done = threading.Event()
    failing.done.subscribe(done.set)
    assert done.wait(PATIENCE)
    assert "failing: " not in caplog.text
    assert "failing raised" in caplog.text
    assert not other.done.is_set()
    other.cancel()
    done.clear()
    other.done.subscribe(done.set)
    assert done.wait(PATIENCE)


def test_an_observer_hears_of_every_event_and_of_others_failures() -> None:
    notes = Notes()
    host = make_host(notes)
    host.emit(EVENT)
    host.report_failure("a callback", ValueError("oops"))
    host.stop(timeout=PATIENCE)
    assert notes.events == [EVENT, Failed("a callback", "ValueError: oops")]


@pytest.mark.parametrize("level", [logging.ERROR, logging.DEBUG])
def test_the_log_shows_where_a_bug_is_and_where_an_error_of_ours_came_from_when_debugging(
    caplog: pytest.LogCaptureFixture, level: int
) -> None:
    caplog.set_level(level, events.logger.name)
    host = make_host()
    for error in (ValueError("a bug"), AcquireCancelled("no bug", key="k")):
        host.report_failure("a callback", error)
    host.stop(timeout=PATIENCE)
    shown = [record.exc_info is not None for record in caplog.records]
    assert shown == [True, level == logging.DEBUG]


@pytest.mark.parametrize("part", ["filter", "handle"])
def test_a_users_log_that_raises_keeps_no_event_from_the_observer(
    monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    def fail(_: object) -> bool:
        raise ValueError("made up")

    monkeypatch.setattr(events.logger, part, fail)
    notes = Notes()
    host = make_host(notes)
    warning = events.FencesRestarted("k", 9, 7)
    host.emit(warning)
    host.stop(timeout=PATIENCE)
    assert notes.events == [warning]


@pytest.mark.parametrize("error", [ValueError("oops"), SystemExit("oops"), KeyboardInterrupt("oops")])
def test_an_observer_does_not_hear_of_its_own_failure(
    caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    class Broken:
        calls = 0

        def on_event(self, event: Event) -> None:
            self.calls += 1
            if self.calls == 1:
                raise error

    broken = Broken()
    host = ThreadHost(clock=SystemClock(), observer=broken, background=lambda: cast("Any", NoTransport()))
    host.emit(EVENT)
    host.stop(timeout=PATIENCE)
    assert broken.calls == 1
    assert f"the observer raised {type(error).__name__}: oops" in caplog.text


def test_a_program_that_suspends_is_a_bug_that_is_told(host: ThreadHost) -> None:
    import asyncio

    async def program() -> None:
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="something other than its IO"):
        run(program())


def test_waiting_ends_at_its_deadline_and_not_before(host: ThreadHost) -> None:
    io = BlockingIO(host, cast("Any", NoTransport()))
    began = host.now()
    run(io.sleep(0.05))
    assert 0.05 <= host.now() - began < 1.0


class WatchedClock(SystemClock):
    """A clock that counts how often it is looked at."""

    looks = 0

    def now(self) -> float:
        self.looks += 1
        return super().now()


@pytest.mark.parametrize("in_main", [True, False])
def test_the_main_thread_never_sleeps_over_a_signal(monkeypatch: pytest.MonkeyPatch, in_main: bool) -> None:
    # A signal that comes between Python's last look and the system call does not interrupt the call.
    monkeypatch.setattr("consul_coord.sync.driver.SIGNAL_SLICE", 0.01)
    clock = WatchedClock()
    deadline = clock.now() + 0.2
    if in_main:
        wait_for_any([], deadline, clock)
    else:
        assert within(PATIENCE, lambda: wait_for_any([], deadline, clock))
    assert (clock.looks > 8) is in_main
    assert clock.now() >= deadline


def test_only_what_a_program_sends_here_is_bound_to_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consul_coord.sync.driver.start_delay", 3600.0)
    given: list[float] = []

    class Transport:
        def send(self, request: Request, *, timeout: float) -> Response:
            given.append(timeout)
            return Response(200, {}, b"")

    host = make_host()
    io = BlockingIO(host, cast("Any", Transport()))
    request = Request("GET", "/v1/status/leader")

    async def program(io: IO) -> None:
        await io.send(request, deadline=io.now() + 100.0)

    async def failing(io: IO) -> None:
        await program(io)
        raise ZeroDivisionError

    run(io.begin(program, name="it", deadline=io.now() + 5.0))
    run(program(io))
    with pytest.raises(ZeroDivisionError):
        run(io.begin(failing, name="it", deadline=io.now() + 5.0))
    run(program(io))
    assert [round(timeout / 50) for timeout in given] == [0, 2, 0, 2]


class Endless(NoTransport):
    """Answers no query, and notes each that was ended."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.ended = threading.Event()

    async def send(self, _: Request, *, timeout: float) -> Response:
        self.asked.set()
        try:
            await anyio.sleep(timeout)
        finally:
            self.ended.set()
        raise AssertionError("it was left alone for all its time")


@pytest.mark.parametrize("ends_by", ["its deadline", "the signal", "an interrupt"])
@pytest.mark.usefixtures("without_an_end")
def test_a_query_that_its_caller_waits_for_no_longer_is_ended(ends_by: str) -> None:
    transport, over, interrupt, clock = Endless(), Signal(), Interrupt(), VirtualClock()
    host = ThreadHost(clock=clock, observer=None, background=lambda: cast("Any", transport))
    io = BlockingIO(host, cast("Any", NoTransport()), interrupt=interrupt)

    def end() -> None:
        assert transport.asked.wait(PATIENCE)
        if ends_by == "the signal":
            over.set()
        elif ends_by == "an interrupt":
            interrupt.fire(ClientClosed)
        else:
            clock.advance(1.0)

    ending = threading.Thread(target=end)
    ending.start()
    query = Request("GET", "/v1/kv/k", hold_open=3600.0)
    try:
        assert run(io.changed(query, until=over, deadline=clock.now() + 1.0)) is None
    except ClientClosed:
        assert ends_by == "an interrupt"
    assert transport.ended.wait(PATIENCE)
    ending.join()
    host.stop(timeout=PATIENCE)


def test_a_program_that_is_cancelled_before_the_loop_runs_ends_with_its_beginning(
    monkeypatch: pytest.MonkeyPatch, host: ThreadHost
) -> None:
    monkeypatch.setattr("consul_coord.sync.driver.start_delay", 3600.0)
    slept = list[str]()

    async def program(io: IO) -> None:
        await io.sleep(3600)
        slept.append("it")

    cancelled, other = (host.spawn(program, name=name) for name in ("cancelled", "other"))
    cancelled.cancel()
    assert not cancelled.done.is_set(), "the loop does not run"
    host.hurry()
    ended = threading.Event()
    cancelled.done.subscribe(ended.set)
    assert ended.wait(PATIENCE)
    assert (slept, other.done.is_set()) == ([], False)
    ended.clear()
    other.cancel()
    other.done.subscribe(ended.set)
    assert ended.wait(PATIENCE), "what was handed over before can be cancelled as anything else"
    assert slept == []


def test_a_host_that_is_stopped_before_its_loop_runs_starts_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consul_coord.sync.driver.start_delay", 3600.0)
    before = set(threading.enumerate())
    made: list[None] = []
    host = ThreadHost(clock=SystemClock(), observer=None, background=lambda: cast("Any", made.append(None)))

    async def program(_: IO) -> None:
        raise AssertionError("it was started")

    early = host.spawn(program, name="early")
    loop = host._loop
    assert loop is not None
    with lasting(most=PATIENCE / 2):
        host.stop(timeout=PATIENCE)
    assert early.done.is_set(), "who waits for it would wait for ever"
    assert set(threading.enumerate()) <= before
    late = loop.spawn(program, name="just then")
    late.cancel()
    assert late.done.is_set()
    assert made == []


def test_once_the_loop_runs_what_begins_runs_there(monkeypatch: pytest.MonkeyPatch, host: ThreadHost) -> None:
    monkeypatch.setattr("consul_coord.sync.driver.start_delay", 3600.0)
    io = BlockingIO(host, cast("Any", NoTransport()))
    seen, done = list[int](), threading.Event()

    async def program(_: IO) -> None:
        seen.append(threading.get_ident())
        done.set()

    async def wait(io: IO) -> None:
        await io.sleep(3600)

    host.spawn(wait, name="what waits for the loop")
    run(io.begin(program, name="it", deadline=io.now() + PATIENCE))
    assert seen == [threading.get_ident()], "the loop's start is put off"
    done.clear()
    host.hurry()
    run(io.begin(program, name="it", deadline=io.now() + PATIENCE))
    assert done.wait(PATIENCE)
    assert seen[1] != threading.get_ident()


def test_a_thread_that_was_started_twice_runs_once(monkeypatch: pytest.MonkeyPatch, host: ThreadHost) -> None:
    """As by a start that was interrupted once the thread was there, and was repeated."""
    start, seen, before = driver.start_thread, list[tuple[str, int]](), set(threading.enumerate())

    def start_twice(run: Callable[[], object], *, name: str) -> None:
        for _ in range(2):
            start(run, name=name)

    async def program(_: IO) -> None:
        note("a program")

    def note(what: str) -> None:
        seen.append((what, threading.get_ident()))

    monkeypatch.setattr(driver, "start_thread", start_twice)
    for number in range(20):
        host.call_back(partial(note, f"callback {number}"))
    tasks = [host.spawn(program, name="it") for _ in range(2)]
    for task in tasks:
        wait_for_any([task.done], host.now() + PATIENCE, host.clock)
    eventually(lambda: len(seen) == 22)  # a thread that began after the other's end might have its ident
    host.stop(timeout=PATIENCE)
    eventually(lambda: set(threading.enumerate()) <= before)
    told = [entry for entry in seen if entry[0].startswith("callback")]
    assert [what for what, _ in told] == [f"callback {number}" for number in range(20)]
    assert len({thread for _, thread in told}) == 1
    assert len({thread for _, thread in seen}) == 2


def none_left(*_: object, **__: object) -> None:
    raise RuntimeError("can't start new thread")


def test_where_no_thread_can_be_had_callbacks_run_when_the_host_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host, called = make_host(), list[tuple[int, int]]()
    monkeypatch.setattr(threads, "start", none_left)
    for number in range(2):
        host.call_back(lambda number=number: called.append((number, threading.get_ident())))  # type: ignore[misc]
    assert called == [], "they may be long, and their caller waits for nothing"
    host.stop(timeout=PATIENCE)
    assert called == [(number, threading.get_ident()) for number in range(2)]


def test_where_no_thread_can_be_had_a_program_says_so_and_the_next_one_may_start(
    monkeypatch: pytest.MonkeyPatch, host: ThreadHost
) -> None:
    async def program(_: IO) -> None:
        pass

    with monkeypatch.context() as refused:
        refused.setattr(threads, "start", none_left)
        with pytest.raises(BackgroundFailed, match=r"can't start new thread.*ulimit -u"):
            host.spawn(program, name="it")
    wait_for_any([host.spawn(program, name="it").done], host.now() + PATIENCE, host.clock)


def test_what_is_handed_over_just_as_the_loop_takes_over_is_begun_too(
    monkeypatch: pytest.MonkeyPatch, host: ThreadHost
) -> None:
    begun = threading.Event()
    spawn = Supervisor.spawn

    async def late(_: IO) -> None:
        begun.set()

    def spawn_amid(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.undo()
        host.spawn(late, name="late")
        return spawn(*args, **kwargs)

    async def first(_: IO) -> None:
        """Do nothing: what counts is that it is there when the loop begins."""

    monkeypatch.setattr("consul_coord.sync.driver.start_delay", 3600.0)
    host.spawn(first, name="first")
    monkeypatch.setattr(Supervisor, "spawn", spawn_amid)
    host.hurry()
    assert begun.wait(PATIENCE)


class Prompt(NoTransport):
    """Answers at once."""

    async def send(self, _: Request, *, timeout: float) -> Response:
        return Response(200, {}, b"")


QUERY = Request("GET", "/v1/kv/k", hold_open=3600.0)
LATER = 60.0
"""Seconds of a clock that stands still."""


INTERRUPTED: dict[str, Callable[[IO], Coroutine[Any, Any, object]]] = {
    "a wait": lambda io: io.wait(Signal(), deadline=io.now() + PATIENCE),
    "a wait without an end": lambda io: io.wait(Signal()),
    "a pause": lambda io: io.sleep(PATIENCE),
    "a query": lambda io: io.changed(QUERY, until=Signal()),
}


@pytest.mark.parametrize("what", INTERRUPTED)
@pytest.mark.usefixtures("without_an_end")
def test_what_is_interrupted_raises_that_itself_and_returns_nothing(what: str) -> None:
    """The program must not go on as if the wait had ended."""
    interrupt = Interrupt()
    host = ThreadHost(clock=SystemClock(), observer=None, background=lambda: cast("Any", Endless()))
    io = BlockingIO(host, cast("Any", NoTransport()), interrupt=interrupt)
    other = threading.Timer(0.05, interrupt.fire, [ClientClosed])
    other.start()
    with lasting(most=PATIENCE / 2), pytest.raises(ClientClosed):
        run(INTERRUPTED[what](io))
    other.join()
    host.stop(timeout=PATIENCE)


@pytest.mark.parametrize("clock", [SystemClock(), VirtualClock()], ids=["real", "virtual"])
@pytest.mark.parametrize("within", [LATER, math.inf])
def test_a_wait_that_a_signal_handler_ends_leaves_nothing(
    clock: SystemClock | VirtualClock, within: float
) -> None:
    """Else each timeout by an alarm would leave a callback on what goes on."""

    class Enough(BaseException):
        """Raised by the handler."""

    def handle(*_: object) -> None:
        raise Enough

    signals, before = [Counted(), Counted()], signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Enough):
            wait_for_any([*signals], clock.now() + within, clock)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert [each.listening for each in signals] == [0, 0]
    assert not isinstance(clock, VirtualClock) or clock.next_alarm() is None


class Punctual(NoTransport):
    """Gives up each exchange when its time is over, as the real ones do."""

    async def send(self, request: Request, *, timeout: float, **_: object) -> Response:
        await anyio.sleep(timeout)
        raise RequestTimeout("no answer", method=request.method, path=request.path, outcome_unknown=False)


@pytest.mark.parametrize("backend", ["blocking", "asyncio", "trio"])
@pytest.mark.parametrize("seconds", [-1.0, 0.0, 0.05])
@pytest.mark.usefixtures("without_an_end")
def test_a_query_whose_time_is_over_is_no_failure(backend: str, seconds: float) -> None:
    clock, found = SystemClock(), list[object]()

    async def ask(io: IO) -> None:
        found.append(await io.changed(QUERY, until=Signal(), deadline=clock.now() + seconds))

    if backend == "blocking":
        host = ThreadHost(clock=clock, observer=None, background=lambda: cast("Any", Punctual()))
        run(ask(BlockingIO(host, cast("Any", NoTransport()))))
        host.stop(timeout=PATIENCE)
    else:
        loop_host = AsyncHost(clock=clock, observer=None)
        anyio.run(lambda: ask(AsyncIO(loop_host, cast("Any", Punctual()))), backend=backend)
    assert found == [None]


async def query_until(io: IO, over: Signal) -> None:
    assert await io.changed(QUERY, until=over, deadline=io.now() + LATER) is None


async def query_answered(io: IO, _: Signal) -> None:
    assert await io.changed(QUERY, until=Signal(), deadline=io.now() + LATER) is not None


async def wait(io: IO, over: Signal) -> None:
    assert await io.wait(over, deadline=io.now() + LATER)


WAITS: dict[str, tuple[Callable[[IO, Signal], Coroutine[Any, Any, None]], type[NoTransport]]] = {
    "a query until something happens": (query_until, Endless),
    "a query that is answered": (query_answered, Prompt),
    "a wait": (wait, NoTransport),
}


@pytest.mark.parametrize("kind", WAITS)
@pytest.mark.usefixtures("without_an_end")
def test_what_has_ended_leaves_no_alarm_on_the_clock(kind: str) -> None:
    program, transport = WAITS[kind]
    clock, over = VirtualClock(), Signal()
    host = ThreadHost(clock=clock, observer=None, background=lambda: cast("Any", transport()))
    other = threading.Timer(0.02, over.set)
    other.start()
    run(program(BlockingIO(host, cast("Any", NoTransport())), over))
    assert clock.next_alarm() is None
    other.join()
    host.stop(timeout=PATIENCE)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("kind", WAITS)
@pytest.mark.usefixtures("without_an_end")
def test_what_has_ended_on_an_event_loop_leaves_no_alarm_on_the_clock(kind: str, backend: str) -> None:
    program, transport = WAITS[kind]
    clock, over = VirtualClock(), Signal()

    async def main() -> None:
        io = AsyncIO(AsyncHost(clock=clock, observer=None), cast("Any", transport()))
        async with anyio.create_task_group() as group:
            group.start_soon(program, io, over)
            await anyio.wait_all_tasks_blocked()
            over.set()
        assert clock.next_alarm() is None
        with anyio.CancelScope() as scope:
            scope.cancel()
            await io.sleep(LATER)
        assert clock.next_alarm() is None

    anyio.run(main, backend=backend)


# -- on an event loop

BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])


class SlowClock(WatchedClock):
    """A clock on which less time passes than on the timers of a loop."""

    def now(self) -> float:
        return super().now() / 4


@BACKENDS
def test_a_timer_that_is_early_for_the_clock_is_set_again(backend: str) -> None:
    clock = SlowClock()

    async def main() -> None:
        io, began = AsyncIO(AsyncHost(clock=clock, observer=None), cast("Any", NoTransport())), clock.now()
        await io.sleep(0.05)
        assert clock.now() >= began + 0.05

    anyio.run(main, backend=backend)
    assert clock.looks < 50, "it went round and round"


@BACKENDS
def test_a_signal_that_another_thread_raises_ends_a_wait(backend: str) -> None:
    over = Signal()

    async def main() -> None:
        io = AsyncIO(AsyncHost(clock=SystemClock(), observer=None), cast("Any", NoTransport()))
        other = threading.Timer(0.02, over.set)
        other.start()
        assert await io.wait(over, deadline=io.now() + PATIENCE)
        other.join()

    with lasting(most=PATIENCE / 2):
        anyio.run(main, backend=backend)


RAISED: dict[str, tuple[BaseException, bool]] = {
    "an error": (ValueError("made up"), True),
    "an exit": (SystemExit(3), True),
    "Ctrl-C": (KeyboardInterrupt(), False),
    "the end of a generator": (GeneratorExit(), False),
    "errors": (BaseExceptionGroup("", [ValueError("made up"), ExceptionGroup("", [KeyError("k")])]), True),
    "errors and an exit": (BaseExceptionGroup("", [ValueError("made up"), SystemExit(3)]), True),
    "errors and Ctrl-C": (BaseExceptionGroup("", [ValueError("made up"), KeyboardInterrupt()]), False),
}
"""Errors that a user's function may raise, and whether its client reports them. The others end the loop."""


def raising(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize(("error", "is_own"), RAISED.values(), ids=RAISED)
def test_what_a_callback_raises_is_reported_or_is_for_the_loop(error: BaseException, is_own: bool) -> None:
    notes = Notes()
    host = AsyncHost(clock=SystemClock(), observer=notes)
    with nullcontext() if is_own else pytest.raises(type(error)):
        host.call_back(raising(error))
    assert [type(event) for event in notes.events] == [Failed] * is_own
    assert host._callbacks == {}, "closing would wait for it"


@pytest.mark.parametrize(("error", "is_own"), RAISED.values(), ids=RAISED)
@pytest.mark.parametrize("way", ["in order", "for an answer"])
def test_what_a_function_of_an_election_raises_goes_to_it_or_to_the_loop(
    error: BaseException, is_own: bool, way: str
) -> None:
    handed, failed, answers = list[Any](), list[BaseException](), list[object]()
    calls = AsyncCallbacks(cast("Any", SimpleNamespace(host=SimpleNamespace(call_back=handed.append))))
    if way == "in order":
        calls.in_order(raising(error), failed.append)
        calls.in_order(lambda: answers.append("the next one"), failed.append)
    else:
        calls.ask(raising(error), answers.append, failed.append, until=Signal())
    with nullcontext() if is_own else pytest.raises(type(error)):
        answer = handed[0]()
        if way == "for an answer":
            run(answer)
    assert failed == [error] * is_own
    assert answers == ["the next one"] * (is_own and way == "in order")


@BACKENDS
def test_a_coroutine_that_is_too_late_to_be_begun_is_closed(backend: str) -> None:
    """Else Python says that it was never awaited."""
    begun: list[Coroutine[Any, Any, None]] = []

    async def late() -> None:
        raise AssertionError("it was begun")

    def call_back() -> Coroutine[Any, Any, None]:
        begun.append(late())
        return begun[0]

    async def main() -> None:
        host = AsyncHost(clock=SystemClock(), observer=None)
        supervisor = host.adopt(Supervisor(host, cast("Any", NoTransport())))
        await supervisor.start()
        await supervisor.stop()
        host.call_back(call_back)
        await anyio.wait_all_tasks_blocked()
        assert host._callbacks == {}, "closing would wait for it"

    anyio.run(main, backend=backend)
    assert getcoroutinestate(begun[0]) == CORO_CLOSED


class Emptied(deque[Any]):
    """Programs of which another thread takes the last one out just then."""

    def __bool__(self) -> bool:
        return True


@BACKENDS
def test_what_two_threads_let_go_of_at_once_is_no_error(backend: str) -> None:
    async def main() -> None:
        host = AsyncHost(clock=SystemClock(), observer=None)
        supervisor = Supervisor(host, cast("Any", NoTransport()))
        supervisor._pending = Emptied()
        supervisor._drop_pending()

    anyio.run(main, backend=backend)


async def nothing(_: IO) -> None:
    """Do nothing: what counts is that its end is told."""


@BACKENDS
@pytest.mark.parametrize("when", ["just before the stop", "just after it", "when all is over"])
def test_of_what_is_handed_over_as_the_background_stops_the_end_is_told(backend: str, when: str) -> None:
    """Otherwise its waiters would wait for ever."""

    async def main() -> None:
        host = AsyncHost(clock=SystemClock(), observer=None)
        supervisor = Supervisor(host, cast("Any", NoTransport()))
        await supervisor.start()
        tasks = list[Any]()
        if when == "just before the stop":
            tasks.append(supervisor.spawn(nothing, name="late"))
        supervisor.request_stop()
        if when == "just after it":
            tasks.append(supervisor.spawn(nothing, name="late"))
        await supervisor.stop()
        if when == "when all is over":
            tasks.append(supervisor.spawn(nothing, name="late"))
        assert [task.done.is_set() for task in tasks] == [True]

    anyio.run(main, backend=backend)


def test_of_what_is_handed_over_as_the_loop_fails_the_end_is_told() -> None:
    host, late = make_host(), list[Any]()

    async def fails(io: IO) -> None:
        late.append(io.spawn(nothing, name="late"))
        raise KeyboardInterrupt

    host.spawn(fails, name="it")
    eventually(lambda: late and late[0].done.is_set())
    host.stop(timeout=PATIENCE)
