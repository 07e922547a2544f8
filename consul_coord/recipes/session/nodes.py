"""The node that a session belongs to: what to do when it is not registered, and coordination nodes.

Rules
- A session is created first. Only when Consul misses its node is anything else asked, so that a node that is
  registered costs no request, and needs no more than ``session:write``.
- The agent's own node may be missing for a while, after somebody has removed it: the agent puts it back by
  itself. That is trouble that passes.
- A coordination node is registered, and the create tried again. It never overwrites a node that is there
  meanwhile. Without the right to do so that is an error: another node would not be what the user relies on.
- Any other node is looked for in the catalog. If it is not there, nobody here can say what it should be.
- A coordination node has no agent. A node with ``serfHealth`` has one, and goes with it: it is refused, as
  the lease of a session there may be longer than its lock-delay. A client looks once for each node. A token
  that can't see the node is accepted where the lock-delay covers the whole lease.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from consul_coord.errors import InvalidRequest, NodeNotRegistered, PermissionDenied, UnsafeSession
from consul_coord.http.endpoints import catalog, health
from consul_coord.http.failures import again
from consul_coord.http.retry import send_once
from consul_coord.models import Registration, WriteOptions
from consul_coord.models.reply import CONSISTENT
from consul_coord.models.session import SERF_HEALTH, effective_lock_delay

if TYPE_CHECKING:
    from consul_coord.io import IO
    from consul_coord.models import SessionSpec

ADDRESS: Final = "192.0.2.1"
"""The address of a coordination node: one for documentation, where nobody answers."""
META: Final = {"consul-coord": "a node without an agent for the sessions of locks: removing it ends them"}


class Nodes(Protocol):
    """A client's knowledge of nodes."""

    datacenter: str | None
    """Where its requests go, if not to the agent's own datacenter."""
    coordination_nodes: set[str]
    """Those that are known to have no agent."""


async def provide(
    io: IO, known: Nodes, spec: SessionSpec, refused: NodeNotRegistered, *, deadline: float
) -> None:
    """Return when the node that a session was refused for is registered.

    Raises ``refused`` for the agent's own node, InvalidRequest for another one that is not in the catalog,
    PermissionDenied for a coordination node that the token may not register.
    """
    if spec.node is None:
        raise again(refused)
    if spec.register_node:
        what = Registration(node=spec.node, address=ADDRESS, node_meta=META, skip_node_update=True)
        call = catalog.register(what, options=WriteOptions(datacenter=known.datacenter))
        await send_once(io, call, deadline=deadline)
        known.coordination_nodes.add(spec.node)
        return
    found = await send_once(io, catalog.node(spec.node, options=CONSISTENT), deadline=deadline)
    if found.value is None:
        message = (
            f"node {spec.node!r} is not registered in this datacenter, or the token may not read it "
            "(node:read): register it, or leave node out for the agent's own"
        )
        raise InvalidRequest(
            message, method=refused.method, path=refused.path, status=refused.status, body=refused.body
        ) from refused


async def vet(io: IO, known: Nodes, spec: SessionSpec, *, deadline: float) -> None:
    """Return if a spec's coordination node is one.

    Raises UnsafeSession when an agent owns the node, or may own it: the token can't see the node, and the
    lock-delay does not cover the lease.
    """
    node = spec.node
    if node is None or node in known.coordination_nodes:
        return
    with suppress(PermissionDenied):
        checks = await send_once(io, health.node(node, options=CONSISTENT), deadline=deadline)
        if any(check.id == SERF_HEALTH for check in checks.value):
            message = (
                f"node {node!r} can't be a coordination node: it has an agent ({SERF_HEALTH}), and when that "
                "leaves or is removed all sessions there end at once. Name a node that no agent has"
            )
            raise UnsafeSession(message)
    if spec.ttl is not None and effective_lock_delay(spec) < spec.ttl:
        call = catalog.node(node, options=CONSISTENT)
        if (await send_once(io, call, deadline=deadline)).value is None:
            message = (
                f"node {node!r} can't be seen, so it may have an agent, and the lock-delay of "
                f"{effective_lock_delay(spec):g} s does not cover a lease of {spec.ttl:g} s. Give the token "
                f"{call.request.needed[0]}, or the session a lock_delay as long as the ttl"
            )
            raise UnsafeSession(message)
    known.coordination_nodes.add(node)
