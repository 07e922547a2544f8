"""Run a blocking call that can't be interrupted, and leave it behind when time is up, or its task cancelled.

Rules
- The call runs on a daemon thread, with the caller's context variables. A caller that gives up on it does
  not wait for it; its late result is dropped.
- A thread that has done its call waits a few seconds for the next one, so that calls which follow each other
  start no thread each.
"""

from __future__ import annotations

import contextvars
import functools
import os
import queue
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from consul_coord import threads
from consul_coord.http.transport.base import Abandoned

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from consul_coord.http.transport.base import Cancellation

T = TypeVar("T")

PATIENCE = 4.0
"""How long a thread waits for the next call, in seconds."""
FIRST_LOOK = 0.001
LONGEST_LOOK = 0.02
"""Seconds between two looks of a task at whether its call is done, at first and at most."""


def call_bounded(function: Callable[[], T], *, timeout: float, cancel: Cancellation | None = None) -> T:
    """Return what ``function`` returns or raises, within ``timeout`` seconds.

    Raises ``TimeoutError``, or ``Abandoned`` when ``cancel`` is set first.
    """
    call = _Call(functools.partial(contextvars.copy_context().run, function))
    unsubscribe = cancel.subscribe(call.cancel) if cancel is not None else None
    try:
        _hand_over(call)
        call.latch.acquire(timeout=timeout)
    finally:
        if unsubscribe is not None:
            unsubscribe()
    return call.outcome()


async def call_aside(function: Callable[[], T]) -> T:
    """Return what ``function`` returns or raises, on an event loop. A cancelled caller leaves it behind.

    A loop's own threads won't do: none can be had once the main thread has ended, and the end of the process
    waits for them.
    """
    import anyio

    call, pause = _Call(function), FIRST_LOOK
    _hand_over(call)
    while not call.latch.acquire(blocking=False):
        await anyio.sleep(pause)
        pause = min(2 * pause, LONGEST_LOOK)
    return call.outcome()


class _Call(Generic[T]):
    """One call, and the latch that its caller waits at."""

    def __init__(self, function: Callable[[], T]) -> None:
        self.latch = threading.Lock()
        self.latch.acquire()
        self.result: tuple[T] | None = None
        self.error: list[BaseException] = []
        self.cancelled = False
        self._function = function

    def run(self) -> None:
        try:
            self.result = (self._function(),)
        except BaseException as error:  # noqa: BLE001 - it belongs to the waiting caller, whatever it is
            self.error.append(error)

    def outcome(self) -> T:
        if self.error:
            raise self.error.pop()  # so that no frame in its traceback refers to it
        if self.result is not None:
            return self.result[0]
        raise Abandoned if self.cancelled else TimeoutError

    def cancel(self) -> None:
        self.cancelled = True
        self.wake()

    def wake(self) -> None:
        """Wake the caller if it still waits."""
        with suppress(RuntimeError):  # done before
            self.latch.release()


_idle: deque[queue.SimpleQueue[_Call[Any]]] = deque()
"""The inboxes of threads that wait for a call; whoever takes one out has that thread."""


def _hand_over(call: _Call[Any]) -> None:
    """Give a call to a thread, or, when none can be had (an interpreter that ends has none), do it here."""
    with suppress(IndexError):
        _idle.pop().put(call)
        return
    try:
        threads.start(functools.partial(_work, call), name="consul-coord-call")
    except RuntimeError:
        call.run()
        call.wake()


def _work(call: _Call[Any] | None) -> None:
    inbox: queue.SimpleQueue[_Call[Any]] = queue.SimpleQueue()
    while call is not None:
        call.run()
        # Before the caller is woken: its next call finds this thread then.
        _idle.append(inbox)
        call.wake()
        call = None
        with suppress(queue.Empty):
            call = inbox.get(timeout=PATIENCE)
            continue
        try:
            _idle.remove(inbox)
        except ValueError:  # taken out this very moment
            call = inbox.get()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)
