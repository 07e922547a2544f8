"""Health checks as the agent, the catalog and the health endpoints show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord import models
from consul_coord.http.endpoints import _json

if TYPE_CHECKING:
    from consul_coord.models import HealthCheck


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


def checks(what: str, value: object) -> tuple[HealthCheck, ...]:
    """Read a list of health checks."""
    return _json.items(what, value, check)
