"""The blocking engine on plain sockets: the hot path of every acquire and release.

Rules
- Every wait on a socket is bounded by what is left of the attempt's time, so a drip of bytes buys nobody
  more.
- Any number of threads may send at one time.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from consul_coord.http.transport.dial import dial
from consul_coord.http.transport.exchange import LOST, Engine
from consul_coord.http.transport.pool import READ_SIZE
from consul_coord.io import run

if TYPE_CHECKING:
    import socket

    from consul_coord.http.messages import Request, Response
    from consul_coord.http.transport.base import Cancellation
    from consul_coord.http.transport.outgoing import Attempt


class DirectTransport(Engine):
    """Blocks the caller for its request; see ``Transport``."""

    def send(self, request: Request, *, timeout: float, cancel: Cancellation | None = None) -> Response:
        """Return the whole reply; see ``Transport.send``."""
        attempt = self._begin(request, timeout, cancel)
        unsubscribe = None if cancel is None else cancel.subscribe(attempt.cancel)
        try:
            return run(self._exchange(attempt))
        except LOST as error:
            raise attempt.failed(error) from error
        finally:
            if unsubscribe is not None:
                unsubscribe()

    def sweep(self) -> float:
        """Close what lies idle too long; see ``Transport.sweep``."""
        return self._sweep()

    def close(self) -> None:
        """Close what is idle now and what is in use when it comes back."""
        self._close()

    async def _connect(self, attempt: Attempt) -> socket.socket:
        return dial(self._settings, attempt, self._tls_context())

    async def _write(self, sock: socket.socket, attempt: Attempt) -> bool:
        rest = memoryview(attempt.data)
        while rest:
            sock.settimeout(attempt.remaining())
            try:
                count = sock.send(rest)
            except TimeoutError:
                raise
            except OSError:
                if not attempt.sent:
                    raise
                return False
            attempt.sent = True
            rest = rest[count:]
        return True

    async def _read(self, sock: socket.socket, attempt: Attempt) -> bytes:
        sock.settimeout(attempt.remaining())
        return sock.recv(READ_SIZE)

    async def _pause(self, attempt: Attempt, seconds: float) -> None:  # noqa: ARG002 - the caller looks at its time
        time.sleep(seconds)  # noqa: ASYNC251 - this engine blocks its caller
