"""The blocking engine on plain sockets: the hot path of every acquire and release.

Rules
- Every wait on a socket is bounded by what is left of the attempt's time, so a drip of bytes buys nobody
  more.
- Any number of threads may send at one time.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING

from consul_coord.http.transport.base import DEFAULT_LIMITS
from consul_coord.http.transport.dial import dial
from consul_coord.http.transport.exchange import READ_SIZE, Engine, Lane, Link
from consul_coord.io import run

if TYPE_CHECKING:
    from consul_coord.config import Settings
    from consul_coord.http.messages import Request, Response
    from consul_coord.http.transport.base import Cancellation, Limits
    from consul_coord.http.transport.outgoing import Attempt


class SocketLink(Link):
    """A connection on a blocking socket."""

    __slots__ = ()

    async def write(self, attempt: Attempt) -> bool:
        """See ``Link.write``."""
        rest = memoryview(attempt.data)
        while rest:
            self.sock.settimeout(attempt.remaining())
            try:
                count = self.sock.send(rest)
            except TimeoutError:
                raise
            except OSError:
                if not attempt.sent:
                    raise
                return False
            attempt.sent = True
            rest = rest[count:]
        return True

    async def read(self, attempt: Attempt) -> bytes:
        """See ``Link.read``."""
        self.sock.settimeout(attempt.remaining())
        return self.sock.recv(READ_SIZE)

    async def close(self) -> None:
        """See ``Link.close``."""
        self.sock.close()


class DirectTransport(Engine[SocketLink]):
    """Blocks the caller for its request; see ``Transport``."""

    def __init__(self, settings: Settings, *, limits: Limits = DEFAULT_LIMITS) -> None:
        super().__init__(settings, limits=limits)
        self._lane: Lane[SocketLink] = Lane()
        self._lanes = (self._lane,)
        self._process = os.getpid()

    def send(self, request: Request, *, timeout: float, cancel: Cancellation | None = None) -> Response:
        """Return the whole reply; see ``Transport.send``."""
        attempt = self._begin(request, timeout, cancel)
        if self._process != os.getpid():
            self.forget()
        unsubscribe = None if cancel is None else cancel.subscribe(attempt.cancel)
        try:
            return run(self._exchange(self._lane, attempt))
        except self.lost as error:
            raise attempt.failed(error) from error
        finally:
            if unsubscribe is not None:
                unsubscribe()

    def sweep(self) -> float:
        """Close what lies idle too long; see ``Transport.sweep``."""
        return run(self._sweep())

    def close(self) -> None:
        """Close what is idle now and what is in use when it comes back."""
        self._closed = True
        run(self._sweep())

    def forget(self) -> None:
        """In a forked child: let go of the parent's sockets. Closing a descriptor says nothing."""
        self._process = os.getpid()
        links, self._open = list(self._open), weakref.WeakSet()
        for link in links:
            link.sock.close()
        self._lane.idle.clear()

    async def _connect(self, attempt: Attempt) -> SocketLink:
        return SocketLink(dial(self._settings, attempt, self._tls_context()))
