"""Nodes and what is registered on them: ``/v1/catalog``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord import models
from consul_coord.http.endpoints import _call, _json, _keys
from consul_coord.http.messages import Retry
from consul_coord.models._validate import instance, texts_or_none

if TYPE_CHECKING:
    from consul_coord.http.messages import Call
    from consul_coord.models import (
        CatalogNode,
        HealthCheck,
        Node,
        ReadOptions,
        Registration,
        Result,
        Service,
        ServiceInstance,
        WriteOptions,
    )

_ROOT = "/v1/catalog/"
_LARGEST_PORT = 65_535


def read_node(what: str, value: object) -> Node:
    """Read a node as the catalog and health show it."""
    fields = _json.Fields(what, value)
    return models.Node(
        fields.get("Node", _json.text),
        address=fields.get("Address", _json.text, ""),
        id=fields.get("ID", _json.text, ""),
        datacenter=fields.get("Datacenter", _json.text, ""),
        meta=fields.get("Meta", _json.text_map, {}),
        create_index=fields.get("CreateIndex", _json.integer, 0),
        modify_index=fields.get("ModifyIndex", _json.integer, 0),
    )


_nodes = _json.list_of(read_node)


def _port(what: str, value: object) -> int:
    return _json.integer(what, value, maximum=_LARGEST_PORT)


def read_service(what: str, value: object) -> Service:
    """Read a service of a node as the catalog and health show it."""
    fields = _json.Fields(what, value)
    return models.Service(
        fields.get("Service", _json.text),
        id=fields.get("ID", _json.text, ""),
        address=fields.get("Address", _json.text, ""),
        port=fields.get("Port", _port, 0),
        tags=fields.get("Tags", _json.texts, ()),
        meta=fields.get("Meta", _json.text_map, {}),
    )


def _services(what: str, value: object) -> tuple[Service, ...]:
    return tuple(_json.mapping(what, value, read_service).values())


def _catalog_node(what: str, value: object) -> CatalogNode | None:
    if value is None:
        return None
    fields = _json.Fields(what, value)
    return models.CatalogNode(fields.get("Node", read_node), services=fields.get("Services", _services, ()))


def nodes(*, options: ReadOptions | None = None) -> Call[Result[tuple[Node, ...]]]:
    """Read all nodes that the token may read."""
    return _call.get(_ROOT + "nodes", options, _nodes, needed=("node:read on the nodes",))


def datacenters() -> Call[tuple[str, ...]]:
    """Read the names of the datacenters that the agent knows. Needs no permission."""
    return _call.call(_call.read_request(_ROOT + "datacenters", None), _call.answer(_json.texts))


def node(name: str, *, options: ReadOptions | None = None) -> Call[Result[CatalogNode | None]]:
    """Read a node with its services; None when it is not registered."""
    path = _keys.path(_ROOT + "node/", _keys.check_id("node", name))
    return _call.get(path, options, _catalog_node, needed=(f'node:read on node "{name}"',))


def service(name: str, *, options: ReadOptions | None = None) -> Call[Result[tuple[ServiceInstance, ...]]]:
    """Read the instances of a service, with their nodes; none when nobody registered it."""
    path = _keys.path(_ROOT + "service/", _keys.check_id("service", name))
    return _call.get(
        path, options, _instances, needed=(f'service:read on "{name}"', "node:read on the nodes")
    )


def _instance(what: str, value: object) -> ServiceInstance:
    fields = _json.Fields(what, value)
    node = models.Node(
        fields.get("Node", _json.text),
        address=fields.get("Address", _json.text, ""),
        id=fields.get("ID", _json.text, ""),
        datacenter=fields.get("Datacenter", _json.text, ""),
        meta=fields.get("NodeMeta", _json.text_map, {}),
    )
    service = models.Service(
        fields.get("ServiceName", _json.text),
        id=fields.get("ServiceID", _json.text, ""),
        address=fields.get("ServiceAddress", _json.text, ""),
        port=fields.get("ServicePort", _port, 0),
        tags=fields.get("ServiceTags", _json.texts, ()),
        meta=fields.get("ServiceMeta", _json.text_map, {}),
    )
    return models.ServiceInstance(node, service)


_instances = _json.list_of(_instance)


def register(registration: Registration, *, options: WriteOptions | None = None) -> Call[bool]:
    """Enter a node, with a service and checks if given, or overwrite what is there."""
    instance("registration", registration, models.Registration)
    service = registration.service
    wanted: dict[str, object] = {
        "Node": registration.node,
        "Address": registration.address,
        "ID": registration.node_id,
        "NodeMeta": dict(registration.node_meta) or None,
        "Service": None if service is None else encode_service(service, "Service"),
        "Checks": [_encode_check(registration.node, check) for check in registration.checks] or None,
        "SkipNodeUpdate": registration.skip_node_update or None,
    }
    services = () if service is None else (f'service:write on "{service.name}"',)
    return _write(
        _ROOT + "register", wanted, options, needed=(f'node:write on node "{registration.node}"', *services)
    )


def encode_service(service: Service, name: str) -> dict[str, object]:
    """Return a service as it is registered, with its name in the field ``name``."""
    return _json.members_set(
        {
            "ID": service.id or None,
            name: service.name,
            "Address": service.address or None,
            "Port": service.port or None,
            "Tags": list(service.tags) or None,
            "Meta": dict(service.meta) or None,
        }
    )


def _encode_check(node: str, check: HealthCheck) -> dict[str, str]:
    wanted = {
        "Node": check.node or node,
        "CheckID": check.id,
        "Name": check.name or check.id,
        "Status": check.status,
        "Notes": check.notes,
        "Output": check.output,
        "ServiceID": check.service_id,
    }
    return {name: value for name, value in wanted.items() if value}


def deregister(
    node: str,
    *,
    check_id: str | None = None,
    service_id: str | None = None,
    options: WriteOptions | None = None,
) -> Call[bool]:
    """Remove one check, one service with its checks, or the whole node.

    Returns true also if it does not exist.

    Sessions end with their node, and with any check that they name.
    """
    texts_or_none(check_id=check_id, service_id=service_id)
    wanted: dict[str, object] = {
        "Node": _keys.check_id("node", node),
        "CheckID": check_id,
        "ServiceID": service_id,
    }
    return _write(_ROOT + "deregister", wanted, options, needed=(f'node:write on node "{node}"',))


def _write(
    path: str, wanted: dict[str, object], options: WriteOptions | None, *, needed: tuple[str, ...]
) -> Call[bool]:
    # Consul reads the datacenter from here, and not from the query.
    wanted = {"Datacenter": None if options is None else options.datacenter, **wanted}
    body = _json.dump_set(wanted)
    return _call.write("PUT", path, options, _call.boolean, body=body, retry=Retry.IDEMPOTENT, needed=needed)
