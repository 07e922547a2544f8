"""Run a blocking call that can't be interrupted, and leave it behind when time is up.

The call runs on a daemon thread of its own, with the caller's context variables. Who gives up on it does
not wait for it; its late result goes to ``discard``.
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


def call_bounded(
    function: Callable[[], T],
    *,
    timeout: float,
    cancel: Cancellation | None = None,
    discard: Callable[[T], object] = lambda _result: None,
) -> T:
    """Return what ``function`` returns or raises, within ``timeout`` seconds.

    Raises ``TimeoutError``, or ``Abandoned`` when ``cancel`` is set first.
    """
    call = _Call(function, discard)
    unsubscribe = cancel.subscribe(call.wake.set) if cancel is not None else None
    if cancel is not None and cancel.is_set():
        call.wake.set()
    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(call.run,), name="consul-coord-call", daemon=True).start()
    try:
        call.wake.wait(timeout)
    finally:
        if unsubscribe is not None:
            unsubscribe()
        outcome = call.leave()
    if outcome is not None:
        return outcome()
    if cancel is not None and cancel.is_set():
        raise Abandoned
    raise TimeoutError


class _Call(Generic[T]):
    """One call on its thread. Exactly one of caller and thread gets hold of the result."""

    def __init__(self, function: Callable[[], T], discard: Callable[[T], object]) -> None:
        self.wake = threading.Event()
        self._function = function
        self._discard = discard
        self._lock = threading.Lock()
        self._left = False
        self._outcome: Callable[[], T] | None = None

    def run(self) -> None:
        """Call the function, and hand its outcome over if somebody still waits."""
        try:
            result = self._function()
        except BaseException as error:  # noqa: BLE001 - it belongs to the waiting caller, whatever it is
            self._hand_over(functools.partial(_raise, error))
        else:
            if not self._hand_over(lambda: result):
                self._discard(result)
        self.wake.set()

    def leave(self) -> Callable[[], T] | None:
        """Return the outcome if it is there; after this, none is taken any more."""
        with self._lock:
            self._left = True
            return self._outcome

    def _hand_over(self, outcome: Callable[[], T]) -> bool:
        with self._lock:
            if self._left:
                return False
            self._outcome = outcome
            return True


def _raise(error: BaseException) -> Never:
    raise error
