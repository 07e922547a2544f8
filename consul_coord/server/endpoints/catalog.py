"""/v1/catalog/: register and deregister nodes, services and checks, and list them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from consul_coord.server import catalog, fields, gojson
from consul_coord.server.call import Read, Seen
from consul_coord.server.endpoints import definitions, selection
from consul_coord.server.endpoints.selection import node_of
from consul_coord.server.failures import Refusal, StateError
from consul_coord.server.gotext import GoParseError
from consul_coord.server.records import NodeRecord
from consul_coord.server.services import is_unspecified, problem_with_proxy
from consul_coord.server.store import NODES, SERVICES, fold, pair

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from consul_coord.server.call import Call
    from consul_coord.server.dialects import Dialect
    from consul_coord.server.records import CheckRecord, ServiceRecord
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
        **({"Kind": service.kind} if service.kind else {}),
        "ID": service.id,
        "Service": service.service,
        "Tags": list(service.tags),
        "Address": service.address,
        **_tagged("TaggedAddresses", service),
        "Meta": None if service.meta is None else dict(service.meta),
        "Port": service.port,
        "Weights": describe_weights(service),
        "EnableTagOverride": service.enable_tag_override,
        "Proxy": describe_proxy(service),
        "Connect": describe_connect(service),
        "CreateIndex": service.create_index,
        "ModifyIndex": service.modify_index,
    }


def describe_weights(service: ServiceRecord) -> dict[str, int]:
    """Return a service's weights as the API shows them."""
    return dict(zip(("Passing", "Warning"), service.weights, strict=True))


def describe_addresses(service: ServiceRecord) -> dict[str, object]:
    """Return a service's tagged addresses as the API shows them."""
    return {name: {"Address": address, "Port": port} for name, address, port in service.tagged_addresses}


def describe_proxy(service: ServiceRecord) -> dict[str, Any]:
    """Return what a service says of itself as a proxy, as the API shows it."""
    shown: dict[str, Any] = json.loads(service.proxy or "{}")
    return shown or {"MeshGateway": {}, "Expose": {}}


def describe_connect(service: ServiceRecord) -> dict[str, object]:
    """Return what a service says of Connect, as the API shows it."""
    return {"Native": True} if service.native else {}


def _describe_instance(node: NodeRecord, service: ServiceRecord) -> dict[str, object]:
    shown = describe_node(node)
    return {
        **{name: shown[name] for name in ("ID", "Node", "Address", "Datacenter", "TaggedAddresses")},
        "NodeMeta": shown["Meta"],
        "ServiceKind": service.kind,
        "ServiceID": service.id,
        "ServiceName": service.service,
        "ServiceTags": list(service.tags),
        "ServiceAddress": service.address,
        **_tagged("ServiceTaggedAddresses", service),
        "ServiceWeights": describe_weights(service),
        "ServiceMeta": dict(service.meta or ()),
        "ServicePort": service.port,
        "ServiceEnableTagOverride": service.enable_tag_override,
        "ServiceProxy": describe_proxy(service),
        "ServiceConnect": describe_connect(service),
        "CreateIndex": service.create_index,
        "ModifyIndex": service.modify_index,
    }


def _tagged(name: str, service: ServiceRecord) -> dict[str, object]:
    return {name: describe_addresses(service)} if service.tagged_addresses else {}


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
    registration = _registration(call, name, fields)
    _require_registration(call, registration)
    call.state.register(registration, call.now)
    return call.json(value=True)


def deregister(call: Call) -> Reply:
    """Deregister a check, a service or a whole node."""
    fields = _decode(call, DEREGISTRATION)
    name = fields.get("Node", "")
    if not name:
        raise StateError("Must provide node")
    _check_datacenter(call, fields)
    check, service = fields.get("CheckID", ""), fields.get("ServiceID", "")
    _require_deregistration(call, name, check, service)
    call.state.deregister(name, call.now, check_id=check, service_id=service)
    return call.json(value=True)


def _require_registration(call: Call, what: catalog.Registration) -> None:
    """Refuse a token that may not write the node, if that changes, nor the service or the checks."""
    store, may = call.state.store, call.authorizer
    known = store.nodes.get(fold(what.node_name))
    if known is None or (what.node is not None and _changes(what.node, known)):
        may.require("node", what.node_name, "write")
    if what.service is not None:
        may.require("service", what.service.service, "write")
        before = store.services.get(pair(what.node_name, what.service.id))
        if before is not None:
            may.require("service", before.service, "write")
    for check in what.checks:
        owner = store.services.get(pair(what.node_name, check.service_id))
        if check.service_id and owner is not None:
            may.require("service", owner.service, "write")
        elif not check.service_id or what.service is None or what.service.id != check.service_id:
            may.require("node", what.node_name, "write")


def _changes(node: NodeRecord, known: NodeRecord) -> bool:
    return replace(node, create_index=known.create_index, modify_index=known.modify_index) != known


def _require_deregistration(call: Call, node: str, check_id: str, service_id: str) -> None:
    """Refuse a token that may write neither the node nor what is to go from it."""
    store, may = call.state.store, call.authorizer
    if may.may("node", node, "write"):
        return
    if service_id:
        service = store.services.get(pair(node, service_id))
        if service is None:
            message = f"Unknown service '{service_id}'"
            raise StateError(message)
        may.require("service", service.service, "write")
        return
    check = store.checks.get(pair(node, check_id)) if check_id else None
    if check_id and check is None:
        message = f"Unknown check '{check_id}'"
        raise StateError(message)
    if check is not None and check.service_name:
        may.require("service", check.service_name, "write")
    else:
        may.require("node", node, "write")


def datacenters(call: Call) -> Reply:
    """Return the known datacenters: one."""
    return call.json([call.state.datacenter])


def nodes(call: Call) -> Read:
    """Read all nodes, in order of their names."""
    fits, chosen = selection.by_node_meta(call), selection.by_filter(call, fields.NODE)

    def look(store: Store) -> Seen:
        found = [node for node in store.nodes.sorted() if fits(node) and _readable(call, node.name)]
        shown = chosen(
            [describe_node(node) for node in selection.nearest(call, found, lambda node: node.name)]
        )
        return Seen(store.index_of(NODES), call.json(shown), ((NODES,),), effective=True)

    return Read(look)


def node(call: Call) -> Read:
    """Read one node with its services, by their ids; null when there is none."""
    return _node(call, None, lambda services: {str(each["ID"]): each for each in services})


def node_services(call: Call) -> Read:
    """Read one node with the list of its services."""
    return _node(
        call,
        {"Node": None, "Services": None},
        lambda services: services if services or call.params.get("filter") else None,
    )


def _node(call: Call, none: object, arranged: Callable[[list[dict[str, object]]], object]) -> Read:
    if not (name := call.tail):
        raise Refusal(400, "Missing node name")
    chosen = selection.by_filter(call, fields.SERVICE)
    marks = ((NODES, fold(name)), (SERVICES, "node", fold(name)))

    def look(store: Store) -> Seen:
        chosen([])  # so that a bad filter is refused whatever is found
        found = store.nodes.get(fold(name))
        if found is None or not _readable(call, found.name):
            return Seen(0, call.json(none), marks, effective=True)
        services = [
            describe_service(service)
            for service in catalog.services_of_node(store, name)
            if call.authorizer.may("service", service.service, "read")
        ]
        shown = {"Node": describe_node(found), "Services": arranged(chosen(services))}
        return Seen(store.index_of(NODES, SERVICES), call.json(shown), marks, effective=True)

    return Read(look)


def services(call: Call) -> Read:
    """Read the names of all services, with their tags."""
    fits = selection.by_node_meta(call)

    def look(store: Store) -> Seen:
        tags: dict[str, set[str]] = {}
        for service in store.services.sorted():
            if call.authorizer.may("service", service.service, "read") and fits(node_of(store, service)):
                tags.setdefault(service.service, set()).update(service.tags)
        shown = {name: sorted(tags[name]) for name in sorted(tags)}
        tables = (SERVICES, NODES) if "node-meta" in call.params else (SERVICES,)
        return Seen(store.index_of(*tables), call.json(shown), tuple((t,) for t in tables), effective=True)

    return Read(look)


def service(call: Call) -> Read:
    """Read the instances of a service, with their nodes."""
    return _instances(call, connect=False)


def connect(call: Call) -> Read:
    """Read what can be reached of a service through Connect: its proxies, and native instances."""
    return _instances(call, connect=True)


def _instances(call: Call, *, connect: bool) -> Read:
    name = selection.service_name(call)
    fits = selection.by_instance(call)
    chosen = selection.by_filter(call, fields.SERVICE_OF_NODE)

    def look(store: Store) -> Seen:
        of_name = selection.instances(store, name, connect=connect)
        found = [each for each in of_name if fits(*each) and _may_see(call, *each)]
        ordered = selection.nearest(call, found, lambda each: each[0].name)
        shown = chosen([_describe_instance(*each) for each in ordered])
        index = selection.index_of(store, name, of_name, NODES, SERVICES, connect=connect)
        marks = selection.marks_of(name, of_name, connect=connect, checks=False)
        return Seen(index, call.json(shown), marks, effective=True)

    return Read(look)


def _may_see(call: Call, node: NodeRecord, service: ServiceRecord) -> bool:
    return _readable(call, node.name) and call.authorizer.may("service", service.service, "read")


def decode_strictly(
    call: Call, fields: Fields, of: str, *, spelled: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the fields of a body that must be an object with no others; refuse with 400."""
    reader = gojson.ObjectReader(fields, of, f"structs.{of}", spelled=spelled)
    try:
        return reader(gojson.decode(call.request.body), "value")
    except GoParseError as error:
        raise Refusal(400, f"Request decode failed: {error}{_about_namespaces(call, error)}") from None


def _about_namespaces(call: Call, error: GoParseError) -> str:
    """Return what Consul's catalog adds when a namespace was named."""
    of_catalog = call.request.path.startswith("/v1/catalog/")
    return definitions.NO_NAMESPACES if of_catalog and 'unknown field "Namespace"' in str(error) else ""


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
    service = _service(name, fields["Service"]) if "Service" in fields else None
    sent = [*((fields["Check"],) if "Check" in fields else ()), *fields.get("Checks", ())]
    checks = tuple(_check(call.state.config.dialect, name, check) for check in sent)
    known = call.state.store.nodes.get(fold(name))
    if known is not None and fields.get("SkipNodeUpdate"):
        return catalog.Registration(name, None, service, checks)
    return catalog.Registration(name, _node_record(call, name, fields), service, checks)


def _service(node: str, fields: Mapping[str, Any]) -> ServiceRecord:
    service = definitions.service_record(node, fields)
    if why := problem_with_proxy(service):
        raise StateError(why)
    if not service.service:
        raise StateError("Must provide service name with ID")
    if is_unspecified(service.address):
        raise StateError("Invalid service address")
    return service


def _node_record(call: Call, name: str, fields: Mapping[str, Any]) -> NodeRecord:
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


def _check(dialect: Dialect, node_name: str, fields: Mapping[str, Any]) -> CheckRecord:
    given = fields.get("Node", "")
    if given and fold(given) != fold(node_name):
        known = dialect.foreign_check
        message = known.format(given, node_name, fields.get("CheckID") or fields.get("Name", ""))
        raise StateError(message)
    record = definitions.check_record(node_name, fields)
    return replace(record, type=record.type or definitions.type_of(fields.get("Definition", {})))


_HEALTH_CHECK = gojson.object_of(definitions.CHECK, struct="HealthCheck", type_name="structs.HealthCheck")

REGISTRATION: Fields = {
    "Datacenter": gojson.text,
    "ID": gojson.text,
    "Node": gojson.text,
    "Address": gojson.text,
    "TaggedAddresses": gojson.text_map,
    "NodeMeta": gojson.text_map,
    "Service": gojson.object_of(definitions.SERVICE, struct="NodeService", type_name="structs.NodeService"),
    "Check": _HEALTH_CHECK,
    "Checks": gojson.list_of(_HEALTH_CHECK, "structs.HealthChecks"),
    "SkipNodeUpdate": gojson.boolean,
    "Token": gojson.text,
    "CreateIndex": gojson.uint64,
    "ModifyIndex": gojson.uint64,
}

DEREGISTRATION: Fields = {
    "Datacenter": gojson.text,
    "Node": gojson.text,
    "Address": gojson.text,
    "CheckID": gojson.text,
    "ServiceID": gojson.text,
    "Token": gojson.text,
}
