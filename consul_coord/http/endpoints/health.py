"""Health checks of all nodes, as the servers know them: ``/v1/health``."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from consul_coord import models
from consul_coord.http.endpoints import _call, _checks, _keys
from consul_coord.models._validate import choice

if TYPE_CHECKING:
    from consul_coord.http.messages import Call
    from consul_coord.models import HealthCheck, HealthState, ReadOptions, Result

_ROOT = "/v1/health/"


def node(name: str, *, options: ReadOptions | None = None) -> Call[Result[tuple[HealthCheck, ...]]]:
    """Read the checks of one node; none when it is not registered."""
    path = _keys.path(_ROOT + "node/", _keys.check_id("node", name))
    request = _call.read_request(path, options, needed=(f'node:read on node "{name}"',))
    return _call.call(request, _call.read_result(_checks.checks))


def state(state: HealthState, *, options: ReadOptions | None = None) -> Call[Result[tuple[HealthCheck, ...]]]:
    """Read the checks that are in one state."""
    path = _ROOT + "state/" + choice("state", state, get_args(models.HealthState))
    request = _call.read_request(path, options, needed=("node:read on the nodes",))
    return _call.call(request, _call.read_result(_checks.checks))
