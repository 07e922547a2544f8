"""The meaning of Consul's refusal to lock a key, and its words for the caller.

Rules
- A refusal that time may heal is something that stands in the way: a ``Blocker``. Any other is raised.
- A session that the servers don't know has ended: the next try gets a new one, unless it came from outside.
- A session whose own contender is in a lock-delay has ended, too: no other session locks that key. The
  servers look at lock-delays before they look at sessions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.errors import AcquireTimeout, SessionNotFound
from consul_coord.http.failures import again, next_step, raise_if_denied
from consul_coord.models import LossReason
from consul_coord.recipes.contend.queue import session_of

if TYPE_CHECKING:
    from consul_coord.errors import ConsulCoordError, TxnFailed
    from consul_coord.models import Blocker, BlockerKind, TxnFailure
    from consul_coord.recipes.session.keeping import KeptSession, Sessions

SHORTEST_WAIT = 0.05
"""Seconds from which on an error says how long the caller waited."""
_LOOK_AGAIN = {"stale_index", "missing", "exists", "not_holder"}


def blocked_by(sessions: Sessions, kept: KeptSession, key: str, error: TxnFailed) -> BlockerKind | None:
    """Return what stood in the way of locking ``key``; None when it is to be looked at again.

    Raises PermissionDenied, SessionNotFound for an outside session, and whatever is no refusal to lock.
    """
    by_kind = {failure.kind: failure for failure in error.failures}
    if "invalid_session" in by_kind or any(_is_of_own_contender(failure, kept) for failure in error.failures):
        sessions.end(kept, LossReason.SESSION_GONE)
        if kept.outside:
            message = f"session {kept.id}, given for {key!r}, does not exist, or has ended"
            raise SessionNotFound(message, session=kept.id) from error
        return "unreachable"
    raise_if_denied(key, error)
    if "lock_delay" in by_kind:
        return "lock_delay"
    if "held" in by_kind:
        return "held"
    if not by_kind.keys() <= _LOOK_AGAIN:
        raise again(error)
    return None


def _is_of_own_contender(failure: TxnFailure, kept: KeptSession) -> bool:
    op = failure.op
    return failure.kind == "lock_delay" and op is not None and session_of(op) == kept.id


def timed_out(
    key: str, session: str, blocker: Blocker, cause: ConsulCoordError | None, *, waited: float
) -> AcquireTimeout:
    """Return the error that says what stood in the way when time was up."""
    why = f"{blocker.describe(cause, nodes=True)}{next_step(cause)}"
    message = f"{key!r} was not acquired {within(waited)}: {why}"
    error = AcquireTimeout(message, key=key, session=session, blocker=blocker, waited=waited)
    error.__cause__ = cause
    return error


def within(seconds: float) -> str:
    """Return how long a call has waited, for people."""
    return "at once" if seconds < SHORTEST_WAIT else f"within {seconds:.1f} s"
