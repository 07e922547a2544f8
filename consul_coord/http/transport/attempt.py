"""One exchange as it goes: how far it got, how long it may take, and the error to raise when it fails.

Rules
- The outcome is unknown once a byte was sent, except that of a request which changes nothing.
- On a connection used before, the agent may have hung up just as we began. When it ends before any byte of a
  reply, the request is repeated at once if nothing was sent, or if a repeat does no harm.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from consul_coord.errors import (
    BrokenReply,
    CertificateRefused,
    ConnectFailed,
    RequestTimeout,
    TransportError,
)
from consul_coord.http.messages import Retry
from consul_coord.http.transport.base import SendCancelled

if TYPE_CHECKING:
    from consul_coord.http.messages import Request
    from consul_coord.http.transport.brake import Brake

E = TypeVar("E", bound=TransportError)


class Abandoned(ConnectionAbortedError):
    """The attempt was cancelled from outside."""


class Attempt:
    """The state of one exchange. Its times are ``time.monotonic``'s: they bound waits, and judge no lease."""

    __slots__ = ("address", "answered", "began", "brake", "data", "deadline", "request", "sent")

    def __init__(self, request: Request, *, address: str, timeout: float) -> None:
        """Begin. Raises ``RequestTimeout`` when there is no time to begin with."""
        self.request = request
        self.address = address
        self.data = b""
        """The request as it goes over the wire."""
        self.began = time.monotonic()
        self.deadline = self.began + timeout
        self.sent = False
        """Whether a byte may have left."""
        self.answered = False
        """Whether a byte of a reply came."""
        self.brake: Brake | None = None
        """What another thread stops it with."""
        if timeout <= 0:
            raise self._timed_out()

    def remaining(self) -> float:
        """Return the seconds left, more than 0, or raise ``TimeoutError``."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    @property
    def cancelled(self) -> bool:
        """Whether it was stopped from outside."""
        return self.brake is not None and self.brake.pulled

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
        return self._error(kind, f"no connection to {self.address}: {reason(error)}")

    def failed(self, error: BaseException) -> TransportError | SendCancelled:
        """Return the error for an exchange that this one ended."""
        if self.cancelled or isinstance(error, Abandoned):
            kind = BrokenReply if self.sent else ConnectFailed
            return SendCancelled(self._error(kind, "cancelled"))
        if isinstance(error, TimeoutError):
            return self._timed_out()
        return self._error(BrokenReply, f"bad reply from {self.address}: {reason(error)}")

    def _timed_out(self) -> RequestTimeout:
        allowed = self.deadline - self.began
        where = "no whole reply" if self.sent else "no connection"
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


def reason(error: BaseException) -> str:
    """Return why, in a few words and without the error's number."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
