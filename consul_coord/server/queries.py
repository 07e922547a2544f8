"""Prepared queries: stored, looked up by id or name, deleted with their session.

Rules
- A query has a name of its own or belongs to a session; the session must exist. Names are unique.
- A text that is no id is taken for a name, in whatever case. A template answers for every name that begins
  with its own, and for no id.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from consul_coord.server import templates
from consul_coord.server.failures import StateError
from consul_coord.server.gotext import quote
from consul_coord.server.ids import is_uuid, lookup_key
from consul_coord.server.store import QUERIES, fold

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


def resolve(store: Store, query: str) -> QueryRecord | None:
    """Return the query of an id or a name; a template is rendered for the name."""
    if is_uuid(query) and (found := store.queries.get(fold(query))) is not None:
        if found.template_type:
            raise StateError("prepared query templates can only be resolved up by name, not by ID")
        return found
    name = fold(query)
    named = {fold(each.name): each for each in store.queries if each.name or each.template_type}
    if (exact := named.get(name)) is not None and not exact.template_type:
        return exact
    fitting = [each for each in named if named[each].template_type and name.startswith(each)]
    return templates.rendered(named[max(fitting, key=len)], query) if fitting else None


def put(store: Store, index: int, query: QueryRecord) -> None:
    """Add or replace a query."""
    existing = store.queries.get(query.id)
    others = [other for other in store.queries if other.id != query.id]
    if query.name and any(fold(other.name) == fold(query.name) for other in others):
        message = f"name '{query.name}' aliases an existing query name"
        raise StateError(message)
    if not query.name and query.template_type and any(o.template_type and not o.name for o in others):
        raise StateError("a query template with an empty name already exists")
    if query.session:
        _check_session(store, query.session)
    templates.check(query)
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
