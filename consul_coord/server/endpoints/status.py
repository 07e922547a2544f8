"""/v1/status/: who leads."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from consul_coord.server.call import Call
    from consul_coord.server.wire import Reply


def leader(call: Call) -> Reply:
    """Return the leader's address, empty when there is none."""
    return call.json(call.state.leader)


def peers(call: Call) -> Reply:
    """Return the addresses of the servers."""
    return call.json([call.state.server_address])
