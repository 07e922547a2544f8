"""The world as a recipe sees it: whatever has an effect or depends on the outside passes through ``IO``.

Recipes are plain ``async def`` programs over this protocol, and exist once. Three drivers run them: blocking
(each method does its work and returns without ever suspending), async (each method awaits), and simulated
(virtual time, seeded faults).

Rules
- A program gets its ``IO`` as an argument and keeps none beyond its end: a foreground call and the background
  loop have different ones.
- Times are instants on the lease clock, ``io.now()``. A deadline of None is "for ever".
- State behind a ``Signal`` or a ``Once`` needs no lock: both are built on single atomic dict operations, so
  they may be used from any thread, from a signal handler, and in a forked child.
- Outside ``shield`` every awaited method may raise what ended the call from outside: an ``Interrupt``'s
  error, a KeyboardInterrupt, or the event loop's cancellation. Inside, none of the first kind does.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from consul_coord.errors import RequestTimeout

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from consul_coord.events import Event
    from consul_coord.http.messages import Request, Response

T = TypeVar("T")

PATIENCE = 3.0
"""Seconds for which an answer may be missing before the contact counts as lost."""


class Signal:
    """A flag that is raised once, by any thread, and calls back who asked for it."""

    _raised = False
    _callbacks: dict[object, Callable[[], object]]
    """Made for the first who asks to be called back: most signals are never asked."""

    def is_set(self) -> bool:
        """Return whether the flag has been raised."""
        return self._raised

    def set(self) -> None:
        """Raise the flag and call back everybody; harmless when done before."""
        self._raised = True
        for ticket in reversed(list(vars(self).get("_callbacks", ()))):
            self._call(ticket)

    def subscribe(self, callback: Callable[[], object]) -> Callable[[], object]:
        """Call ``callback`` when the flag is raised, at once if it is; returns how to take that back.

        The callback runs in the thread that raises the flag and must neither block nor raise. Where two
        threads raise it, or one subscribes just then, it may run in both: a second time it must do nothing.
        """
        ticket = object()
        callbacks = vars(self).setdefault("_callbacks", {})
        callbacks[ticket] = callback
        if self._raised:
            self._call(ticket)
        return partial(callbacks.pop, ticket, None)

    def _call(self, ticket: object) -> None:
        # Taken out only afterwards: one that a signal handler keeps from being called is called when the flag
        # is raised again.
        callback = self._callbacks.get(ticket)
        if callback is not None:
            callback()
            self._callbacks.pop(ticket, None)

    def __repr__(self) -> str:
        return f"Signal({'set' if self._raised else 'not set'})"


class Once(dict[None, tuple[T]], Generic[T]):
    """A value settled by whoever comes first; later attempts change nothing. Not empty once it is settled."""

    __slots__ = ()

    def settle(self, value: T) -> bool:
        """Set the value; returns whether this call was the first."""
        mine = (value,)
        return self.setdefault(None, mine) is mine

    @property
    def value(self) -> T | None:
        """The settled value, or None before."""
        settled = self.get(None)
        return None if settled is None else settled[0]


class Interrupt:
    """Ends a waiting call from outside: the first ``fire`` decides the error that the call raises."""

    __slots__ = ("_error", "signal")

    def __init__(self) -> None:
        self.signal = Signal()
        self._error: Once[Callable[[], Exception]] = Once()

    def fire(self, error: Callable[[], Exception]) -> None:
        """End the call with the error that ``error()`` makes in the waiting thread or task."""
        self._error.settle(error)
        self.signal.set()

    def raise_if_fired(self) -> None:
        """Raise the error if ``fire`` was called."""
        if self._error and (error := self._error.value) is not None:
            raise error()


class Calls(dict[Interrupt, None]):
    """The calls under way, by the object that ends each. Once they are refused, none begins any more.

    A call that has ended takes itself out by ``pop``, and says so by ``left``. A signal handler may raise on
    entry to any function in Python, so a function that did both might do neither.
    """

    def __init__(self) -> None:
        super().__init__()
        self._refusal: Once[Callable[[], Exception]] = Once()
        self.over = Signal()
        """Raised when calls are refused and the last one has ended."""

    def enter(self, interrupt: Interrupt) -> None:
        """Let ``end`` reach a call that is about to begin. Raises the refusal when it is too late."""
        self[interrupt] = None
        if self._refusal and (refusal := self._refusal.value) is not None:
            raise refusal()

    def left(self) -> None:
        """Tell whoever refuses them when the call that was taken out was the last one."""
        if self._refusal and not self:
            self.over.set()

    def refuse(self, error: Callable[[], Exception]) -> bool:
        """Let no more calls begin; returns whether this call was the first to do so."""
        return self._refusal.settle(error)

    def under_way(self) -> list[Interrupt]:
        """Return the calls of this moment."""
        # By its keys: without a GIL, the copy of a subclass of dict is not one operation.
        return list(self.keys())

    def end(self, error: Callable[[], Exception]) -> None:
        """End those that wait."""
        for interrupt in self.under_way():
            interrupt.fire(error)


class Contact:
    """When Consul last answered, and since when an answer is missing.

    The requests of a client feed it. Reading it needs no I/O, from any thread. An answer that says only that
    the servers can't be reached, or are overloaded, is no contact. One missing answer is no loss of contact:
    the next one has ``PATIENCE`` seconds to come.
    """

    __slots__ = ("_missing_since", "_now", "datacenter", "heard_at", "trouble")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.datacenter: str | None = None
        """The datacenter that the client asks; None for the agent's own."""
        self._missing_since: float | None = None
        self.trouble = ""
        """The last failure since the last answer; empty if there was none."""
        self.heard_at = -math.inf
        """When the last answer came."""

    def asked(self) -> None:
        """Take note that a request was sent which is to be answered soon."""
        if self._missing_since is None:
            self._missing_since = self._now()

    def heard(self) -> None:
        """Take note of an answer."""
        self.heard_at = self._now()
        self._missing_since = None
        self.trouble = ""

    def failed(self, error: Exception) -> None:
        """Take note that a request got no answer."""
        self.asked()
        self.hindered(str(error))

    def hindered(self, why: str) -> None:
        """Take note of what keeps a request from being sent, or from being answered."""
        self.trouble = why

    @property
    def missing_for(self) -> float:
        """The seconds for which an answer has been missing."""
        since = self._missing_since
        return 0.0 if since is None else self._now() - since

    @property
    def is_missing(self) -> bool:
        """Whether an answer has been missing for too long."""
        return self.missing_for >= PATIENCE

    @property
    def is_present(self) -> bool:
        """Whether Consul has answered, and no answer has been missing for too long since."""
        return self.heard_at > -math.inf and not self.is_missing

    @property
    def age(self) -> float:
        """Seconds since the last answer; infinite before the first one."""
        return self._now() - self.heard_at

    @property
    def problem(self) -> RequestTimeout | None:
        """The problem while the contact is lost; None otherwise."""
        if not self.is_missing:
            return None
        began = "ever" if self.heard_at == -math.inf else f"for {self.age:.0f} s"
        message = f"no answer from Consul {began}" + (f": {self.trouble}" if self.trouble else "")
        return RequestTimeout(message, method="", path="", outcome_unknown=False)


def run(program: Coroutine[Any, Any, T]) -> T:
    """Drive a program that never suspends to its end."""
    try:
        program.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    message = f"{program!r} awaited something other than its IO"
    raise RuntimeError(message)


class Task(Protocol):
    """A program running in the background."""

    @property
    def done(self) -> Signal:
        """Raised when the program has ended, however it did."""
        ...

    def cancel(self) -> None:
        """Ask the program to end; returns at once, from any thread."""
        ...


class Host(Protocol):
    """The calls that any thread may make, at any moment, without waiting."""

    contact: Contact
    """When Consul last answered."""

    @property
    def has_background(self) -> bool:
        """Whether programs can be spawned: an async client has to be entered before."""
        ...

    def now(self) -> float:
        """Return the lease clock's time in seconds."""
        ...

    def random(self) -> float:
        """Return a random number from 0 up to, not including, 1."""
        ...

    def mutex(self) -> AbstractContextManager[object]:
        """Make a re-entrant lock that keeps the client's other threads out.

        Free of cost where there are none.
        """
        ...

    def spawn(self, program: Callable[[IO], Awaitable[object]], *, name: str) -> Task:
        """Run a program in the background, with the background's own IO; returns at once.

        An error that it raises is reported as ``Failed``, and ends nothing else.
        """
        ...

    def has_ended(self, owner: object) -> bool:
        """Return whether a thread or task, as ``IO.owner`` gave it, has ended."""
        ...

    def count(self, what: str) -> None:
        """Add one to a counter."""
        ...

    def counted(self, what: str) -> int:
        """Return a counter's value.

        How many events of that name, or how often ``count`` was called with it.
        """
        ...

    def emit(self, event: Event, *, cause: BaseException | None = None) -> None:
        """Report an event, and in the log what caused it; never blocks and never raises."""
        ...

    def call_back(self, function: Callable[[], object]) -> None:
        """Run a user's callback where those run.

        Returns at once, what it raises is reported as ``Failed``.
        """
        ...


class IO(Host, Protocol):
    """The calls of a program. See the module's rules."""

    def owner(self) -> object:
        """Return what identifies the calling thread or task, for "this thread holds it already"."""
        ...

    async def begin(self, program: Callable[[IO], Awaitable[object]], *, name: str, deadline: float) -> None:
        """Run a program in the background; here, where the background is not to start yet.

        Here its requests are answered by ``deadline`` or not at all: the caller waits no longer.
        """
        ...

    async def send(self, request: Request, *, deadline: float) -> Response:
        """Exchange one request for a reply, raising TransportError without one by ``deadline``.

        Nothing is repeated, decoded or judged here.
        """
        ...

    async def changed(
        self, request: Request, *, until: Signal | None = None, deadline: float | None = None
    ) -> Response | None:
        """Exchange a blocking query for its reply; None when ``until`` was raised or ``deadline`` came first.

        Raises TransportError as ``send`` does.
        """
        ...

    async def wait(self, signal: Signal, *, deadline: float | None = None) -> bool:
        """Wait until the signal is raised; returns False when ``deadline`` came first."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Let time pass on the lease clock."""
        ...

    def shield(self, seconds: float) -> AbstractAsyncContextManager[float]:
        """Keep interrupts and cancellation out of a clean-up; gives the deadline by which it should end."""
        ...


class OnDemand:
    """A background program that exists only while it has something to do.

    ``start`` may be called from any thread, at any time, and be interrupted at any line: what runs is known
    by the program itself, in the background, where nothing interrupts it. Work that arrives while the program
    is about to end starts it again: none is overlooked.
    """

    def __init__(
        self,
        host: Host,
        program: Callable[[IO], Awaitable[object]],
        *,
        has_work: Callable[[], object],
        name: str,
    ) -> None:
        self._host = host
        self._program = program
        self._has_work = has_work
        self._name = name
        self._running = False

    def start(self) -> None:
        """Run the program unless it is running."""
        if not self._running:
            self._host.spawn(self._run, name=self._name)

    async def _run(self, io: IO) -> None:
        if self._running:
            return  # started twice before it ran
        self._running = True
        try:
            await self._program(io)
        finally:
            self._running = False
        if self._has_work():
            self.start()
