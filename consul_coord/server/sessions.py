"""Sessions in the store: created against live checks, and invalidated together with what they hold.

Rules
- A client's request is a draft until the agent has given it an id.
- Invalidation frees the session's keys (behaviour ``release``) or deletes them (``delete``), all at one
  index, imposes the lock-delay on every one of them, deletes the prepared queries bound to the session, and
  then the session.
- A session outlives neither its node nor any of its checks, nor one of these turning critical; warning is no
  reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from consul_coord.server import kv
from consul_coord.server.failures import StateError
from consul_coord.server.gotext import SECOND
from consul_coord.server.ids import lookup_key
from consul_coord.server.records import CRITICAL, DELETE, RELEASE, SERF_CHECK, SessionRecord
from consul_coord.server.store import QUERIES, SESSIONS, fold, pair

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.server.records import ServiceCheck
    from consul_coord.server.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDraft:
    """A client's settings for a session to be created; the lock-delay is in nanoseconds."""

    node: str
    name: str = ""
    lock_delay: int = 15 * SECOND
    behavior: str = RELEASE
    ttl: str = ""
    node_checks: tuple[str, ...] | None = (SERF_CHECK,)
    service_checks: tuple[ServiceCheck, ...] | None = None
    checks: tuple[str, ...] = ()

    def require_valid(self) -> None:
        """Raise ``StateError`` when the node is missing or the behaviour is not one of the two."""
        if not self.node:
            raise StateError("Must provide Node")
        if self.behavior not in ("", RELEASE, DELETE):
            message = f"Invalid Behavior setting '{self.behavior}'"
            raise StateError(message)

    def session(self, id: str) -> SessionRecord:
        """Return the session that comes of it."""
        return SessionRecord(
            id,
            self.name,
            self.node,
            self.lock_delay,
            self.behavior or RELEASE,
            self.ttl,
            self.node_checks,
            self.service_checks,
            self.checks,
        )


def find(store: Store, session: str) -> SessionRecord | None:
    """Return a session by id, whatever the case; raise ``StateError`` when the id is malformed."""
    return store.sessions.get(kv.session_key(store, session))


def create(store: Store, index: int, session: SessionRecord) -> None:
    """Add a session, provided its node exists and its checks are not critical."""
    if store.nodes.get(fold(session.node)) is None:
        raise StateError("Missing node registration")
    for name in session.check_ids:
        check = store.checks.get(pair(session.node, name))
        if check is None:
            message = f"Missing check '{name}' registration"
            raise StateError(message)
        if check.status == CRITICAL:
            message = f"Check '{name}' is in critical state"
            raise StateError(message)
    store.sessions.put(lookup_key(session.id), replace(session, create_index=index, modify_index=index))
    store.changed(SESSIONS, index)


def invalidate(store: Store, index: int, session: SessionRecord, delay: Callable[[str, int], None]) -> None:
    """End a session and what is bound to it; ``delay`` is called with each key it held and its lock-delay."""
    end = kv.delete if session.behavior == DELETE else kv.free
    for key in store.kv.held_by(session.id):
        end(store, index, key)
        delay(key, session.lock_delay)
    bound = [key for key, query in store.queries.rows.items() if fold(query.session) == session.id]
    for key in bound:
        store.queries.remove(key)
        store.changed(QUERIES, index)
    store.sessions.remove(session.id)
    store.changed(SESSIONS, index)


def of_node(store: Store, node: str) -> list[SessionRecord]:
    """Return a node's sessions in order of their ids."""
    name = fold(node)
    return [session for session in store.sessions.sorted() if fold(session.node) == name]


def relying_on(store: Store, node: str, check: str) -> list[SessionRecord]:
    """Return the sessions that a check of a node keeps alive."""
    return [session for session in of_node(store, node) if check in session.check_ids]
