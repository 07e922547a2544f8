"""Nodes, services and checks in a transaction: how their operations are sent, permitted and shown."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from consul_coord.server import gojson
from consul_coord.server.catalog_ops import CatalogOp
from consul_coord.server.endpoints import catalog, definitions, health
from consul_coord.server.records import CheckRecord, NodeRecord, ServiceRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from consul_coord.server.acl import Authorizer, Policy
    from consul_coord.server.catalog_ops import Record
    from consul_coord.server.state import ConsulState

_INDEXES: dict[str, gojson.Reader] = {"CreateIndex": gojson.uint64, "ModifyIndex": gojson.uint64}

_NODE: dict[str, gojson.Reader] = {
    "ID": gojson.text,
    "Node": gojson.text,
    "Address": gojson.text,
    "Datacenter": gojson.text,
    "TaggedAddresses": gojson.text_map,
    "Meta": gojson.text_map,
    **_INDEXES,
}
_LOST = frozenset({"Kind", "TaggedAddresses", "Proxy", "Connect"})
"""The fields of a service that Consul takes in a transaction and then leaves out."""

_NAMING = frozenset({"set", "cas"})


def _operation(kind: str, what: gojson.Reader, **more: gojson.Reader) -> gojson.Reader:
    verb = gojson.named(f"api.{kind}Op", gojson.text)
    return gojson.object_of(
        {"Verb": verb, kind: what, **more}, struct=f"{kind}TxnOp", type_name=f"api.{kind}TxnOp"
    )


FIELDS: dict[str, gojson.Reader] = {
    "Node": _operation("Node", gojson.object_of(_NODE, struct="Node", type_name="api.Node")),
    "Service": _operation(
        "Service",
        gojson.object_of(definitions.SERVICE_IN_TXN, struct="AgentService", type_name="api.AgentService"),
        Node=gojson.text,
    ),
    "Check": _operation(
        "Check", gojson.object_of(definitions.CHECK_IN_TXN, struct="HealthCheck", type_name="api.HealthCheck")
    ),
}
"""The fields of an operation that are about the catalog, in the order in which they count."""


def op(state: ConsulState, item: Mapping[str, Any]) -> CatalogOp:
    """Return the operation that a decoded item of a transaction asks for."""
    kind = next(kind for kind in FIELDS if kind in item)
    fields: dict[str, Any] = item[kind]
    verb: str = fields.get("Verb", "")
    record = _READ[kind](state, fields, fields.get(kind, {}))
    if isinstance(record, NodeRecord) and verb in _NAMING:
        catalog.refuse_renaming(state, record.name, record.id)
    return CatalogOp(verb, record)


def describe(row: Record) -> dict[str, object]:
    """Return a row as a transaction shows it; unlike elsewhere, no tags are null there."""
    if isinstance(row, NodeRecord):
        return {"Node": catalog.describe_node(row)}
    if isinstance(row, ServiceRecord):
        return {"Service": catalog.describe_service(row) | {"Tags": list(row.tags) or None}}
    return {"Check": health.describe(row) | {"ServiceTags": list(row.service_tags) or None}}


def may(authorizer: Authorizer, row: Record, policy: Policy) -> bool:
    """Tell whether a token may read or write a row; a service's check goes with its service."""
    if isinstance(row, NodeRecord):
        return authorizer.may("node", row.name, policy)
    if isinstance(row, ServiceRecord):
        return authorizer.may("service", row.service, policy)
    if row.service_id:
        return authorizer.may("service", row.service_name, policy)
    return authorizer.may("node", row.node, policy)


def _node(state: ConsulState, _: Mapping[str, Any], sent: Mapping[str, Any]) -> NodeRecord:
    return NodeRecord(
        sent.get("Node", ""),
        sent.get("ID", "").lower(),
        sent.get("Address", ""),
        sent.get("Datacenter") or state.datacenter,
        sent.get("TaggedAddresses"),
        sent.get("Meta"),
        modify_index=sent.get("ModifyIndex", 0),
    )


def _service(_: ConsulState, fields: Mapping[str, Any], sent: Mapping[str, Any]) -> ServiceRecord:
    kept = {name: value for name, value in sent.items() if name not in _LOST}
    service = definitions.service_record(fields.get("Node", ""), kept)
    return replace(service, modify_index=sent.get("ModifyIndex", 0))


def _check(_: ConsulState, _fields: Mapping[str, Any], sent: Mapping[str, Any]) -> CheckRecord:
    check = definitions.check_record(sent.get("Node", ""), sent)
    return replace(
        check,
        service_name=sent.get("ServiceName", ""),
        service_tags=sent.get("ServiceTags", ()),
        modify_index=sent.get("ModifyIndex", 0),
    )


_READ: dict[str, Callable[[ConsulState, Mapping[str, Any], Mapping[str, Any]], Record]] = {
    "Node": _node,
    "Service": _service,
    "Check": _check,
}
