"""The last look of a waiting call: on which nodes those are that its error will name.

Rules
- It is made shortly before the deadline, within the call's own time: the error is raised without a request.
- A node that can't be read in time stays unknown. It is no failure of the call.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from consul_coord.errors import ConsulCoordError
from consul_coord.http.endpoints import session as session_endpoint
from consul_coord.http.retry import send_once
from consul_coord.models.state import MOST_NAMED

if TYPE_CHECKING:
    from consul_coord.io import IO
    from consul_coord.models import Blocker, Holder

LAST_LOOK = 0.5
"""Seconds before the deadline at which a waiter looks once more; a fifth of a shorter timeout."""
NODES_BUDGET = 0.25
"""Seconds that reading the holders' nodes may take."""

Nodes: TypeAlias = "dict[str, str | None]"
"""The node of each session that was read."""


def due(deadline: float, timeout: float | None) -> float:
    """Return when a call with a deadline is to look for the last time."""
    return deadline - min(LAST_LOOK, (timeout or 0.0) / 5)


async def read_nodes(io: IO, holders: tuple[Holder, ...], *, deadline: float) -> Nodes:
    """Read where the holders that an error would name are; what can't be read stays unknown."""
    until = min(deadline, io.now() + NODES_BUDGET)
    nodes: Nodes = {}
    with suppress(ConsulCoordError):
        for holder in holders[:MOST_NAMED]:
            found = await send_once(io, session_endpoint.info(holder.session), deadline=until)
            nodes[holder.session] = None if found.value is None else found.value.node
    return nodes


def with_nodes(blocker: Blocker, nodes: Nodes | None) -> Blocker:
    """Return what stands in the way with its holders' nodes, as far as they were read."""
    found = nodes or {}
    return replace(
        blocker, holders=tuple(replace(one, node=found.get(one.session)) for one in blocker.holders)
    )
