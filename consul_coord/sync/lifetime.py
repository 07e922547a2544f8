"""The fate of open clients at the end of their process, and in a child forked from it.

Rules
- At the interpreter's exit they are closed on the main thread; by then other threads may be gone, and are not
  needed.
- A child that ``multiprocessing`` has forked ends without that exit, in later Pythons after its threads, in
  earlier ones before. A thread that still works under a hold must not lose it. While the child waits for
  other threads, one more such thread does the closing, after them.
- A forked child closes nothing that it inherited: each client starts again. A child that becomes another
  program at once has nothing to start, and no listener for the loss of its holds.
- Other ends (``os._exit``, a signal without a handler) are not noticed here.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Generator
    from multiprocessing.util import Finalize

LAST = -100
"""The priority of what is done after all else that ``multiprocessing`` does at a child's end."""


class Open(Protocol):
    """An object to be closed at the end."""

    def close(self) -> None:
        """Give back what it has. Harmless when done before."""
        ...

    def forked(self) -> None:
        """Leave what was inherited to the parent process."""
        ...


_open: weakref.WeakSet[Any] = weakref.WeakSet()
_at_childs_end: list[Finalize] = []
_executing = False


def begin(client: Open) -> None:
    """Have a client closed at the end of the process, unless it is gone by then."""
    _open.add(client)


def prepare_end() -> None:
    """Make sure that the end of this process is noticed, if it is a child of ``multiprocessing``.

    Called when there is something to be closed: what a parent had prepared does not count in its child.
    """
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None:
        return
    if not any(prepared.still_active() for prepared in _at_childs_end):
        from multiprocessing.util import Finalize

        _at_childs_end[:] = [Finalize(None, _close_in_child, exitpriority=LAST)]


def _close_in_child() -> None:
    if _others():
        threading.Thread(target=_close_after_others, name="consul_coord: close", daemon=False).start()
    else:
        _close_all()


def _close_after_others() -> None:
    while others := _others():
        others[0].join()
    _close_all()


def _others() -> list[threading.Thread]:
    """Return the threads that a process waits for at its end, except this one and the main one."""
    spared = (threading.main_thread(), threading.current_thread())
    return [each for each in threading.enumerate() if not (each.daemon or each in spared)]


def _close_all() -> None:
    with ExitStack() as every:  # also those after one that fails
        for client in list(_open):
            every.callback(client.close)


@contextmanager
def becoming_a_program() -> Generator[None]:
    """Leave a child that is forked in the block as it is: it becomes another program at once."""
    global _executing  # noqa: PLW0603 - of this process
    _executing = True
    try:
        yield
    finally:
        _executing = False


def _forked() -> None:
    if _executing:
        return
    for client in list(_open):
        client.forked()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
