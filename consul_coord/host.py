"""The common part of each driver's host: the clock, randomness, counters, and the way of events.

Rules
- ``emit`` counts, logs and hands over; it never blocks and never raises, whatever an observer does.
- The log has the traceback of a bug. An error of this package says all in its sentence, so its traceback is
  for debugging only.
- Exact types of tasks and callbacks are the drivers' business: a host is finished by ``spawn``, ``call_back``
  and ``mutex``.
"""

from __future__ import annotations

import logging
import random
from abc import ABC, abstractmethod
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from consul_coord import events
from consul_coord.errors import ConsulCoordError
from consul_coord.io import Contact
from consul_coord.threads import Mutex

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractContextManager

    from consul_coord.clock import Clock
    from consul_coord.events import Event, Observer
    from consul_coord.io import IO, Interrupt, Task


_CALLS = ("random", "has_ended", "count", "counted", "mutex", "spawn", "emit", "call_back")
"""The methods of a host that each of its IOs has, too."""


class BaseHost(ABC):
    """A host, except the part that depends on threads or an event loop."""

    def __init__(self, *, clock: Clock, observer: Observer | None) -> None:
        self.clock = clock
        self.now = clock.now
        self.contact = Contact(clock.now)
        self._observer = observer
        self._counts: Counter[str] = Counter()
        # Re-entrant, since the garbage collector may report a forgotten hold at any moment.
        self._counting = Mutex()
        for name in _CALLS:
            setattr(self, name, getattr(self, name))  # bound once, and not again for each call's IO

    def random(self) -> float:
        """Return a random number from 0 up to, not including, 1."""
        return random.random()  # noqa: S311 - spreads load, protects nothing

    @abstractmethod
    def has_ended(self, owner: object) -> bool:
        """Return whether a thread or task has ended."""

    def count(self, what: str) -> None:
        """Add one to a counter."""
        with self._counting:
            self._counts[what] += 1

    def counted(self, what: str) -> int:
        """Return a counter's value."""
        return self._counts[what]

    def emit(self, event: Event, *, cause: BaseException | None = None) -> None:
        """Report an event to the log and the observer; the log has the traceback of what caused it."""
        self.count(type(event).__name__)
        self._log(event, cause)
        if self._observer is not None:
            with suppress(Exception):
                self.call_back(lambda: self._tell_observer(event))

    @staticmethod
    def _log(event: Event, cause: BaseException | None = None) -> None:
        # A user's log filter or handler may raise. A renewal must not fail by that.
        with suppress(Exception):
            if events.logger.isEnabledFor(event.level):
                if isinstance(cause, ConsulCoordError) and not events.logger.isEnabledFor(logging.DEBUG):
                    cause = None
                events.logger.log(event.rank, "%s", event.describe(), exc_info=cause)

    def _tell_observer(self, event: Event) -> None:
        try:
            if self._observer is not None:
                self._observer.on_event(event)
        except BaseException as error:  # told to the log only: the observer itself is the cause
            if not self.contains(error):
                raise
            self.count(events.Failed.__name__)
            self._log(events.Failed("the observer", f"{type(error).__name__}: {error}"), error)

    def report_failure(self, where: str, error: BaseException) -> None:
        """Report a bug in a background program or a user's callback."""
        self.emit(events.Failed(where, f"{type(error).__name__}: {error}"), cause=error)

    @property
    def has_background(self) -> bool:
        """Whether programs can be spawned."""
        return True

    @property
    def is_put_off(self) -> bool:
        """Whether the background is to start a moment later than its first program."""
        return False

    def hurry(self) -> None:  # noqa: B027 - most hosts have nothing to start
        """Start what is to run in the background now, because a caller waits for it."""

    @abstractmethod
    def mutex(self) -> AbstractContextManager[object]:
        """Make a re-entrant lock, or what stands for one where there is one thread only."""

    @abstractmethod
    def spawn(self, program: Callable[[IO], Awaitable[object]], *, name: str) -> Task:
        """Run a program in the background."""

    def contains(self, error: BaseException) -> bool:
        """Return whether what a user's function has raised is to end nothing else."""
        return isinstance(error, Exception)

    @abstractmethod
    def call_back(self, function: Callable[[], object]) -> None:
        """Run a user's callback where those run."""


class HostedIO:
    """The part of an ``IO`` that its host does."""

    __slots__ = ("_interrupt", "contact", "host", "now", "shields", *_CALLS)

    def __init__(self, host: BaseHost, interrupt: Interrupt | None = None) -> None:
        self.host = host
        self._interrupt = interrupt
        self.shields = 0
        """How many clean-ups are under way, one within the other."""
        self.contact = host.contact
        self.now = host.now
        self.random = host.random
        self.has_ended = host.has_ended
        self.count = host.count
        self.counted = host.counted
        self.mutex = host.mutex
        self.spawn = host.spawn
        self.emit = host.emit
        self.call_back = host.call_back

    @property
    def _open_to(self) -> Interrupt | None:
        """The interrupt that may end the next operation."""
        return None if self.shields else self._interrupt

    @property
    def has_background(self) -> bool:
        """Whether programs can be spawned."""
        return self.host.has_background

    async def begin(
        self,
        program: Callable[[IO], Awaitable[object]],
        *,
        name: str,
        deadline: float,  # noqa: ARG002 - nobody waits for it here
    ) -> None:
        """Run a program in the background."""
        self.spawn(program, name=name)
