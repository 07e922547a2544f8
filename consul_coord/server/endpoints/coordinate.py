"""/v1/coordinate/: where nodes are in the network. One agent is at its own place, at the origin.

Rules
- Only the agent's own node has a place by itself; others have the one that they are given.
- A place that was given is gone after a restart, as it is no part of a snapshot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from consul_coord.server import gojson
from consul_coord.server.call import EMPTY, Read, Seen
from consul_coord.server.endpoints.catalog import decode_strictly
from consul_coord.server.failures import Refusal, StateError
from consul_coord.server.store import NODES, fold

if TYPE_CHECKING:
    from consul_coord.server.call import Call
    from consul_coord.server.store import Store
    from consul_coord.server.wire import Reply

_DIMENSIONS = 8


def nodes(call: Call) -> Read:
    """Read the places of all nodes."""

    def look(store: Store) -> Seen:
        shown = [each for node in store.nodes.sorted() for each in _place(call, node.name)]
        return Seen(store.index_of(NODES), call.json(shown), ((NODES,),))

    return Read(look)


def node(call: Call) -> Read:
    """Read the place of one node."""

    def look(store: Store) -> Seen:
        shown = _place(call, call.tail)
        if not shown:
            raise Refusal(404, "")
        return Seen(store.index_of(NODES), call.json(shown), ((NODES, fold(call.tail)),))

    return Read(look)


def datacenters(call: Call) -> Reply:
    """Return the places of the servers of all datacenters."""
    servers = _place(call, call.state.node)
    shown = {"Datacenter": call.state.datacenter, "AreaID": "wan", "Coordinates": servers}
    return call.json([shown])


def update(call: Call) -> Reply:
    """Give a node a place."""
    sent = decode_strictly(call, FIELDS, "CoordinateUpdateRequest")
    name = sent.get("Node", "")
    call.authorizer.require("node", name, "write")
    coordinate = {**_ORIGIN, **sent.get("Coord", {})}
    if len(coordinate["Vec"]) != _DIMENSIONS:
        raise StateError("incompatible coordinate")
    call.state.coordinates[fold(name)] = coordinate
    return EMPTY


def _place(call: Call, name: str) -> list[dict[str, Any]]:
    if not call.authorizer.may("node", name, "read"):
        return []
    own = _ORIGIN if fold(name) == fold(call.state.node) else None
    found = call.state.coordinates.get(fold(name), own)
    return [] if found is None else [{"Node": name, "Segment": "", "Coord": found}]


_ORIGIN: dict[str, Any] = {"Vec": [0] * _DIMENSIONS, "Error": 1.5, "Adjustment": 0, "Height": 0.00001}
_COORDINATE = gojson.ObjectReader(
    dict.fromkeys(_ORIGIN, gojson.plain), "Coordinate", "coordinate.Coordinate", flat=True
)
FIELDS: dict[str, gojson.Reader] = {
    "Datacenter": gojson.text,
    "Node": gojson.text,
    "Segment": gojson.text,
    "Coord": _COORDINATE,
    "Token": gojson.text,
}
