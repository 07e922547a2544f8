"""Prepared queries, as far as sessions need them: stored, looked up by id, deleted with their session.

Rules
- A query has a name of its own or belongs to a session; the session must exist. Names are unique.
- They cannot be executed here: that is about services, not about locks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from consul_coord.server.failures import StateError
from consul_coord.server.gotext import quote
from consul_coord.server.ids import lookup_key
from consul_coord.server.store import QUERIES

if TYPE_CHECKING:
    from consul_coord.server.records import QueryRecord
    from consul_coord.server.store import Store


def find(store: Store, query: str) -> QueryRecord | None:
    """Return a query by id; raise ``StateError`` when the id is malformed."""
    try:
        return store.queries.get(lookup_key(query))
    except StateError as error:
        message = f"failed prepared query lookup: {error}"
        raise StateError(message) from None


def put(store: Store, index: int, query: QueryRecord) -> None:
    """Add or replace a query."""
    existing = store.queries.get(query.id)
    if query.name and any(other.name == query.name and other.id != query.id for other in store.queries):
        message = f"name '{query.name}' aliases an existing query name"
        raise StateError(message)
    if query.session:
        _check_session(store, query.session)
    created = existing.create_index if existing else index
    store.queries.put(query.id, replace(query, create_index=created, modify_index=index))
    store.changed(QUERIES, index)


def delete(store: Store, index: int, query: QueryRecord) -> None:
    """Delete a query."""
    store.queries.remove(query.id)
    store.changed(QUERIES, index)


def _check_session(store: Store, session: str) -> None:
    try:
        key = lookup_key(session)
    except StateError as error:
        message = f"invalid session: {error}"
        raise StateError(message) from None
    if store.sessions.get(key) is None:
        message = f"invalid session {quote(session)}"
        raise StateError(message)
