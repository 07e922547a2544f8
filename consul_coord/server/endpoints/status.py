"""/v1/status/ and /v1/operator/raft/: who leads, and which servers there are."""

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


def raft_configuration(call: Call) -> Reply:
    """Return the servers: this one, which votes, and leads unless there is no leader."""
    call.authorizer.require("operator", "", "read")
    state = call.state
    server = {
        "ID": state.node_id,
        "Node": state.node,
        "Address": state.server_address,
        "Leader": state.leader == state.server_address,
        "ProtocolVersion": "3",
        "Voter": True,
    }
    return call.json({"Servers": [server], "Index": 0})
