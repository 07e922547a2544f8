"""Stop one blocking exchange from another thread.

Closing a socket does not wake who is blocked on it; shutting it down does. A connection may go back to a pool
after its exchange, so once another socket, or None, is held in its place, the brake touches it no more.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from consul_coord.http.transport.base import Cancellation


class Brake:
    """Shuts down the socket it holds when ``cancel`` is set, until it is released."""

    __slots__ = ("_lock", "_socket", "_unsubscribe", "cancel", "pulled")

    def __init__(self, cancel: Cancellation) -> None:
        self.cancel = cancel
        self.pulled = False
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._unsubscribe = cancel.subscribe(self._pull)

    def hold(self, sock: socket.socket | None) -> None:
        """Take charge of this socket in place of any other."""
        with self._lock:
            self._socket = sock
        if self.pulled:
            self._pull()

    def release(self) -> None:
        """Do nothing from now on."""
        self._unsubscribe()
        self.hold(None)

    def _pull(self) -> None:
        with self._lock:
            self.pulled = True
            if self._socket is not None:
                # A TLS socket's own shutdown() drops the TLS layer, which the blocked thread is using.
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
