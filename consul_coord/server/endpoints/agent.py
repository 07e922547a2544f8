"""/v1/agent/: the agent itself, its checks and services."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from consul_coord.server import fields, gojson
from consul_coord.server.call import EMPTY
from consul_coord.server.endpoints import catalog, health, selection
from consul_coord.server.failures import Refusal, StateError
from consul_coord.server.gotext import SECOND, GoParseError, format_duration, parse_bool, quote
from consul_coord.server.records import CRITICAL, PASSING, WARNING
from consul_coord.server.wire import Reply

if TYPE_CHECKING:
    from consul_coord.server.call import Call
    from consul_coord.server.records import CheckRecord, ServiceRecord
    from consul_coord.server.state import ConsulState

_SERF_PORT = 8301
_WAN_PORT = 8302
_ALIVE = 1
STATUSES = (PASSING, WARNING, CRITICAL)
_MAINTENANCE = "maintenance"
_WORSE_AND_WORSE = (*STATUSES, _MAINTENANCE)
_HEALTH = {PASSING: 200, WARNING: 429, CRITICAL: 503, _MAINTENANCE: 503}


def describe_self(call: Call) -> Reply:
    """Return what the agent says of itself."""
    call.authorizer.require("agent", call.state.node, "read")
    state = call.state
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
            "DebugConfig": _settings(state),
            "Coord": None,
            "Member": _member(state),
            "Stats": {
                "agent": {"checks": str(len(state.local.checks)), "services": str(len(state.local.services))},
                "build": {"prerelease": "", "revision": "reference", "version": state.config.version},
                "consul": {
                    "leader": str(bool(state.leader)).lower(),
                    "leader_addr": state.leader,
                    "server": "true",
                },
            },
            "Meta": dict(sorted(state.meta.items())),
        }
    )


def _settings(state: ConsulState) -> dict[str, object]:
    """Return the settings that concern what is served here, by Consul's names."""
    config, acl = state.config, state.config.acl
    policy: dict[str, object] = {"ACLDefaultPolicy": "allow" if acl is None else acl.default_policy}
    return {
        **({"ACLResolverSettings": policy} if config.dialect.nests_acl_settings else policy),
        "ACLEnableKeyListPolicy": acl is not None and acl.enable_key_list_policy,
        "ACLsEnabled": acl is not None,
        "AdvertiseAddrLAN": state.address,
        "AdvertiseAddrWAN": state.address,
        "BindAddr": state.address,
        "ClientAddrs": [state.address],
        "Datacenter": state.datacenter,
        "DefaultQueryTime": _duration(config.default_wait),
        "EnableLocalScriptChecks": config.enable_script_checks,
        "EnableRemoteScriptChecks": config.enable_script_checks,
        "HTTPMaxConnsPerClient": config.http_max_conns_per_client,
        "KVMaxValueSize": config.kv_max_value_size,
        "MaxQueryTime": _duration(config.max_wait),
        "NodeID": state.node_id,
        "NodeMeta": dict(sorted(config.node_meta.items())),
        "NodeName": state.node,
        "PrimaryDatacenter": state.datacenter,
        "RPCHoldTimeout": _duration(config.leaderless_hold),
        "Revision": "reference",
        "ServerMode": True,
        "SessionTTLMin": _duration(config.session_ttl_min),
        "TxnMaxReqLen": config.txn_max_req_len,
        "Version": config.version,
    }


def _duration(seconds: float) -> str:
    return format_duration(round(seconds * SECOND))


def members(call: Call) -> Reply:
    """Return the members of the cluster: one."""
    if call.params.get("segment") not in ("", "_all"):
        raise StateError("Network segments are not supported in this version of Consul")
    if not call.authorizer.may("node", call.state.node, "read"):
        return call.json([])
    return call.json([_member(call.state, wan=bool(call.params.get("wan")))])


def _member(state: ConsulState, *, wan: bool = False) -> dict[str, object]:
    return {
        "Name": f"{state.node}.{state.datacenter}" if wan else state.node,
        "Addr": state.address,
        "Port": _WAN_PORT if wan else _SERF_PORT,
        "Tags": {
            "acls": "0" if state.config.acl is None else "1",
            "build": f"{state.config.version}:",
            "dc": state.datacenter,
            "ft_fs": "1",
            "id": state.node_id,
            "port": state.server_address.rpartition(":")[2],
            "raft_vsn": "3",
            "role": "consul",
            "segment": "",
            "vsn": "2",
            "vsn_max": "3",
            "vsn_min": "2",
            **({} if wan else {"wan_join_port": str(_WAN_PORT)}),
        },
        "Status": _ALIVE,
        "ProtocolMin": 1,
        "ProtocolMax": 5,
        "ProtocolCur": 2,
        "DelegateMin": 2,
        "DelegateMax": 5,
        "DelegateCur": 4,
    }


def checks(call: Call) -> Reply:
    """Return the agent's own checks, by id."""
    found = call.state.local.checks
    shown = [
        health.describe(found[name].record) for name in sorted(found) if _may_see(call, found[name].record)
    ]
    return call.json(
        {str(check["CheckID"]): check for check in selection.by_filter(call, fields.CHECK)(shown)}
    )


def services(call: Call) -> Reply:
    """Return the agent's own services, by id."""
    found = call.state.local.services
    shown = [
        describe_service(found[name])
        for name in sorted(found)
        if call.authorizer.may("service", found[name].service, "read")
    ]
    chosen = selection.by_filter(call, fields.SERVICE)(shown)
    return call.json({str(service["ID"]): service for service in chosen})


def service(call: Call) -> Reply:
    """Return one of the agent's own services, with a hash of what it says."""
    if "hash" in call.params:
        raise Refusal(
            501, "The reference server lets nobody wait for a service's hash: use a Consul agent for it"
        )
    found = call.state.local.services.get(call.tail)
    if found is None:
        raise Refusal(404, f"unknown service ID: {call.tail}")
    call.authorizer.require("service", found.service, "read")
    shown = describe_service(found)
    import hashlib

    digest = hashlib.blake2b(gojson.encode(shown), digest_size=8).hexdigest()
    place = list(shown).index("EnableTagOverride") + 1
    pairs = list(shown.items())
    hashed = dict([*pairs[:place], ("ContentHash", digest), *pairs[place:]])
    reply = call.json(hashed)
    return Reply(reply.status, reply.body, (*reply.headers, ("X-Consul-Contenthash", digest)))


def health_by_id(call: Call) -> Reply:
    """Return how healthy one of the agent's own services is; the status of the reply says it, too."""
    found = call.state.local.services.get(call.tail)
    if not call.tail:
        raise Refusal(400, "Missing serviceID")
    if found is not None:
        call.authorizer.require("service", found.service, "read")
    shown = _health(call, found) if found else {"AggregatedStatus": CRITICAL, "Service": None, "Checks": None}
    missing = "" if found else f"ServiceId {call.tail} not found"
    return _with_status(call, shown, _status(call, found), missing)


def health_by_name(call: Call) -> Reply:
    """Return how healthy the agent's own instances of a service are; the worst one decides the status."""
    if not call.tail:
        raise Refusal(400, "Missing service Name")
    call.authorizer.require("service", call.tail, "read")
    found = [each for _, each in sorted(call.state.local.services.items()) if each.service == call.tail]
    worst = max((_status(call, each) for each in found), key=_WORSE_AND_WORSE.index, default=CRITICAL)
    missing = "" if found else f"ServiceName {call.tail} Not Found"
    return _with_status(call, [_health(call, each) for each in found], worst, missing)


def _with_status(call: Call, shown: object, worst: str, missing: str) -> Reply:
    status = 404 if missing else _HEALTH[worst]
    if call.params.get("format") == "text":
        reply = Reply(status, worst.encode(), _PLAIN)
    else:
        reply = call.json(shown, status=status)
    return Reply(reply.status, reply.body, (*reply.headers, ("X-Consul-Reason", missing or worst)))


def _status(call: Call, service: ServiceRecord | None) -> str:
    checks = [] if service is None else _checks_of(call, service)
    states = (_MAINTENANCE if check.type == _MAINTENANCE else check.status for check in checks)
    worst = max(states, key=_WORSE_AND_WORSE.index, default=PASSING)
    return CRITICAL if service is None else worst


def _checks_of(call: Call, service: ServiceRecord) -> list[CheckRecord]:
    of = call.state.local.checks_of
    return [*of(service.id).values(), *of("").values()]


def _health(call: Call, service: ServiceRecord) -> dict[str, object]:
    return {
        "AggregatedStatus": _status(call, service),
        "Service": describe_service(service),
        "Checks": [
            {
                **health.describe(check),
                "ServiceTags": list(check.service_tags) or None,
                "Type": "",
                "Definition": _NO_DEFINITION,
            }
            for check in _checks_of(call, service)
        ],
    }


def deregister_check(call: Call) -> Reply:
    """Deregister a check; an unknown one is fine."""
    _require_of_check(call)
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
    sent = catalog.decode_strictly(call, UPDATE, "checkUpdate")
    status = sent.get("Status", "")
    if status not in STATUSES:
        raise Refusal(400, f"Invalid check status: '{status}'")
    return _report(call, status, sent.get("Output", ""))


def deregister_service(call: Call) -> Reply:
    """Deregister a service with its checks; an unknown one is fine."""
    _require_of_service(call)
    call.state.local.remove_service(call.tail, call.now)
    return EMPTY


def maintain_node(call: Call) -> Reply:
    """Begin or end maintenance of the agent's node."""
    enable = _enable(call)
    call.authorizer.require("node", call.state.node, "write")
    call.state.local.maintain("", enable=enable, reason=call.params.get("reason"), now=call.now)
    return EMPTY


def maintain_service(call: Call) -> Reply:
    """Begin or end maintenance of one of the agent's services."""
    if not call.tail:
        raise Refusal(400, "Missing service ID")
    enable = _enable(call)
    _require_of_service(call)
    call.state.local.maintain(call.tail, enable=enable, reason=call.params.get("reason"), now=call.now)
    return EMPTY


def _enable(call: Call) -> bool:
    if "enable" not in call.params:
        raise Refusal(400, "Missing value for enable")
    given = call.params.get("enable")
    try:
        return parse_bool(given)
    except GoParseError:
        raise Refusal(400, f"Invalid value for enable: {quote(given)}") from None


def leave(call: Call) -> Reply:
    """Let the agent leave: its node goes from the catalog, with its sessions."""
    call.authorizer.require("agent", call.state.node, "write")
    call.state.leave(call.now)
    return EMPTY


def reload(call: Call) -> Reply:
    """Read the agent's configuration again: it has no files, so nothing changes."""
    call.authorizer.require("agent", call.state.node, "write")
    return EMPTY


def describe_service(service: ServiceRecord) -> dict[str, object]:
    """Return one of the agent's own services as the agent shows it."""
    return {
        **({"Kind": service.kind} if service.kind else {}),
        "ID": service.id,
        "Service": service.service,
        "Tags": list(service.tags),
        "Meta": dict(service.meta or ()),
        "Port": service.port,
        "Address": service.address,
        **({"TaggedAddresses": catalog.describe_addresses(service)} if service.tagged_addresses else {}),
        "Weights": catalog.describe_weights(service),
        "EnableTagOverride": service.enable_tag_override,
        **({"Proxy": _describe_proxy(service)} if service.kind else {}),
        **({"Connect": catalog.describe_connect(service)} if service.native else {}),
    }


def _describe_proxy(service: ServiceRecord) -> dict[str, Any]:
    shown = catalog.describe_proxy(service)
    for upstream in shown.get("Upstreams", ()):
        for name in [name for name in ("Datacenter", "Config") if not upstream[name]]:
            del upstream[name]
    return shown


def _report(call: Call, status: str, output: str) -> Reply:
    _require_of_check(call)
    call.state.local.update_check(call.tail, status, output, call.now)
    return EMPTY


def _require_of_check(call: Call) -> None:
    known = call.state.local.checks.get(call.tail)
    if known is not None:
        require_write(call, known.record.service_name)
    elif call.state.config.dialect.unknown_checks:
        why = "Ensure that the check ID is passed, not the check name."
        raise Refusal(404, f"Unknown check ID {quote(call.tail)}. {why}")
    elif call.state.config.acl is not None:
        message = f"Unknown check {quote(call.tail)}"
        raise StateError(message)


def _require_of_service(call: Call) -> None:
    known = call.state.local.services.get(call.tail)
    if known is not None:
        require_write(call, known.service)
    elif call.state.config.acl is not None:
        message = f"Unknown service {{{quote(call.tail)} {{}}}}"
        raise StateError(message)


def require_write(call: Call, service: str) -> None:
    """Refuse a token that may not write a service, or the node if there is none."""
    if service:
        call.authorizer.require_on_agent("service", service, "write")
    else:
        call.authorizer.require_on_agent("node", call.state.node, "write")


def _may_see(call: Call, check: CheckRecord) -> bool:
    if check.service_name:
        return call.authorizer.may("service", check.service_name, "read")
    return call.authorizer.may("node", check.node, "read")


UPDATE: dict[str, gojson.Reader] = {"Status": gojson.text, "Output": gojson.text}

_PLAIN = (("Content-Type", "text/plain"),)
_NO_DEFINITION: dict[str, object] = {
    **dict.fromkeys(("Interval", "Timeout", "DeregisterCriticalServiceAfter"), "0s"),
    "HTTP": "",
    "Header": None,
    "Method": "",
    "Body": "",
    "TLSSkipVerify": False,
    "TCP": "",
}
