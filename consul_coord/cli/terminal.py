"""The controlling terminal: who is in its foreground, when a command has a process group of its own.

Rules
- The command gets the terminal only from us, and only if it was ours: nothing is taken from the shell or from
  other programs of the same pipeline.
- Its former owner gets it back when the command has ended or was suspended.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator


class Terminal:
    """The controlling terminal of this process, or the lack of one."""

    def __init__(self) -> None:
        self._file: int | None = None
        with suppress(OSError):
            self._file = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close our own handle of it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    @property
    def is_interactive(self) -> bool:
        """Whether a command run by us talks to the terminal directly, both ways."""
        return self._file is not None and os.isatty(0) and os.isatty(1)

    def lend(self, group: int) -> bool:
        """Put a process group into the foreground in our place; returns whether it is there now."""
        return self._in_front() == group or self._pass(os.getpgrp(), group)

    def take_back(self, group: int) -> bool:
        """Take the foreground back from a process group; returns False when it was not there."""
        return self._pass(group, os.getpgrp())

    def _in_front(self) -> int | None:
        """Return the process group in the foreground, or None without a terminal."""
        with suppress(OSError):
            return None if self._file is None else os.tcgetpgrp(self._file)
        return None

    def _pass(self, giver: int, taker: int) -> bool:
        if self._file is None or self._in_front() != giver:
            return False
        try:
            with _undisturbed():
                os.tcsetpgrp(self._file, taker)
        except OSError:  # the terminal has gone, or the group has
            return False
        return True


@contextmanager
def _undisturbed() -> Generator[None]:
    """Keep the kernel from stopping us for touching the terminal from the background."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def suspend() -> None:
    """Stop our own job, as Ctrl-Z does; returns when it is continued.

    Where nobody could continue it (no shell with job control) the kernel ignores this, and it returns at
    once.
    """
    before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    try:
        sys.stderr.flush()
        os.killpg(0, signal.SIGTSTP)
    finally:
        signal.signal(signal.SIGTSTP, before)
