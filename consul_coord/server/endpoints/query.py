"""/v1/query: prepared queries, created, read, changed, deleted, executed and explained.

Rules
- Executing answers with the instances of the service that have no critical check, nor a warning if only
  passing ones are wanted. Ignored checks do not count. The order is the catalog's, where Consul shuffles.
- There is one datacenter: where others are named to fail over to, they are not reached.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from consul_coord.server import gojson, queries
from consul_coord.server.acl import DENIED
from consul_coord.server.call import EMPTY, Read, Seen
from consul_coord.server.endpoints import health, selection
from consul_coord.server.endpoints.catalog import decode_strictly
from consul_coord.server.failures import LeadersRefusal, Refusal, StateError
from consul_coord.server.gotext import GoParseError, parse_duration, parse_int, quote
from consul_coord.server.records import CRITICAL, WARNING, QueryRecord
from consul_coord.server.store import QUERIES, fold

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consul_coord.server.call import Call
    from consul_coord.server.endpoints.selection import Instance
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
    name = _id(call)
    call.state.require_query(name)
    call.state.put_query(_decode(call, name))
    return EMPTY


def delete(call: Call) -> Reply:
    """Delete a query."""
    call.state.delete_query(_id(call))
    return EMPTY


def read(call: Call) -> Read:
    """Read one query, as a list; or execute or explain it."""
    for ending, answer in (("/execute", _executed), ("/explain", _explained)):
        if call.tail.endswith(ending):
            return answer(call, call.tail.removesuffix(ending))
    name = call.tail

    def look(store: Store) -> Seen:
        found = queries.find(store, name)
        if found is None:
            raise LeadersRefusal(404, "Query not found")
        return _seen(call, store, [found])

    return Read(look)


def _executed(call: Call, name: str) -> Read:
    limit = _limit(call)
    connected = "connect" in call.params and call.params.get("connect") != "false"

    def look(store: Store) -> Seen:
        query = _resolved(store, name)
        wanted: dict[str, Any] = json.loads(query.service)
        found = [
            each
            for each in selection.instances(store, wanted["Service"], connect=wanted["Connect"] or connected)
            if _fits(store, wanted, each) and health.may_see(call, each)
        ]
        near = call.params.get("near") or wanted["Near"]
        ordered = selection.nearest_to(call, near, found, lambda each: each[0].name)
        shown = [_with_nulls(health.describe_instance(store, each)) for each in ordered[: limit or None]]
        body: dict[str, object] = {
            "Service": wanted["Service"],
            "Nodes": shown,
            "DNS": {"TTL": query.dns_ttl},
            "Datacenter": call.state.datacenter,
            "Failovers": 0,
        }
        return _unindexed(call, body)

    return Read(look)


def _with_nulls(instance: dict[str, Any]) -> dict[str, Any]:
    """Return an instance as an execution shows it: other than elsewhere, what is empty is null."""
    service, checks = instance["Service"], instance["Checks"]
    return {
        **instance,
        "Service": {**service, "Tags": service["Tags"] or None},
        "Checks": [{**check, "ServiceTags": check["ServiceTags"] or None} for check in checks] or None,
    }


def _explained(call: Call, name: str) -> Read:
    def look(store: Store) -> Seen:
        query = _resolved(store, name)
        if not _permitted(call, query, write=False):
            raise LeadersRefusal(403, DENIED)
        return _unindexed(call, {"Query": describe(query)})

    return Read(look)


def _resolved(store: Store, name: str) -> QueryRecord:
    query = queries.resolve(store, name)
    if query is None:
        raise LeadersRefusal(404, "Query not found")
    return query


def _unindexed(call: Call, body: dict[str, object]) -> Seen:
    """Return an answer without an index, so that no client waits for the next one."""
    level = "stale" if call.options.stale else "consistent" if call.options.consistent else "leader"
    told = {"Index": 0, "LastContact": 0, "KnownLeader": True, "ConsistencyLevel": level}
    return Seen(0, call.json({**body, **told}), (), effective=True, waits=False)


def _fits(store: Store, wanted: dict[str, Any], instance: Instance) -> bool:
    node, service = instance
    bad = {CRITICAL, WARNING} if wanted["OnlyPassing"] else {CRITICAL}
    ignored: set[object] = set(wanted["IgnoreCheckIDs"] or ())
    if any(check.status in bad and check.id not in ignored for check in health.checks_of(store, instance)):
        return False
    tags = set(map(fold, service.tags))
    return (
        set(dict[str, str](wanted["NodeMeta"] or {}).items()) <= set(node.meta or ())
        and set(dict[str, str](wanted["ServiceMeta"] or {}).items()) <= set(service.meta or ())
        and all(
            (fold(tag.removeprefix("!")) in tags) != tag.startswith("!")
            for tag in wanted["Tags"] or ()
            if tag
        )
    )


def _limit(call: Call) -> int:
    if not (given := call.params.get("limit")):
        return 0
    try:
        return max(0, parse_int(given))
    except GoParseError:
        raise Refusal(500, f"Bad limit: strconv.Atoi: parsing {quote(given)}: invalid syntax") from None


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
        raise Refusal(405, f"method {call.request.method} not allowed", (("Allow", "OPTIONS,GET"),))
    return call.tail


def _decode(call: Call, query_id: str) -> QueryRecord:
    fields = decode_strictly(call, FIELDS, "PreparedQuery") if call.request.body or not query_id else {}
    if fields.get("ID") and not query_id:
        raise StateError("ID must be empty when creating a new prepared query")
    template: dict[str, Any] = fields.get("Template", {})
    service: dict[str, Any] = fields.get("Service", {})
    if not fields.get("Name") and not fields.get("Session") and not template:
        raise StateError("Invalid prepared query: Must be bound to a session")
    if not service.get("Service"):
        raise StateError("Invalid prepared query: Must provide a Service name to query")
    if (nearest := service.get("Failover", {}).get("NearestN", 0)) < 0:
        message = f"Invalid prepared query: Bad NearestN '{nearest}', must be >= 0"
        raise StateError(message)
    _check_ttl(fields.get("DNS", {}).get("TTL", ""))
    query = QueryRecord(
        query_id,
        fields.get("Name", ""),
        fields.get("Session", ""),
        fields.get("Token", ""),
        json.dumps(_SERVICE_DEFAULTS | service | {"Failover": _NO_FAILOVER | service.get("Failover", {})}),
        fields.get("DNS", {}).get("TTL", ""),
        template.get("Type", ""),
        template.get("Regexp", ""),
        template.get("RemoveEmptyTags", False),
    )
    if not _permitted(call, query, write=True):
        raise LeadersRefusal(403, DENIED)
    return query


def _check_ttl(ttl: str) -> None:
    if not ttl:
        return
    try:
        nanoseconds = parse_duration(ttl)
    except GoParseError as error:
        message = f"Invalid prepared query: Bad DNS TTL '{ttl}': {error}"
        raise StateError(message) from None
    if nanoseconds < 0:
        message = f"Invalid prepared query: DNS TTL '{nanoseconds}', must be >=0"
        raise StateError(message)


_NO_FAILOVER: dict[str, Any] = {"NearestN": 0, "Datacenters": None}
_SERVICE_DEFAULTS: dict[str, Any] = {
    "Service": "",
    "Failover": _NO_FAILOVER,
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
