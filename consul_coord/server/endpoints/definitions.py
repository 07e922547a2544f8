"""Definitions of services and checks: how the catalog, transactions and the agent read them.

Rules
- A field that Consul has is read, kept and shown; one that it does not have is refused, as it refuses it. The
  agent takes further spellings of some names (``script_args``).
- The shown part of a proxy and of a check's definition is made when it is read, and kept as JSON text. It
  leaves out empty fields, as Consul does.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from consul_coord.server import gojson, services
from consul_coord.server.failures import Refusal
from consul_coord.server.gotext import GoParseError, format_duration, quote
from consul_coord.server.records import CRITICAL, CheckRecord, ServiceRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Fields = Mapping[str, Callable[[object, str], Any]]

SIDECARS: Final = "The reference server registers no sidecar proxies: use a Consul agent for it"
NO_NAMESPACES: Final = " - Namespaces are a Consul Enterprise feature"

_DEFAULT_WEIGHTS: Final = (1, 1)


# What is read


def _named(type_name: str) -> gojson.Reader:
    return gojson.named(type_name, gojson.text)


def _mapped(read: gojson.Reader, type_name: str) -> gojson.Reader:
    def reader(value: object, where: str) -> tuple[tuple[str, str, int], ...]:
        members = gojson.members(value, where, type_name)
        found = ((name, read(members[name], where)) for name in sorted(members))
        return tuple((name, each.get("Address", ""), each.get("Port", 0)) for name, each in found)

    return reader


def _no_sidecar(value: object, _where: str) -> None:
    if value is not None:
        raise Refusal(501, SIDECARS)


_ADDRESS: Final = gojson.ObjectReader(
    {"Address": gojson.text, "Port": gojson.int_}, "ServiceAddress", "structs.ServiceAddress", flat=True
)
ADDRESSES: Final = _mapped(_ADDRESS, "map[string]structs.ServiceAddress")

_WEIGHTS: Final = gojson.ObjectReader(
    {"Passing": gojson.int_, "Warning": gojson.int_}, "Weights", "structs.Weights"
)
_GATEWAY: Final = gojson.ObjectReader(
    {"Mode": gojson.text}, "MeshGatewayConfig", "structs.MeshGatewayConfig", flat=True
)
_UPSTREAM: Final = gojson.ObjectReader(
    {
        "DestinationType": gojson.text,
        "DestinationNamespace": gojson.text,
        "DestinationName": gojson.text,
        "Datacenter": gojson.text,
        "LocalBindAddress": gojson.text,
        "LocalBindPort": gojson.int_,
        "Config": gojson.plain,
        "MeshGateway": _GATEWAY,
    },
    "Upstream",
    "structs.Upstream",
    flat=True,
    spelled={
        "destination_type": "DestinationType",
        "destination_namespace": "DestinationNamespace",
        "destination_name": "DestinationName",
        "local_bind_address": "LocalBindAddress",
        "local_bind_port": "LocalBindPort",
    },
)
_EXPOSED: Final = gojson.ObjectReader(
    {
        "ListenerPort": gojson.int_,
        "Path": gojson.text,
        "LocalPathPort": gojson.int_,
        "Protocol": gojson.text,
        "ParsedFromCheck": gojson.boolean,
    },
    "ExposePath",
    "structs.ExposePath",
    flat=True,
    spelled={"listener_port": "ListenerPort", "local_path_port": "LocalPathPort"},
)
_EXPOSE: Final = gojson.ObjectReader(
    {"Checks": gojson.boolean, "Paths": gojson.list_of(_EXPOSED, "[]structs.ExposePath")},
    "ExposeConfig",
    "structs.ExposeConfig",
    flat=True,
)
_PROXY_FIELDS: Final[Fields] = {
    "DestinationServiceName": gojson.text,
    "DestinationServiceID": gojson.text,
    "LocalServiceAddress": gojson.text,
    "LocalServicePort": gojson.int_,
    "Config": gojson.plain,
    "Upstreams": gojson.list_of(_UPSTREAM, "structs.Upstreams"),
    "MeshGateway": _GATEWAY,
    "Expose": _EXPOSE,
}
PROXY: Final = gojson.ObjectReader(
    _PROXY_FIELDS,
    "ConnectProxyConfig",
    "structs.ConnectProxyConfig",
    flat=True,
    spelled={
        "destination_service_name": "DestinationServiceName",
        "destination_service_id": "DestinationServiceID",
        "local_service_address": "LocalServiceAddress",
        "local_service_port": "LocalServicePort",
    },
)
CONNECT: Final = gojson.ObjectReader(
    {"Native": gojson.boolean, "SidecarService": _no_sidecar},
    "ServiceConnect",
    "structs.ServiceConnect",
    strict=False,
    flat=True,
    spelled={"sidecar_service": "SidecarService"},
)
_HTTP_DEFINITION: Final[Fields] = {
    "HTTP": gojson.text,
    "TLSSkipVerify": gojson.boolean,
    "Header": gojson.lists_of_texts,
    "Method": gojson.text,
    "Body": gojson.text,
    "TCP": gojson.text,
}
_DURATIONS: Final = ("Interval", "Timeout", "DeregisterCriticalServiceAfter")
DEFINITION: Final = gojson.ObjectReader(
    {
        **dict.fromkeys(_DURATIONS, gojson.duration),
        "OutputMaxSize": gojson.named("uint", gojson.uint64),
        **_HTTP_DEFINITION,
        "ScriptArgs": gojson.texts,
        "DockerContainerID": gojson.text,
        "Shell": gojson.text,
        "GRPC": gojson.text,
        "GRPCUseTLS": gojson.boolean,
        "AliasNode": gojson.text,
        "AliasService": gojson.text,
        "TTL": gojson.duration,
    },
    "HealthCheckDefinition",
    "structs.HealthCheckDefinition",
    strict=False,
    flat=True,
)
DEFINITION_IN_TXN: Final = gojson.ObjectReader(
    {**dict.fromkeys(_DURATIONS, gojson.duration), **_HTTP_DEFINITION},
    "HealthCheckDefinition",
    "api.HealthCheckDefinition",
    strict=False,
    flat=True,
    spelled={f"{name}Duration": name for name in _DURATIONS},
)
"""The fields of a definition that arrive there; the others are lost on Consul's way to the catalog."""

_SHOWN_FIRST: Final = ("Interval", "OutputMaxSize", "Timeout", "DeregisterCriticalServiceAfter")

SERVICE: Final[Fields] = {
    "Kind": _named("structs.ServiceKind"),
    "ID": gojson.text,
    "Service": gojson.text,
    "Tags": gojson.texts,
    "Address": gojson.text,
    "TaggedAddresses": ADDRESSES,
    "Meta": gojson.text_map,
    "Port": gojson.int_,
    "Weights": _WEIGHTS,
    "EnableTagOverride": gojson.boolean,
    "Proxy": PROXY,
    "Connect": CONNECT,
    "CreateIndex": gojson.uint64,
    "ModifyIndex": gojson.uint64,
}
SERVICE_IN_TXN: Final[Fields] = {
    **SERVICE,
    "Weights": gojson.ObjectReader(_WEIGHTS.fields, "AgentWeights", "api.AgentWeights"),
    "Proxy": gojson.ObjectReader(
        _PROXY_FIELDS, "AgentServiceConnectProxyConfig", "api.AgentServiceConnectProxyConfig"
    ),
    "Connect": gojson.ObjectReader(
        {"Native": gojson.boolean, "SidecarService": gojson.anything},
        "AgentServiceConnect",
        "api.AgentServiceConnect",
    ),
    "ContentHash": gojson.text,
    "Namespace": gojson.text,
}
CHECK: Final[Fields] = {
    "Node": gojson.text,
    "CheckID": _named("types.CheckID"),
    "Name": gojson.text,
    "Status": gojson.text,
    "Notes": gojson.text,
    "Output": gojson.text,
    "ServiceID": gojson.text,
    "ServiceName": gojson.text,
    "ServiceTags": gojson.texts,
    "Type": gojson.text,
    "Definition": DEFINITION,
    "CreateIndex": gojson.uint64,
    "ModifyIndex": gojson.uint64,
}
CHECK_IN_TXN: Final[Fields] = {**CHECK, "Definition": DEFINITION_IN_TXN, "Namespace": gojson.text}


# What becomes of it


def service_record(node: str, fields: Mapping[str, Any]) -> ServiceRecord:
    """Return a service from its decoded fields; an id that is not given is its name."""
    name = fields.get("Service", "")
    return ServiceRecord(
        node,
        fields.get("ID") or name,
        name,
        fields.get("Tags", ()),
        fields.get("Address", ""),
        fields.get("Port", 0),
        fields.get("Meta"),
        fields.get("Kind", ""),
        fields.get("TaggedAddresses", ()),
        weights(fields),
        fields.get("EnableTagOverride", False),
        shown_proxy(fields.get("Proxy", {})),
        fields.get("Connect", {}).get("Native", False),
    )


def check_record(node: str, fields: Mapping[str, Any]) -> CheckRecord:
    """Return a check from its decoded fields; critical unless they say otherwise."""
    name = fields.get("Name", "")
    return CheckRecord(
        node,
        fields.get("CheckID") or name,
        name,
        fields.get("Status") or CRITICAL,
        fields.get("Notes", ""),
        fields.get("Output", ""),
        fields.get("ServiceID", ""),
        type=fields.get("Type", ""),
        definition=shown_definition(fields.get("Definition", {})),
    )


_TYPES: Final = (
    ("GRPC", "grpc", True),
    ("HTTP", "http", True),
    ("TTL", "ttl", False),
    ("TCP", "tcp", True),
    ("AliasNode", "alias", False),
    ("AliasService", "alias", False),
    ("ScriptArgs", "script", True),
)
"""The fields that make a check one of a type, and whether it needs an interval for it."""


def type_of(definition: Mapping[str, Any]) -> str:
    """Return the type of the check that a definition describes, empty for none."""
    timed = definition.get("Interval", 0) > 0
    fitting = (name for field, name, polled in _TYPES if definition.get(field) and (timed or not polled))
    found = next(fitting, "")
    return "docker" if found == "script" and definition.get("DockerContainerID") else found


def weights(fields: Mapping[str, Any]) -> tuple[int, int]:
    """Return a service's weights; those that can't be count as not given."""
    given = fields.get("Weights", {})
    found = (given.get("Passing", 0), given.get("Warning", 0))
    return _DEFAULT_WEIGHTS if services.problem_with_weights(found) else found


def shown_proxy(fields: Mapping[str, Any]) -> str:
    """Return a proxy's configuration as it is shown, empty when nothing of it is given."""
    filled = {name: fields[name] for name in _PROXY_FIELDS if fields.get(name)}
    if "Upstreams" in filled:
        filled["Upstreams"] = [_shown_upstream(each) for each in filled["Upstreams"]]
    expose = {name: value for name, value in filled.get("Expose", {}).items() if value}
    if "Paths" in expose:
        expose["Paths"] = [{**_EXPOSED_DEFAULTS, **each} for each in expose["Paths"]]
    gateway = {name: value for name, value in filled.get("MeshGateway", {}).items() if value}
    if not filled:
        return ""
    return json.dumps({**filled, "MeshGateway": gateway, "Expose": expose})


_EXPOSED_DEFAULTS: Final[dict[str, Any]] = {
    "ListenerPort": 0,
    "Path": "",
    "LocalPathPort": 0,
    "Protocol": "",
    "ParsedFromCheck": False,
}


def _shown_upstream(fields: Mapping[str, Any]) -> dict[str, Any]:
    always = {
        "DestinationType": "",
        "DestinationName": "",
        "Datacenter": "",
        "LocalBindPort": 0,
        "Config": None,
    }
    filled = {name: value for name, value in fields.items() if value or name in always}
    shown = {**always, **filled, "MeshGateway": filled.get("MeshGateway", {})}
    return {name: shown[name] for name in _UPSTREAM.fields if name in shown}


def shown_definition(fields: Mapping[str, Any]) -> str:
    """Return a check's definition as it is shown, empty when nothing of it is given."""
    filled = {name: value for name, value in fields.items() if value}
    order = (*_SHOWN_FIRST, *(name for name in DEFINITION.fields if name not in _SHOWN_FIRST))
    shown = {name: filled[name] for name in order if name in filled}
    shown |= {name: format_duration(shown[name]) for name in _DURATIONS if name in shown}
    return json.dumps(shown) if shown else ""


def unknown_namespace(error: GoParseError) -> str:
    """Return the text of a decoding error, with what is added to it when a namespace was named."""
    text = str(error)
    return text + NO_NAMESPACES if text == f"json: unknown field {quote('Namespace')}" else text
