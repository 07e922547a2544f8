"""Which rows a read is about: by name, tag, metadata of the node, distance and filter.

Rules
- Tags are compared without regard to case; several of them must all be there.
- The agent's own node is the only one whose place in the network is known. An answer by the distance from it
  has its rows first, and the distance from any other node changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from consul_coord.server import catalog
from consul_coord.server.failures import Refusal
from consul_coord.server.filters import compiled
from consul_coord.server.services import destination
from consul_coord.server.store import CHECKS, INDEX, NODES, SERVICES, fold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from consul_coord.server.call import Call
    from consul_coord.server.fields import Field
    from consul_coord.server.records import NodeRecord, ServiceRecord
    from consul_coord.server.store import Store
    from consul_coord.server.tables import Mark

    Instance = tuple[NodeRecord, ServiceRecord]
    Shown = dict[str, object]

R = TypeVar("R")

_HERE = "_agent"


def by_filter(call: Call, fields: Mapping[str, Field]) -> Callable[[list[Shown]], list[Shown]]:
    """Return what picks the rows that ``?filter=`` asks for; a bad one is refused when rows are read."""
    expression = call.params.get("filter")
    if not expression:
        return lambda rows: rows

    def chosen(rows: list[Shown]) -> list[Shown]:
        fits = compiled(expression, fields)
        return [row for row in rows if fits(row)]

    return chosen


def by_node_meta(call: Call) -> Callable[[NodeRecord], bool]:
    """Return what tells whether a node has the metadata that ``?node-meta=`` asks for."""
    pairs = [value.partition(":") for value in call.params.all("node-meta")]
    wanted = {(name, value) for name, _, value in pairs}
    return lambda node: wanted <= set(node.meta or ())


def by_instance(call: Call) -> Callable[[NodeRecord, ServiceRecord], bool]:
    """Return what tells whether an instance has the tags and its node the metadata that are asked for."""
    fits = by_node_meta(call)
    tags = {fold(tag) for tag in call.params.all("tag")}
    return lambda node, service: tags <= set(map(fold, service.tags)) and fits(node)


def service_name(call: Call) -> str:
    """Return the service that is asked for."""
    if not call.tail:
        raise Refusal(400, "Missing service name")
    return call.tail


def instances(store: Store, name: str, *, connect: bool = False) -> list[Instance]:
    """Return the instances of a service with their nodes, in order of nodes and ids."""

    def is_meant(service: ServiceRecord) -> bool:
        if connect:
            return destination(service) == name or (service.native and service.service == name)
        return service.service == name

    return [(node_of(store, service), service) for service in store.services.sorted() if is_meant(service)]


def node_of(store: Store, service: ServiceRecord) -> NodeRecord:
    """Return the node that a service is on; there is one, always."""
    return store.nodes.rows[fold(service.node)]


def nearest(call: Call, rows: Sequence[R], node: Callable[[R], str]) -> list[R]:
    """Return rows in order of their distance from the node that ``?near=`` names."""
    return nearest_to(call, call.params.get("near"), rows, node)


def nearest_to(call: Call, near: str, rows: Sequence[R], node: Callable[[R], str]) -> list[R]:
    """Return rows in order of their distance from a node."""
    if near not in (_HERE, call.state.node):
        return list(rows)
    return sorted(rows, key=lambda row: node(row) != call.state.node)


def marks_of(name: str, found: Sequence[Instance], *, connect: bool, checks: bool) -> tuple[Mark, ...]:
    """Return what is news about a service's instances; of one that there is not, only that it comes.

    With their checks, instances are watched by the service's own index, which stays when the last one gets
    another name.
    """
    if connect:
        return ((SERVICES,), (NODES,), (CHECKS,)) if checks else ((SERVICES,), (NODES,))
    comes = (SERVICES, "name", name)
    if not found:
        return (comes,)
    return ((INDEX, catalog.index_name(name)),) if checks else (comes, (NODES,))


def index_of(store: Store, name: str, found: Iterable[Instance], *tables: str, connect: bool) -> int:
    """Return the index of an answer about a service's instances."""
    if not connect:
        return catalog.service_index(store, name, *tables, exists=bool(found))
    return max(
        (catalog.service_index(store, service.service, *tables, exists=True) for _, service in found),
        default=store.index_of(NODES, SERVICES, CHECKS),
    )
