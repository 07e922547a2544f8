"""Running programs on the caller's thread: the blocking ``IO``, and the client's one loop thread.

Rules
- A program over ``BlockingIO`` never suspends: ``io.run`` drives it to its end with one ``send(None)``, on
  the caller's stack.
- Short requests are made on the caller's thread. Whatever may take long (blocking queries) or goes on by
  itself (renewals, clean-up) runs on the loop thread, and the caller waits for a signal: so it can be
  cancelled, and time out exactly.
- Users' callbacks run on a thread of their own, made on demand; never on the loop's. Where no thread can be
  had any more, as at the exit of Python 3.12, they run on the thread that closes the client.
- The loop starts with the first background program. A process that may end very soon can have it start a
  moment later (``start_delay``), and saves the time that loading an event loop takes; but what a caller waits
  for starts it at once.
- Both threads are daemons: the exit of the interpreter waits for nobody. They start again after a fork.
"""

from __future__ import annotations

import math
import queue
import threading
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING, TypeVar

from consul_coord import threads
from consul_coord.clock import SteppedClock, SystemClock
from consul_coord.errors import BackgroundFailed, RequestTimeout
from consul_coord.host import BaseHost, HostedIO
from consul_coord.http.transport.base import SendCancelled
from consul_coord.io import Once, Signal
from consul_coord.sync import lifetime
from consul_coord.sync.callbacks import outcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from contextlib import AbstractContextManager
    from types import TracebackType

    from consul_coord.aio.driver import Supervisor
    from consul_coord.clock import Clock
    from consul_coord.events import Observer
    from consul_coord.http.messages import Request, Response
    from consul_coord.http.transport.base import AsyncTransport, Transport
    from consul_coord.io import IO, Interrupt, Task

T = TypeVar("T")

LONGEST_TIMER = 3600.0
SIGNAL_SLICE = 0.2
"""The main thread looks for signals this often, in seconds, while it waits.

One that arrives just before the system call blocks interrupts nothing: Ctrl-C would have to wait with it.
"""
START_TIMEOUT = 60.0
"""Seconds that starting the background may take: where a host starts hundreds of processes at once, many."""
start_delay = 0.0
"""Seconds for which the first renewals and watches of each client may wait. For the command line."""


current_owner = threading.current_thread
"""Returns what identifies the running thread."""


class BlockingIO(HostedIO):
    """The blocking driver of one call."""

    __slots__ = ("_latest", "_transport")

    def __init__(self, host: BaseHost, transport: Transport, *, interrupt: Interrupt | None = None) -> None:
        super().__init__(host, interrupt)
        self._transport = transport
        self._latest = math.inf
        """When each exchange ends at the latest: a caller waits for a program that is run here."""

    owner = staticmethod(current_owner)

    async def send(self, request: Request, *, deadline: float) -> Response:
        """Exchange one request for a reply, on this thread."""
        timeout = min(min(deadline, self._latest) - self.now(), LONGEST_TIMER)
        if timeout <= 0:
            message = f"{request.method} {request.path} was not sent: its time was over before"
            raise RequestTimeout(message, method=request.method, path=request.path, outcome_unknown=False)
        interrupt = None if self.shields else self._interrupt
        if interrupt is None:
            return self._transport.send(request, timeout=timeout)
        interrupt.raise_if_fired()
        try:
            return self._transport.send(request, timeout=timeout, cancel=interrupt.signal)
        except SendCancelled as cancelled:
            interrupt.raise_if_fired()
            raise cancelled.error from None

    async def changed(
        self, request: Request, *, until: Signal | None = None, deadline: float | None = None
    ) -> Response | None:
        """Exchange one blocking query for its reply, on the loop thread.

        None when ``until`` or ``deadline`` came first.
        """
        outcome: list[Response | None] = []
        failed: list[Exception] = []
        over = Signal()

        async def ask(io: IO) -> None:
            try:
                outcome.append(await io.changed(request, until=over))
            except Exception as error:  # noqa: BLE001 - raised in the waiting thread
                failed.append(error)

        try:
            task = self.host.spawn(ask, name=f"{request.method} {request.path}")
            self._wait_for([task.done] if until is None else [task.done, until], deadline)
        finally:
            over.set()
        if failed:
            raise failed.pop()  # so that no frame in its traceback refers to it
        return outcome[0] if outcome else None

    async def wait(self, signal: Signal, *, deadline: float | None = None) -> bool:
        """Wait until the signal is raised; returns False when ``deadline`` came first."""
        if not signal.is_set():
            self._wait_for([signal], deadline)
        return signal.is_set()

    async def begin(self, program: Callable[[IO], Awaitable[object]], *, name: str, deadline: float) -> None:
        """Run a program on the loop thread, or on this one while the loop's start is put off."""
        if self.host.is_put_off:
            self._latest = deadline
            try:
                await program(self)
            finally:
                self._latest = math.inf
        else:
            self.spawn(program, name=name)

    async def sleep(self, seconds: float) -> None:
        """Let time pass on the lease clock."""
        self._wait_for([], self.now() + seconds)

    def _wait_for(self, signals: list[Signal], deadline: float | None) -> None:
        """Wait until a signal is raised or the deadline comes. Raises the interrupt's error."""
        self.host.hurry()  # it may be a background program that raises the signal
        ends = math.inf if deadline is None else deadline
        interrupt = self._open_to
        if interrupt is None:
            wait_for_any(signals, ends, self.host.clock)
            return
        interrupt.raise_if_fired()
        wait_for_any([*signals, interrupt.signal], ends, self.host.clock)
        interrupt.raise_if_fired()

    def shield(self, seconds: float) -> AbstractAsyncContextManager[float]:
        """Keep interrupts out of a clean-up; gives the deadline by which it should end."""
        return _Shield(self, seconds)


class _Shield(AbstractAsyncContextManager[float, None]):
    """While it lasts, the IO is deaf to its interrupt. Ctrl-C still gets through."""

    def __init__(self, io: BlockingIO, seconds: float) -> None:
        self._io = io
        self._seconds = seconds

    async def __aenter__(self) -> float:
        self._io.shields += 1
        return self._io.now() + self._seconds

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._io.shields -= 1


def wait_for_any(signals: list[Signal], deadline: float, clock: Clock) -> None:
    """Block this thread until one of the signals is raised or the deadline comes, which may be infinite.

    Ctrl-C gets through at once, or within ``SIGNAL_SLICE``.
    """
    if any(signal.is_set() for signal in signals):
        return
    latch = threading.Lock()
    latch.acquire()

    def wake() -> None:
        with suppress(RuntimeError):  # woken already
            latch.release()

    in_main = threading.current_thread() is threading.main_thread()
    longest = SIGNAL_SLICE if in_main else LONGEST_TIMER
    unsubscribes = [signal.subscribe(wake) for signal in signals]
    try:
        if math.isfinite(deadline) and isinstance(clock, SteppedClock):
            unsubscribes.append(clock.alarm(deadline, wake).cancel)
            deadline = math.inf  # the alarm ends the wait
        while True:
            left = min(deadline - clock.now(), longest)
            if left <= 0 or latch.acquire(timeout=left):
                return
    finally:
        for unsubscribe in unsubscribes:
            unsubscribe()


class ThreadHost(BaseHost):
    """The host of a sync client: one loop thread and one callback thread, each started when first needed."""

    def __init__(
        self,
        *,
        clock: Clock,
        observer: Observer | None,
        background: Callable[[], AsyncTransport],
        foreground: Transport | None = None,
    ) -> None:
        super().__init__(clock=clock, observer=observer)
        self._background = background
        self._foreground = foreground
        # Re-entrant, since the garbage collector may hand over a forgotten hold at any moment.
        self._starting = threads.Mutex()
        self._loop: _LoopThread | None = None
        self._callbacks: _CallbackThread | None = None
        self._stopped = False

    def has_ended(self, owner: object) -> bool:
        """Return whether a thread has ended."""
        return isinstance(owner, threading.Thread) and not owner.is_alive()

    def mutex(self) -> AbstractContextManager[object]:
        """Make a re-entrant lock between this client's threads."""
        return threads.Mutex()

    def spawn(self, program: Callable[[IO], Awaitable[object]], *, name: str) -> Task:
        """Run a program on the loop thread."""
        loop = self._loop
        if loop is None or loop.failed or not loop.started:
            loop = self._start_loop()
            if loop is None:
                return _Ended()
        return loop.spawn(program, name=name)

    def _start_loop(self) -> _LoopThread | None:
        """Start the loop thread, or go on where starting it was interrupted or failed; None when stopped."""
        with self._starting:
            if self._stopped:
                return None
            if self._loop is None or self._loop.failed:
                lifetime.prepare_end()
                self._loop = _LoopThread(self, self._background, self._foreground)
            self._loop.start()
            return self._loop

    @property
    def is_put_off(self) -> bool:
        """Whether the loop is to start a moment later than its first program."""
        return bool(start_delay) and (self._loop is None or not self._loop.runs)

    def hurry(self) -> None:
        """Start what is to run on the loop thread now: a caller waits for it."""
        loop = self._loop
        if loop is not None and not loop.failed:
            if not loop.started:
                loop.start()  # whoever was about to start it may be interrupted by this very call
            loop.hurry()

    def contains(self, error: BaseException) -> bool:  # noqa: ARG002 - callbacks have a thread of their own
        """Return True: not even an exit ends the others' callbacks."""
        return True

    def call_back(self, function: Callable[[], object]) -> None:
        """Run a user's callback on the callback thread."""
        callbacks = self._callbacks
        if callbacks is None:
            with self._starting:
                callbacks = self._callbacks or _CallbackThread(self)
                if not self._stopped:
                    self._callbacks = callbacks
        with self._starting:
            callbacks.put(function)
        if self._stopped:
            callbacks.end()

    def stop(self, *, timeout: float) -> None:
        """Stop both threads, after the callbacks handed over so far have run; wait ``timeout`` seconds."""
        with self._starting:
            self._stopped = True
        clock = SystemClock()
        deadline = clock.now() + timeout
        # Forgotten only once they have ended: this may be interrupted, and repeated.
        if self._loop is not None:
            self._loop.stop(timeout=deadline - clock.now())
            self._loop = None
        if self._callbacks is not None:
            self._callbacks.stop(timeout=max(0.0, deadline - clock.now()))
            self._callbacks = None


class _Ended:
    """A program that was not started, because its host has stopped."""

    def __init__(self) -> None:
        self.done = Signal()
        self.done.set()

    def cancel(self) -> None:
        pass


class _Early:
    """A program that was handed over before the loop ran."""

    def __init__(self, program: Callable[[IO], Awaitable[object]], name: str) -> None:
        self.done = Signal()
        self._program = program
        self._name = name
        self._cancelled = False
        self._task: Task | None = None

    def cancel(self) -> None:
        """Ask the program to end."""
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    def begin(self, supervisor: Supervisor) -> None:
        """Run it from now on; a cancelled one ends at once."""
        self._task = task = supervisor.spawn(self._program, name=self._name)
        task.done.subscribe(self.done.set)
        if self._cancelled:
            task.cancel()


class _LoopThread:
    """A daemon thread with an event loop, under one supervisor.

    ``start`` may be interrupted anywhere, and repeated: of the threads that it has started one runs, which
    has said so itself, and the others end at once.

    Programs are handed over without a mutex. A signal handler that closes the client may interrupt a caller
    amid that, and would wait for this thread, which would wait for the caller.
    """

    def __init__(
        self, host: ThreadHost, background: Callable[[], AsyncTransport], foreground: Transport | None
    ) -> None:
        self._arguments = host, background, foreground
        self._clock = SystemClock()
        self._supervisor: Supervisor | None = None
        self._early: dict[_Early, bool] = {}
        """Programs handed over before the loop ran; each belongs to whoever takes it out."""
        self._needed = Signal()
        self._stopped = False
        self._ready = Signal()
        self._error: BaseException | None = None
        self._thread: Once[threading.Thread] = Once()
        """The one that runs."""
        self.started = False
        self._over = Signal()

    @property
    def failed(self) -> bool:
        """Whether an error has ended the loop, or its start: the next program starts another one."""
        return self._error is not None

    def start(self) -> None:
        """Start the thread, and the loop unless that is put off. Raises BackgroundFailed."""
        if not self._thread:
            start_thread(self._run, name="consul-coord-loop")
        self.started = True
        if not start_delay:
            self.hurry()

    def hurry(self) -> None:
        """Start the loop now, and return when it runs. Raises BackgroundFailed when that is not possible."""
        self._needed.set()
        if not self._ready.is_set():
            wait_for_any([self._ready], self._clock.now() + START_TIMEOUT, self._clock)
        if not self._ready.is_set() or self._error is not None:
            self.started = False
            message = f"the client's background could not be started: {self._error or 'it takes too long'}"
            raise BackgroundFailed(message) from self._error

    def _run(self) -> None:
        if not self._thread.settle(threading.current_thread()):
            return  # started twice
        host, background, foreground = self._arguments
        if start_delay:
            wait_for_any([self._needed], self._clock.now() + start_delay, self._clock)
        if self._stopped:
            self._let_go()
            self._over.set()
            return
        import anyio

        from consul_coord.aio.driver import Supervisor

        async def main() -> None:
            transport = background()
            supervisor = Supervisor(host, transport, foreground=foreground)
            try:
                await supervisor.supervise(lambda: self._take_over(supervisor))
            finally:
                await transport.aclose()

        try:
            anyio.run(main)
        except BaseException as error:  # noqa: BLE001 - the thread's last word
            self._error = error
            self._let_go()  # first: whoever starts it has the mutex that reporting needs
            host.report_failure("the background loop", error)
        finally:
            self._let_go()
            self._over.set()

    @property
    def runs(self) -> bool:
        """Whether the loop has begun."""
        return self._supervisor is not None

    def spawn(self, program: Callable[[IO], Awaitable[object]], *, name: str) -> Task:
        """Run a program; from any thread."""
        if not self._ready.is_set():
            early = _Early(program, name)
            self._early[early] = True
            if not self._ready.is_set() or not self._early.pop(early, False):
                return early  # the loop's thread has taken it out, or will
        if self._supervisor is None:  # it never ran, and will not
            return _Ended()
        return self._supervisor.spawn(program, name=name)

    def _take_out(self) -> Iterator[_Early]:
        for early in list(self._early):
            if self._early.pop(early, False):
                yield early

    def _take_over(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        for early in self._take_out():
            early.begin(supervisor)
        if self._stopped:
            supervisor.request_stop()
        self._ready.set()
        for early in self._take_out():  # what was handed over just before
            early.begin(supervisor)

    def _let_go(self) -> None:
        """End what was never begun."""
        self._ready.set()
        for early in self._take_out():
            early.done.set()

    def stop(self, *, timeout: float) -> None:
        self._stopped = True
        self._needed.set()
        if self._supervisor is not None:  # otherwise ``_take_over`` finds out
            self._supervisor.request_stop()
        if self.started:
            end(self._thread, self._over, timeout)


def start_thread(run: Callable[[], object], *, name: str) -> None:
    """Start a daemon thread. Raises BackgroundFailed when the system gives none."""
    try:
        threads.start(run, name=name)
    except RuntimeError as error:
        message = (
            f"the client needs a background thread, and the system gives none ({error}): raise the limit on "
            "this process's threads (ulimit -u, a container's pids limit), or start fewer"
        )
        raise BackgroundFailed(message) from error


def end(runs: Once[threading.Thread], over: Signal, timeout: float) -> None:
    """Wait until a thread that was started has ended, which raises ``over`` at its end."""
    if runs.value is not threading.current_thread():
        clock = SystemClock()
        wait_for_any([over], clock.now() + timeout, clock)
        thread = runs.value
        if over.is_set() and thread is not None:
            with suppress(AssertionError, RuntimeError):  # one that ``threads`` could only get bare
                thread.join(min(timeout, threading.TIMEOUT_MAX))


class _CallbackThread:
    """A daemon thread that runs users' callbacks, one after the other; started as the loop's is."""

    def __init__(self, host: ThreadHost) -> None:
        self._host = host
        self._queue: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread: Once[threading.Thread] = Once()
        self._started = False
        self._over = Signal()

    def put(self, function: Callable[[], object]) -> None:
        """Have a function called; one thread at a time."""
        self._queue.put(function)
        if not self._started:
            # Out of threads, or the interpreter ends: the next one tries again.
            with suppress(BackgroundFailed):
                start_thread(self._run, name="consul-coord-callbacks")
                self._started = True

    def _run(self) -> None:
        if not self._thread.settle(threading.current_thread()):
            return  # started twice
        while (function := self._queue.get()) is not None:
            try:
                outcome("a callback", function())
            except BaseException as error:  # noqa: BLE001 - not even an exit ends the others' callbacks
                self._host.report_failure("a callback", error)
        self._over.set()

    def end(self) -> None:
        """End once everything handed over so far has run: here, if no thread could be had."""
        self._queue.put(None)
        if not self._started:
            self._run()

    def stop(self, *, timeout: float) -> None:
        self.end()
        end(self._thread, self._over, timeout)
