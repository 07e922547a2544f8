"""/v1/agent/: the agent itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from consul_coord.server.call import Call
    from consul_coord.server.wire import Reply

_SERF_PORT = 8301
_ALIVE = 1


def describe_self(call: Call) -> Reply:
    """Return what the agent says of itself."""
    state = call.state
    member = {
        "Name": state.node,
        "Addr": state.address,
        "Port": _SERF_PORT,
        "Tags": {
            "dc": state.datacenter,
            "id": state.node_id,
            "role": "consul",
            "port": state.server_address.rpartition(":")[2],
        },
        "Status": _ALIVE,
        "ProtocolMin": 1,
        "ProtocolMax": 5,
        "ProtocolCur": 2,
        "DelegateMin": 2,
        "DelegateMax": 5,
        "DelegateCur": 4,
    }
    return call.json(
        {
            "Config": {
                "Datacenter": state.datacenter,
                "NodeName": state.node,
                "NodeID": state.node_id,
                "Revision": "reference",
                "Server": True,
                "Version": state.config.version,
            },
            "DebugConfig": {
                "Datacenter": state.datacenter,
                "NodeName": state.node,
                "KVMaxValueSize": state.config.kv_max_value_size,
                "TxnMaxReqLen": state.config.txn_max_req_len,
                "HTTPMaxConnsPerClient": state.config.http_max_conns_per_client,
            },
            "Coord": None,
            "Member": member,
            "Stats": {
                "consul": {
                    "leader": str(bool(state.leader)).lower(),
                    "leader_addr": state.leader,
                    "server": "true",
                }
            },
            "Meta": {"consul-network-segment": ""},
        }
    )
