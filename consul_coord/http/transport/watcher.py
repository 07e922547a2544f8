"""End exchanges that are over their time, or were cancelled, while their caller is blocked in one.

Rules
- An exchange over a kept connection of a user's client blocks its caller in the connection's socket. Shutting
  that down wakes the caller.
- An exchange is over before its connection goes back to the pool of httpx. So the watcher never shuts down
  a connection that another request has by then.
- One thread watches all exchanges of the process. It sleeps until the first of their deadlines. It ends when
  no exchange has begun for ``LONGEST`` seconds.
- A caller pays for two changes of a dict; it wakes the watcher only if its deadline is the first one.
"""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from contextlib import suppress

from consul_coord import threads

LONGEST = 4.0
"""Seconds that the watcher sleeps at most."""


class Watch:
    """One exchange, from ``begin`` to ``end``, on the thread that makes it."""

    __slots__ = ("_is_over", "_lock", "_sock", "deadline", "is_cut")

    def __init__(self, deadline: float) -> None:
        """``deadline``: of the monotonic clock."""
        self.deadline = deadline
        self.is_cut = False
        """Whether its socket was shut down."""
        self._sock: socket.socket | None = None
        self._lock = threading.Lock()
        self._is_over = False

    def begin(self, sock: socket.socket) -> None:
        """Have the socket shut down at the deadline, or now if it was cancelled before."""
        self._sock = sock
        _watched[self] = None
        _hurry(self.deadline)

    def cancel(self) -> None:
        """Have it ended now; from any thread, and from a signal handler."""
        self.deadline = -math.inf
        _hurry(self.deadline)

    def end(self) -> None:
        """Take note that it is over. From here on, its socket is left alone."""
        with self._lock:
            self._is_over = True
        _watched.pop(self, None)

    def cut(self) -> None:
        """Shut down its socket."""
        _watched.pop(self, None)
        # Its owner may have been interrupted within ``end``: never wait for the lock.
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._sock is not None and not self._is_over:
                self.is_cut = True
                # A TLS socket's own shutdown() drops the TLS layer, which the blocked thread is using.
                with suppress(OSError):
                    socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
        finally:
            self._lock.release()


class _Watcher:
    """The thread's state. A forked child has none, and makes its own."""

    def __init__(self) -> None:
        self.latch = threading.Lock()
        self.latch.acquire()
        self.wakes_at = math.inf
        self.is_needed = False

    def run(self) -> None:
        if _running.setdefault(None, self) is not self:
            return  # two were started at once
        while self._look():
            pass

    def _look(self) -> bool:
        """End what is due, and sleep; return whether to go on."""
        self.is_needed, self.wakes_at = False, math.inf  # who begins from here on wakes this thread
        pause = LONGEST
        for watch in list(_watched):
            left = watch.deadline - time.monotonic()
            if left <= 0:
                watch.cut()
            else:
                pause = min(pause, left)
        self.wakes_at = time.monotonic() + pause
        if self.latch.acquire(timeout=pause) or self.is_needed or _watched:
            return True
        _running.pop(None, None)
        return bool(_watched) and _running.setdefault(None, self) is self

    def wake(self) -> None:
        with suppress(RuntimeError):  # it is awake
            self.latch.release()


_watched: dict[Watch, None] = {}
_running: dict[None, _Watcher] = {}
"""The one that runs. It puts itself here, so that an exception can't come between this and its start."""


def _hurry(deadline: float) -> None:
    """Have the watcher awake by then."""
    watcher = _running.get(None)
    if watcher is None:
        with suppress(RuntimeError):  # none can be had any more: the interpreter ends
            threads.start(_Watcher().run, name="consul-coord-watcher")
    else:
        watcher.is_needed = True
        if deadline < watcher.wakes_at:
            watcher.wake()


def _forget() -> None:
    _watched.clear()
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
