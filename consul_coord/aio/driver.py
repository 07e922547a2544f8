"""Running programs on an event loop, asyncio's or trio's: the async ``IO`` and its background tasks.

Rules
- Waiting is done on the lease clock. Timers of the loop stand still while a machine is suspended, so after
  each wake-up the clock decides, not the timer.
- An interrupt becomes a cancellation of just the awaited operation, and then the interrupt's own error.
- A background program that raises is reported, and ends nothing but itself.
- A user's HTTP client, or a hook of it, may raise an error of its own in the background. It is reported, and
  counts as a failure to serve. Otherwise it would end the program that sends, such as the watch of a hold.
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING

import anyio

from consul_coord.aio import backend
from consul_coord.clock import SteppedClock
from consul_coord.errors import BrokenReply, ConsulCoordError, RequestTimeout
from consul_coord.host import HostedIO
from consul_coord.http.blocking import read_timeout
from consul_coord.http.messages import Retry
from consul_coord.io import Signal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from consul_coord.host import BaseHost
    from consul_coord.http.messages import Request, Response
    from consul_coord.http.transport.base import AsyncTransport, Transport
    from consul_coord.io import IO, Interrupt

_runs_this: ContextVar[Supervisor | None] = ContextVar("_runs_this", default=None)
"""The supervisor whose program, or a user's callback among them, is running."""


current_owner = backend.current_task
"""Returns what identifies the running task."""


class AsyncIO(HostedIO):
    """The async driver of one call, or of all background programs of a loop."""

    __slots__ = ("_transport",)

    def __init__(
        self, host: BaseHost, transport: AsyncTransport, *, interrupt: Interrupt | None = None
    ) -> None:
        super().__init__(host, interrupt)
        self._transport = transport

    owner = staticmethod(current_owner)

    async def send(self, request: Request, *, deadline: float) -> Response:
        """Exchange one request for a reply."""
        timeout = min(deadline - self.now(), backend.LONGEST_TIMER)
        if timeout <= 0:
            message = f"{request.method} {request.path} was not sent: its time was over before"
            raise RequestTimeout(message, method=request.method, path=request.path, outcome_unknown=False)
        interrupt = self._open_to
        if interrupt is None:
            return await self._transport.send(request, timeout=timeout)
        interrupt.raise_if_fired()
        wake = backend.current_waker()
        with anyio.CancelScope() as scope:
            unsubscribe = interrupt.signal.subscribe(lambda: wake(scope.cancel))
            try:
                return await self._transport.send(request, timeout=timeout)
            finally:
                unsubscribe()
        interrupt.raise_if_fired()
        message = "unreachable: a cancelled scope without its interrupt"
        raise AssertionError(message)

    async def changed(
        self, request: Request, *, until: Signal | None = None, deadline: float | None = None
    ) -> Response | None:
        """Exchange one blocking query for its reply; None when ``until`` or ``deadline`` came first."""
        reply: list[Response] = []
        with anyio.CancelScope() as scope:
            wake = backend.current_waker()

            def stop() -> None:
                wake(scope.cancel)

            undo = [] if until is None else [until.subscribe(stop)]
            if (alarm := self._alarm(deadline, stop)) is not None:
                undo.append(alarm)
            elif deadline is not None:
                scope.deadline = anyio.current_time() + max(0.0, deadline - self.now())
            try:
                reply.append(await self.send(request, deadline=self.now() + read_timeout(request.hold_open)))
            finally:
                for take_back in undo:
                    take_back()
        return reply[0] if reply else None

    async def wait(self, signal: Signal, *, deadline: float | None = None) -> bool:
        """Wait until the signal is raised; returns False when ``deadline`` came first."""
        interrupt = self._open_to
        if interrupt is not None:
            interrupt.raise_if_fired()
        if signal.is_set():
            return True
        # Ten thousand tasks may wait here at once: so it is one frame, and keeps little.
        sleep = backend.sleep()
        undo = [signal.subscribe(sleep.end)]
        try:
            if interrupt is not None:
                undo.append(interrupt.signal.subscribe(sleep.end))
            if (alarm := self._alarm(deadline, sleep.end)) is not None:
                undo.append(alarm)
            while not (signal.is_set() or (interrupt is not None and interrupt.signal.is_set())):
                left = math.inf if deadline is None else deadline - self.now()
                if left <= 0:
                    break
                await sleep.until_ended(math.inf if alarm is not None else left)
        finally:
            for take_back in undo:
                take_back()
        if interrupt is not None:
            interrupt.raise_if_fired()
        return signal.is_set()

    async def sleep(self, seconds: float) -> None:
        """Let time pass on the lease clock."""
        await self.wait(Signal(), deadline=self.now() + seconds)

    def _alarm(self, deadline: float | None, callback: Callable[[], object]) -> Callable[[], None] | None:
        """Set an alarm on a stepped clock; returns how to cancel it, or None when timers are to be used."""
        clock = self.host.clock
        if deadline is None or not math.isfinite(deadline) or not isinstance(clock, SteppedClock):
            return None
        return clock.alarm(deadline, callback).cancel

    def shield(self, seconds: float) -> AbstractAsyncContextManager[float]:
        """Keep interrupts and cancellation out of a clean-up; gives the deadline by which it should end."""
        return _Shield(self, seconds)


class _Shield(AbstractAsyncContextManager[float, bool]):
    """A shielded scope, in which the IO is deaf to its interrupt."""

    def __init__(self, io: AsyncIO, seconds: float) -> None:
        self._io = io
        self._seconds = seconds
        self._scope = anyio.CancelScope(shield=True)

    async def __aenter__(self) -> float:
        self._io.shields += 1
        self._scope.__enter__()
        return self._io.now() + self._seconds

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._io.shields -= 1
        return self._scope.__exit__(kind, error, trace)


class _BackgroundIO(AsyncIO):
    """That of background programs."""

    __slots__ = ()

    async def send(self, request: Request, *, deadline: float) -> Response:
        """Exchange one request for a reply. Raises errors of this package only."""
        try:
            return await super().send(request, deadline=deadline)
        except ConsulCoordError:
            raise
        except Exception as error:
            self.host.report_failure("the HTTP client", error)
            raise BrokenReply(
                f"{request.method} {request.path}: the HTTP client raised {type(error).__name__}: {error}",
                method=request.method,
                path=request.path,
                outcome_unknown=request.retry is not Retry.READ,
            ) from error


class BackgroundTask:
    """A program running under a supervisor."""

    def __init__(self, wake: Callable[[Callable[[], object]], None]) -> None:
        self.done = Signal()
        self._wake = wake
        self._cancelled = False
        self._scope: anyio.CancelScope | None = None

    def cancel(self) -> None:
        """Ask the program to end; from any thread."""
        self._cancelled = True
        self._wake(self._cancel_scope)

    def _cancel_scope(self) -> None:
        if self._scope is not None:
            self._scope.cancel()

    async def run(
        self, program: Callable[[], Awaitable[object]], on_error: Callable[[BaseException], object]
    ) -> None:
        """Run the program to its end, whatever that is."""
        try:
            with anyio.CancelScope() as self._scope:
                if self._cancelled:
                    self._scope.cancel()
                await program()
        except BaseException as error:  # reported; must not end the other programs
            if not backend.is_own(error):
                raise
            on_error(error)
        finally:
            self.done.set()


class Supervisor:
    """The task that all background programs of one loop are children of."""

    def __init__(
        self, host: BaseHost, transport: AsyncTransport, *, foreground: Transport | None = None
    ) -> None:
        self._host = host
        self._transport = transport
        self._foreground = foreground
        self._io = _BackgroundIO(host, transport)
        self.loop = backend.current_loop()
        self.wake = backend.current_waker()
        """Has the loop call a function soon; from any thread."""
        self._pending: deque[tuple[BackgroundTask, Callable[[IO], Awaitable[object]], str]] = deque()
        self._more = anyio.Event()
        self._ready = anyio.Event()
        self._ended = anyio.Event()
        self._stopping = False
        self._keep: object = None

    async def start(self) -> None:
        """Start as a task of its own in the running loop."""
        self._keep = backend.start_supervisor(self.supervise)
        try:
            await self._ready.wait()
        except BaseException:  # its client was not entered, and nobody will close it
            self.request_stop()
            raise

    async def supervise(self, on_ready: Callable[[], object] | None = None) -> None:
        """Run until told to stop, then cancel and await all programs.

        Calls ``on_ready`` when it can take some.
        """
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._sweep, name="idle connections")
                self._ready.set()
                if on_ready is not None:
                    on_ready()
                while not self._stopping:
                    self._more = anyio.Event()
                    while self._pending:
                        task, program, name = self._pending.popleft()
                        group.start_soon(self._run, task, program, name, name=name)
                    if not self._stopping:
                        await self._more.wait()
                group.cancel_scope.cancel()
        finally:
            self._stopping = True
            self._ended.set()
            self._drop_pending()

    async def _sweep(self) -> None:
        """Close connections soon after their last use, also those of a client that does nothing any more."""
        wait = 0.0
        while wait < math.inf:
            await anyio.sleep(wait)
            wait = await self._transport.sweep()
            if self._foreground is not None:
                wait = min(wait, self._foreground.sweep())

    async def _run(self, task: BackgroundTask, program: Callable[[IO], Awaitable[object]], name: str) -> None:
        _runs_this.set(self)
        await task.run(lambda: program(self._io), lambda error: self._host.report_failure(name, error))

    def spawn(self, program: Callable[[IO], Awaitable[object]], *, name: str) -> BackgroundTask:
        """Run a program; from any thread."""
        task = BackgroundTask(self.wake)
        self._pending.append((task, program, name))
        self.wake(self._notify)
        if self.is_stopping:
            self._drop_pending()
        return task

    def _notify(self) -> None:
        self._more.set()

    def _drop_pending(self) -> None:
        """Let go of what came too late to be started."""
        while self._pending:
            try:
                task, _, _ = self._pending.popleft()
            except IndexError:
                return
            task.done.set()

    def request_stop(self) -> None:
        """Begin to stop; from any thread."""
        self._stopping = True
        self.wake(self._notify)

    @property
    def is_stopping(self) -> bool:
        """Whether it takes no more programs."""
        return self._stopping or backend.is_closed(self.loop)

    def runs_this(self) -> bool:
        """Return whether the caller is one of its programs."""
        return _runs_this.get() is self

    async def stop(self) -> None:
        """Stop, and wait until every program has ended; one of them does not wait for itself."""
        self.request_stop()
        if self.runs_this() or backend.is_closed(self.loop):
            return
        with anyio.CancelScope(shield=True):
            await self._ended.wait()
