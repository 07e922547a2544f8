"""/v1/agent/check/register and /v1/agent/service/register: what an agent is given to look after.

Rules
- TTL, HTTP and TCP checks are carried out, scripts where the settings permit it: else they are refused in
  Consul's words. Those that need more (containers, gRPC, aliases) are refused.
- An empty check counts as no check where a service has one. In a list of checks it is a mistake.
"""

from __future__ import annotations

import ipaddress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from consul_coord.server import gojson
from consul_coord.server.call import EMPTY
from consul_coord.server.endpoints import catalog, definitions
from consul_coord.server.endpoints.agent import STATUSES, require_write
from consul_coord.server.failures import Refusal, StateError
from consul_coord.server.gotext import GoParseError, parse_bool, quote
from consul_coord.server.localagent import LocalCheck, Probe, seconds
from consul_coord.server.records import CRITICAL, CheckRecord
from consul_coord.server.services import (
    is_unspecified,
    problem_with_meta,
    problem_with_proxy,
    problem_with_weights,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from consul_coord.server.call import Call
    from consul_coord.server.records import ServiceRecord
    from consul_coord.server.wire import Reply

_NO_SCRIPTS: Final = (
    "Scripts are disabled on this agent from remote calls; "  # as it says
    "to enable, configure 'enable_script_checks' to true"
)
_LEAST_INTERVAL: Final = 1.0
_TIMEOUT: Final = 10.0
_MOST_OUTPUT: Final = 4_096


def register_check(call: Call) -> Reply:
    """Register a check of the agent's node, or of one of its services."""
    sent = catalog.decode_strictly(call, CHECK, "", spelled=_SPELLED)
    name = sent.get("Name", "")
    if not name:
        raise Refusal(400, "Missing check name")
    if (status := sent.get("Status") or CRITICAL) not in STATUSES:
        raise Refusal(400, "Bad check status")
    _refuse(call, sent)
    bound = sent.get("ServiceID", "")
    service = call.state.local.services.get(bound)
    require_write(call, service.service if service else "")
    if bound and service is None:
        message = f"ServiceID {quote(bound)} does not exist"
        raise StateError(message)
    record = CheckRecord(
        call.state.node, sent.get("ID") or name, name, status, sent.get("Notes", ""), service_id=bound
    )
    call.state.local.add_check(_check(record, sent), call.now)
    return EMPTY


def register_service(call: Call) -> Reply:
    """Register a service of the agent's node, with its checks."""
    sent = catalog.decode_strictly(call, SERVICE, "", spelled=_SERVICE_SPELLED)
    if not sent.get("Name"):
        raise Refusal(400, "Missing service name")
    if is_unspecified(sent.get("Address", "")):
        raise Refusal(400, "Invalid service address")
    _refuse_weights(sent)
    named = {**sent, "Service": sent["Name"], "Meta": sent.get("Meta", ())}
    for upstream in sent.get("Proxy", {}).get("Upstreams", ()):
        upstream.setdefault("DestinationType", "service")
    service = definitions.service_record(call.state.node, named)
    if why := problem_with_meta(service.meta or ()):
        raise Refusal(400, f"Invalid Service Meta: {why}")
    if why := problem_with_proxy(service):
        raise Refusal(400, why)
    given = [*([sent["Check"]] if any(sent.get("Check", {}).values()) else ()), *sent.get("Checks", ())]
    for check in given:
        _refuse(call, check)
        if (check.get("Status") or CRITICAL) not in STATUSES:
            raise Refusal(400, "Status for checks must 'passing', 'warning', 'critical'")
    require_write(call, service.service)
    checks = [_of_service(service, number, check, of=len(given)) for number, check in enumerate(given, 1)]
    replacing = _replacing(call)
    call.state.local.add_service(_with_addresses(service), checks, call.now, replacing=replacing)
    return EMPTY


def _replacing(call: Call) -> bool:
    name = "replace-existing-checks"
    try:
        return name in call.params and parse_bool(call.params.get(name) or "true")
    except GoParseError:
        return False


def _refuse_weights(sent: Mapping[str, Any]) -> None:
    if "Weights" in sent:
        given = sent["Weights"]
        if why := problem_with_weights((given.get("Passing", 0), given.get("Warning", 0))):
            raise Refusal(400, f"Invalid Weights: {why}")


def _with_addresses(service: ServiceRecord) -> ServiceRecord:
    """Return a service with the tagged addresses that an agent adds for an address that is an IP's."""
    try:
        version = ipaddress.ip_address(service.address).version
    except ValueError:
        return service
    given = {name: (name, address, port) for name, address, port in service.tagged_addresses}
    for name in f"lan_ipv{version}", f"wan_ipv{version}":
        given.setdefault(name, (name, service.address, service.port))
    return replace(service, tagged_addresses=tuple(given[name] for name in sorted(given)))


def _of_service(service: ServiceRecord, number: int, sent: Mapping[str, Any], *, of: int) -> LocalCheck:
    check_id = f"service:{service.id}" if of == 1 else f"service:{service.id}:{number}"
    record = CheckRecord(
        service.node,
        sent.get("CheckID") or check_id,
        sent.get("Name") or f"Service '{service.service}' check",
        sent.get("Status") or CRITICAL,
        sent.get("Notes", ""),
        service_id=service.id,
    )
    return _check(record, sent)


def _refuse(call: Call, sent: Mapping[str, Any]) -> None:
    if why := _invalid(sent):
        raise Refusal(400, f"Invalid check: {why}")
    if sent.get("ScriptArgs") and not call.state.config.enable_script_checks:
        raise StateError(_NO_SCRIPTS)
    if kind := next((name for name in _ELSEWHERE if sent.get(name)), None):
        raise Refusal(501, f"The reference server runs no such checks: {kind} needs a Consul agent")


def _invalid(sent: Mapping[str, Any]) -> str:
    polled = any(sent.get(name) for name in ("ScriptArgs", "HTTP", "TCP", "GRPC"))
    alias = bool(sent.get("AliasNode") or sent.get("AliasService"))
    interval, ttl = sent.get("Interval", 0), sent.get("TTL", 0)
    problems = (
        (interval > 0 and ttl > 0, "Interval and TTL cannot both be specified"),
        (polled and interval <= 0, "Interval must be > 0 for Script, HTTP, or TCP checks"),
        (polled and alias, "Interval cannot be set for Alias checks"),
        (alias and ttl > 0, "TTL must be not be set for Alias checks"),
        (not polled and not alias and ttl <= 0, "TTL must be > 0 for TTL checks"),
        (sent.get("OutputMaxSize", 0) < 0, "MaxOutputMaxSize must be positive"),
    )
    return next((text for wrong, text in problems if wrong), "")


def _check(record: CheckRecord, sent: Mapping[str, Any]) -> LocalCheck:
    kind = definitions.type_of(sent)
    interval = max(seconds(sent.get("Interval", 0)), _LEAST_INTERVAL)
    return LocalCheck(
        record=replace(record, type=kind),
        every=seconds(sent["TTL"]) if kind == "ttl" else interval,
        probe=None if kind == "ttl" else _probe(record.id, sent),
        gone_after=seconds(sent.get("DeregisterCriticalServiceAfter", 0)),
        most_output=sent.get("OutputMaxSize") or _MOST_OUTPUT,
        to_pass=sent.get("SuccessBeforePassing", 0),
        to_fail=sent.get("FailuresBeforeCritical", 0),
    )


def _probe(check: str, sent: Mapping[str, Any]) -> Probe:
    timeout = seconds(sent.get("Timeout", 0)) or _TIMEOUT
    if sent.get("HTTP"):
        return _http_probe(check, sent, timeout)
    if target := sent.get("TCP"):
        return Probe(check=check, kind="tcp", target=target, timeout=timeout)
    return Probe(check=check, kind="script", command=sent["ScriptArgs"], timeout=timeout)


def _http_probe(check: str, sent: Mapping[str, Any], timeout: float) -> Probe:
    return Probe(
        check=check,
        kind="http",
        target=sent["HTTP"],
        method=sent.get("Method", ""),
        headers=tuple((name, ", ".join(values or ())) for name, values in sent.get("Header", {}).items()),
        body=sent.get("Body", ""),
        timeout=timeout,
        verify=not sent.get("TLSSkipVerify", False),
    )


_ELSEWHERE: Final = ("GRPC", "DockerContainerID", "AliasNode", "AliasService")
_OF_BOTH: Final[dict[str, gojson.Reader]] = {
    "Name": gojson.text,
    "Notes": gojson.text,
    "Status": gojson.text,
    "ServiceID": gojson.text,
    "ScriptArgs": gojson.texts,
    "HTTP": gojson.text,
    "Header": gojson.lists_of_texts,
    "Method": gojson.text,
    "Body": gojson.text,
    "TCP": gojson.text,
    "Interval": gojson.duration,
    "Timeout": gojson.duration,
    "TTL": gojson.duration,
    "DeregisterCriticalServiceAfter": gojson.duration,
    "DockerContainerID": gojson.text,
    "Shell": gojson.text,
    "GRPC": gojson.text,
    "GRPCUseTLS": gojson.boolean,
    "TLSSkipVerify": gojson.boolean,
    "AliasNode": gojson.text,
    "AliasService": gojson.text,
    "SuccessBeforePassing": gojson.int_,
    "FailuresBeforeCritical": gojson.int_,
    "OutputMaxSize": gojson.int_,
}
_SPELLED: Final = {
    "args": "ScriptArgs",
    "script_args": "ScriptArgs",
    "deregister_critical_service_after": "DeregisterCriticalServiceAfter",
    "docker_container_id": "DockerContainerID",
    "tls_skip_verify": "TLSSkipVerify",
    "service_id": "ServiceID",
}
_SERVICE_SPELLED: Final = {
    "enable_tag_override": "EnableTagOverride",
    "tagged_addresses": "TaggedAddresses",
}

CHECK: Final[dict[str, gojson.Reader]] = {
    "ID": gojson.named("types.CheckID", gojson.text),
    "Token": gojson.text,
    **_OF_BOTH,
}

_CHECK_TYPE: Final = gojson.ObjectReader(
    {
        "CheckID": gojson.named("types.CheckID", gojson.text),
        "ProxyHTTP": gojson.text,
        "ProxyGRPC": gojson.text,
        **_OF_BOTH,
    },
    "CheckType",
    "structs.CheckType",
    flat=True,
    spelled=_SPELLED,
)

SERVICE: Final[dict[str, gojson.Reader]] = {
    **{
        name: read
        for name, read in definitions.SERVICE.items()
        if name not in ("Service", "CreateIndex", "ModifyIndex")
    },
    "Name": gojson.text,
    "Check": _CHECK_TYPE,
    "Checks": gojson.list_of(_CHECK_TYPE, "structs.CheckTypes"),
    "Token": gojson.text,
}
