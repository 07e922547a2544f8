"""What it means that Consul refused to lock something, and how that is told to the caller.

Rules
- A refusal that time may heal is something that stands in the way: a ``Blocker``. Any other is raised.
- A session that the servers don't know has ended: the next try gets a new one, unless it came from outside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.errors import AcquireTimeout, SessionNotFound
from consul_coord.http.failures import raise_if_denied
from consul_coord.models import LossReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consul_coord.errors import ConsulCoordError, TxnFailed
    from consul_coord.models import Blocker, BlockerKind, Holder
    from consul_coord.recipes.session.keeping import KeptSession, Sessions

MOST_NAMED = 3
"""How many holders an error names."""
SHORTEST_WAIT = 0.05
"""Seconds from which on an error says how long the caller waited."""
LONGEST_NAME = 60
"""How many characters of a holder's value an error shows."""
_LOOK_AGAIN = {"stale_index", "missing", "exists", "not_holder"}


def blocked_by(sessions: Sessions, kept: KeptSession, key: str, error: TxnFailed) -> BlockerKind | None:
    """Return what stood in the way of locking ``key``; None when it is to be looked at again.

    Raises PermissionDenied, SessionNotFound for an outside session, and whatever is no refusal to lock.
    """
    by_kind = {failure.kind: failure for failure in error.failures}
    if "invalid_session" in by_kind:
        sessions.end(kept, LossReason.SESSION_GONE)
        if kept.outside:
            message = f"session {kept.id}, given for {key!r}, does not exist (any more)"
            raise SessionNotFound(message, session=kept.id) from error
        return "unreachable"
    raise_if_denied(key, error)
    if "lock_delay" in by_kind:
        return "lock_delay"
    if "held" in by_kind:
        return "held"
    if not by_kind.keys() <= _LOOK_AGAIN:
        raise error
    return None


def timed_out(
    key: str, session: str, blocker: Blocker, cause: ConsulCoordError | None, *, waited: float
) -> AcquireTimeout:
    """Return the error that says what stood in the way when time was up."""
    message = f"{key!r} was not acquired {within(waited)}: {in_words(blocker, cause, nodes=True)}"
    error = AcquireTimeout(message, key=key, session=session, blocker=blocker, waited=waited)
    error.__cause__ = cause
    return error


def within(seconds: float) -> str:
    """Return how long a call has waited, for people."""
    return "at once" if seconds < SHORTEST_WAIT else f"within {seconds:.1f} s"


def in_words(blocker: Blocker, cause: ConsulCoordError | None = None, *, nodes: bool = False) -> str:
    """Return what stands in the way, as a clause.

    ``cause`` is what the server or the network said. ``nodes``: the holders' nodes were looked for, so one
    that is missing is unknown.
    """
    said = "" if cause is None else f": {cause}"
    place = "" if blocker.position is None else f"; this caller was at place {blocker.position} in the queue"
    holders = named(blocker.holders, nodes=nodes)
    return {
        "held": f"held by {holders or 'another client (unknown)'}{place}",
        "queued": (f"held by {holders}" if holders else "other waiters are first") + place,
        "lock_delay": "its last holder's session ended, and the lock-delay is still in force",
        "unreachable": f"Consul could not be reached, or could not serve{said}"
        + (f"; last seen held by {holders}" if holders else ""),
    }[blocker.kind]


def named(holders: Sequence[Holder], *, nodes: bool) -> str:
    """Return the names of holders, for people; empty if there are none."""
    more = len(holders) - MOST_NAMED
    names = [_name(holder, nodes=nodes) for holder in holders[:MOST_NAMED]]
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


def _name(holder: Holder, *, nodes: bool) -> str:
    value = holder.value.decode(errors="replace")
    shown = value if value.isprintable() and " " not in value else repr(value)
    if len(shown) > LONGEST_NAME:
        shown = shown[:LONGEST_NAME] + "…"
    node = f"node {holder.node or 'unknown'}, " if nodes or holder.node else ""
    return f"{shown or 'an unnamed client'} ({node}session {holder.session})"
