"""Exchange a request for its reply over a connection that is kept or new.

``Engine`` is what both engines have in common. ``DirectTransport`` is the blocking one, the hot path of every
acquire and release; ``streams`` has the one on an event loop.

Rules
- The outcome is unknown once a byte was sent, except that of a request which changes nothing.
- A request is repeated here only if nothing was sent, if it changes nothing, or if it is a renewal. The
  others are left to their callers: a copy that is applied late may need looking after. Where the agent may
  have no room, they are sent once a new connection was tried out.
- On a connection used before, the agent may have hung up just as we began. It ends before any byte of a reply
  then.
- Closing a socket does not wake who is blocked on it; shutting it down does. The socket goes back to a pool
  after the exchange, so the exchange and whoever cancels it both take it out of the attempt, and one gets it.
- A connection is kept only after a whole reply, or parked while a reply is due that nobody waits for any
  more; after anything else it is closed.
- Nothing suspends here but what the engines do: the blocking one never does.
- Every wait on a socket is bounded by what is left of the attempt's time, so a drip of bytes buys nobody
  more.
- Any number of threads may send at one time.
"""

from __future__ import annotations

import errno
import math
import os
import socket
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

from consul_coord.errors import ClientClosed, ConnectFailed
from consul_coord.http.blocking import JITTER
from consul_coord.http.messages import Request, Retry
from consul_coord.http.transport import errors
from consul_coord.http.transport.base import DEFAULT_LIMITS, Abandoned
from consul_coord.http.transport.dial import dial
from consul_coord.http.transport.limit import MOST, SOON, STEP
from consul_coord.http.transport.pool import (
    KEEP,
    LATE,
    MAX_IDLE,
    PATIENCE,
    PATIENCE_PART,
    READ_SIZE,
    Link,
    Pool,
)
from consul_coord.http.transport.wire import Garbled, Outgoing, ReplyReader
from consul_coord.io import run

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from consul_coord.config import Settings
    from consul_coord.errors import TransportError
    from consul_coord.http.messages import Response
    from consul_coord.http.transport.base import Cancellation, Limits, SendCancelled

TOO_MANY_REQUESTS = 429
TOO_MANY_CONNECTIONS = b"concurrent connections"
"""Part of the 429 of newer agents at their limit."""
_TRIAL = Request("GET", "/v1/status/leader", retry=Retry.READ)
"""The request that tries out a new connection: it needs neither a leader nor permission."""
LOST = (OSError, Garbled)
"""Errors that end a connection before its reply is whole."""


class Attempt:
    """The state of one exchange. Its times are those of ``now``: they bound waits, and judge no lease."""

    def __init__(
        self,
        request: Request,
        *,
        address: str,
        origin: str = "",
        timeout: float,
        cancellation: Cancellation | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin. Raises ``RequestTimeout`` when there is no time to begin with."""
        self.request = request
        self.address = address
        self.origin = f" ({origin})" if origin else ""
        self.data = b""
        """The request as it goes over the wire."""
        self._now = now
        self.began = now()
        self.deadline = self.began + timeout
        self.connect_by = self.deadline
        """When a new connection must be open, or tried out. Otherwise it is the deadline itself."""
        self.sent = False
        """Whether a byte may have left."""
        self.has_begun = False
        """Whether a user's client has said that it begins to send."""
        self.answered = False
        """Whether a byte of a reply came."""
        self.opened = -math.inf
        """When its latest new connection was opened."""
        self.is_spare = False
        """Whether its connection is not to be kept, because its client has another one."""
        self.cancellation = cancellation
        self.cancelled = False
        self._held: dict[None, socket.socket] = {}
        if timeout <= 0:
            raise errors.timed_out(self)

    def remaining(self) -> float:
        """Return the seconds left, more than 0, or raise ``TimeoutError``."""
        left = self.connect_by - self._now()
        if left <= 0:
            raise TimeoutError
        return left

    def hold(self, sock: socket.socket) -> None:
        """Go on with this socket. Raises ``Abandoned`` when the attempt is cancelled."""
        self._held[None] = sock
        if self.cancelled:
            raise Abandoned(errno.ECONNABORTED, "cancelled")

    def let_go(self) -> bool:
        """Return whether the socket is still the attempt's: it was not cancelled, and can't be any more."""
        return self._held.pop(None, None) is not None

    def cancel(self) -> None:
        """Stop it, from any thread."""
        self.cancelled = True
        sock = self._held.pop(None, None)
        if sock is not None:
            # A TLS socket's own shutdown() drops the TLS layer, which the blocked thread is using.
            with suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    @property
    def outcome_unknown(self) -> bool:
        """Whether the request may have been applied, or may be later."""
        return self.sent and self.request.retry is not Retry.READ

    @property
    def is_harmless(self) -> bool:
        """Whether a copy of the request that is applied late needs no looking after."""
        return self.request.retry is Retry.READ or self.request.urgent

    def may_repeat(self, error: BaseException) -> bool:
        """Return whether it may be sent again, after this error ended a connection used before."""
        if self.answered or self.cancelled or isinstance(error, TimeoutError):
            return False
        return self.is_harmless or not self.sent


class Engine(ABC):
    """Sends each request over a connection that nobody else uses meanwhile."""

    parks: ClassVar[bool] = False
    """Whether a request may end before its reply with the connection still whole."""
    most: int = MAX_IDLE
    """How many connections are kept."""
    link: ClassVar[type[Link]] = Link
    """The kind of connection that it makes of a socket."""

    def __init__(
        self, settings: Settings, *, pool: Pool | None = None, limits: Limits = DEFAULT_LIMITS
    ) -> None:
        self._settings = settings
        self._limits = limits
        self._outgoing = Outgoing(settings)
        self._context: ssl.SSLContext | None = None
        self.pool = pool or Pool()
        self._mark = object()
        self.pool.engines[self._mark] = None
        self._closed = False
        self._process = os.getpid()
        self.connect_within = math.inf
        """Seconds that opening a connection may take, within those of the whole exchange."""

    @abstractmethod
    async def _connect(self, attempt: Attempt) -> socket.socket:
        """Open a connection, within the attempt's time."""

    @abstractmethod
    async def _write(self, sock: socket.socket, attempt: Attempt) -> bool:
        """Send it all; False when the agent stopped listening midway: it may have answered already."""

    @abstractmethod
    async def _read(self, sock: socket.socket, attempt: Attempt) -> bytes:
        """Return the next bytes, or ``b""`` at the end."""

    async def _read_soon(self, sock: socket.socket, attempt: Attempt) -> bytes:
        """Return the next bytes, within the time for a new connection. Raises ``TimeoutError`` after it."""
        return await self._read(sock, attempt)

    @abstractmethod
    async def _pause(self, attempt: Attempt, seconds: float) -> None:
        """Let time pass, within the attempt's."""

    def _begin(self, request: Request, timeout: float, cancellation: Cancellation | None = None) -> Attempt:
        if self._closed:
            raise ClientClosed
        if self._process != os.getpid():
            self.forget()
        settings = self._settings
        attempt = Attempt(
            request,
            address=settings.address,
            origin=settings.origin,
            timeout=timeout,
            cancellation=cancellation,
            now=self.pool.now,
        )
        attempt.data = self._outgoing.encode(request, attempt.began)
        return attempt

    async def _exchange(self, attempt: Attempt) -> Response:
        pool, only_new = self.pool, False
        try:
            while True:
                now = pool.now()
                if attempt.request.hold_open and pool.waiting:  # these go first
                    attempt.remaining()
                    await self._pause(attempt, STEP)
                    continue
                link = None if only_new else pool.take(now)
                link = await self._fresh(link, attempt, now) if attempt.request.begins else link
                if link is not None:
                    try:
                        return await self._use(link, attempt)
                    except LOST as error:
                        if not (link.is_cut or attempt.cancelled or isinstance(error, TimeoutError)):
                            pool.limit.ended(pool.now())
                        if not attempt.may_repeat(error) or self._is_given_up(attempt):
                            raise
                        only_new = True  # the others may have ended as well
                elif pause := self._pause_before_connecting(attempt, now):
                    self._expect_time(attempt, pause)
                    only_new = False
                    if not attempt.request.hold_open:
                        pool.waiting[attempt] = None
                    await self._pause(attempt, pause)
                elif (response := await self._use_new(attempt)) is not None:
                    return response
        finally:
            pool.waiting.pop(attempt, None)

    async def _fresh(self, link: Link | None, attempt: Attempt, now: float) -> Link | None:
        """Return a new connection in place of one that was used for long, and a younger one as it is.

        None when there is no room for a new one: the old one is given up, too. The old one stays in use where
        a new one could cost the caller all of its time, and where nothing listens or answers.
        """
        pool, begins = self.pool, attempt.request.begins
        if link is None or now < link.stays_until or pool.has_in_use() or attempt.deadline < now + MOST:
            return link
        if begins is None or not begins():
            return link
        try:
            fresh = await self._open_link(attempt, within=SOON)
            attempt.connect_by = min(attempt.deadline, pool.now() + SOON)
            fresh = await self._tried_out(fresh, attempt)
        except BaseException as error:
            refused = self._note_refusal(attempt, error)
            is_silent = isinstance(error, TimeoutError) and pool.now() < attempt.deadline
            if (isinstance(error, ConnectFailed) and not refused) or is_silent:
                return link
            link.close()
            if not refused:
                raise
            pool.step_aside(pool.now())
            return None
        finally:
            attempt.connect_by = attempt.deadline
        link.close()
        return fresh

    def _pause_before_connecting(self, attempt: Attempt, now: float) -> float:
        pool = self.pool
        patience = attempt.began + min(PATIENCE, PATIENCE_PART * (attempt.deadline - attempt.began))
        if attempt.request.urgent and (pause := pool.wait_for_one(now, patience)):
            return pause
        if not pool.limit.is_near(now):
            return 0.0
        others = pool.has_in_use()
        # Where no connection is left, this may be an outage: a renewal asks at its own pace.
        return 0.0 if attempt.request.urgent and not others else pool.limit.pause(now, others=others)

    def _expect_time(self, attempt: Attempt, pause: float) -> None:
        """Return if time is left after a pause. Raises ``TooManyConnections``.

        Where there is another agent, it is asked instead of waiting here for long.
        """
        if attempt.cancelled:
            raise Abandoned(errno.ECONNABORTED, "cancelled")
        now = self.pool.now()
        until = min(attempt.deadline, attempt.began + self.connect_within)
        if now + pause >= until and self.pool.limit.is_near(now):
            raise errors.too_many(attempt, limit=self.pool.limit.is_blamed(now))

    async def _use_new(self, attempt: Attempt) -> Response | None:
        """Exchange over a new connection; None when that was refused, and another one may be tried.

        Raises ``BrokenReply`` when it was refused, and the request may have been applied all the same.
        """
        limit, before = self.pool.limit, attempt.sent
        is_near = limit.is_near(self.pool.now())
        near = is_near or self.pool.has_query()
        try:
            link = await self._open_link(attempt)
        except ConnectFailed as error:
            if not self._note_refusal(attempt, error):
                raise
            # Amid the TLS handshake: nothing was sent.
            if near and not self._tells_at_once(attempt):
                return None
            raise errors.too_many(attempt, limit=limit.is_blamed(self.pool.now())) from error
        attempt.opened = self.pool.now()
        response: Response | None = None
        try:
            if near and not attempt.is_harmless:
                link = await self._tried_out(link, attempt)
            response = await self._use(link, attempt, near=is_near)
        except LOST as error:
            if self.pool.now() >= attempt.opened + SOON or not self._note_refusal(attempt, error):
                raise
            is_final = not near or self._tells_at_once(attempt)
            if is_final or (attempt.sent and not attempt.is_harmless):
                raise errors.turned_away(attempt, limit=limit.is_blamed(self.pool.now())) from error
            attempt.sent = attempt.outcome_unknown  # a reading may start again
            return None
        if _is_refusal(response):
            limit.refused(self.pool.now())
            # This is an answer: it was not applied.
            attempt.sent, attempt.answered = before, False
            return None
        self._came_back(attempt)
        return response

    def _came_back(self, attempt: Attempt) -> None:
        """Take note that there was room for a new connection, to be kept or not."""
        if attempt.request.keep != 0 and not attempt.is_spare:
            self.pool.limit.admitted()
        if attempt.request.urgent:
            self.pool.cut_overdue(self.pool.now())

    def _note_refusal(self, attempt: Attempt, error: BaseException) -> bool:
        """Take note if the limit may have ended a new connection; returns whether it may."""
        ended_here = attempt.cancelled or self._is_given_up(attempt)
        if isinstance(error, ConnectFailed):
            refused = _is_hang_up(error.__cause__)
        elif attempt.answered or ended_here or isinstance(error, TimeoutError):
            refused = False
        else:
            # An agent at its limit hangs up before TLS has begun: a later end is about a certificate, say.
            plain = self._settings.scheme != "https"
            refused = isinstance(error, LOST) and (plain or isinstance(error, ConnectionRefusedError))
        if refused:
            self.pool.limit.refused(self.pool.now())
        return refused

    def _failed(self, attempt: Attempt, error: BaseException) -> TransportError | SendCancelled:
        """Return the error for an exchange that this one ended; the limit's, if it had no room until then."""
        limit, now = self.pool.limit, self.pool.now()
        # A reading on a connection so new that it may be refused yet is as good as not sent.
        tries = now < attempt.opened + SOON and not (attempt.answered or attempt.outcome_unknown)
        had_none = isinstance(error, TimeoutError) and (tries or not attempt.sent)
        if had_none and not attempt.cancelled and limit.has_refused_since(attempt.began):
            return errors.too_many(attempt, limit=limit.is_blamed(now))
        if self._is_given_up(attempt) and not (attempt.sent or attempt.cancelled or had_none):
            return errors.unreachable(attempt, error)
        return errors.failed(attempt, error)

    def _is_given_up(self, attempt: Attempt) -> bool:
        """Return whether the agent was given up since the attempt began: it belongs to another one."""
        return attempt.began <= self.pool.cut_at

    def _tells_at_once(self, attempt: Attempt) -> bool:
        """Return whether a refusal ends the request: a renewal with no connection to wait for.

        Its hold has to know that there is no contact.
        """
        return attempt.request.urgent and not self.pool.has_in_use()

    async def _tried_out(self, link: Link, attempt: Attempt) -> Link:
        """Return a new connection if the agent answers on it, or on one before it. Raises what ends it."""
        data, attempt.data, sent = attempt.data, self._outgoing.encode(_TRIAL, attempt.began), attempt.sent
        try:
            reader = ReplyReader(_TRIAL.method, self._limits)
            attempt.hold(link.sock)
            await self._write(link.sock, attempt)
            while not reader.feed(await self._read_soon(link.sock, attempt)):
                pass
            if not attempt.let_go():
                raise Abandoned(errno.ECONNABORTED, "cancelled")
            if _is_refusal(reader.response):
                raise ConnectionRefusedError(errno.ECONNREFUSED, "too many connections")
        except BaseException:
            attempt.let_go()
            link.close()
            raise
        finally:
            attempt.data, attempt.sent = data, sent
        if reader.reusable:
            link.is_proven = True
            return link
        link.close()  # it carries one exchange only, as those of some proxies do
        return await self._open_link(attempt)

    async def _open_link(self, attempt: Attempt, *, within: float = math.inf) -> Link:
        home = self.pool.open
        attempt.connect_by = min(attempt.deadline, self.pool.now() + min(within, self.connect_within))
        try:
            link = self.link(await self._connect(attempt))
        except TimeoutError as error:
            if self.pool.now() < attempt.deadline:
                raise errors.unreachable(attempt, error) from error
            raise
        except LOST as error:
            if attempt.cancelled:
                raise
            raise errors.unreachable(attempt, error) from error
        attempt.connect_by = attempt.deadline
        link.home, link.is_proven = home, not self.pool.limit.is_near(self.pool.now())
        home.add(link)
        self.pool.stay(link, self.pool.now())
        return link

    async def _use(self, link: Link, attempt: Attempt, *, near: bool = False) -> Response:
        """Exchange over a connection; ``near`` the limit, one of several is not kept after it."""
        request, whole, done = attempt.request, False, False
        reader = ReplyReader(request.method, self._limits)
        link.is_query = request.hold_open > 0
        link.back_by = self.pool.now() + request.hold_open * (1 + JITTER)
        if link.is_query:
            # It may have waited long for its turn: its reply is due all the same.
            attempt.connect_by = attempt.deadline = max(attempt.deadline, link.back_by + LATE)
        link.in_use = True
        if attempt.began <= self.pool.cut_at:  # given up, and too late to be cut off with those in use
            link.cut_off()
        try:
            attempt.hold(link.sock)
            whole = await self._write(link.sock, attempt)
            while not done:
                received = await self._read(link.sock, attempt)
                attempt.answered = attempt.answered or received != b""
                done = reader.feed(received)
            now = self.pool.now()
            keep = KEEP if request.keep is None or self._is_waited_for() else request.keep
            link.kept_until = max(link.kept_until, now + keep)
            link.in_use = False
            link.is_proven = link.is_proven or not _is_refusal(reader.response)
            # Near the limit, a second connection is not kept: its place is free for another client at once.
            # The first one may have gone meanwhile.
            attempt.is_spare = near and self.pool.has_another()
            fit = attempt.let_go() and whole and reader.reusable and link.home is self.pool.open
            fit = fit and not attempt.is_spare and now < link.kept_until
        except BaseException as error:
            self._put_away(link, attempt, reader, error, whole=whole)
            raise
        # With nothing called in between, no signal handler comes before the pool has it.
        if not fit:
            link.close()
            return reader.response
        self.pool.idle.append(link)
        if len(self.pool.idle) > self.most or not self.pool.engines:
            self._sweep()
        return reader.response

    def _put_away(
        self, link: Link, attempt: Attempt, reader: ReplyReader, error: BaseException, *, whole: bool
    ) -> None:
        """Park a connection whose exchange has failed, if its reply may be read yet; otherwise close it.

        ``whole``: the whole request was sent.
        """
        now = self.pool.now()
        # A blocked read that ends by its time has lost no byte, as one that is interrupted may have.
        unread = isinstance(error, TimeoutError) or (self.parks and not isinstance(error, Exception))
        intact = attempt.let_go() and whole and unread and not self._closed
        # One whose time is up is as good as lost, except where there may be no room for another one.
        in_time = now < attempt.deadline or self.pool.limit.is_near(now)
        if intact and in_time and now < link.back_by + LATE:
            self.pool.park(link, reader, now)
        else:
            link.close()

    def _is_waited_for(self) -> bool:
        """Return whether requests other than renewals wait for a connection."""
        return any(not attempt.request.urgent for attempt in list(self.pool.waiting))

    def _sweep(self) -> float:
        """Close what is superfluous; return the seconds until there may be more."""
        now = self.pool.now() if self.pool.engines else math.inf
        return self.pool.sweep(now, most=self.most)

    def _close(self) -> None:
        """Send no more; close what is idle, now or when it comes back, if nobody else sends over it."""
        self._closed = True
        self.pool.engines.pop(self._mark, None)
        self._sweep()

    def listen(self, on_refusal: Callable[[], object]) -> None:
        """Have ``on_refusal`` called at each connection that the agent has no room for, from any thread."""
        self.pool.limit.on_refusal = on_refusal

    def forget(self) -> None:
        """In a forked child: let go of the parent's sockets without sending anything."""
        self._process = os.getpid()
        self.pool.forget()
        self.pool.engines[self._mark] = None

    def _tls_context(self) -> ssl.SSLContext | None:
        if self._context is None and self._settings.scheme == "https":
            from consul_coord.http.transport.tls import client_context

            self._context = client_context(self._settings.tls)
        return self._context


class DirectTransport(Engine):
    """Blocks the caller for its request; see ``Transport``."""

    def send(self, request: Request, *, timeout: float, cancel: Cancellation | None = None) -> Response:
        """Return the whole reply; see ``Transport.send``."""
        attempt = self._begin(request, timeout, cancel)
        unsubscribe = None if cancel is None else cancel.subscribe(attempt.cancel)
        try:
            return run(self._exchange(attempt))
        except LOST as error:
            raise self._failed(attempt, error) from error
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


def _is_refusal(response: Response) -> bool:
    """Return whether a reply says that there is no room for a connection. A rate limit is a 429, too."""
    return response.status == TOO_MANY_REQUESTS and TOO_MANY_CONNECTIONS in response.body


def _is_hang_up(error: BaseException | None) -> bool:
    """Return whether a connection was made, and ended at once."""
    # Without TLS that shows once something is sent. ssl's own error goes by its name, as loading ssl costs.
    return isinstance(error, (ConnectionResetError, BrokenPipeError)) or type(error).__name__ == "SSLEOFError"
