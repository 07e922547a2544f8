"""Prepared queries, which may be bound to a session: ``/v1/query``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord import models
from consul_coord.http.endpoints import _call, _json, _keys, health
from consul_coord.http.messages import Retry
from consul_coord.models._validate import count, instance

if TYPE_CHECKING:
    from consul_coord.http.messages import Call, Response
    from consul_coord.models import PreparedQuery, QueryResult, ReadOptions, Result, WriteOptions

_ROOT = "/v1/query"
_NONE = b"Query not found"


def _query(what: str, value: object) -> PreparedQuery:
    fields = _json.Fields(what, value)
    service = fields.get("Service", _json.Fields)
    return models.PreparedQuery(
        service=service.get("Service", _json.text),
        name=fields.get("Name", _json.text, ""),
        session=fields.get("Session", _json.text, ""),
        id=fields.get("ID", _json.text, ""),
        tags=service.get("Tags", _json.texts, ()),
        only_passing=service.get("OnlyPassing", _json.boolean, default=False),
        near=service.get("Near", _json.text, ""),
    )


_queries = _json.list_of(_query)


def _one(response: Response) -> PreparedQuery | None:
    found = _queries("the reply", _json.parse(response.body))
    if not found:
        raise _json.ShapeError("the reply holds no query")
    return found[0]


def create(query: PreparedQuery, *, options: WriteOptions | None = None) -> Call[str]:
    """Store a query and return its id; SessionNotFound when it names a session that does not exist."""
    instance("query", query, models.PreparedQuery)
    service: dict[str, object] = {
        "Service": query.service,
        "Tags": list(query.tags) or None,
        "OnlyPassing": query.only_passing or None,
        "Near": query.near or None,
    }
    wanted: dict[str, object] = {
        "Name": query.name or None,
        "Session": query.session or None,
        "Service": _json.members_set(service),
    }
    needed = _needed("write", query.name)
    body = _json.dump_set(wanted)
    return _call.write("POST", _ROOT, options, _call.new_id, body=body, retry=Retry.NEVER, needed=needed)


def _needed(permission: str, name: str) -> tuple[str, ...]:
    return (f'query:{permission} on "{name}"',) if name else ()


def get(id: str, *, options: ReadOptions | None = None) -> Call[Result[PreparedQuery | None]]:
    """Read one query; None when there is none."""
    return _call.find(_path(id), options, _one, None, needed=("query:read on its name",), told_by=_NONE)


def list_queries(*, options: ReadOptions | None = None) -> Call[Result[tuple[PreparedQuery, ...]]]:
    """Read all queries that the token may read."""
    return _call.get(_ROOT, options, _queries, needed=("query:read on their names",))


def execute(
    id_or_name: str, *, limit: int | None = None, options: ReadOptions | None = None
) -> Call[Result[QueryResult | None]]:
    """Carry out a query, or a template for the given name; None when neither exists."""
    path = _keys.path(_ROOT + "/", f"{_keys.check_id('query', id_or_name)}/execute")
    params = () if limit is None else (("limit", str(count("limit", limit))),)
    needed = ("service:read on its service", "node:read on the nodes")
    return _call.find(path, options, _executed, None, params=params, needed=needed, told_by=_NONE)


def _executed(response: Response) -> QueryResult:
    fields = _json.Fields("the reply", _json.parse(response.body))
    return models.QueryResult(
        fields.get("Service", _json.text),
        instances=fields.get("Nodes", health.instances, ()),
        datacenter=fields.get("Datacenter", _json.text, ""),
        failovers=fields.get("Failovers", _json.integer, 0),
    )


def delete(id: str, *, options: WriteOptions | None = None) -> Call[None]:
    """Delete a query."""
    needed = ("query:write on its name",)
    return _call.write("DELETE", _path(id), options, _call.nothing, retry=Retry.IDEMPOTENT, needed=needed)


def _path(id: str) -> str:
    return _keys.path(_ROOT + "/", _keys.check_id("query", id))
