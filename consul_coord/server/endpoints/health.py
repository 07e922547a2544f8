"""/v1/health/: the checks of a node, of a service, or in a state, and a service's instances with theirs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from consul_coord.server import catalog, fields
from consul_coord.server.call import Read, Seen
from consul_coord.server.endpoints import selection
from consul_coord.server.endpoints.catalog import describe_node, describe_service
from consul_coord.server.failures import Refusal
from consul_coord.server.gotext import GoParseError, parse_bool
from consul_coord.server.records import PASSING
from consul_coord.server.store import CHECKS, NODES, SERVICES, fold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from consul_coord.server.call import Call
    from consul_coord.server.endpoints.selection import Instance
    from consul_coord.server.records import CheckRecord
    from consul_coord.server.store import Store
    from consul_coord.server.tables import Mark

_ANY = "any"


def describe(check: CheckRecord) -> dict[str, object]:
    """Return a check as the API shows it."""
    return {
        "Node": check.node,
        "CheckID": check.id,
        "Name": check.name,
        "Status": check.status,
        "Notes": check.notes,
        "Output": check.output,
        "ServiceID": check.service_id,
        "ServiceName": check.service_name,
        "ServiceTags": list(check.service_tags),
        "Type": check.type,
        "Definition": json.loads(check.definition) if check.definition else {},
        "CreateIndex": check.create_index,
        "ModifyIndex": check.modify_index,
    }


def checks_of(store: Store, instance: Instance) -> list[CheckRecord]:
    """Return the checks of an instance's health: its node's own checks first, then its own."""
    node, service = instance
    checks = catalog.checks_of_node(store, node.name)
    return [
        *(check for check in checks if not check.service_id),
        *(check for check in checks if check.service_id == service.id),
    ]


def describe_instance(store: Store, instance: Instance) -> dict[str, object]:
    """Return an instance with its node and its checks as the API shows them."""
    node, service = instance
    return {
        "Node": describe_node(node),
        "Service": describe_service(service),
        "Checks": [describe(check) for check in checks_of(store, instance)],
    }


def of_node(call: Call) -> Read:
    """Read a node's checks."""
    name = _required(call, "Missing node name")
    return _reading(call, lambda store: catalog.checks_of_node(store, name), (CHECKS, "node", fold(name)))


def in_state(call: Call) -> Read:
    """Read the checks in a state, or in any."""
    wanted = _required(call, "Missing check state")
    return _reading(
        call,
        lambda store: (c for c in store.checks.sorted() if wanted in (_ANY, c.status)),
        (CHECKS,),
        by_node=True,
    )


def of_service(call: Call) -> Read:
    """Read the checks of a service."""
    name = _required(call, "Missing service name")
    return _reading(
        call,
        lambda store: (c for c in store.checks.sorted() if c.service_name == name),
        (CHECKS, "service", name),
        by_node=True,
        service=name,
    )


def service(call: Call) -> Read:
    """Read the instances of a service, with their nodes and checks."""
    return _instances(call, connect=False)


def connect(call: Call) -> Read:
    """Read what can be reached of a service through Connect, with nodes and checks."""
    return _instances(call, connect=True)


def ingress(call: Call) -> Read:
    """Read the ingress gateways of a service: there are none, as none can be configured here."""
    selection.service_name(call)

    def look(store: Store) -> Seen:
        selection.by_filter(call, fields.HEALTHY_SERVICE)([])
        return Seen(store.index_of(SERVICES), call.json([]), ((SERVICES,),), effective=True)

    return Read(look)


def _instances(call: Call, *, connect: bool) -> Read:
    name = selection.service_name(call)
    fits = selection.by_instance(call)
    chosen = selection.by_filter(call, fields.HEALTHY_SERVICE)

    def look(store: Store) -> Seen:
        chosen([])  # so that a bad filter is refused before a bad ``passing``
        healthy = _healthy(call)
        of_name = selection.instances(store, name, connect=connect)
        found = [each for each in of_name if fits(*each) and may_see(call, each) and healthy(store, each)]
        ordered = selection.nearest(call, found, lambda each: each[0].name)
        shown = chosen([describe_instance(store, each) for each in ordered])
        index = selection.index_of(store, name, of_name, NODES, SERVICES, CHECKS, connect=connect)
        marks = selection.marks_of(name, of_name, connect=connect, checks=True)
        return Seen(index, call.json(shown), marks, effective=True)

    return Read(look)


def _healthy(call: Call) -> Callable[[Store, Instance], bool]:
    """Return what tells whether an instance may be shown: with ``?passing``, only if all its checks pass."""
    try:
        wanted = "passing" in call.params and parse_bool(call.params.get("passing") or "true")
    except GoParseError:
        raise Refusal(400, "Invalid value for ?passing") from None
    if not wanted:
        return lambda _store, _instance: True
    return lambda store, instance: all(check.status == PASSING for check in checks_of(store, instance))


def may_see(call: Call, instance: Instance) -> bool:
    """Tell whether a token may see an instance: its node and its service."""
    node, service = instance
    return call.authorizer.may("node", node.name, "read") and call.authorizer.may(
        "service", service.service, "read"
    )


def _reading(
    call: Call,
    select: Callable[[Store], Iterable[CheckRecord]],
    mark: Mark,
    *,
    by_node: bool = False,
    service: str = "",
) -> Read:
    fits, chosen = selection.by_node_meta(call), selection.by_filter(call, fields.CHECK)
    by_meta = by_node and "node-meta" in call.params
    marks = (mark, (NODES,)) if by_meta else (mark,)

    def look(store: Store) -> Seen:
        found = [
            check
            for check in select(store)
            if call.authorizer.may("node", check.node, "read")
            and not (by_meta and not fits(store.nodes.rows[fold(check.node)]))
        ]
        ordered = selection.nearest(call, found, lambda check: check.node)
        shown = chosen([describe(check) for check in ordered])
        if by_meta and service:  # only then, it has the index of the service
            index = catalog.service_index(store, service, NODES, SERVICES, CHECKS, exists=True)
        else:
            index = store.index_of(CHECKS)
        return Seen(index, call.json(shown), marks, effective=True)

    return Read(look)


def _required(call: Call, missing: str) -> str:
    if not call.tail:
        raise Refusal(400, missing)
    return call.tail
