"""An OpenAPI description of what the server serves, made from the route table and the readers of bodies.

Rules
- All routes are described, and nothing else, so no route and no field of a body can be forgotten here.
- A field that is read by rules of its own (a duration, say) has no schema: anything may be sent.
- Replies are named by status only. Errors are plain text.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

from consul_coord.server import gojson
from consul_coord.server.endpoints import (
    acl,
    agent,
    catalog,
    coordinate,
    event,
    health,
    kv,
    query,
    registering,
    session,
    snapshot,
    txn,
)
from consul_coord.server.routes import ROUTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from consul_coord.server.config import ServerConfig
    from consul_coord.server.gojson import Reader
    from consul_coord.server.routes import Handler, Route

    Schema = dict[str, Any]

VERSION: Final = "3.1.0"

_TEXT: Schema = {"type": "string"}
_SCHEMAS: dict[Reader, Schema] = {
    gojson.text: _TEXT,
    gojson.boolean: {"type": "boolean"},
    gojson.texts: {"type": "array", "items": _TEXT},
    gojson.text_map: {"type": "object", "additionalProperties": _TEXT},
    gojson.base64_bytes: {"type": "string", "contentEncoding": "base64"},
}

_BODIES: dict[Handler, Mapping[str, Reader]] = {
    session.create: session.FIELDS,
    catalog.register: catalog.REGISTRATION,
    catalog.deregister: catalog.DEREGISTRATION,
    coordinate.update: coordinate.FIELDS,
    query.create: query.FIELDS,
    query.update: query.FIELDS,
    registering.register_check: registering.CHECK,
    agent.update_check: agent.UPDATE,
    registering.register_service: registering.SERVICE,
    acl.create_policy: acl.POLICY.fields,
    acl.update_policy: acl.POLICY.fields,
    acl.create_token: acl.TOKEN.fields,
    acl.update_token: acl.TOKEN.fields,
}
_OF_BYTES: frozenset[Handler] = frozenset({kv.write, snapshot.restore})

_OF_LISTS = ("filter", "node-meta", "near")
_PARAMETERS: dict[Handler, tuple[str, ...]] = {
    catalog.nodes: _OF_LISTS,
    catalog.node: ("filter",),
    catalog.node_services: ("filter",),
    catalog.services: ("node-meta",),
    catalog.service: ("tag", *_OF_LISTS),
    catalog.connect: ("tag", *_OF_LISTS),
    health.service: ("tag", "passing", *_OF_LISTS),
    health.connect: ("tag", "passing", *_OF_LISTS),
    health.of_node: ("filter",),
    health.of_service: _OF_LISTS,
    health.in_state: _OF_LISTS,
    agent.checks: ("filter",),
    agent.services: ("filter",),
    agent.members: ("wan", "segment"),
    agent.maintain_node: ("enable", "reason"),
    agent.maintain_service: ("enable", "reason"),
    registering.register_service: ("replace-existing-checks",),
    event.fire: ("node", "service", "tag"),
    event.list_all: ("name",),
    query.read: ("limit", "near", "connect"),
    kv.read: ("recurse", "keys", "raw", "separator"),
    kv.write: ("flags", "cas", "acquire", "release"),
    kv.delete: ("recurse", "cas"),
    agent.pass_check: ("note",),
    agent.warn_check: ("note",),
    agent.fail_check: ("note",),
    acl.tokens: ("policy", "role", "authmethod"),
}
_OF_READS = ("index", "wait", "consistent", "stale", "max_stale", "cached")
_OF_ALL = ("dc", "ns", "token", "pretty")


def describe(config: ServerConfig) -> Schema:
    """Return the description as an OpenAPI document."""
    return {
        "openapi": VERSION,
        "info": {
            "title": "consul_coord reference server",
            "version": config.version,
            "description": "The part of Consul's HTTP API that the reference server serves.",
        },
        "paths": {_template(route): _path(route) for route in ROUTES},
    }


def _template(route: Route) -> str:
    return f"{route.path}{{name}}" if route.path.endswith("/") else route.path


def _path(route: Route) -> Schema:
    described: Schema = {
        method.lower(): _operation(handler, reads=method == "GET")
        for method, handler in route.handlers.items()
    }
    if route.path.endswith("/"):
        described["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": _TEXT}]
    return described


def _operation(handler: Handler, *, reads: bool) -> Schema:
    names = (*_PARAMETERS.get(handler, ()), *(_OF_READS if reads else ()), *_OF_ALL)
    described: Schema = {
        "summary": (inspect.getdoc(handler) or "").partition("\n")[0],
        "parameters": [{"name": name, "in": "query", "schema": _TEXT} for name in names],
        "responses": {"200": {"description": "Done."}, "default": {"description": "Why not, as text."}},
    }
    if (body := _body(handler)) is not None:
        described["requestBody"] = {"content": body}
    return described


def _body(handler: Handler) -> Schema | None:
    if handler in _OF_BYTES:
        return {"application/octet-stream": {}}
    if handler is txn.apply:
        return _json({"type": "array", "items": schema_of(txn.OPERATION)})
    fields = _BODIES.get(handler)
    return None if fields is None else _json(_object(fields))


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def schema_of(reader: Reader) -> Schema:
    """Return the JSON schema of what a reader takes."""
    if isinstance(reader, gojson.ObjectReader):
        return _object(reader.fields)
    if isinstance(reader, gojson.ListReader):
        return {"type": "array", "items": schema_of(reader.item)}
    if isinstance(reader, gojson.NamedReader):
        return schema_of(reader.read)
    if isinstance(reader, gojson.IntegerReader):
        return {"type": "integer", "minimum": reader.low, "maximum": reader.high}
    return _SCHEMAS.get(reader, {})


def _object(fields: Mapping[str, Reader]) -> Schema:
    return {"type": "object", "properties": {name: schema_of(read) for name, read in fields.items()}}
