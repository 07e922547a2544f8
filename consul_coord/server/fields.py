"""The fields of the catalog's rows, as far as a filter may ask for them.

A field of a kind has the operators of that kind and, where it is made of further fields, those. ``*`` stands
for any key of a map. Fields that Consul keeps from filters (indexes, a check's definition, a proxy's
free configuration) are not listed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["text", "int", "bool", "texts", "map", "list", "struct"]

_EQUALITY: Final = ("Equal", "Not Equal")
_EMPTINESS: Final = ("Is Empty", "Is Not Empty")
_MEMBERSHIP: Final = ("In", "Not In")
_OPERATORS: Final[dict[Kind, tuple[str, ...]]] = {
    "text": (*_EQUALITY, *_MEMBERSHIP, "Matches", "Not Matches"),
    "int": _EQUALITY,
    "bool": _EQUALITY,
    "texts": (*_MEMBERSHIP, *_EMPTINESS),
    "map": (*_MEMBERSHIP, *_EMPTINESS),
    "list": _EMPTINESS,
    "struct": (),
}
_ZEROS: Final[dict[Kind, Any]] = {"text": "", "int": 0, "bool": False}


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its kind, and what it is made of."""

    kind: Kind
    inside: Mapping[str, Field] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def operators(self) -> tuple[str, ...]:
        """Return the operators that suit the field."""
        return _OPERATORS[self.kind]

    @property
    def zero(self) -> object:
        """Return the value of a field that is not shown because it is empty."""
        return _ZEROS.get(self.kind)


_TEXT: Final = Field("text")
_INT: Final = Field("int")
_BOOL: Final = Field("bool")
_TEXTS: Final = Field("texts")


def _texts(*names: str) -> dict[str, Field]:
    return dict.fromkeys(names, _TEXT)


def _map_of(value: Field) -> Field:
    return Field("map", {"*": value})


_LABELS: Final = _map_of(_TEXT)
_ADDRESSES: Final = _map_of(Field("struct", {"Address": _TEXT, "Port": _INT}))
_WEIGHTS: Final = Field("struct", {"Passing": _INT, "Warning": _INT})
_MESH_GATEWAY: Final = Field("struct", {"Mode": _TEXT})
_CONNECT: Final = Field("struct", {"Native": _BOOL})
_UPSTREAM: Final = {
    **_texts("DestinationType", "DestinationNamespace", "DestinationName", "Datacenter", "LocalBindAddress"),
    "LocalBindPort": _INT,
    "MeshGateway": _MESH_GATEWAY,
}
_EXPOSED_PATH: Final = {
    **_texts("Path", "Protocol"),
    "ListenerPort": _INT,
    "LocalPathPort": _INT,
    "ParsedFromCheck": _BOOL,
}
_EXPOSE: Final = Field("struct", {"Checks": _BOOL, "Paths": Field("list", _EXPOSED_PATH)})
_PROXY: Final = Field(
    "struct",
    {
        **_texts("DestinationServiceName", "DestinationServiceID", "LocalServiceAddress"),
        "LocalServicePort": _INT,
        "Upstreams": Field("list", _UPSTREAM),
        "MeshGateway": _MESH_GATEWAY,
        "Expose": _EXPOSE,
    },
)

NODE: Final[Mapping[str, Field]] = {
    **_texts("ID", "Node", "Address", "Datacenter"),
    "TaggedAddresses": _LABELS,
    "Meta": _LABELS,
}
SERVICE: Final[Mapping[str, Field]] = {
    **_texts("Kind", "ID", "Service", "Address"),
    "Tags": _TEXTS,
    "TaggedAddresses": _ADDRESSES,
    "Meta": _LABELS,
    "Port": _INT,
    "Weights": _WEIGHTS,
    "EnableTagOverride": _BOOL,
    "Proxy": _PROXY,
    "Connect": _CONNECT,
}
SERVICE_OF_NODE: Final[Mapping[str, Field]] = {
    **_texts("ID", "Node", "Address", "Datacenter"),
    "TaggedAddresses": _LABELS,
    "NodeMeta": _LABELS,
    **{"ServiceName" if name == "Service" else f"Service{name}": each for name, each in SERVICE.items()},
}
CHECK: Final[Mapping[str, Field]] = {
    **_texts("Node", "CheckID", "Name", "Status", "Notes", "Output", "ServiceID", "ServiceName", "Type"),
    "ServiceTags": _TEXTS,
}
HEALTHY_SERVICE: Final[Mapping[str, Field]] = {
    "Node": Field("struct", NODE),
    "Service": Field("struct", SERVICE),
    "Checks": Field("list", CHECK),
}
