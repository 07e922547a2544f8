"""The catalog: nodes, their services and their checks, and which sessions fall with them.

Rules
- Registering a node or a service that is there already, just so, changes no index; registering a check moves
  the index of all checks even then, though not its own.
- Each service name has an index of its own, which moves with its instances, their checks, their nodes and the
  checks of these. It goes with its last instance, and the index of extinct services moves then.
- A check that is or becomes critical, or is removed, ends the sessions that rely on it, at the same index;
  removing a service removes its checks, removing a node removes everything on it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from consul_coord.server import sessions
from consul_coord.server.failures import StateError
from consul_coord.server.gotext import quote
from consul_coord.server.records import CRITICAL
from consul_coord.server.services import problem_with_meta
from consul_coord.server.store import CHECKS, EXTINCT, NODES, SERVICES, fold, pair

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from consul_coord.server.records import CheckRecord, NodeRecord, ServiceRecord
    from consul_coord.server.store import Store

    Delay = Callable[[str, int], None]


class BadMetaError(StateError):
    """A service's metadata can't be kept."""


@dataclass(frozen=True, slots=True)
class Registration:
    """The content of one register call; ``node`` is None when it only adds to a node that must be there."""

    node_name: str
    node: NodeRecord | None = None
    service: ServiceRecord | None = None
    checks: tuple[CheckRecord, ...] = ()


def register(store: Store, index: int, what: Registration, delay: Delay) -> None:
    """Register a node, a service on it and checks."""
    if what.node is not None:
        put_node(store, index, what.node)
    if what.service is not None:
        try:
            put_service(store, index, what.service)
        except BadMetaError as error:
            message = f"failed inserting service: {error}"
            raise StateError(message) from None
    for check in what.checks:
        put_check(store, index, check, delay)


def put_node(store: Store, index: int, node: NodeRecord) -> None:
    """Add or update a node."""
    key = fold(node.name)
    existing = store.nodes.get(key)
    if existing is not None:
        node = replace(node, create_index=existing.create_index, modify_index=existing.modify_index)
        if node == existing:
            return
    stored = replace(node, create_index=existing.create_index if existing else index, modify_index=index)
    store.nodes.put(key, stored)
    store.changed(NODES, index)
    _touch_services_of(store, index, node.name)


def put_service(store: Store, index: int, service: ServiceRecord) -> None:
    """Add or update a service on a node that exists."""
    if store.nodes.get(fold(service.node)) is None:
        raise StateError("Missing node registration")
    if why := problem_with_meta(service.meta or ()):
        message = f"Invalid Service Meta for node {service.node} and serviceID {service.id}: {why}"
        raise BadMetaError(message)
    key = pair(service.node, service.id)
    existing = store.services.get(key)
    if existing is not None:
        service = replace(service, create_index=existing.create_index, modify_index=existing.modify_index)
        if service == existing:
            return
    stored = replace(service, create_index=existing.create_index if existing else index, modify_index=index)
    store.services.put(key, stored)
    store.changed(SERVICES, index)
    store.changed(index_name(service.service), index)


def put_check(store: Store, index: int, check: CheckRecord, delay: Delay) -> None:
    """Add or update a check on a node that exists; end the sessions that rely on it if it is critical."""
    if store.nodes.get(fold(check.node)) is None:
        raise StateError("Missing node registration")
    if check.service_id:
        service = store.services.get(pair(check.node, check.service_id))
        if service is None:
            message = f"failed inserting check: Missing service registration on node {quote(check.node)}"
            raise StateError(message)
        check = replace(check, service_name=service.service, service_tags=service.tags)
    if check.status == CRITICAL:
        for session in sessions.relying_on(store, check.node, check.id):
            sessions.invalidate(store, index, session, delay)
    key = pair(check.node, check.id)
    existing = store.checks.get(key)
    created, modified = (existing.create_index, existing.modify_index) if existing else (index, index)
    stored = replace(check, create_index=created, modify_index=modified)
    if stored == existing:
        store.checks.put(key, stored)
    else:
        store.checks.put(key, replace(stored, modify_index=index))
        _touch_services_of_check(store, index, check)
    store.changed(CHECKS, index)


def remove_check(store: Store, index: int, node: str, check: str, delay: Delay) -> None:
    """Remove a check and the sessions that rely on it; absent is fine."""
    key = pair(node, check)
    existing = store.checks.get(key)
    if existing is None:
        return
    if not existing.service_id:
        store.changed(SERVICES, index)
    _touch_services_of_check(store, index, existing)
    store.checks.remove(key)
    store.changed(CHECKS, index)
    for session in sessions.relying_on(store, node, check):
        sessions.invalidate(store, index, session, delay)


def remove_service(store: Store, index: int, node: str, service: str, delay: Delay) -> None:
    """Remove a service and its checks; absent is fine."""
    key = pair(node, service)
    existing = store.services.get(key)
    if existing is None:
        return
    for check in checks_of_node(store, node):
        if check.service_id == service:
            remove_check(store, index, node, check.id, delay)
    store.services.remove(key)
    store.changed(CHECKS, index)
    store.changed(SERVICES, index)
    name = index_name(existing.service)
    if any(each.service == existing.service for each in store.services):
        store.changed(name, index)
    else:
        store.forgotten(name)
        store.changed(EXTINCT, index)


def remove_node(store: Store, index: int, node: str, delay: Delay) -> None:
    """Remove a node and everything on it; absent is fine."""
    if store.nodes.get(fold(node)) is None:
        return
    for service in services_of_node(store, node):
        remove_service(store, index, node, service.id, delay)
    for check in checks_of_node(store, node):
        remove_check(store, index, node, check.id, delay)
    for session in sessions.of_node(store, node):
        sessions.invalidate(store, index, session, delay)
    store.nodes.remove(fold(node))
    store.changed(NODES, index)


def index_name(service: str) -> str:
    """Return the name of a service's own index."""
    return f"service.{service}"


def service_index(store: Store, service: str, *tables: str, exists: bool) -> int:
    """Return the index of an answer about a service; of one that there is not, when a last one went."""
    if not exists and EXTINCT in store.indexes:
        return store.index_of(EXTINCT)
    name = index_name(service)
    return store.index_of(name) if name in store.indexes else store.index_of(*tables)


def _touch_services_of(store: Store, index: int, node: str) -> None:
    for service in services_of_node(store, node):
        store.changed(index_name(service.service), index)


def _touch_services_of_check(store: Store, index: int, check: CheckRecord) -> None:
    """Move the index of the services that a check is about: its own, or all of its node."""
    if check.service_id:
        store.changed(index_name(check.service_name), index)
    else:
        _touch_services_of(store, index, check.node)


def checks_of_node(store: Store, node: str) -> Sequence[CheckRecord]:
    """Return a node's checks in order of their ids."""
    return [check for check in store.checks.sorted() if fold(check.node) == fold(node)]


def services_of_node(store: Store, node: str) -> Sequence[ServiceRecord]:
    """Return a node's services in order of their ids."""
    return [service for service in store.services.sorted() if fold(service.node) == fold(node)]
