"""Health checks of all nodes, as the servers know them: ``/v1/health``."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from consul_coord import models
from consul_coord.http.endpoints import _call, _json, _keys, catalog
from consul_coord.models._validate import choice, texts_or_none

if TYPE_CHECKING:
    from consul_coord.http.messages import Call
    from consul_coord.models import HealthCheck, HealthState, ReadOptions, Result, ServiceInstance

_ROOT = "/v1/health/"


def check(what: str, value: object) -> HealthCheck:
    """Read one health check."""
    fields = _json.Fields(what, value)
    return models.HealthCheck(
        fields.get("CheckID", _json.text),
        name=fields.get("Name", _json.text, ""),
        node=fields.get("Node", _json.text, ""),
        status=fields.get("Status", _json.text, ""),
        notes=fields.get("Notes", _json.text, ""),
        output=fields.get("Output", _json.text, ""),
        service_id=fields.get("ServiceID", _json.text, ""),
        service_name=fields.get("ServiceName", _json.text, ""),
        create_index=fields.get("CreateIndex", _json.integer, 0),
        modify_index=fields.get("ModifyIndex", _json.integer, 0),
    )


checks = _json.list_of(check)
"""Reads a list of health checks."""


def node(name: str, *, options: ReadOptions | None = None) -> Call[Result[tuple[HealthCheck, ...]]]:
    """Read the checks of one node; none when it is not registered."""
    path = _keys.path(_ROOT + "node/", _keys.check_id("node", name))
    return _call.get(path, options, checks, needed=(f'node:read on node "{name}"',))


def state(state: HealthState, *, options: ReadOptions | None = None) -> Call[Result[tuple[HealthCheck, ...]]]:
    """Read the checks that are in one state."""
    path = _ROOT + "state/" + choice("state", state, get_args(models.HealthState))
    return _call.get(path, options, checks, needed=("node:read on the nodes",))


def service(
    name: str, *, passing: bool = False, tag: str | None = None, options: ReadOptions | None = None
) -> Call[Result[tuple[ServiceInstance, ...]]]:
    """Read the instances of a service, with their nodes and checks."""
    path = _keys.path(_ROOT + "service/", _keys.check_id("service", name))
    chosen = (("passing", ""),) if passing else ()
    texts_or_none(tag=tag)
    tagged = () if tag is None else (("tag", tag),)
    needed = (f'service:read on "{name}"', "node:read on the nodes")
    return _call.get(path, options, instances, params=(*chosen, *tagged), needed=needed)


def _instance(what: str, value: object) -> ServiceInstance:
    fields = _json.Fields(what, value)
    return models.ServiceInstance(
        fields.get("Node", catalog.read_node),
        fields.get("Service", catalog.read_service),
        checks=fields.get("Checks", checks, ()),
    )


instances = _json.list_of(_instance)
"""Reads a list of instances, as health and executed queries show them."""
