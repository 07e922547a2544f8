"""How an async client's programs run: each in its caller's task, and the background under one supervisor.

Rules
- Nothing needs a loop before the client is entered. Entering starts one supervisor task, whose children all
  background programs are.
- A failure in the background is reported and never cancels the user's tasks.
- In a forked child the inherited holds are lost, and the client must be entered again.
"""

from __future__ import annotations

import os
import weakref
from contextlib import nullcontext
from functools import partial
from inspect import isawaitable, iscoroutine
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from consul_coord.aio import backend
from consul_coord.aio.driver import AsyncIO, Supervisor
from consul_coord.base_client import OUTAGES, BaseRunner, brief
from consul_coord.host import BaseHost
from consul_coord.http.retry import ask
from consul_coord.io import Interrupt, Signal
from consul_coord.models import _validate
from consul_coord.recipes import client as coordinator

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from contextlib import AbstractContextManager

    from consul_coord.aio.driver import BackgroundTask
    from consul_coord.base_client import Program
    from consul_coord.clock import Clock
    from consul_coord.config import Settings
    from consul_coord.events import Observer
    from consul_coord.http.agents import Agents
    from consul_coord.http.messages import Call
    from consul_coord.http.transport.base import AsyncTransport
    from consul_coord.io import IO
    from consul_coord.models import SessionSpec

P = ParamSpec("P")
T = TypeVar("T")

CLOSE_TIMEOUT = 5.0


class AsyncHost(BaseHost):
    """The host of an async client: its supervisor, once that is started."""

    supervisor: Supervisor | None = None

    def __init__(self, *, clock: Clock, observer: Observer | None) -> None:
        super().__init__(clock=clock, observer=observer)
        self._callbacks: dict[Signal, None] = {}
        """Signals, each raised when its callback has ended."""

    @property
    def has_background(self) -> bool:
        """Whether the client was entered, and not closed."""
        return self.supervisor is not None and not self.supervisor.is_stopping

    def has_ended(self, owner: object) -> bool:
        """Return whether a task has ended."""
        return backend.has_ended(owner)

    def mutex(self) -> AbstractContextManager[object]:
        """Return what does nothing: all happens in one loop."""
        return nullcontext()

    def running(self) -> Supervisor:
        """Return the supervisor. Raises RuntimeError before the client was entered."""
        if self.supervisor is None:
            message = "enter the AsyncClient first: 'async with AsyncClient(...) as client:'"
            raise RuntimeError(message)
        return self.supervisor

    def adopt(self, supervisor: Supervisor) -> Supervisor:
        """Use a supervisor unless there is one; returns the one in use."""
        self.supervisor = self.supervisor or supervisor
        return self.supervisor

    def spawn(self, program: Callable[[IO], Awaitable[object]], *, name: str) -> BackgroundTask:
        """Run a program as a child of the supervisor."""
        return self.running().spawn(program, name=name)

    def contains(self, error: BaseException) -> bool:
        """Return whether it is an error, or a cancellation of the function's own making."""
        return backend.is_own(error)

    def call_back(self, function: Callable[[], object]) -> None:
        """Run a user's callback in the loop, soon; one that returns an awaitable becomes a task."""
        ended = Signal()
        self._callbacks[ended] = None
        ended.subscribe(lambda: self._callbacks.pop(ended, None))
        if self.supervisor is None:
            self._run(function, ended)
        else:
            self.supervisor.wake(lambda: self._run(function, ended))

    def _run(self, function: Callable[[], object], ended: Signal) -> None:
        try:
            result = function()
        except BaseException as error:
            if not self.contains(error):
                ended.set()  # closing waits for it
                raise
            self.report_failure("a callback", error)
            result = None
        if isawaitable(result):

            async def finish(_: IO) -> None:
                await result

            task = self.spawn(finish, name="a callback")
            if task.done.is_set() and iscoroutine(result):
                result.close()  # too late to be begun
            task.done.subscribe(ended.set)
        else:
            ended.set()

    async def stop(self, io: IO, *, deadline: float) -> None:
        """Stop, when callbacks have ended or the deadline comes."""
        supervisor = self.running()
        while self._callbacks and not supervisor.runs_this():
            if not await io.wait(next(iter(self._callbacks)), deadline=deadline):
                break
        await supervisor.stop()


class AsyncRunner(BaseRunner):
    """Carries out what is asked of an async client."""

    def __init__(
        self,
        settings: Settings,
        transport: AsyncTransport,
        *,
        kind: str,
        session: SessionSpec | None,
        observer: Observer | None,
        clock: Clock | None,
        name: str | None = None,
        agents: Agents | None = None,
    ) -> None:
        super().__init__(
            settings, kind=kind, session=session, observer=observer, clock=clock, name=name, agents=agents
        )
        self._transport = transport
        self._begin()
        _runners.add(self)

    def _begin(self) -> None:
        """Make host and state: at first, and again in a forked child."""
        self._host = AsyncHost(clock=self._clock, observer=self._observer)
        self._closed_by = {}
        self.core = self._new_state(self._host)
        self._transport.listen(partial(self.core.refused, self._settings.address))

    def forked(self) -> None:
        """Leave what was inherited to the parent, without any I/O; called in a forked child."""
        self._transport.forget()
        inherited = self.core
        self._begin()
        inherited.forked(self._host)

    def run(
        self, interrupt: Interrupt, program: Program[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]:
        """Run a program that ``interrupt`` may end, in this task; so may closing."""
        self._require_background()
        return self._run(interrupt, program, *args, **kwargs)

    def _require_background(self) -> None:
        if self.core.closing.is_set():
            return  # which the call says
        supervisor = self._host.running()
        if supervisor.is_stopping:
            message = (
                "the background of this AsyncClient has ended, with the event loop that it was entered in or "
                "by a cancellation of all tasks: make an AsyncClient in the loop that uses it"
            )
            raise RuntimeError(message)
        if supervisor.loop is not backend.current_loop():
            message = (
                "this AsyncClient was entered in another event loop, such as that of a test's fixture: make "
                "an AsyncClient in the loop that uses it"
            )
            raise RuntimeError(message)

    async def _run(
        self, interrupt: Interrupt, program: Program[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        calls = self.core.calls
        try:
            calls.enter(interrupt)
            io = AsyncIO(self._host, self._transport, interrupt=interrupt)
            running = program(io, *args, **kwargs)
            del args, kwargs  # it may wait for long
            return await running
        except OUTAGES as error:
            raise brief(error) from error.__cause__
        finally:
            calls.pop(interrupt, None)
            calls.left()

    def call(self, program: Program[P, T], *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        """Run a program, in this task."""
        return self.run(Interrupt(), program, *args, **kwargs)

    async def finish(self, program: Program[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a program that gives something back, or only waits: also when the client is closed."""
        return await program(AsyncIO(self._host, self._transport), *args, **kwargs)

    def perform(self, call: Call[T], /, *, timeout: float | None = None) -> Coroutine[Any, Any, T]:
        """Carry out one endpoint's call, in ``timeout`` seconds; None for the client's own.

        Needs no background.
        """
        return self._run(Interrupt(), ask, call, timeout=self.seconds_for(timeout))

    def alone(self, program: Program[P, T], *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        """Run a program that needs no background, in this task."""
        return self._run(Interrupt(), program, *args, **kwargs)

    async def start(self) -> None:
        """Start the background, unless that was done before, or the client is closed."""
        closing = self.core.closing
        if self._host.supervisor is None and not closing.is_set():
            supervisor = Supervisor(self._host, self._transport)
            await supervisor.start()
            if closing.is_set() or self._host.adopt(supervisor) is not supervisor:
                await supervisor.stop()  # another task has entered the client meanwhile, or closed it

    async def close(self, timeout: float) -> None:
        """Give everything back and stop, in ``timeout`` seconds; harmless when done before."""
        timeout = _validate.span("timeout", timeout)
        mine = object()
        try:
            if self._closed_by.setdefault(None, mine) is mine:
                # Whoever cancels it meanwhile cancels the task once that is done.
                await backend.uncancelled(lambda: self._close(timeout))
        except Exception:
            if self._closed_by.get(None) is mine:
                self._closed_by.clear()
            raise

    async def _close(self, timeout: float) -> None:
        core = self.core
        core.begin_close()
        io = AsyncIO(self._host, self._transport)
        deadline = io.now() + timeout
        await coordinator.close(io, core, deadline=deadline)
        if self._host.supervisor is not None:
            await self._host.stop(io, deadline=deadline)
            await coordinator.close_late(io, core, deadline=deadline)
        await self._transport.aclose()


_runners: weakref.WeakSet[AsyncRunner] = weakref.WeakSet()


def _forked() -> None:
    for runner in list(_runners):
        runner.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
