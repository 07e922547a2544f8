"""/v1/health/: the checks of a node, of a service, or in a state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.server import catalog
from consul_coord.server.call import Read, Seen
from consul_coord.server.failures import Refusal
from consul_coord.server.store import CHECKS, fold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from consul_coord.server.call import Call
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
        "Definition": {},
        "CreateIndex": check.create_index,
        "ModifyIndex": check.modify_index,
    }


def of_node(call: Call) -> Read:
    """Read a node's checks."""
    name = _required(call, "Missing node name")
    return _reading(call, lambda store: catalog.checks_of_node(store, name), (CHECKS, "node", fold(name)))


def in_state(call: Call) -> Read:
    """Read the checks in a state, or in any."""
    wanted = _required(call, "Missing check state")
    return _reading(
        call, lambda store: (c for c in store.checks.sorted() if wanted in (_ANY, c.status)), (CHECKS,)
    )


def of_service(call: Call) -> Read:
    """Read the checks of a service."""
    name = _required(call, "Missing service name")
    return _reading(
        call,
        lambda store: (c for c in store.checks.sorted() if c.service_name == name),
        (CHECKS, "service", name),
    )


def _reading(call: Call, select: Callable[[Store], Iterable[CheckRecord]], mark: Mark) -> Read:
    def look(store: Store) -> Seen:
        shown = [
            describe(check) for check in select(store) if call.authorizer.may("node", check.node, "read")
        ]
        return Seen(store.index_of(CHECKS), call.json(shown), (mark,), effective=True)

    return Read(look)


def _required(call: Call, missing: str) -> str:
    if not call.tail:
        raise Refusal(400, missing)
    return call.tail
