"""A request on its way out: its bytes, how long it may take, how far it got, and the error when it fails.

Rules
- Whatever has a character that could end a line or split a request is refused before anything is sent.
- A PUT or POST always says how long its body is: Consul silently ignores a chunked one.
- The settings' datacenter, namespace and partition are added unless the request names its own.
- The outcome is unknown once a byte was sent, except that of a request which changes nothing.
- On a connection used before, the agent may have hung up just as we began. When it ends before any byte of a
  reply, the request is repeated at once if nothing was sent, or if a repeat does no harm.
- Closing a socket does not wake who is blocked on it; shutting it down does. The socket goes back to a pool
  after the exchange, so the exchange and whoever cancels it both take it out of the attempt, and one gets it.
"""

from __future__ import annotations

import errno
import re
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from consul_coord._version import __version__
from consul_coord.errors import (
    BrokenReply,
    CertificateRefused,
    ConnectFailed,
    InvalidArgument,
    RequestTimeout,
    TooManyConnections,
    TransportError,
)
from consul_coord.http.failures import NO_CONNECTION, NO_REPLY
from consul_coord.http.messages import Retry
from consul_coord.http.transport.base import SendCancelled
from consul_coord.http.transport.limit import HANGS_UP, TOO_MANY

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.config import Settings
    from consul_coord.http.messages import Request
    from consul_coord.http.transport.base import Cancellation

E = TypeVar("E", bound=TransportError)

USER_AGENT = f"consul-coord/{__version__}"

_METHODS_WITH_BODY = frozenset({"PUT", "POST", "PATCH"})
_METHOD = re.compile(r"[A-Z]+")
_PATH = re.compile(r"/[!-\"$->@-~]*")
"""Visible ASCII without ``?`` and ``#``: a path brings no query of its own."""


def tls_name(settings: Settings) -> str:
    """Return the name that is sent to the agent and that its certificate must have."""
    return settings.tls.server_name or settings.host.partition("%")[0]


class Outgoing:
    """Writes requests for one agent. The headers that stay the same are made once."""

    def __init__(self, settings: Settings) -> None:
        self._credentials = settings.credentials
        self._prefix = settings.prefix
        self._defaults = settings.default_params
        self._fixed = {
            "Host": settings.authority,
            "User-Agent": USER_AGENT,
            "Accept-Encoding": "identity",
        }
        self._made: tuple[dict[str, str] | None, bytes] = (None, b"")
        """The headers of the credentials that were sent last, and all headers with them as bytes."""

    def target(self, request: Request) -> str:
        """Return path and query, percent-encoded. Raises ``InvalidArgument`` for a path that is not."""
        path, params = request.path, request.params
        if not (_PATH.fullmatch(path) and _METHOD.fullmatch(request.method)):
            raise InvalidArgument(f"not a request line: {request.method!r} {path!r}")
        if self._defaults:
            own = {name for name, _ in params}
            params = (*params, *(pair for pair in self._defaults if pair[0] not in own))
        if not params:
            return self._prefix + path
        # A flag such as ``recurse`` is a bare name.
        query = [quote(name, "") + (f"={quote(value, '')}" if value else "") for name, value in params]
        return f"{self._prefix}{path}?{'&'.join(query)}"

    def headers(self, now: float) -> dict[str, str]:
        """Return what every request carries. ``now``: monotonic seconds, for the token file."""
        return self._fixed | self._credentials.headers(now)

    def encode(self, request: Request, now: float) -> bytes:
        """Return the request as it goes over the wire."""
        line = f"{request.method} {self.target(request)} HTTP/1.1\r\n".encode("ascii")
        credentials = self._credentials
        own = credentials.latest if credentials.watched is None else credentials.headers(now)
        known, lines = self._made
        if own is not known:
            pairs = (self._fixed | own).items()
            lines = "".join([f"{name}: {value}\r\n" for name, value in pairs]).encode("ascii")
            self._made = (own, lines)
        body = request.body or b""
        if body or request.method in _METHODS_WITH_BODY:
            return b"%bContent-Length: %d\r\n%b\r\n%b" % (line, len(body), lines, body)
        return b"%b%b\r\n" % (line, lines)


class Abandoned(ConnectionAbortedError):
    """The attempt was cancelled from outside."""


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
        self._origin = f" ({origin})" if origin else ""
        self.data = b""
        """The request as it goes over the wire."""
        self._now = now
        self.began = now()
        self.deadline = self.began + timeout
        self.connect_by = self.deadline
        """When a connection has to be open that is being opened; the deadline itself otherwise."""
        self.sent = False
        """Whether a byte may have left."""
        self.answered = False
        """Whether a byte of a reply came."""
        self.cancellation = cancellation
        self.cancelled = False
        self._held: dict[None, socket.socket] = {}
        if timeout <= 0:
            raise self._timed_out()

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

    def may_repeat(self, error: BaseException) -> bool:
        """Return whether it may be sent again, after this error ended a connection used before."""
        if self.answered or self.cancelled or isinstance(error, TimeoutError):
            return False
        return not self.sent or self.request.retry is not Retry.NEVER

    def unreachable(self, error: BaseException) -> ConnectFailed:
        """Return the error for a connection that could not be made."""
        kind = CertificateRefused if _is_about_a_certificate(error) else ConnectFailed
        return self._error(kind, f"no connection to {self.address}{self._origin}: {_reason(error)}")

    def too_many(self, *, limit: bool) -> ConnectFailed:
        """Return the error for a connection that the agent did not take, though it was tried for long.

        ``limit``: whether it is put down to the limit.
        """
        kind, cause = (TooManyConnections, TOO_MANY) if limit else (ConnectFailed, HANGS_UP)
        return self._error(kind, f"{self.address} takes no new connection: {cause}")

    def turned_away(self, *, limit: bool) -> BrokenReply:
        """Return the error for a new connection that was closed without a reply; see ``too_many``."""
        cause = TOO_MANY if limit else HANGS_UP
        return self._error(BrokenReply, f"{self.address} closed a new connection without a reply: {cause}")

    def failed(self, error: BaseException) -> TransportError | SendCancelled:
        """Return the error for an exchange that this one ended."""
        if self.cancelled or isinstance(error, Abandoned):
            kind = BrokenReply if self.sent else ConnectFailed
            return SendCancelled(self._error(kind, "cancelled"))
        if isinstance(error, TimeoutError):
            return self._timed_out()
        return self._error(BrokenReply, f"bad reply from {self.address}: {_reason(error)}")

    def _timed_out(self) -> RequestTimeout:
        allowed = self.deadline - self.began
        where = NO_REPLY if self.sent else NO_CONNECTION
        return self._error(RequestTimeout, f"{where} from {self.address} within {allowed:.3g} s")

    def _error(self, kind: type[E], what: str) -> E:
        request = self.request
        return kind(
            f"{request.method} {request.path}: {what}",
            method=request.method,
            path=request.path,
            outcome_unknown=self.outcome_unknown,
        )


def _is_about_a_certificate(error: BaseException | None) -> bool:
    """Return whether verification failed: ssl's own error says so, and others are raised from it."""
    while error is not None and not getattr(error, "verify_code", 0):
        error = error.__cause__ or error.__context__
    return error is not None


def _reason(error: BaseException) -> str:
    """Return why, in a few words and without the error's number."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
