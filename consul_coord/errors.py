"""Every error this package raises, in one tree.

::

    ConsulCoordError
      ConfigError (ValueError)              a setting can't be used
      InvalidArgument (ValueError)          an argument is refused before anything is sent
        InvalidKey                            Consul would clean, redirect or refuse this key
        ValueTooLarge                         Consul would refuse this value or transaction
      DecodeError                           a reply of the right status can't be understood
      ClientClosed                          the client was closed, here or meanwhile
      BackgroundFailed (RuntimeError)       the client's background thread could not be started
      TransportError                        no usable reply: .method .path .outcome_unknown
        ConnectFailed                         nothing was sent
          CertificateRefused                    the agent did not prove who it is
          TooManyConnections                    the agent takes no more connections from this address
        RequestTimeout (TimeoutError)         no whole reply in time
        BrokenReply                           the connection ended, or spoke something else than HTTP
      ResponseError                         Consul refused: .method .path .status .body
        NotFound
          SessionNotFound                     .session
        PermissionDenied                      .needed: the ACL rules the call needs
        RateLimited                           429
        NoLeader                              500 or 503 while the servers have no leader
        InvalidRequest                        400, or another 4xx
        PayloadTooLarge                       413
        ServerError                           5xx
          NodeNotRegistered                     a session's node is not in the catalog, or not yet
      TxnFailed                             a transaction was rolled back: .failures
      CoordinationError                     .key .session
        AcquireTimeout (TimeoutError)         .blocker says what stood in the way
        AcquireCancelled                      ``cancel()`` was called
        LockLost                              .fence .reason
          LeadershipLost
        AlreadyHeld                           this thread or task holds it already
        NotHeld                               there is nothing to release
        KeyConflict                           .flags: the key is used for something else
        SemaphoreLimitConflict                .local .remote
        UnsafeSession                         the session gives no local guarantee, and that was not asked for
        SessionCheckFailed                    a health check of the session is missing or critical

Rules
- No error carries a token. Bodies are cut to ``BODY_LIMIT`` characters.
- Every error survives pickling with its fields, and has its cause attached where there is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consul_coord.models import Blocker, LossReason, TxnFailure

BODY_LIMIT = 500
"""How many characters of a refusing reply an error keeps."""


def _rebuild(cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    """Unpickle an error without calling its constructor, whose parameters are keywords."""
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class ConsulCoordError(Exception):
    """Base of every error of this package."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__.copy()))


class ConfigError(ConsulCoordError, ValueError):
    """A setting, given as an argument or by the environment, can't be used."""


class InvalidArgument(ConsulCoordError, ValueError):
    """An argument is refused before anything is sent."""


class InvalidKey(InvalidArgument):
    """A key that Consul would clean, redirect or refuse."""

    def __init__(self, message: str, *, key: str) -> None:
        super().__init__(message)
        self.key = key


class ValueTooLarge(InvalidArgument):
    """A value or transaction larger than Consul takes. Sizes in bytes."""

    def __init__(self, message: str, *, size: int, limit: int) -> None:
        super().__init__(message)
        self.size = size
        self.limit = limit


class DecodeError(ConsulCoordError):
    """A reply whose status says success holds something else than this call's answer."""

    def __init__(self, message: str, *, method: str = "", path: str = "", body: str = "") -> None:
        super().__init__(message)
        self.method = method
        self.path = path
        self.body = body[:BODY_LIMIT]


class ClientClosed(ConsulCoordError):
    """The client was closed before or during the call."""

    def __init__(self, message: str = "the client is closed: make a new one, and new locks with it") -> None:
        super().__init__(message)


class BackgroundFailed(ConsulCoordError, RuntimeError):
    """The background of a blocking client could not be started: the process may have no more threads."""


class TransportError(ConsulCoordError):
    """No usable reply came.

    ``outcome_unknown`` is true when the request may have been applied, or may be later.
    """

    def __init__(self, message: str, *, method: str, path: str, outcome_unknown: bool) -> None:
        super().__init__(message)
        self.method = method
        self.path = path
        self.outcome_unknown = outcome_unknown


class ConnectFailed(TransportError):
    """The agent could not be reached: nothing was sent."""


class CertificateRefused(ConnectFailed):
    """The agent's certificate could not be verified: nothing was sent, and a call is not repeated.

    Only other settings, or another certificate, help. Renewals, watches and candidacies retry all the same,
    because certificates are exchanged while programs run.
    """


class TooManyConnections(ConnectFailed):
    """The agent takes no more connections from this address, by ``limits.http_max_conns_per_client``.

    The default is 200, for all processes of a host together. The request was not sent over the connections
    that were refused; the client tried for the call's whole time. Raise the limit, or run fewer clients.
    """


class RequestTimeout(TransportError, TimeoutError):
    """No whole reply came in time."""


class BrokenReply(TransportError):
    """The connection ended within the reply, or what came was not HTTP, or was larger than allowed."""


class ResponseError(ConsulCoordError):
    """Consul refused the request."""

    def __init__(self, message: str, *, method: str, path: str, status: int, body: str = "") -> None:
        super().__init__(message)
        self.method = method
        self.path = path
        self.status = status
        self.body = body[:BODY_LIMIT]


class NotFound(ResponseError):
    """The request names something that does not exist."""


class SessionNotFound(NotFound):
    """The session does not exist, or no longer."""

    def __init__(
        self,
        message: str,
        *,
        session: str,
        method: str = "",
        path: str = "",
        status: int = 404,
        body: str = "",
    ) -> None:
        super().__init__(message, method=method, path=path, status=status, body=body)
        self.session = session


class PermissionDenied(ResponseError):
    """The token lacks a permission. ``needed`` lists the ACL rules that the request needs."""

    def __init__(
        self,
        message: str,
        *,
        needed: Sequence[str] = (),
        method: str = "",
        path: str = "",
        status: int = 403,
        body: str = "",
    ) -> None:
        super().__init__(message, method=method, path=path, status=status, body=body)
        self.needed = tuple(needed)


class RateLimited(ResponseError):
    """The agent or the server refuses more requests for now."""


class NoLeader(ResponseError):
    """The servers have no leader at present."""


class InvalidRequest(ResponseError):
    """Consul finds the request malformed or not allowed in this edition or version."""


class PayloadTooLarge(ResponseError):
    """The request's body is over the agent's limit."""


class ServerError(ResponseError):
    """Consul failed; a write may or may not have been applied."""


class NodeNotRegistered(ServerError):
    """A session can't be made: its node is not in the catalog.

    That passes for an agent's own node, which the agent puts back within a minute.
    """


class TxnFailed(ConsulCoordError):
    """A transaction was rolled back as a whole; ``failures`` says which operations refused, and why."""

    def __init__(self, message: str, *, failures: Sequence[TxnFailure]) -> None:
        super().__init__(message)
        self.failures = tuple(failures)


class CoordinationError(ConsulCoordError):
    """A recipe could not do what was asked. ``session`` is empty when there was none."""

    def __init__(self, message: str, *, key: str, session: str = "") -> None:
        super().__init__(message)
        self.key = key
        self.session = session


class AcquireTimeout(CoordinationError, TimeoutError):
    """The lock, slot or leadership was not acquired in time.

    ``blocker`` says why: its ``holders`` are those that the caller last read while it waited. ``waited`` is
    the time since the call began, in seconds.
    """

    def __init__(
        self, message: str, *, key: str, session: str = "", blocker: Blocker, waited: float = 0.0
    ) -> None:
        super().__init__(message, key=key, session=session)
        self.blocker = blocker
        self.waited = waited


class AcquireCancelled(CoordinationError):
    """``cancel()`` ended the wait."""


class LockLost(CoordinationError):
    """The hold ended before it was released. ``fence`` is the lost hold's fence."""

    def __init__(self, message: str, *, key: str, session: str = "", fence: int, reason: LossReason) -> None:
        super().__init__(message, key=key, session=session)
        self.fence = fence
        self.reason = reason


class LeadershipLost(LockLost):
    """Leadership ended before it was given up."""


class AlreadyHeld(CoordinationError):
    """This thread or task holds it already, and the lock is not a re-entrant one."""


class NotHeld(CoordinationError):
    """This thread or task holds nothing that could be released."""


class KeyConflict(CoordinationError):
    """The key carries other flags: something else uses it."""

    def __init__(self, message: str, *, key: str, session: str = "", flags: int) -> None:
        super().__init__(message, key=key, session=session)
        self.flags = flags


class SemaphoreLimitConflict(CoordinationError):
    """The semaphore's record has another limit than the one given here."""

    def __init__(self, message: str, *, key: str, session: str = "", local: int, remote: int) -> None:
        super().__init__(message, key=key, session=session)
        self.local = local
        self.remote = remote


class UnsafeSession(CoordinationError):
    """The session leaves no time in which a loss could be noticed, and that was not asked for by name."""

    def __init__(self, message: str, *, key: str = "", session: str = "") -> None:
        super().__init__(message, key=key, session=session)


class SessionCheckFailed(CoordinationError):
    """A session can't be made: a health check that it names is missing or critical."""

    def __init__(self, message: str, *, key: str = "", session: str = "") -> None:
        super().__init__(message, key=key, session=session)
