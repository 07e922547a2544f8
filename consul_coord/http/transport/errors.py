"""The error of an exchange that failed: which one it is, and in which words."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from consul_coord.errors import (
    BrokenReply,
    CertificateRefused,
    ConnectFailed,
    RequestTimeout,
    TooManyConnections,
    TransportError,
)
from consul_coord.http.failures import NO_CONNECTION, NO_REPLY, NO_TLS
from consul_coord.http.transport.base import Abandoned, SendCancelled
from consul_coord.http.transport.limit import HANGS_UP, TOO_MANY

if TYPE_CHECKING:
    from consul_coord.http.transport.exchange import Attempt

E = TypeVar("E", bound=TransportError)
_WITHOUT_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"})
"""The words of ``ssl`` for another side that talks plain HTTP."""


def unreachable(attempt: Attempt, error: BaseException) -> ConnectFailed:
    """Return the error for a connection that could not be made."""
    kind = CertificateRefused if _is_about_a_certificate(error) else ConnectFailed
    reason = NO_TLS if getattr(error, "reason", None) in _WITHOUT_TLS else _reason(error)
    return _error(attempt, kind, f"no connection to {attempt.address}{attempt.origin}: {reason}")


def too_many(attempt: Attempt, *, limit: bool) -> ConnectFailed:
    """Return the error for a connection that the agent did not take, though it was tried for long.

    ``limit``: whether it is put down to the limit.
    """
    kind, cause = (TooManyConnections, TOO_MANY) if limit else (ConnectFailed, HANGS_UP)
    return _error(attempt, kind, f"{attempt.address} takes no new connection: {cause}")


def turned_away(attempt: Attempt, *, limit: bool) -> BrokenReply:
    """Return the error for a new connection that was closed without a reply; see ``too_many``."""
    cause = TOO_MANY if limit else HANGS_UP
    return _error(attempt, BrokenReply, f"{attempt.address} closed a new connection without a reply: {cause}")


def failed(attempt: Attempt, error: BaseException) -> TransportError | SendCancelled:
    """Return the error for an exchange that this one ended."""
    if attempt.cancelled or isinstance(error, Abandoned):
        kind = BrokenReply if attempt.sent else ConnectFailed
        return SendCancelled(_error(attempt, kind, "cancelled"))
    if isinstance(error, TimeoutError):
        return timed_out(attempt)
    return _error(attempt, BrokenReply, f"bad reply from {attempt.address}: {_reason(error)}")


def timed_out(attempt: Attempt) -> RequestTimeout:
    """Return the error for an exchange whose time is up."""
    allowed = max(0.0, attempt.deadline - attempt.began)
    where = NO_REPLY if attempt.sent else NO_CONNECTION
    return _error(attempt, RequestTimeout, f"{where} from {attempt.address} within {allowed:.3g} s")


def _error(attempt: Attempt, kind: type[E], what: str) -> E:
    request = attempt.request
    return kind(
        f"{request.method} {request.path}: {what}",
        method=request.method,
        path=request.path,
        outcome_unknown=attempt.outcome_unknown,
    )


def _is_about_a_certificate(error: BaseException | None) -> bool:
    """Return whether verification failed: ssl's own error says so, and others are raised from it."""
    seen: set[int] = set()  # an error that is raised again while its own effect is handled closes a circle
    while error is not None and id(error) not in seen:
        if getattr(error, "verify_code", 0):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def _reason(error: BaseException) -> str:
    """Return why, in a few words and without the error's number."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
