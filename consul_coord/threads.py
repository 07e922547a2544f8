"""Starting a thread so that a signal handler may raise at any moment of it.

Rules
- ``threading.Thread.start`` waits for the new thread at a condition, which is Python code. An exception in
  its midst leaves the condition locked: then the new thread never gets to run, nor does it end. So that is
  done in another new thread, where no signal handler runs.
- For the same reason nothing in this package waits at an ``Event`` or a ``Condition`` on a caller's thread:
  a lock made in C, and an ``io.Signal``, are whole after any exception.
"""

from __future__ import annotations

import _thread
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def start(run: Callable[[], object], *, name: str) -> None:
    """Have a daemon thread call a function. Raises RuntimeError when the system gives none."""

    def begin() -> None:
        with suppress(RuntimeError):
            threading.Thread(target=run, name=name, daemon=True).start()
            return
        run()  # there was one thread left, which is this

    _thread.start_new_thread(begin, ())
