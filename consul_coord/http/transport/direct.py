"""The blocking transport on plain sockets: the hot path of every acquire and release.

Rules
- One connection carries one exchange at a time. Idle ones lie in a deque whose ends are popped and pushed
  atomically: there is no lock, and the warmest connection is used first.
- An idle connection on which there is something to read has ended, or gone mad: it is not used.
- A connection is pooled again only after a whole reply; after anything else it is closed.
- Every wait on a socket is bounded by what is left of the attempt's time, so a drip of bytes buys nobody
  more.
"""

from __future__ import annotations

import os
import select
import time
from collections import deque
from typing import TYPE_CHECKING

from consul_coord.errors import ClientClosed
from consul_coord.http.transport.attempt import Attempt, reason
from consul_coord.http.transport.base import DEFAULT_LIMITS
from consul_coord.http.transport.bounded import Abandoned
from consul_coord.http.transport.brake import Brake
from consul_coord.http.transport.dial import dial
from consul_coord.http.transport.incoming import Garbled, ReplyReader
from consul_coord.http.transport.outgoing import Outgoing

if TYPE_CHECKING:
    import socket
    import ssl

    from consul_coord.config import Settings
    from consul_coord.http.messages import Request, Response
    from consul_coord.http.transport.base import Cancellation, Limits

MAX_IDLE = 16
"""How many connections are kept open for later."""
IDLE_LIMIT = 55.0
"""How long one is kept, in seconds: what lies between may have forgotten it after that, without a word."""
READ_SIZE = 64 * 1024


class DirectTransport:
    """Sends each request over a connection of its own, and keeps a few open for the next ones."""

    def __init__(
        self, settings: Settings, *, limits: Limits = DEFAULT_LIMITS, max_idle: int = MAX_IDLE
    ) -> None:
        self._settings = settings
        self._limits = limits
        self._max_idle = max_idle
        self._outgoing = Outgoing(settings)
        self._context: ssl.SSLContext | None = None
        self._idle: deque[_Link] = deque()
        self._open: set[_Link] = set()
        self._closed = False
        self._process = os.getpid()

    def send(self, request: Request, *, timeout: float, cancel: Cancellation | None = None) -> Response:
        """Return the whole reply; see ``Transport.send``."""
        attempt = Attempt(request, address=self._settings.address, timeout=timeout)
        if cancel is None:
            return self._send(attempt, None)
        with Brake(cancel) as brake:
            return self._send(attempt, brake)

    def close(self) -> None:
        """Close what is idle now and what is in use when it comes back."""
        self._closed = True
        self._close_idle()

    def forget(self) -> None:
        """In a forked child: let go of the parent's sockets. Closing a descriptor says nothing."""
        self._process = os.getpid()
        self._idle.clear()
        links, self._open = self._open, set()
        for link in links:
            link.close()

    def _send(self, attempt: Attempt, brake: Brake | None) -> Response:
        if self._closed:
            raise ClientClosed("the client is closed")
        if self._process != os.getpid():
            self.forget()
        data = self._outgoing.encode(attempt.request, attempt.began)
        try:
            return self._exchange(data, attempt, brake)
        except (OSError, Garbled, Abandoned) as error:
            if brake is not None and brake.pulled:
                raise attempt.cancelled() from error
            if isinstance(error, TimeoutError):
                raise attempt.timed_out() from error
            raise attempt.broken(reason(error)) from error

    def _exchange(self, data: bytes, attempt: Attempt, brake: Brake | None) -> Response:
        link = self._take_idle(attempt.began)
        if link is not None:
            try:
                return self._use(link, data, attempt, brake)
            except (OSError, Garbled) as error:
                stopped = isinstance(error, TimeoutError) or (brake is not None and brake.pulled)
                if stopped or not attempt.may_repeat():
                    raise
        return self._use(self._open_link(attempt, brake), data, attempt, brake)

    def _use(self, link: _Link, data: bytes, attempt: Attempt, brake: Brake | None) -> Response:
        if brake is not None:
            brake.hold(link.sock)
        try:
            reader = link.exchange(data, attempt, self._limits)
        except BaseException:
            self._drop(link)
            raise
        if brake is not None:
            brake.let_go()
        if reader.reusable and not (brake is not None and brake.pulled):
            self._keep(link)
        else:
            self._drop(link)
        return reader.response

    def _open_link(self, attempt: Attempt, brake: Brake | None) -> _Link:
        try:
            sock = dial(self._settings, attempt, self._tls_context(), brake)
        except TimeoutError:
            raise
        except OSError as error:
            if brake is not None and brake.pulled:
                raise
            raise attempt.unreachable(error) from error
        link = _Link(sock)
        self._open.add(link)
        return link

    def _tls_context(self) -> ssl.SSLContext | None:
        if self._context is None and self._settings.scheme == "https":
            from consul_coord.http.transport.tls import client_context

            self._context = client_context(self._settings.tls)
        return self._context

    # --- the pool

    def _take_idle(self, now: float) -> _Link | None:
        while self._idle:
            try:
                link = self._idle.pop()
            except IndexError:
                return None
            if now - link.idle_since < IDLE_LIMIT and not link.has_input():
                return link
            self._drop(link)
        return None

    def _keep(self, link: _Link) -> None:
        link.idle_since = time.monotonic()
        self._idle.append(link)
        if self._closed:
            self._close_idle()
        elif len(self._idle) > self._max_idle:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        try:
            link = self._idle.popleft()
        except IndexError:
            return
        self._drop(link)

    def _close_idle(self) -> None:
        while self._idle:
            self._drop_oldest()

    def _drop(self, link: _Link) -> None:
        self._open.discard(link)
        link.close()


class _Link:
    """One open connection."""

    __slots__ = ("_poll", "idle_since", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.idle_since = 0.0
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def has_input(self) -> bool:
        """Return whether there is something to read, an end or an error included."""
        return bool(self._poll.poll(0))

    def close(self) -> None:
        self.sock.close()

    def exchange(self, data: bytes, attempt: Attempt, limits: Limits) -> ReplyReader:
        """Send a request and return its whole reply, still in its reader.

        Raises ``TimeoutError`` when time is up, another ``OSError``, or ``Garbled``.
        """
        cut_off = not self._send(data, attempt)
        sock, remaining = self.sock, attempt.remaining
        reader = ReplyReader(attempt.request.method, limits)
        while True:
            sock.settimeout(remaining())
            received = sock.recv(READ_SIZE)
            if received:
                attempt.answered = True
            if reader.feed(received):
                reader.reusable = reader.reusable and not cut_off
                return reader

    def _send(self, data: bytes, attempt: Attempt) -> bool:
        """Send it all. Return False when the agent stopped listening midway: it may have answered already."""
        rest = memoryview(data)
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
