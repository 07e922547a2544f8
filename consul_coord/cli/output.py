"""The messages of a verb on stderr: a line of text for people, or one JSON object per event.

Rules
- Lines are written whole, from whatever thread. A closed stderr is no reason to stop.
- Text has what a person waits for or must know; JSON has every event. ``quiet`` leaves the problems only.
- A JSON object has ``event``, ``time`` (seconds since 1970) and the event's own fields; never a token.
- Log lines of the library that are no events are shown too.
- Text may quote what others wrote. Characters that do not print are replaced, so that they steer no terminal.
- An outage is two lines, even if ``quiet``: at its first failed renewal, and at its end.
- On a terminal the progress of a wait is one line that changes.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from consul_coord import ConsulCoordError, events
from consul_coord.cli.codes import ExitCode, code_of
from consul_coord.http.failures import next_step, printable
from consul_coord.threads import Mutex

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_CLEAR = "\r\x1b[K"
"""Goes back to the beginning of a terminal's line and empties it."""


_SHOWN = (
    events.Waiting,
    events.Acquired,
    events.OutageBegan,
    events.OutageEnded,
    events.Lost,
    events.Overwritten,
    events.SessionDiffers,
    events.ShortHorizon,
    events.SlotAhead,
    events.Retried,
)
"""The events that people read of; JSON has all."""
RETRY_SPACING = 10.0
"""Seconds between two lines about requests that are sent again."""
REPEAT_SPACING = 300.0
"""The same between two lines that say the same."""


class Reporter:
    """Tells what happens; an ``Observer``."""

    def __init__(
        self, *, as_json: bool = False, quiet: bool = False, waits: bool = True, own: str | None = None
    ) -> None:
        """Begin; ``waits`` says whether the verb waits: a single try has one reason to report, at its end.

        Log lines that begin with ``own`` are not shown: the verb tells in its own words what they say.
        """
        self._process = os.getpid()
        self._as_json = as_json
        self._quiet = quiet
        self._waits = waits
        self._own = own
        self._writing = Mutex()
        self._retry_told = -math.inf, ""
        self._in_place = sys.stderr is not None and sys.stderr.isatty()
        self._unfinished = False
        """Whether the last line on the terminal is one that changes."""

    def on_event(self, event: events.Event) -> None:
        """Tell an event of the library; a forked child's holds are its parent's, and no news."""
        if os.getpid() != self._process:
            return
        if self._as_json:
            self._write_json(type(event).__name__.lower(), dataclasses.asdict(event))
            return
        if isinstance(event, _SHOWN) and self._is_news(event):
            self._write_text(event.describe(), stays=not isinstance(event, events.Waiting))

    def _is_news(self, event: events.Event) -> bool:
        """Return whether people want to read of an event, and take notice that they will."""
        match event:
            case events.OutageEnded():
                return True
            case events.Waiting() if not self._waits:
                return False
            case events.Retried() if not self._quiet:
                now, (told_at, told) = time.monotonic(), self._retry_told
                due = now - told_at >= (REPEAT_SPACING if told == event.describe() else RETRY_SPACING)
                if due:
                    self._retry_told = now, event.describe()
                return due
            case _:
                return not self._quiet or event.level >= logging.WARNING

    def tell(self, name: str, text: str, *, problem: bool = False, **fields: object) -> None:
        """Tell what the command line itself does: ``text`` to people, ``name`` and ``fields`` as JSON."""
        if self._as_json:
            self._write_json(name, {"message": text, **fields})
        elif problem or not self._quiet:
            self._write_text(text)

    def fail(self, code: int, text: str) -> int:
        """Tell why the verb ends without success, and return its exit code."""
        self.tell("error", text, problem=True, code=int(code))
        return int(code)

    def answer(self, work: Callable[[], int], *, not_acquired: int = ExitCode.NOT_ACQUIRED) -> int:
        """Return what ``work`` does, or tell an error of the library and return its exit code; bugs go on.

        Meanwhile the library's warnings are shown.
        """
        try:
            with self._logging():
                return work()
        except ConsulCoordError as error:
            code = code_of(error)
            if code is ExitCode.BUG:
                raise
            told = f"{error}{next_step(error)}"
            return self.fail(not_acquired if code is ExitCode.NOT_ACQUIRED else code, told)

    def on_log(self, text: str, level: str) -> None:
        """Show a log line of the library, unless the verb tells what it says."""
        if self._own is None or not text.startswith(self._own):
            self.tell("log", text, problem=True, level=level)

    @contextmanager
    def _logging(self) -> Generator[None]:
        """Show the library's warnings meanwhile, except events, which the observer gets anyway."""
        logger, handler = events.logger, _Handler(self)
        propagate, logger.propagate = logger.propagate, False
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.propagate = propagate

    def _write_json(self, name: str, fields: dict[str, object]) -> None:
        self._write(json.dumps({"event": name, "time": round(time.time(), 3), **fields}, default=str))

    def _write_text(self, text: str, *, stays: bool = True) -> None:
        self._write(f"consul-coord: {printable(text)}", stays=stays)

    def _write(self, line: str, *, stays: bool = True) -> None:
        if sys.stderr is None:  # it was closed before we began
            return
        with self._writing, suppress(OSError, ValueError):
            begin = _CLEAR if self._unfinished else ""
            self._unfinished = self._in_place and not stays
            shown = _cut(line) if self._unfinished else f"{line}\n"
            sys.stderr.write(begin + shown)
            sys.stderr.flush()


def _cut(line: str) -> str:
    """Return as much of a line as one line of the terminal takes."""
    columns = os.get_terminal_size(sys.stderr.fileno()).columns
    return line[: columns - 1] if columns else line


class _Handler(logging.Handler):
    def __init__(self, reporter: Reporter) -> None:
        super().__init__(logging.WARNING)
        self._reporter = reporter

    def emit(self, record: logging.LogRecord) -> None:
        # Bugs in the background have no event that an observer gets, since it may be what failed.
        if record.name != events.logger.name or record.levelno >= logging.ERROR:
            self._reporter.on_log(record.getMessage(), record.levelname.lower())
