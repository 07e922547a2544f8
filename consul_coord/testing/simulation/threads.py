"""The threads of a process: one may stand still amid a line of a program, while the others go on.

Rules
- The programs of the background share one thread. Each program of a user has a thread of its own, and so have
  the callbacks.
- A thread stands still just before a line of the recipes that is drawn, for a moment, or until something else
  comes to the process, such as the next act of a user. Its own programs wait meanwhile.
- None stands still while a program has a mutex, or while another one does.
- A process that ends meanwhile ends when the line has gone on to its next wait.
"""

from __future__ import annotations

import inspect
import math
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import consul_coord

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import FrameType, TracebackType

    from consul_coord.testing.simulation.dice import Dice
    from consul_coord.testing.simulation.process import Process
    from consul_coord.testing.simulation.scheduler import Event, Scheduler

BACKGROUND, CALLBACKS = "background", "callbacks"
"""The threads that each client has."""
RECIPES = str(Path(consul_coord.__file__).parent / "recipes")
LINES = 60
"""A thread stands still before one of so many lines of a step, the first ones as a rule."""
MOMENTS = 0.0005, 0.01, 0.3
"""Seconds for which it stands still, about, if it does not wait for what comes."""
COMES_WITHIN = 0.5
"""Seconds for which it waits for that, at most."""
BEHIND = 0.5
"""Seconds after a stop within which a thread has reported all that it was about to report."""
GOES_ON = 0.004
"""Seconds that another thread gets to act on what has come."""


class Threads:
    """The threads of one process, of which one at a time may stand still."""

    def __init__(
        self,
        process: Process,
        dice: Dice,
        *,
        often: float,
        scheduler: Scheduler,
        advance: Callable[[float], object],
    ) -> None:
        self._process = process
        self._dice = dice
        self._often = often
        self._scheduler = scheduler
        self._advance = advance
        self._still: object = None
        """The thread that stands still."""
        self._kept: list[Event] = []
        """The events that wait until it goes on."""
        self._left = 0
        """How many lines are left until a thread stands still."""
        self._broken: BaseException | None = None
        self.at_last: Callable[[], object] = _nothing
        """The act that waits until no thread stands still."""
        self.lag = 0.0
        """The seconds, in all, for which a thread has stood still."""
        self.locked = 0
        """How many mutexes are held."""

    @property
    def stand_still(self) -> bool:
        """Whether one of them does."""
        return self._still is not None

    @property
    def are_behind(self) -> bool:
        """Whether one of them stands still, or did a moment ago."""
        return self.stand_still or self._scheduler.now <= self._process.awake_since + BEHIND

    def admit(self, event: Event) -> bool:
        """Return whether a thread takes an event now; if not, it is kept."""
        if self._still is None or event.thread != self._still:
            return True
        self._kept.append(event)
        return False

    def send(self, program: Coroutine[Any, Any, object]) -> None:
        """Let a program go on until it waits, or ends; its thread may stand still meanwhile."""
        if self.stand_still or not self._dice.chance(self._often):
            program.send(None)
            return
        self._left = int(math.exp(self._dice.uniform(0.0, math.log(LINES))))
        was = sys.gettrace()
        sys.settrace(self._called)
        try:
            program.send(None)
        finally:
            sys.settrace(was)
            if self.at_last is not _nothing:
                self._scheduler.after(0.0, self.at_last)
                self.at_last = _nothing
            if self._broken is not None:
                broken, self._broken = self._broken, None
                raise broken

    def _called(self, frame: FrameType, _event: str, _argument: object) -> Callable[..., Any] | None:
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED  # amid an import, others would find half a module
        return self._at if is_function and code.co_filename.startswith(RECIPES) else None

    def _at(self, frame: FrameType, event: str, _argument: object) -> Callable[..., Any] | None:
        if event == "line" and self._left > 0 and not self.locked:
            self._left -= 1
            if not self._left:
                try:
                    self._stand(frame)
                except BaseException as error:  # noqa: BLE001 - nothing may be raised amid a program
                    self._broken = error
        return self._at if self._left else None

    def _stand(self, frame: FrameType) -> None:
        process, task = self._process, self._process.running
        if task is None or process.crashed:
            return
        since = self._scheduler.now
        until = since + self._seconds()
        process.judge.see("a thread stands still amid a step")
        where = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
        process.judge.note(process.name, f"the thread of {task.name!r} stands still: {where}")
        self._still = task.thread
        try:
            self._advance(until)
            while process.stands_still and process.judge.violation is None:
                self._advance(self._scheduler.now + COMES_WITHIN)
        finally:
            self._still, process.running = None, task
            process.awake_since = self._scheduler.now
            self.lag += self._scheduler.now - since
            kept, self._kept = self._kept, []
            for event in kept:
                event.when = self._scheduler.now
                self._scheduler.push(event)
        process.judge.note(process.name, f"the thread of {task.name!r} goes on")

    def _seconds(self) -> float:
        """Return for how long a thread stands still."""
        if self._dice.chance(0.5):
            return self._dice.uniform(0.0, self._dice.choice(MOMENTS))
        now = self._scheduler.now
        soon = sorted(when - now for when in self._scheduler.due_for(self._process, within=COMES_WITHIN))
        return (self._dice.choice(soon[:4]) if soon else 0.0) + GOES_ON


class Mutex(AbstractContextManager[None]):
    """A mutex that nobody has to wait for, as no thread stands still while it is held."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def __enter__(self) -> None:
        if self._process.threads is not None:
            self._process.threads.locked += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.threads is not None:
            self._process.threads.locked -= 1


def _nothing() -> None:
    return None
