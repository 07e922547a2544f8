"""Everything that may happen while a verb waits or runs, brought to one thread, in order.

Rules
- One thread, the main one, decides; signal handlers and other threads only put facts into the inbox.
- ``queue.SimpleQueue.put`` may be called by a signal handler that interrupts ``get``.
- The kernel may give a signal to any thread, as to a process that is stopped. Python runs the handler in the
  main thread, and does not wake that: so it looks several times in a second.
- A signal that was ignored when this process started stays ignored (``nohup``).
- Facts are named tuples: a dataclass takes five times as long to make, which each start would pay.
"""

from __future__ import annotations

import math
import queue
import signal
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from types import FrameType

    from consul_coord import ConsulCoordError, Hold, LossReason
    from consul_coord.cli.survey import Place


SIGNAL_SLICE = 0.2
"""Seconds between two looks at whether a signal came, while nothing else does."""


class Signalled(NamedTuple):
    """This process got a signal."""

    number: int


class Granted(NamedTuple):
    """The wait has ended with a hold."""

    hold: Hold


class Refused(NamedTuple):
    """The wait has ended without a hold."""

    error: ConsulCoordError


class Crashed(NamedTuple):
    """The wait has ended by a bug."""

    error: Exception


class Lost(NamedTuple):
    """The hold is over."""

    reason: LossReason


class Renewed(NamedTuple):
    """The lease of a session was extended."""


class Handover(NamedTuple):
    """This leader is asked to hand over."""

    heir: str


class ChildStopped(NamedTuple):
    """The command was stopped, not ended, by a signal."""

    number: int


class ChildEnded(NamedTuple):
    """The command has ended."""


class Seen(NamedTuple):
    """The holds and waits have changed."""

    places: tuple[Place, ...]


class Pressed(NamedTuple):
    """Somebody pressed a key."""

    key: str


Fact: TypeAlias = (
    Signalled | Granted | Refused | Crashed | Lost | Renewed | Handover | ChildStopped | ChildEnded | Seen
) | Pressed


class Inbox:
    """A queue of facts for the main thread."""

    def __init__(self) -> None:
        self._facts: queue.SimpleQueue[Fact] = queue.SimpleQueue()

    def put(self, fact: Fact) -> None:
        """Report a fact, from any thread or signal handler."""
        self._facts.put(fact)

    def get(self, timeout: float | None = None) -> Fact | None:
        """Return the next fact, or None when none came within ``timeout`` seconds."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            left = max(0.0, deadline - time.monotonic())
            with suppress(queue.Empty):
                return self._facts.get(timeout=min(left, SIGNAL_SLICE))
            if left <= SIGNAL_SLICE:
                return None

    @contextmanager
    def signals(self, numbers: Iterable[signal.Signals]) -> Generator[None]:
        """Receive signals as facts meanwhile. For the main thread only."""

        def receive(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as the signal module calls it
            self.put(Signalled(number))

        before = {number: signal.getsignal(number) for number in numbers}
        taken = {number: old for number, old in before.items() if old is not signal.SIG_IGN}
        for number in taken:
            signal.signal(number, receive)
        try:
            yield
        finally:
            for number, old in taken.items():
                signal.signal(number, old)
