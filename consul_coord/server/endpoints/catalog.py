"""/v1/catalog/: register and deregister nodes, services and checks, and list them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from consul_coord.server import catalog, gojson
from consul_coord.server.call import Read, Seen
from consul_coord.server.failures import Refusal, StateError
from consul_coord.server.gotext import GoParseError, quote
from consul_coord.server.records import CRITICAL, CheckRecord, NodeRecord, ServiceRecord
from consul_coord.server.store import NODES, SERVICES, fold

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from consul_coord.server.call import Call
    from consul_coord.server.state import ConsulState
    from consul_coord.server.store import Store
    from consul_coord.server.wire import Reply

    Fields = Mapping[str, Callable[[object, str], Any]]

_UUID_LENGTH = 36


def describe_node(node: NodeRecord) -> dict[str, object]:
    """Return a node as the API shows it."""
    return {
        "ID": node.id,
        "Node": node.name,
        "Address": node.address,
        "Datacenter": node.datacenter,
        "TaggedAddresses": None if node.tagged_addresses is None else dict(node.tagged_addresses),
        "Meta": None if node.meta is None else dict(node.meta),
        "CreateIndex": node.create_index,
        "ModifyIndex": node.modify_index,
    }


def describe_service(service: ServiceRecord) -> dict[str, object]:
    """Return a service of a node as the API shows it."""
    return {
        "ID": service.id,
        "Service": service.service,
        "Tags": list(service.tags),
        "Address": service.address,
        "Meta": None if service.meta is None else dict(service.meta),
        "Port": service.port,
        "Weights": {"Passing": 1, "Warning": 1},
        "EnableTagOverride": False,
        "Proxy": {"MeshGateway": {}, "Expose": {}},
        "Connect": {},
        "CreateIndex": service.create_index,
        "ModifyIndex": service.modify_index,
    }


def register(call: Call) -> Reply:
    """Register a node, a service on it and checks."""
    fields = _decode(call, REGISTRATION)
    name = fields.get("Node", "")
    if not name:
        raise StateError("Must provide node")
    if not fields.get("Address") and not fields.get("SkipNodeUpdate"):
        raise StateError("Must provide address if SkipNodeUpdate is not set")
    if (node_id := fields.get("ID", "")) and len(node_id) != _UUID_LENGTH:
        raise StateError("Bad node ID: uuid string is wrong length")
    _check_datacenter(call, fields)
    call.authorizer.require("node", name, "write")
    call.state.register(_registration(call, name, fields), call.now)
    return call.json(value=True)


def deregister(call: Call) -> Reply:
    """Deregister a check, a service or a whole node."""
    fields = _decode(call, DEREGISTRATION)
    name = fields.get("Node", "")
    if not name:
        raise StateError("Must provide node")
    _check_datacenter(call, fields)
    call.authorizer.require("node", name, "write")
    call.state.deregister(
        name, call.now, check_id=fields.get("CheckID", ""), service_id=fields.get("ServiceID", "")
    )
    return call.json(value=True)


def datacenters(call: Call) -> Reply:
    """Return the known datacenters: one."""
    return call.json([call.state.datacenter])


def nodes(call: Call) -> Read:
    """Read all nodes, in order of their names."""

    def look(store: Store) -> Seen:
        shown = [describe_node(node) for node in store.nodes.sorted() if _readable(call, node.name)]
        return Seen(store.index_of(NODES), call.json(shown), ((NODES,),), effective=True)

    return Read(look)


def node(call: Call) -> Read:
    """Read one node with its services; null when there is none."""
    if not (name := call.tail):
        raise Refusal(400, "Missing node name")
    marks = ((NODES, fold(name)), (SERVICES, "node", fold(name)))

    def look(store: Store) -> Seen:
        found = store.nodes.get(fold(name))
        if found is None or not _readable(call, found.name):
            return Seen(0, call.json(None), marks, effective=True)
        services = {
            service.id: describe_service(service) for service in catalog.services_of_node(store, name)
        }
        shown = {"Node": describe_node(found), "Services": services}
        return Seen(store.index_of(NODES, SERVICES), call.json(shown), marks, effective=True)

    return Read(look)


def services(call: Call) -> Read:
    """Read the names of all services, with their tags."""

    def look(store: Store) -> Seen:
        tags: dict[str, set[str]] = {}
        for service in store.services:
            if call.authorizer.may("service", service.service, "read"):
                tags.setdefault(service.service, set()).update(service.tags)
        shown = {name: sorted(tags[name]) for name in sorted(tags)}
        return Seen(store.index_of(SERVICES), call.json(shown), ((SERVICES,),), effective=True)

    return Read(look)


def decode_strictly(call: Call, fields: Fields, of: str) -> dict[str, Any]:
    """Return the fields of a body that must be an object with no others; refuse with 400."""
    try:
        return gojson.read_object(
            gojson.decode(call.request.body), fields, strict=True, struct=of, type_name=f"structs.{of}"
        )
    except GoParseError as error:
        raise Refusal(400, f"Request decode failed: {error}") from None


def service_record(node_name: str, fields: Mapping[str, Any]) -> ServiceRecord:
    """Return a service from its decoded fields."""
    name = fields.get("Service", "")
    return ServiceRecord(
        node_name,
        fields.get("ID") or name,
        name,
        fields.get("Tags", ()),
        fields.get("Address", ""),
        fields.get("Port", 0),
        fields.get("Meta"),
    )


def check_record(node_name: str, fields: Mapping[str, Any]) -> CheckRecord:
    """Return a check from its decoded fields; critical unless they say otherwise."""
    name = fields.get("Name", "")
    record = CheckRecord(node_name, fields.get("CheckID") or name, name, fields.get("Status") or CRITICAL)
    return replace(
        record,
        notes=fields.get("Notes", ""),
        output=fields.get("Output", ""),
        service_id=fields.get("ServiceID", ""),
        type=fields.get("Type", ""),
    )


def refuse_renaming(state: ConsulState, name: str, node_id: str) -> None:
    """Refuse, loudly, to give a node's id to another name: Consul would rename the node."""
    taken = next(
        (n for n in state.store.nodes if node_id and n.id == node_id and fold(n.name) != fold(name)), None
    )
    if taken is not None:
        raise Refusal(501, f"The reference server does not rename nodes: {node_id} is {taken.name}")


def _readable(call: Call, name: str) -> bool:
    return call.authorizer.may("node", name, "read")


def _check_datacenter(call: Call, fields: Mapping[str, Any]) -> None:
    if fields.get("Datacenter", call.state.datacenter) not in ("", call.state.datacenter):
        raise StateError("No path to datacenter")


def _decode(call: Call, fields: Fields) -> dict[str, Any]:
    return decode_strictly(call, fields, "RegisterRequest")


def _registration(call: Call, name: str, fields: Mapping[str, Any]) -> catalog.Registration:
    service = service_record(name, fields["Service"]) if "Service" in fields else None
    if service is not None and not service.service:
        raise StateError("Must provide service name with ID")
    sent = [*((fields["Check"],) if "Check" in fields else ()), *fields.get("Checks", ())]
    checks = tuple(_check(name, check) for check in sent)
    known = call.state.store.nodes.get(fold(name))
    if known is not None and fields.get("SkipNodeUpdate"):
        return catalog.Registration(name, None, service, checks)
    return catalog.Registration(name, _node(call, name, fields), service, checks)


def _node(call: Call, name: str, fields: Mapping[str, Any]) -> NodeRecord:
    node_id = fields.get("ID", "").lower()
    refuse_renaming(call.state, name, node_id)
    return NodeRecord(
        name,
        node_id,
        fields.get("Address", ""),
        call.state.datacenter,
        fields.get("TaggedAddresses"),
        fields.get("NodeMeta"),
    )


def _check(node_name: str, fields: Mapping[str, Any]) -> CheckRecord:
    given = fields.get("Node", "")
    if given and fold(given) != fold(node_name):
        message = f"check node {quote(given)} does not match node {quote(node_name)}"
        raise StateError(message)
    return check_record(node_name, fields)


SERVICE: Fields = {
    "ID": gojson.text,
    "Service": gojson.text,
    "Tags": gojson.texts,
    "Address": gojson.text,
    "Port": gojson.int_,
    "Meta": gojson.text_map,
    "Weights": gojson.anything,
    "EnableTagOverride": gojson.boolean,
    "Namespace": gojson.text,
    "TaggedAddresses": gojson.anything,
    "Proxy": gojson.anything,
    "Connect": gojson.anything,
    "CreateIndex": gojson.anything,
    "ModifyIndex": gojson.anything,
}

CHECK: Fields = {
    "Node": gojson.text,
    "CheckID": gojson.text,
    "Name": gojson.text,
    "Status": gojson.text,
    "Notes": gojson.text,
    "Output": gojson.text,
    "ServiceID": gojson.text,
    "ServiceName": gojson.text,
    "ServiceTags": gojson.texts,
    "Type": gojson.text,
    "Definition": gojson.anything,
    "Namespace": gojson.text,
    "CreateIndex": gojson.anything,
    "ModifyIndex": gojson.anything,
}

_HEALTH_CHECK = gojson.object_of(CHECK, struct="HealthCheck", type_name="structs.HealthCheck")

REGISTRATION: Fields = {
    "Datacenter": gojson.text,
    "ID": gojson.text,
    "Node": gojson.text,
    "Address": gojson.text,
    "TaggedAddresses": gojson.text_map,
    "NodeMeta": gojson.text_map,
    "Service": gojson.object_of(SERVICE, struct="NodeService", type_name="structs.NodeService"),
    "Check": _HEALTH_CHECK,
    "Checks": gojson.list_of(_HEALTH_CHECK, "structs.HealthChecks"),
    "SkipNodeUpdate": gojson.boolean,
}

DEREGISTRATION: Fields = {
    "Datacenter": gojson.text,
    "Node": gojson.text,
    "Address": gojson.text,
    "CheckID": gojson.text,
    "ServiceID": gojson.text,
    "Namespace": gojson.text,
}
