"""Stop one blocking exchange from another thread.

Closing a socket does not wake who is blocked on it; shutting it down does. A connection may go back to a pool
after its exchange, so once ``let_go`` has returned, the brake touches the socket no more.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from consul_coord.http.transport.base import Cancellation


class Brake:
    """Shuts down the socket it holds when ``cancel`` is set, as long as the ``with`` block lasts."""

    def __init__(self, cancel: Cancellation) -> None:
        self.cancel = cancel
        self.pulled = False
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def __enter__(self) -> Self:
        self._unsubscribe = self.cancel.subscribe(self.pull)
        if self.cancel.is_set():
            self.pull()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._unsubscribe()
        self.let_go()

    def pull(self) -> None:
        """Stop what is going on, and whatever begins later."""
        with self._lock:
            self.pulled = True
            self._stop()

    def hold(self, sock: socket.socket) -> None:
        """Take charge of this socket in place of any other."""
        with self._lock:
            self._socket = sock
            if self.pulled:
                self._stop()

    def let_go(self) -> None:
        """Leave the socket alone from now on."""
        with self._lock:
            self._socket = None

    def _stop(self) -> None:
        if self._socket is not None:
            # A TLS socket's own shutdown() drops the TLS layer, which the blocked thread is using.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
