"""/v1/agent/: the agent itself, its checks and services."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from consul_coord.server import gojson
from consul_coord.server.call import EMPTY
from consul_coord.server.endpoints import catalog, health
from consul_coord.server.failures import Refusal, StateError
from consul_coord.server.gotext import parse_duration, quote
from consul_coord.server.localagent import TtlCheck
from consul_coord.server.records import CRITICAL, PASSING, WARNING, CheckRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from consul_coord.server.call import Call
    from consul_coord.server.records import ServiceRecord
    from consul_coord.server.state import ConsulState
    from consul_coord.server.wire import Reply

_SERF_PORT = 8301
_ALIVE = 1


def describe_self(call: Call) -> Reply:
    """Return what the agent says of itself."""
    call.authorizer.require("agent", call.state.node, "read")
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


def checks(call: Call) -> Reply:
    """Return the agent's own checks, by id."""
    found = call.state.local.checks
    return call.json({name: health.describe(found[name].record) for name in sorted(found)})


def services(call: Call) -> Reply:
    """Return the agent's own services, by id."""
    found = call.state.local.services
    return call.json({name: _describe_service(found[name]) for name in sorted(found)})


def register_check(call: Call) -> Reply:
    """Register a TTL check; the other kinds, which an agent runs itself, are refused."""
    check = _ttl_check(call.state, catalog.decode_strictly(call, CHECK, "CheckDefinition"))
    _require_write(call)
    if (service := check.record.service_id) and service not in call.state.local.services:
        message = f"ServiceID {quote(service)} does not exist"
        raise StateError(message)
    call.state.local.add_check(check, call.now)
    return EMPTY


def deregister_check(call: Call) -> Reply:
    """Deregister a check; an unknown one is fine."""
    _require_write(call)
    call.state.local.remove_check(call.tail, call.now)
    return EMPTY


def pass_check(call: Call) -> Reply:
    """Report a check as passing."""
    return _report(call, PASSING, call.params.get("note"))


def warn_check(call: Call) -> Reply:
    """Report a check as warning."""
    return _report(call, WARNING, call.params.get("note"))


def fail_check(call: Call) -> Reply:
    """Report a check as critical."""
    return _report(call, CRITICAL, call.params.get("note"))


def update_check(call: Call) -> Reply:
    """Report a check's status and output."""
    fields = catalog.decode_strictly(call, UPDATE, "checkUpdate")
    status = fields.get("Status", "")
    if status not in _STATUSES:
        raise Refusal(400, f"Invalid check status: '{status}'")
    return _report(call, status, fields.get("Output", ""))


def register_service(call: Call) -> Reply:
    """Register a service with TTL checks."""
    fields = catalog.decode_strictly(call, SERVICE, "ServiceDefinition")
    if not fields.get("Name"):
        raise Refusal(400, "Missing service name")
    _require_write(call)
    state = call.state
    service = catalog.service_record(state.node, {**fields, "Service": fields["Name"]})
    sent = [*((fields["Check"],) if "Check" in fields else ()), *fields.get("Checks", ())]
    added = [
        _service_check(state, service, number, check, of=len(sent)) for number, check in enumerate(sent, 1)
    ]
    state.local.add_service(service, added, call.now)
    return EMPTY


def deregister_service(call: Call) -> Reply:
    """Deregister a service with its checks; an unknown one is fine."""
    _require_write(call)
    call.state.local.remove_service(call.tail, call.now)
    return EMPTY


def leave(call: Call) -> Reply:
    """Let the agent leave: its node goes from the catalog, with its sessions."""
    call.authorizer.require("agent", call.state.node, "write")
    call.state.leave(call.now)
    return EMPTY


def _report(call: Call, status: str, output: str) -> Reply:
    _require_write(call)
    call.state.local.update_check(call.tail, status, output, call.now)
    return EMPTY


def _require_write(call: Call) -> None:
    call.authorizer.require("node", call.state.node, "write")


def _ttl_check(
    state: ConsulState, fields: Mapping[str, Any], *, check_id: str = "", name: str = ""
) -> TtlCheck:
    name = fields.get("Name") or name
    if not name:
        raise Refusal(400, "Missing check name")
    if active := next((kind for kind in _ACTIVE if fields.get(kind)), None):
        raise Refusal(501, f"The reference server runs no checks of its own: {active} needs a Consul agent")
    ttl = fields.get("TTL", 0)
    if ttl <= 0:
        raise Refusal(400, "Invalid check: TTL must be > 0 for TTL checks")
    status = fields.get("Status") or CRITICAL
    if status not in _STATUSES:
        raise Refusal(400, "Bad check status")
    record = CheckRecord(
        state.node,
        fields.get("ID") or check_id or name,
        name,
        status,
        fields.get("Notes", ""),
        service_id=fields.get("ServiceID", ""),
        type="ttl",
    )
    return TtlCheck(record, ttl)


def _service_check(
    state: ConsulState, service: ServiceRecord, number: int, fields: Mapping[str, Any], *, of: int
) -> TtlCheck:
    check_id = f"service:{service.id}" if of == 1 else f"service:{service.id}:{number}"
    check = _ttl_check(
        state,
        {**fields, "ID": fields.get("CheckID") or fields.get("ID")},
        check_id=check_id,
        name=f"Service '{service.service}' check",
    )
    record = replace(
        check.record, service_id=service.id, service_name=service.service, service_tags=service.tags
    )
    return TtlCheck(record, check.ttl)


def _describe_service(service: ServiceRecord) -> dict[str, object]:
    return {
        "ID": service.id,
        "Service": service.service,
        "Tags": list(service.tags),
        "Meta": dict(service.meta or ()),
        "Port": service.port,
        "Address": service.address,
        "Weights": {"Passing": 1, "Warning": 1},
        "EnableTagOverride": False,
    }


def _duration(value: object, where: str) -> int:
    if isinstance(value, gojson.Number):
        return gojson.truncated(value, where)
    return parse_duration(gojson.text(value, where))


_STATUSES = frozenset({PASSING, WARNING, CRITICAL})
_ACTIVE = ("HTTP", "TCP", "GRPC", "Args", "ScriptArgs", "DockerContainerID", "AliasNode", "AliasService")

CHECK: dict[str, gojson.Reader] = {
    "ID": gojson.text,
    "Name": gojson.text,
    "Notes": gojson.text,
    "Status": gojson.text,
    "ServiceID": gojson.text,
    "TTL": _duration,
    "Interval": gojson.anything,
    "Timeout": gojson.anything,
    "DeregisterCriticalServiceAfter": gojson.anything,
    "Token": gojson.text,
    "Namespace": gojson.text,
    **dict.fromkeys(_ACTIVE, gojson.anything),
}


UPDATE: dict[str, gojson.Reader] = {"Status": gojson.text, "Output": gojson.text}

_CHECK_TYPE = gojson.object_of(
    {**CHECK, "CheckID": gojson.text}, struct="CheckType", type_name="structs.CheckType"
)

SERVICE: dict[str, gojson.Reader] = {
    "ID": gojson.text,
    "Name": gojson.text,
    "Tags": gojson.texts,
    "Address": gojson.text,
    "Port": gojson.int_,
    "Meta": gojson.text_map,
    "Check": _CHECK_TYPE,
    "Checks": gojson.list_of(_CHECK_TYPE, "structs.CheckTypes"),
    "Token": gojson.text,
    "Weights": gojson.anything,
    "EnableTagOverride": gojson.boolean,
    "Namespace": gojson.text,
}
