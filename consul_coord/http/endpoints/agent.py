"""The agent that answers, and the health checks that it keeps: ``/v1/agent``.

An agent answers these from its own state: there is no index, no consistency to choose, and no waiting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from consul_coord import models
from consul_coord.http.endpoints import _call, _durations, _json, _keys, catalog, health
from consul_coord.http.messages import Retry
from consul_coord.models._validate import choice, instance, instances, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consul_coord.http.messages import Call
    from consul_coord.models import (
        AgentInfo,
        CheckSpec,
        CheckStatus,
        HealthCheck,
        ReadOptions,
        Result,
        Service,
        WriteOptions,
    )

_CHECK = "/v1/agent/check/"
_SERVICE = "/v1/agent/service/"
_WRITE = ("node:write on the agent's own node, or service:write on the check's service",)


DEFAULT_TTL_MIN = 10.0
"""Seconds: what Consul takes a setting of 0 for."""


def _info(what: str, value: object) -> AgentInfo:
    fields = _json.Fields(what, value)
    config = fields.get("Config", _json.Fields)
    debug = fields.get("DebugConfig", _json.Fields, _json.Fields(what, {}))
    return models.AgentInfo(
        config.get("NodeName", _json.text),
        datacenter=config.get("Datacenter", _json.text, ""),
        node_id=config.get("NodeID", _json.text, ""),
        version=config.get("Version", _json.text, ""),
        server=config.get("Server", _json.boolean, default=False),
        session_ttl_min=debug.get("SessionTTLMin", _ttl_min, None),
    )


def _ttl_min(what: str, value: object) -> float | None:
    try:
        return _durations.to_seconds(_json.text(what, value)) or DEFAULT_TTL_MIN
    except ValueError:
        return None  # what it is set to is no reason to refuse all the rest


def info(*, options: ReadOptions | None = None) -> Call[Result[AgentInfo]]:
    """Read who answers."""
    return _call.get("/v1/agent/self", options, _info, needed=("agent:read on the agent's own node",))


def checks(*, options: ReadOptions | None = None) -> Call[Result[dict[str, HealthCheck]]]:
    """Read the checks that this agent keeps, by id."""
    return _call.get("/v1/agent/checks", options, _checks, needed=("node:read on the agent's own node",))


def _checks(what: str, value: object) -> dict[str, HealthCheck]:
    return _json.mapping(what, value, health.check)


def register_check(spec: CheckSpec, *, options: WriteOptions | None = None) -> Call[None]:
    """Have the agent keep a check."""
    instance("spec", spec, models.CheckSpec)
    wanted: dict[str, object] = {"ID": spec.id, **_encode_check(spec, spec.service_id)}
    return _write(_CHECK + "register", options, body=_json.dump_set(wanted))


def _encode_check(spec: CheckSpec, service_id: str | None = None) -> dict[str, str | None]:
    return {
        "Name": spec.name,
        "Notes": spec.notes or None,
        "ServiceID": service_id,
        "Status": spec.status,
        "HTTP": spec.http,
        "TCP": spec.tcp,
        "TTL": _duration(spec.ttl),
        "Interval": _duration(spec.interval),
        "Timeout": _duration(spec.timeout),
        "DeregisterCriticalServiceAfter": _duration(spec.deregister_after),
    }


def register_service(
    service: Service, *, checks: Sequence[CheckSpec] = (), options: WriteOptions | None = None
) -> Call[None]:
    """Have the agent keep a service, with its checks; those that it had besides are forgotten."""
    instance("service", service, models.Service)
    wanted: dict[str, object] = {
        **catalog.encode_service(service, "Name"),
        "Checks": [_of_service(check) for check in instances("checks", checks, models.CheckSpec)] or None,
    }
    body = _json.dump_set(wanted)
    params = (("replace-existing-checks", "true"),)
    return _write(_SERVICE + "register", options, params=params, body=body, needed=_on_service(service.name))


def _of_service(spec: CheckSpec) -> dict[str, object]:
    return _json.members_set({"CheckID": spec.id, **_encode_check(spec)})


def deregister_service(id: str, *, options: WriteOptions | None = None) -> Call[None]:
    """Have the agent forget a service with its checks; every session that names one of these ends."""
    path = _keys.path(_SERVICE + "deregister/", _keys.check_id("service", id))
    return _write(path, options, needed=_on_service(id))


def _on_service(name: str) -> tuple[str, ...]:
    return (f'service:write on "{name}"',)


def _duration(seconds: float | None) -> str | None:
    return None if seconds is None else _durations.to_text(seconds)


def deregister_check(id: str, *, options: WriteOptions | None = None) -> Call[None]:
    """Have the agent forget a check; every session that names it ends."""
    return _write(_keys.path(_CHECK + "deregister/", _keys.check_id("check", id)), options)


def pass_check(id: str, *, note: str = "", options: WriteOptions | None = None) -> Call[None]:
    """Set a TTL check to passing, and start its time again."""
    return _set(_CHECK + "pass/", id, note, options)


def warn_check(id: str, *, note: str = "", options: WriteOptions | None = None) -> Call[None]:
    """Set a TTL check to warning, which ends no session, and start its time again."""
    return _set(_CHECK + "warn/", id, note, options)


def fail_check(id: str, *, note: str = "", options: WriteOptions | None = None) -> Call[None]:
    """Set a TTL check to critical; every session that names it ends."""
    return _set(_CHECK + "fail/", id, note, options)


def _set(root: str, id: str, note: str, options: WriteOptions | None) -> Call[None]:
    params = (("note", text("note", note)),) if note else ()
    return _write(_keys.path(root, _keys.check_id("check", id)), options, params=params)


def update_check(
    id: str, status: CheckStatus, *, output: str = "", options: WriteOptions | None = None
) -> Call[None]:
    """Set a TTL check's state and output."""
    choice("status", status, get_args(models.CheckStatus))
    body = _json.dump({"Status": status, "Output": text("output", output)})
    return _write(_keys.path(_CHECK + "update/", _keys.check_id("check", id)), options, body=body)


def _write(
    path: str,
    options: WriteOptions | None,
    *,
    params: _call.Params = (),
    body: bytes | None = None,
    needed: tuple[str, ...] = _WRITE,
) -> Call[None]:
    return _call.write(
        "PUT", path, options, _call.nothing, params=params, body=body, retry=Retry.IDEMPOTENT, needed=needed
    )
