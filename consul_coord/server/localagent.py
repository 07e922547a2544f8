"""The checks and services that are registered with the agent itself, not with the catalog.

Rules
- A TTL check is critical until told otherwise, and again when it is not told anything for its TTL.
- The agent is the authority for what it registered: a change of a check's status goes to the catalog at once,
  a change of its output alone does not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from consul_coord.server.catalog import Registration
from consul_coord.server.failures import StateError
from consul_coord.server.gotext import SECOND, quote
from consul_coord.server.records import CRITICAL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consul_coord.server.records import CheckRecord, ServiceRecord
    from consul_coord.server.timers import Timer, TimerQueue

CHECK_TIMER: Final = "check"

_EXPIRED = "TTL expired"
_EXPIRED_AFTER = "TTL expired (last output before timeout follows): "


class Catalog(Protocol):
    """Where an agent's registrations go."""

    def register(self, what: Registration, now: float) -> None:
        """Register a node, a service, checks."""
        ...

    def deregister(self, node: str, now: float, *, check_id: str = "", service_id: str = "") -> None:
        """Remove a check, a service or a whole node."""
        ...


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


class LocalAgent:
    """An agent's own checks and services, on its node in a catalog."""

    def __init__(self, node: str, catalog: Catalog, timers: TimerQueue[Timer]) -> None:
        self.checks: dict[str, TtlCheck] = {}
        self.services: dict[str, ServiceRecord] = {}
        self._node = node
        self._catalog = catalog
        self._timers = timers

    def add_check(self, check: TtlCheck, now: float) -> None:
        """Register a TTL check."""
        self.checks[check.record.id] = check
        self._start(check, now)
        self._sync(check, now)

    def update_check(self, check_id: str, status: str, output: str, now: float) -> None:
        """Report a check's status, which starts its TTL again."""
        check = self.checks.get(check_id)
        if check is None:
            message = f"CheckID {quote(check_id)} does not have associated TTL"
            raise StateError(message)
        self._start(check, now)
        self._become(check, check.told(status, output), now)

    def expire_check(self, check_id: str, now: float) -> None:
        """Make a check critical that was told nothing for its TTL."""
        check = self.checks[check_id]
        self._become(check, check.expired(), now)

    def remove_check(self, check_id: str, now: float) -> None:
        """Deregister a check; an unknown one is fine."""
        if self.checks.pop(check_id, None) is not None:
            self._timers.drop((CHECK_TIMER, check_id))
            self._catalog.deregister(self._node, now, check_id=check_id)

    def add_service(self, service: ServiceRecord, checks: Sequence[TtlCheck], now: float) -> None:
        """Register a service and its TTL checks."""
        self.services[service.id] = service
        self._catalog.register(Registration(self._node, service=service), now)
        for check in checks:
            self.add_check(check, now)

    def remove_service(self, service: str, now: float) -> None:
        """Deregister a service and its checks; an unknown one is fine."""
        if self.services.pop(service, None) is None:
            return
        for check_id in [id for id, check in self.checks.items() if check.record.service_id == service]:
            del self.checks[check_id]
            self._timers.drop((CHECK_TIMER, check_id))
        self._catalog.deregister(self._node, now, service_id=service)

    def _start(self, check: TtlCheck, now: float) -> None:
        self._timers.set((CHECK_TIMER, check.record.id), now + check.ttl / SECOND)

    def _become(self, before: TtlCheck, after: TtlCheck, now: float) -> None:
        self.checks[after.record.id] = after
        if after.record.status != before.record.status:
            self._sync(after, now)

    def _sync(self, check: TtlCheck, now: float) -> None:
        self._catalog.register(Registration(self._node, checks=(check.record,)), now)
