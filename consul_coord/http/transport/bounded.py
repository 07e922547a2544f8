"""Run a blocking call that can't be interrupted, and leave it behind when time is up.

The call runs on a daemon thread of its own, with the caller's context variables. Who gives up on it does
not wait for it; its late result is dropped.
"""

from __future__ import annotations

import contextvars
import functools
import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Never

    from consul_coord.http.transport.base import Cancellation

T = TypeVar("T")


class Abandoned(Exception):
    """The cancellation was set before the call came back."""


def call_bounded(function: Callable[[], T], *, timeout: float, cancel: Cancellation | None = None) -> T:
    """Return what ``function`` returns or raises, within ``timeout`` seconds.

    Raises ``TimeoutError``, or ``Abandoned`` when ``cancel`` is set first.
    """
    call = _Call(function)
    unsubscribe = cancel.subscribe(call.wake.set) if cancel is not None else None
    if cancel is not None and cancel.is_set():
        call.wake.set()
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(call.run,), name="consul-coord-call", daemon=True)
    try:
        _start(thread, call.run)
        call.wake.wait(timeout)
    finally:
        if unsubscribe is not None:
            unsubscribe()
    if call.outcome is not None:
        return call.outcome()
    if cancel is not None and cancel.is_set():
        raise Abandoned
    raise TimeoutError


def _start(thread: threading.Thread, otherwise: Callable[[], object]) -> None:
    """Start the thread, or, when none can be had (an interpreter that is going down has none), do without."""
    try:
        thread.start()
    except RuntimeError:
        otherwise()


class _Call(Generic[T]):
    """One call on its thread."""

    def __init__(self, function: Callable[[], T]) -> None:
        self.wake = threading.Event()
        self.outcome: Callable[[], T] | None = None
        """Returns or raises what the function did, as soon as it has."""
        self._function = function

    def run(self) -> None:
        """Call the function, note its outcome, and wake the caller if it still waits."""
        try:
            result = self._function()
        except BaseException as error:  # noqa: BLE001 - it belongs to the waiting caller, whatever it is
            self.outcome = functools.partial(_raise, error)
        else:
            self.outcome = lambda: result
        self.wake.set()


def _raise(error: BaseException) -> Never:
    raise error
