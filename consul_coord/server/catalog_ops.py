"""Operations on the catalog inside a transaction: nodes, services and checks, each with the same verbs.

Rules
- ``get`` and ``set`` are what they say; ``cas`` and ``delete-cas`` want the ModifyIndex of what is there, 0
  for what is not. Deleting what is not there is fine, except with ``delete-cas``.
- A node is got by its id, if that is given, but compared and deleted by its name.
- ``cas`` of a check that can't be made (no such node or service) passes without a result and without effect,
  where ``set`` fails: an oddity of Consul's, kept.
- Everything but ``get`` is checked for its names before anything of the transaction is applied.
- Whatever an operation does to sessions (a check turned critical, a node deleted) it does within the
  transaction, at its index.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from consul_coord.server import catalog
from consul_coord.server.failures import StateError
from consul_coord.server.gotext import quote
from consul_coord.server.records import CheckRecord, NodeRecord, ServiceRecord
from consul_coord.server.services import is_unspecified
from consul_coord.server.store import fold, pair

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.server.catalog import Delay
    from consul_coord.server.dialects import Dialect
    from consul_coord.server.store import Store

    Record = NodeRecord | ServiceRecord | CheckRecord

R = TypeVar("R", NodeRecord, ServiceRecord, CheckRecord)

GET = "get"
_UUID_LENGTH = 36


@dataclass(frozen=True, slots=True)
class CatalogOp:
    """One operation on the catalog; ``record`` is what the client sent, its ModifyIndex included."""

    verb: str
    record: Record


@dataclass(frozen=True, slots=True)
class Kind(Generic[R]):
    """The facts that the verbs need about nodes, about services or about checks."""

    name: str
    label: Callable[[R], str]
    get: Callable[[Store, R], R | None]
    find: Callable[[Store, R], R | None]
    put: Callable[[Store, int, R, Delay], None]
    put_compared: Callable[[Store, int, R, Delay], None]
    remove: Callable[[Store, int, R, Delay], None]
    refusal: Callable[[R], str | None]


def kind_of(op: CatalogOp) -> Kind[Any]:
    """Return the kind of thing that an operation is about."""
    return _KINDS[type(op.record)]


def refusal(op: CatalogOp, dialect: Dialect) -> str | None:
    """Return why an operation can't be applied at all, or None."""
    if dialect.verb_first and op.verb not in _VERBS:
        return f"unknown {kind_of(op).name} verb {quote(op.verb)}"
    return None if op.verb == GET else kind_of(op).refusal(op.record)


def run(store: Store, index: int, op: CatalogOp, delay: Delay) -> Record | None:
    """Carry out one operation; return what is there afterwards, None after a deletion."""
    verb = _VERBS.get(op.verb)
    if verb is None:
        message = f"unknown {kind_of(op).name} verb {quote(op.verb)}"
        raise StateError(message)
    return verb(store, index, op, delay)


def _get(store: Store, _index: int, op: CatalogOp, _delay: Delay) -> Record:
    kind = kind_of(op)
    found: Record | None = kind.get(store, op.record)
    if found is None:
        message = f"{kind.label(op.record)} doesn't exist"
        raise StateError(message)
    return found


def _set(store: Store, index: int, op: CatalogOp, delay: Delay) -> Record | None:
    kind = kind_of(op)
    kind.put(store, index, op.record, delay)
    return _stored(store, op)


def _cas(store: Store, index: int, op: CatalogOp, delay: Delay) -> Record | None:
    kind = kind_of(op)
    existing: Record | None = kind.find(store, op.record)
    if (existing.modify_index if existing else 0) != op.record.modify_index:
        raise _stale("set", op)
    kind.put_compared(store, index, op.record, delay)
    return _stored(store, op)


def _stored(store: Store, op: CatalogOp) -> Record | None:
    stored: Record | None = kind_of(op).get(store, op.record)
    return stored


def _delete(store: Store, index: int, op: CatalogOp, delay: Delay) -> None:
    kind_of(op).remove(store, index, op.record, delay)


def _delete_cas(store: Store, index: int, op: CatalogOp, delay: Delay) -> None:
    existing: Record | None = kind_of(op).find(store, op.record)
    if existing is None or existing.modify_index != op.record.modify_index:
        raise _stale("delete", op)
    _delete(store, index, op, delay)


def _stale(what: str, op: CatalogOp) -> StateError:
    return StateError(f"failed to {what} {kind_of(op).label(op.record)}, index is stale")


_VERBS: dict[str, Callable[[Store, int, CatalogOp, Delay], Record | None]] = {
    GET: _get,
    "set": _set,
    "cas": _cas,
    "delete": _delete,
    "delete-cas": _delete_cas,
}


def _get_node(store: Store, node: NodeRecord) -> NodeRecord | None:
    if node.id:
        return next((each for each in store.nodes if each.id == node.id), None)
    return _find_node(store, node)


def _find_node(store: Store, node: NodeRecord) -> NodeRecord | None:
    return store.nodes.get(fold(node.name))


def _put_node(store: Store, index: int, node: NodeRecord, _delay: Delay) -> None:
    catalog.put_node(store, index, node)


def _node_refusal(node: NodeRecord) -> str | None:
    if not node.name:
        return "Must provide node"
    if node.id and len(node.id) != _UUID_LENGTH:
        return "Bad node ID: uuid string is wrong length"
    return None


def _find_service(store: Store, service: ServiceRecord) -> ServiceRecord | None:
    return store.services.get(pair(service.node, service.id))


def _put_service(store: Store, index: int, service: ServiceRecord, _delay: Delay) -> None:
    if store.nodes.get(fold(service.node)) is not None and not service.id:
        raise StateError("failed inserting service: object missing primary index")
    catalog.put_service(store, index, service)


def _service_refusal(service: ServiceRecord) -> str | None:
    if service.id and not service.service:
        return "Must provide service name with ID"
    return "Invalid service address" if is_unspecified(service.address) else None


def _find_check(store: Store, check: CheckRecord) -> CheckRecord | None:
    return store.checks.get(pair(check.node, check.id))


def _put_check(store: Store, index: int, check: CheckRecord, delay: Delay) -> None:
    if store.nodes.get(fold(check.node)) is not None:
        if check.service_id and store.services.get(pair(check.node, check.service_id)) is None:
            raise StateError("Missing service registration")
        if not check.id:
            raise StateError("failed inserting check: object missing primary index")
    catalog.put_check(store, index, check, delay)


def _put_check_or_not(store: Store, index: int, check: CheckRecord, delay: Delay) -> None:
    if store.dialect.refuses_nameless and not check.id:
        raise StateError("failed inserting check: object missing primary index")
    with suppress(StateError):  # which comes before anything is written
        _put_check(store, index, check, delay)


_NODES: Kind[NodeRecord] = Kind(
    "Node",
    lambda node: f"node {quote(node.name)}",
    _get_node,
    _find_node,
    _put_node,
    _put_node,
    lambda store, index, node, delay: catalog.remove_node(store, index, node.name, delay),
    _node_refusal,
)
_SERVICES: Kind[ServiceRecord] = Kind(
    "Service",
    lambda service: f"service {quote(service.id)} on node {quote(service.node)}",
    _find_service,
    _find_service,
    _put_service,
    _put_service,
    lambda store, index, service, delay: catalog.remove_service(
        store, index, service.node, service.id, delay
    ),
    _service_refusal,
)
_CHECKS: Kind[CheckRecord] = Kind(
    "Check",
    lambda check: f"check {quote(check.id)} on node {quote(check.node)}",
    _find_check,
    _find_check,
    _put_check,
    _put_check_or_not,
    lambda store, index, check, delay: catalog.remove_check(store, index, check.node, check.id, delay),
    lambda _: None,
)
_KINDS: dict[type, Kind[Any]] = {NodeRecord: _NODES, ServiceRecord: _SERVICES, CheckRecord: _CHECKS}
