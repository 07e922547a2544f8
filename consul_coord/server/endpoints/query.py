"""/v1/query: prepared queries, created, read, changed and deleted, not executed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from consul_coord.server import gojson, queries
from consul_coord.server.acl import DENIED
from consul_coord.server.call import EMPTY, Read, Seen
from consul_coord.server.endpoints.catalog import decode_strictly
from consul_coord.server.failures import LeadersRefusal, Refusal, StateError
from consul_coord.server.records import QueryRecord
from consul_coord.server.store import QUERIES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consul_coord.server.call import Call
    from consul_coord.server.store import Store
    from consul_coord.server.wire import Reply


def describe(query: QueryRecord) -> dict[str, object]:
    """Return a query as the API shows it."""
    return {
        "ID": query.id,
        "Name": query.name,
        "Session": query.session,
        "Token": query.token,
        "Template": {
            "Type": query.template_type,
            "Regexp": query.template_regexp,
            "RemoveEmptyTags": query.template_remove_empty_tags,
        },
        "Service": json.loads(query.service),
        "DNS": {"TTL": query.dns_ttl},
        "CreateIndex": query.create_index,
        "ModifyIndex": query.modify_index,
    }


def create(call: Call) -> Reply:
    """Create a query."""
    query = _decode(call, "")
    return call.json({"ID": call.state.put_query(query)})


def update(call: Call) -> Reply:
    """Replace a query."""
    call.state.put_query(_decode(call, _id(call)))
    return EMPTY


def delete(call: Call) -> Reply:
    """Delete a query."""
    call.state.delete_query(_id(call))
    return EMPTY


def read(call: Call) -> Read:
    """Read one query, as a list."""
    name = _id(call)

    def look(store: Store) -> Seen:
        found = queries.find(store, name)
        if found is None:
            raise LeadersRefusal(404, "Query not found")
        return _seen(call, store, [found])

    return Read(look)


def list_all(call: Call) -> Read:
    """Read all queries, in order of their ids."""
    return Read(lambda store: _seen(call, store, store.queries.sorted()))


def _seen(call: Call, store: Store, found: Iterable[QueryRecord]) -> Seen:
    shown = [describe(query) for query in found if _permitted(call, query, write=False)]
    return Seen(store.index_of(QUERIES), call.json(shown), ((QUERIES,),), effective=True)


def _permitted(call: Call, query: QueryRecord, *, write: bool) -> bool:
    return not query.name or call.authorizer.may("query", query.name, "write" if write else "read")


def _id(call: Call) -> str:
    if call.tail.endswith(("/execute", "/explain")):
        raise Refusal(
            501, f"The reference server does not have /v1/query/{call.tail}: use a Consul agent for it"
        )
    return call.tail


def _decode(call: Call, query_id: str) -> QueryRecord:
    fields = decode_strictly(call, FIELDS, "PreparedQuery")
    if fields.get("ID") and not query_id:
        raise StateError("ID must be empty when creating a new prepared query")
    template: dict[str, Any] = fields.get("Template", {})
    service: dict[str, Any] = fields.get("Service", {})
    if not fields.get("Name") and not fields.get("Session") and not template:
        raise StateError("Invalid prepared query: Must be bound to a session")
    if not service.get("Service"):
        raise StateError("Invalid prepared query: Must provide a Service name to query")
    query = QueryRecord(
        query_id,
        fields.get("Name", ""),
        fields.get("Session", ""),
        fields.get("Token", ""),
        json.dumps(_SERVICE_DEFAULTS | service),
        fields.get("DNS", {}).get("TTL", ""),
        template.get("Type", ""),
        template.get("Regexp", ""),
        template.get("RemoveEmptyTags", False),
    )
    if not _permitted(call, query, write=True):
        raise LeadersRefusal(403, DENIED)
    return query


_SERVICE_DEFAULTS: dict[str, Any] = {
    "Service": "",
    "Failover": {"NearestN": 0, "Datacenters": None},
    "OnlyPassing": False,
    "IgnoreCheckIDs": None,
    "Near": "",
    "Tags": None,
    "NodeMeta": None,
    "ServiceMeta": None,
    "Connect": False,
}


def _text_dict(value: object, where: str) -> dict[str, str]:
    return dict(gojson.text_map(value, where))


_FAILOVER: dict[str, gojson.Reader] = {"NearestN": gojson.int_, "Datacenters": gojson.texts}
_SERVICE: dict[str, gojson.Reader] = {
    "Service": gojson.text,
    "Failover": gojson.object_of(
        _FAILOVER, struct="QueryDatacenterOptions", type_name="structs.QueryDatacenterOptions"
    ),
    "OnlyPassing": gojson.boolean,
    "IgnoreCheckIDs": gojson.texts,
    "Near": gojson.text,
    "Tags": gojson.texts,
    "NodeMeta": _text_dict,
    "ServiceMeta": _text_dict,
    "Connect": gojson.boolean,
    "Namespace": gojson.text,
}
_TEMPLATE: dict[str, gojson.Reader] = {
    "Type": gojson.text,
    "Regexp": gojson.text,
    "RemoveEmptyTags": gojson.boolean,
}

FIELDS: dict[str, gojson.Reader] = {
    "ID": gojson.text,
    "Name": gojson.text,
    "Session": gojson.text,
    "Token": gojson.text,
    "Template": gojson.object_of(
        _TEMPLATE, struct="QueryTemplateOptions", type_name="structs.QueryTemplateOptions"
    ),
    "Service": gojson.object_of(_SERVICE, struct="ServiceQuery", type_name="structs.ServiceQuery"),
    "DNS": gojson.object_of(
        {"TTL": gojson.text}, struct="QueryDNSOptions", type_name="structs.QueryDNSOptions"
    ),
}
