"""The checks and services that are registered with the agent itself, not with the catalog.

Rules
- A TTL check is critical until told otherwise, and again when it is not told anything for its TTL.
- An HTTP or TCP check falls due at once and then each interval; whoever drives the agent carries it out
  (``take_due``) and reports what came of it. It changes after as many equal results in a row as it wants.
- A service whose check is critical for longer than the check permits is deregistered, not before a minute.
- The agent is the authority for what it registered: a change of a check's status goes to the catalog at once,
  a change of its output alone does not.
- A service or check that is registered again keeps the status and the output of its checks.
- Maintenance of a service, or of the node, is a critical check.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, Protocol

from consul_coord.server.catalog import Registration
from consul_coord.server.failures import Refusal, StateError
from consul_coord.server.gotext import SECOND, quote
from consul_coord.server.records import CRITICAL, CheckRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from consul_coord.server.records import ServiceRecord
    from consul_coord.server.timers import Timer, TimerQueue

CHECK_TIMER: Final = "check"
CRITICAL_TIMER: Final = "critical"

_EXPIRED = "TTL expired"
_EXPIRED_AFTER = "TTL expired (last output before timeout follows): "
_MOST_OUTPUT = 4_096
_LEAST_CRITICAL = 60.0
_MAINTENANCE = "maintenance"
_OF_NODE = "_node_maintenance"
_OF_SERVICE = "_service_maintenance:"
_NO_REASON = "Maintenance mode is enabled for this {}, but no reason was provided. This is a default message."


class Catalog(Protocol):
    """Where an agent's registrations go."""

    def register(self, what: Registration, now: float) -> None:
        """Register a node, a service, checks."""
        ...

    def deregister(self, node: str, now: float, *, check_id: str = "", service_id: str = "") -> None:
        """Remove a check, a service or a whole node."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The action by which an agent learns the status of a service; ``timeout`` in seconds."""

    check: str
    kind: Literal["http", "script", "tcp"]
    target: str = ""
    command: tuple[str, ...] = ()
    method: str = "GET"
    headers: tuple[tuple[str, str], ...] = ()
    body: str = ""
    timeout: float = 10.0
    verify: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCheck:
    """A check as the agent knows it.

    ``every`` is a TTL check's TTL and another's interval, in seconds; ``gone_after`` how long it may be
    critical, 0 for ever; ``to_pass`` and ``to_fail`` how many results in a row it wants beyond one. ``row``
    counts them.
    """

    record: CheckRecord
    every: float = 0.0
    probe: Probe | None = None
    gone_after: float = 0.0
    most_output: int = _MOST_OUTPUT
    to_pass: int = 0
    to_fail: int = 0
    row: tuple[bool, int] = (True, 0)
    last_output: str = ""

    def told(self, status: str, output: str) -> LocalCheck:
        """Return the check after its owner reported a status."""
        shown = output
        if (size := len(output.encode())) > self.most_output:
            kept = output.encode()[: self.most_output].decode(errors="ignore")
            shown = f"{kept} ... (captured {self.most_output} of {size} bytes)"
        return replace(self, record=replace(self.record, status=status, output=shown), last_output=shown)

    def expired(self) -> LocalCheck:
        """Return the check after its owner was silent for too long."""
        output = f"{_EXPIRED_AFTER}{self.last_output}" if self.last_output else _EXPIRED
        return replace(self, record=replace(self.record, status=CRITICAL, output=output))

    def probed(self, status: str, output: str) -> LocalCheck:
        """Return the check after a probe; its status changes after enough results of one kind."""
        fine = status != CRITICAL
        before, count = self.row
        row = (fine, count + 1 if before == fine else 1)
        counted = replace(self, row=row)
        if row[1] > (self.to_pass if fine else self.to_fail):
            return counted.told(status, output)
        return counted


class LocalAgent:
    """An agent's own checks and services, on its node in a catalog."""

    def __init__(self, node: str, catalog: Catalog, timers: TimerQueue[Timer]) -> None:
        self.checks: dict[str, LocalCheck] = {}
        self.services: dict[str, ServiceRecord] = {}
        self._node = node
        self._catalog = catalog
        self._timers = timers
        self._due: dict[str, Probe] = {}

    def add_check(self, check: LocalCheck, now: float) -> None:
        """Register a check, also one that exists."""
        known = self.checks.get(check.record.id)
        if known is not None:
            kept = replace(check.record, status=known.record.status, output=known.record.output)
            check = replace(check, record=kept, last_output=known.last_output)
        if (service := self.services.get(check.record.service_id)) is not None:
            bound = replace(check.record, service_name=service.service, service_tags=service.tags)
            check = replace(check, record=bound)
        self.checks[check.record.id] = check
        self._start(check, now)
        self._sync(check, now)
        self._watch_critical(check, now)

    def update_check(self, check_id: str, status: str, output: str, now: float) -> None:
        """Report a TTL check's status, which starts its TTL again."""
        check = self.checks.get(check_id)
        if check is None or not check.every or check.probe is not None:
            message = f"CheckID {quote(check_id)} does not have associated TTL"
            raise StateError(message)
        self._start(check, now)
        self._become(check, check.told(status, output), now)

    def check_is_due(self, check_id: str, now: float) -> None:
        """Make a TTL check critical that got no update for its TTL; perform any other check."""
        check = self.checks[check_id]
        if check.probe is None:
            self._become(check, check.expired(), now)
            return
        self._due[check_id] = check.probe
        self._timers.set((CHECK_TIMER, check_id), now + check.every)

    def take_due(self) -> list[Probe]:
        """Return what is to be carried out, once."""
        due, self._due = self._due, {}
        return list(due.values())

    def probed(self, probe: Probe, status: str, output: str, now: float) -> None:
        """Note what came of a probe, if the check is still the one that it was made for."""
        check = self.checks.get(probe.check)
        if check is not None and check.probe == probe:
            self._become(check, check.probed(status, output), now)

    def has_been_critical(self, check_id: str, now: float) -> None:
        """Deregister the service of a check that was critical for as long as is permitted."""
        self.remove_service(self.checks[check_id].record.service_id, now)

    def remove_check(self, check_id: str, now: float) -> None:
        """Deregister a check; an unknown one is fine."""
        if not check_id:
            raise StateError("CheckID missing")
        if self._forget(check_id):
            self._catalog.deregister(self._node, now, check_id=check_id)

    def add_service(
        self, service: ServiceRecord, checks: Sequence[LocalCheck], now: float, *, replacing: bool = False
    ) -> None:
        """Register a service and its checks; ``replacing`` removes those that it has besides."""
        self.services[service.id] = service
        self._catalog.register(Registration(self._node, service=service), now)
        for check in checks:
            self.add_check(check, now)
        wanted = {check.record.id for check in checks}
        for check_id in self.checks_of(service.id):
            if replacing and check_id not in wanted:
                self.remove_check(check_id, now)

    def remove_service(self, service: str, now: float) -> None:
        """Deregister a service and its checks; an unknown one is fine."""
        if not service:
            raise StateError("ServiceID missing")
        if self.services.pop(service, None) is None:
            return
        for check_id in self.checks_of(service):
            self._forget(check_id)
        self._catalog.deregister(self._node, now, service_id=service)

    def checks_of(self, service: str) -> Mapping[str, CheckRecord]:
        """Return the checks of a service, or those of the node alone, by id."""
        return {id: c.record for id, c in sorted(self.checks.items()) if c.record.service_id == service}

    def maintain(self, service: str, *, enable: bool, reason: str, now: float) -> None:
        """Begin or end maintenance of a service, or of the node if none is named."""
        if service and service not in self.services:
            raise Refusal(404, f"No service registered with ID {quote(service)}")
        check_id = f"{_OF_SERVICE}{service}" if service else _OF_NODE
        if not enable:
            self.remove_check(check_id, now)
        elif check_id not in self.checks:
            what = "service" if service else "node"
            name = f"{what.capitalize()} Maintenance Mode"
            notes = reason or _NO_REASON.format(what)
            record = CheckRecord(
                self._node, check_id, name, CRITICAL, notes, service_id=service, type=_MAINTENANCE
            )
            self.add_check(LocalCheck(record=record), now)

    def _forget(self, check_id: str) -> bool:
        self._timers.drop((CHECK_TIMER, check_id))
        self._timers.drop((CRITICAL_TIMER, check_id))
        return self.checks.pop(check_id, None) is not None

    def _start(self, check: LocalCheck, now: float) -> None:
        if check.every:
            until = now if check.probe is not None else now + check.every
            self._timers.set((CHECK_TIMER, check.record.id), until)

    def _become(self, before: LocalCheck, after: LocalCheck, now: float) -> None:
        self.checks[after.record.id] = after
        if after.record.status != before.record.status:
            self._sync(after, now)
            self._watch_critical(after, now)

    def _watch_critical(self, check: LocalCheck, now: float) -> None:
        name = (CRITICAL_TIMER, check.record.id)
        if check.record.status != CRITICAL or not check.gone_after or not check.record.service_id:
            self._timers.drop(name)
        elif name not in self._timers:
            self._timers.set(name, now + max(check.gone_after, _LEAST_CRITICAL))

    def _sync(self, check: LocalCheck, now: float) -> None:
        self._catalog.register(Registration(self._node, checks=(check.record,)), now)


def seconds(nanoseconds: int) -> float:
    """Return a duration of Go's in seconds."""
    return nanoseconds / SECOND
