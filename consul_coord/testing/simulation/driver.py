"""The third way to run recipes: over virtual time, a seeded network, and one process among several.

Rules
- ``SimIO`` does the work of the blocking and the async driver, in their order. It looks at an interrupt
  before and after each operation, unless shielded. It does not send a request whose time is over. It trusts a
  timer that went off only when the clock agrees.
- All randomness of a process is its own, from the seed.
- A bug in a background program or a callback is kept, and fails the run.
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from consul_coord.errors import ClientClosed, ConnectFailed, RequestTimeout
from consul_coord.host import BaseHost, HostedIO
from consul_coord.http.blocking import read_timeout
from consul_coord.io import Signal
from consul_coord.testing.simulation.connections import Call, Stopped
from consul_coord.testing.simulation.program import SimTask
from consul_coord.testing.simulation.threads import BACKGROUND, CALLBACKS, Mutex

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractContextManager
    from types import TracebackType

    from consul_coord.events import Event
    from consul_coord.http.agents import Agent, Agents
    from consul_coord.http.messages import Request, Response
    from consul_coord.io import IO, Interrupt
    from consul_coord.testing.simulation.dice import Dice
    from consul_coord.testing.simulation.process import Process
    from consul_coord.testing.simulation.program import Wakeup
    from consul_coord.testing.simulation.ways import SimAgent

LONGEST_TIMER = 3600.0


class SimHost(BaseHost):
    """The host of one process."""

    def __init__(self, process: Process, rng: Dice) -> None:
        super().__init__(clock=process.clock, observer=None)
        self._process = process
        self._rng = rng

    def random(self) -> float:
        """Return a random number from the process's own stream."""
        return self._rng.random()

    def has_ended(self, owner: object) -> bool:
        """Return whether a task has ended."""
        return isinstance(owner, SimTask) and owner.done.is_set()

    def mutex(self) -> AbstractContextManager[object]:
        """Return what nobody waits for: no thread stands still with it."""
        return Mutex(self._process)

    def spawn(self, program: Callable[[IO], Awaitable[object]], *, name: str) -> SimTask:
        """Run a program in the background of the process."""

        async def run(io: SimIO) -> None:
            await program(io)

        return self._process.spawn(run, name=name, thread=BACKGROUND)

    def call_back(self, function: Callable[[], object]) -> None:
        """Call a user's function in an event of its own."""

        def call() -> None:
            try:
                function()
            except Exception as error:  # noqa: BLE001 - a user's bug must not end the run unseen
                self.report_failure("a callback", error)

        self._process.soon(call, thread=CALLBACKS)

    def call_later(self, seconds: float, function: Callable[[], object]) -> None:
        """Call a function when so much time has passed for the process."""
        self._process.alarm(self.now() + seconds, function)

    def emit(self, event: Event, *, cause: BaseException | None = None) -> None:  # noqa: ARG002 - kept by nobody here
        """Count an event and pass it to the run's own eyes."""
        self.count(type(event).__name__)
        self._process.on_event(event)

    def report_failure(self, where: str, error: BaseException) -> None:
        """Keep a bug."""
        self._process.on_failure(where, error)


@dataclass(frozen=True, slots=True)
class Late:
    """An answer of a user's function that comes after so many seconds."""

    seconds: float
    value: object


@dataclass(frozen=True, slots=True)
class Awaited:
    """An async call of a user's function, which takes so many seconds unless it is ended before."""

    seconds: float


class SimCalls:
    """How users' functions are called: each in an event of its own, in order where that matters.

    A function that returns a number, or is awaited, takes so many seconds: those after it wait for that.
    """

    def __init__(self, host: SimHost) -> None:
        self._host = host
        self._called: object = None
        """The mark of the call that lasts; None between calls."""
        self._waiting: deque[tuple[Callable[[], object], Callable[[BaseException], object], Signal | None]]
        self._waiting = deque()

    def in_order(
        self,
        function: Callable[[], object],
        failed: Callable[[BaseException], object],
        *,
        until: Signal | None = None,
    ) -> None:
        """Call a function after those handed over before; what it raises goes to ``failed``."""
        self._waiting.append((function, failed, until))
        self._host.call_back(self._call_next)

    def _call_next(self) -> None:
        if self._called is not None or not self._waiting:
            return
        function, failed, until = self._waiting.popleft()
        try:
            lasts = function()
        except Exception as error:  # noqa: BLE001 - a user's, for its owner to report
            failed(error)
        else:
            self._last(lasts, until)

    def _last(self, lasts: object, until: Signal | None) -> None:
        seconds = lasts.seconds if isinstance(lasts, Awaited) else lasts
        if isinstance(seconds, float):
            self._called = called = object()
            self._host.call_later(seconds, partial(self._go_on, called))
            if isinstance(lasts, Awaited) and until is not None:
                until.subscribe(partial(self._go_on, called))

    def _go_on(self, called: object) -> None:
        if called is not self._called:
            return
        self._called = None
        for _ in self._waiting:
            self._host.call_back(self._call_next)

    def ask(
        self,
        function: Callable[[], object],
        answered: Callable[[object], object],
        failed: Callable[[BaseException], object],
        *,
        until: Signal,  # noqa: ARG002 - as above
    ) -> None:
        """Call a function soon; what it returns goes to ``answered``, what it raises to ``failed``."""

        def call() -> None:
            try:
                answer = function()
            except Exception as error:  # noqa: BLE001 - as above
                failed(error)
            else:
                if isinstance(answer, Late):
                    self._host.call_later(answer.seconds, partial(answered, answer.value))
                else:
                    answered(answer)

        self._host.call_back(call)


class SimIO(HostedIO):
    """The IO of one call, or of one background program."""

    host: SimHost

    def __init__(self, process: Process, task: SimTask, interrupt: Interrupt | None = None) -> None:
        super().__init__(process.host, interrupt)
        self.task = task
        self._process = process

    def owner(self) -> object:
        """Return the running task."""
        return self.task

    def suspend(self) -> Wakeup:
        """Begin to wait, unless the call is interrupted."""
        wakeup = self.task.suspend()
        if not self.task.has_waited:
            self.task.has_waited = True
            self._process.judge.promises.runs(self._process, self.task)
        interrupt = self._interrupt
        if interrupt is not None and not self.task.shields:
            interrupt.raise_if_fired()
            wakeup.undo.append(interrupt.signal.subscribe(lambda: wakeup.fire(interrupt.raise_if_fired)))
        return wakeup

    def turn_to(self, address: str, request: Request) -> SimAgent:
        """Return one of several agents, which is to be asked for something now."""
        agent = self._process.link.network.agent(address)
        self._process.judge.ways.asks(self._process, agent, request)
        return agent

    async def send(self, request: Request, *, deadline: float) -> Response:
        """Exchange one request for a reply."""
        sent, diary = self._send(request, deadline=deadline), self.task.diary
        return await (sent if diary is None else diary.keep(request, sent))

    async def _send(self, request: Request, *, deadline: float) -> Response:
        if deadline <= self.now():
            message = f"{request.method} {request.path} was not sent: its time was over before"
            raise RequestTimeout(message, method=request.method, path=request.path, outcome_unknown=False)
        self._begin()
        promises, what = self._process.judge.promises, f"for {request.method} {request.path}"
        promises.may_take(self._process, what, seconds=deadline - self.now())
        promises.may_wait(self._process, self.task, what, until=deadline)
        self._process.judge.answers.read(self._process, self.task, request, follows=False)
        if (agents := self._process.agents) is not None:
            ways, began = self._process.judge.ways, self._process.judge.now
            try:
                return await agents.send(Way(self), request, timeout=deadline - self.now())
            except ConnectFailed:
                ways.not_sent(self._process, since=began, deadline=deadline)
                raise
        if (engine := self._process.engine) is not None:
            timeout = min(deadline - self.now(), LONGEST_TIMER)
            return await engine.send(Call(self), request, timeout=timeout)
        return await self.exchange(request, self.suspend(), deadline)

    def _begin(self) -> None:
        """Count a request. Raises as the clients' transports do once they are closed."""
        if self._process.left:
            raise ClientClosed
        self.task.sent += 1

    async def changed(
        self, request: Request, *, until: Signal | None = None, deadline: float | None = None
    ) -> Response | None:
        """Exchange one blocking query for its reply; None when ``until`` or ``deadline`` came first."""
        self._begin()
        judge, what = self._process.judge, f"for the query {request.path}"
        judge.promises.may_wait(self._process, self.task, what, until=deadline)
        judge.answers.read(self._process, self.task, request, follows=True)
        timeout = read_timeout(request.hold_open)
        try:
            if (agents := self._process.agents) is not None:
                return await agents.send(Way(self, until, deadline), request, timeout=timeout)
            if (engine := self._process.engine) is not None:
                return await engine.send(Call(self, until, deadline), request, timeout=timeout)
        except (_Stopped, Stopped):
            return None
        wakeup = self.suspend()
        self.end_by(wakeup, until, deadline, _nothing)
        return await self.exchange(request, wakeup, self.now() + timeout)

    def end_by(
        self, wakeup: Wakeup, until: Signal | None, deadline: float | None, outcome: Callable[[], object]
    ) -> None:
        """Have a suspension end with this outcome when a signal is raised or a deadline comes."""
        if until is not None:
            wakeup.undo.append(until.subscribe(lambda: wakeup.fire(outcome)))
        if deadline is not None and math.isfinite(deadline):
            wakeup.undo.append(self._process.alarm(deadline, lambda: wakeup.fire(outcome)))

    async def exchange(
        self, request: Request, wakeup: Wakeup, deadline: float, agent: SimAgent | None = None
    ) -> Response:
        """Send a request, and wait for what becomes of it."""

        def time_out() -> NoReturn:
            if agent is not None:
                self._process.judge.ways.timed_out(self._process, agent)
            message = f"{request.method} {request.path}: no reply in time"
            raise RequestTimeout(message, method=request.method, path=request.path, outcome_unknown=True)

        if agent is not None:
            seconds = deadline - self.now() - (read_timeout(request.hold_open) if request.hold_open else 0.0)
            self._process.judge.promises.may_take(self._process, f"for {agent.address}", seconds=seconds)
        limit = min(deadline, self.now() + LONGEST_TIMER)
        wakeup.undo.append(self._process.alarm(limit, lambda: wakeup.fire(time_out)))
        wakeup.undo.append(self._process.link.send(request, wakeup.fire, agent))
        response: Response = await wakeup
        return response

    async def wait(self, signal: Signal, *, deadline: float | None = None) -> bool:
        """Wait until the signal is raised; returns False when ``deadline`` came first."""
        wakeup = self.suspend()
        if signal.is_set():
            while wakeup.undo:
                wakeup.undo.pop(0)()
            return True
        self._process.judge.promises.may_wait(self._process, self.task, "for something", until=deadline)
        wakeup.undo.append(signal.subscribe(lambda: wakeup.fire(_nothing)))
        if deadline is not None and math.isfinite(deadline):
            wakeup.undo.append(self._process.alarm(deadline, lambda: wakeup.fire(_nothing)))
        await wakeup
        return signal.is_set()

    async def sleep(self, seconds: float) -> None:
        """Let time pass on the process's clock."""
        await self.wait(Signal(), deadline=self.now() + seconds)

    def shield(self, seconds: float) -> AbstractAsyncContextManager[float]:
        """Keep interrupts and cancellation out of a clean-up; gives the deadline by which it should end."""
        self._process.judge.promises.may_take(self._process, "in a clean-up", seconds=seconds)
        return _Shield(self, seconds)


class _Stopped(Exception):
    """A blocking query was ended before its answer."""


def _stop() -> NoReturn:
    raise _Stopped


class Way:
    """How one call gets to an agent, where there are several."""

    def __init__(self, io: SimIO, until: Signal | None = None, deadline: float | None = None) -> None:
        self.now = io.now
        self._io = io
        self._until = until
        self._deadline = deadline

    async def exchange(self, agent: Agent, request: Request, *, timeout: float) -> Response:
        """Return an agent's reply."""
        io = self._io
        asked = io.turn_to(agent.address, request)
        wakeup = io.suspend()
        io.end_by(wakeup, self._until, self._deadline, _stop)
        return await io.exchange(request, wakeup, self.now() + timeout, asked)

    async def find(self, agents: Agents, *, timeout: float) -> None:
        """Do nothing: no name is to be looked up."""


class _Shield(AbstractAsyncContextManager[float, None]):
    """While it lasts, the task is deaf to its interrupt and to cancellation."""

    def __init__(self, io: SimIO, seconds: float) -> None:
        self._io = io
        self._seconds = seconds

    async def __aenter__(self) -> float:
        self._io.task.shields += 1
        return self._io.now() + self._seconds

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._io.task.shields -= 1


def _nothing() -> None:
    return None
