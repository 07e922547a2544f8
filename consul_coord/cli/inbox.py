"""Everything that may happen while a verb waits or runs, brought to one thread, in order.

Rules
- One thread, the main one, decides; signal handlers and other threads only put facts into the inbox.
- ``queue.SimpleQueue.put`` may be called by a signal handler that interrupts ``get``.
- A signal that was ignored when this process started stays ignored (``nohup``).
"""

from __future__ import annotations

import queue
import signal
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from types import FrameType

    from consul_coord import ConsulCoordError, Hold, LossReason
    from consul_coord.cli.survey import Place


@dataclass(frozen=True, slots=True)
class Signalled:
    """This process got a signal."""

    number: int


@dataclass(frozen=True, slots=True)
class Granted:
    """The wait has ended with a hold."""

    hold: Hold


@dataclass(frozen=True, slots=True)
class Refused:
    """The wait has ended without a hold."""

    error: ConsulCoordError


@dataclass(frozen=True, slots=True)
class Crashed:
    """The wait has ended by a bug."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Lost:
    """The hold is over."""

    reason: LossReason


@dataclass(frozen=True, slots=True)
class ChildStopped:
    """The command was stopped, not ended, by a signal."""

    number: int


@dataclass(frozen=True, slots=True)
class ChildEnded:
    """The command has ended."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What is held and waited for has changed."""

    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Pressed:
    """Somebody pressed a key."""

    key: str


Fact: TypeAlias = Signalled | Granted | Refused | Crashed | Lost | ChildStopped | ChildEnded | Seen | Pressed


class Inbox:
    """A queue of facts for the main thread."""

    def __init__(self) -> None:
        self._facts: queue.SimpleQueue[Fact] = queue.SimpleQueue()

    def put(self, fact: Fact) -> None:
        """Report a fact, from any thread or signal handler."""
        self._facts.put(fact)

    def get(self, timeout: float | None = None) -> Fact | None:
        """Return the next fact, or None when none came within ``timeout`` seconds."""
        try:
            return self._facts.get(timeout=timeout)
        except queue.Empty:
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
