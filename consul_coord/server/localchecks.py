"""The checks and services that are registered with the agent itself, not with the catalog.

Rules
- A TTL check is critical until told otherwise, and again when it is not told anything for its TTL.
- The agent is the authority for what it registered: a change of a check's status goes to the catalog at once,
  a change of its output alone does not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from consul_coord.server.records import CRITICAL

if TYPE_CHECKING:
    from consul_coord.server.records import CheckRecord, ServiceRecord

_EXPIRED = "TTL expired"
_EXPIRED_AFTER = "TTL expired (last output before timeout follows): "


@dataclass(frozen=True, slots=True)
class TtlCheck:
    """A TTL check as the agent knows it; ``ttl`` in nanoseconds."""

    record: CheckRecord
    ttl: int
    last_output: str = ""

    def told(self, status: str, output: str) -> TtlCheck:
        """Return the check after its owner reported a status."""
        return TtlCheck(replace(self.record, status=status, output=output), self.ttl, output)

    def expired(self) -> TtlCheck:
        """Return the check after its owner was silent for too long."""
        output = f"{_EXPIRED_AFTER}{self.last_output}" if self.last_output else _EXPIRED
        return replace(self, record=replace(self.record, status=CRITICAL, output=output))


class LocalState:
    """What is registered with the agent."""

    def __init__(self) -> None:
        self.checks: dict[str, TtlCheck] = {}
        self.services: dict[str, ServiceRecord] = {}

    def checks_of(self, service: str) -> list[str]:
        """Return the ids of a service's checks."""
        return [id for id, check in self.checks.items() if check.record.service_id == service]
