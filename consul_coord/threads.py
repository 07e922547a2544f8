"""Threads and locks that a signal handler may interrupt by raising, at any moment.

Rules
- ``threading.Thread.start`` waits for the new thread at a condition, which is Python code. An exception in
  its midst leaves the condition locked: then the new thread never gets to run, nor does it end. So that is
  done in another new thread, where no signal handler runs.
- For the same reason nothing in this package waits at an ``Event`` or a ``Condition`` on a caller's thread:
  a lock made in C, and an ``io.Signal``, are whole after any exception.
- Up to Python 3.13 no signal handler runs between the entry of ``with lock:`` and its body. Since 3.14 one
  may, and what it raises there leaves the lock locked for ever. So a caller's thread uses a ``Mutex``.
"""

from __future__ import annotations

import _thread
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


if TYPE_CHECKING or sys.version_info < (3, 14):
    Mutex = threading.RLock
else:

    class Mutex(_thread.RLock):
        """A re-entrant lock that is free again when an exception ends the entry of its ``with``.

        Only the call that locks can be interrupted: the interpreter does not look for signals when this
        method returns, and the exit is made in C.
        """

        __slots__ = ()

        def __enter__(self) -> bool:
            before = self._recursion_count()
            try:
                return self.acquire()
            except BaseException:
                if self._recursion_count() > before:
                    self.release()
                raise


def start(run: Callable[[], object], *, name: str) -> None:
    """Have a daemon thread call a function. Raises RuntimeError when the system gives none."""

    def begin() -> None:
        with suppress(RuntimeError):
            threading.Thread(target=run, name=name, daemon=True).start()
            return
        run()  # there was one thread left, which is this

    _thread.start_new_thread(begin, ())
