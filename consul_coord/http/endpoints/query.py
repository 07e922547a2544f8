"""Prepared queries, which may be bound to a session: ``/v1/query``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord import models
from consul_coord.http.endpoints import _call, _json, _keys
from consul_coord.http.messages import Retry

if TYPE_CHECKING:
    from consul_coord.http.messages import Call, Response
    from consul_coord.models import PreparedQuery, ReadOptions, Result, WriteOptions

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


def _queries(what: str, value: object) -> tuple[PreparedQuery, ...]:
    return _json.items(what, value, _query)


def _one(response: Response) -> Result[PreparedQuery | None]:
    if _call.absent(response, told_by=_NONE):
        return _call.result(response, None)
    found = _queries("the reply", _json.parse(response.body))
    if not found:
        raise _json.ShapeError("the reply holds no query")
    return _call.result(response, found[0])


def create(query: PreparedQuery, *, options: WriteOptions | None = None) -> Call[str]:
    """Store a query and return its id; SessionNotFound when it names a session that does not exist."""
    service: dict[str, object] = {
        "Service": query.service,
        "Tags": list(query.tags) or None,
        "OnlyPassing": query.only_passing or None,
        "Near": query.near or None,
    }
    wanted: dict[str, object] = {
        "Name": query.name or None,
        "Session": query.session or None,
        "Service": {name: value for name, value in service.items() if value is not None},
    }
    request = _call.write_request(
        "POST",
        _ROOT,
        options,
        body=_json.dump({name: value for name, value in wanted.items() if value is not None}),
        retry=Retry.NEVER,
        needed=_needed("write", query.name),
    )
    return _call.call(request, _call.answer(_json.new_id))


def _needed(permission: str, name: str) -> tuple[str, ...]:
    return (f'query:{permission} on "{name}"',) if name else ()


def get(id: str, *, options: ReadOptions | None = None) -> Call[Result[PreparedQuery | None]]:
    """Read one query; None when there is none."""
    request = _call.read_request(
        _keys.path(_ROOT + "/", _keys.check_id("query", id)), options, needed=("query:read on its name",)
    )
    return _call.call(request, _one, accept=_call.OK_OR_ABSENT)


def list_queries(*, options: ReadOptions | None = None) -> Call[Result[tuple[PreparedQuery, ...]]]:
    """Read all queries that the token may read."""
    request = _call.read_request(_ROOT, options, needed=("query:read on their names",))
    return _call.call(request, _call.read_result(_queries))


def delete(id: str, *, options: WriteOptions | None = None) -> Call[None]:
    """Delete a query."""
    path = _keys.path(_ROOT + "/", _keys.check_id("query", id))
    request = _call.write_request(
        "DELETE", path, options, retry=Retry.IDEMPOTENT, needed=("query:write on its name",)
    )
    return _call.call(request, _call.nothing)
