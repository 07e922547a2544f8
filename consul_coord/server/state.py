"""The state of a Consul datacenter, as far as sessions, locks and what surrounds them need it.

Rules
- Pure: every operation takes the time ``now`` (seconds, any start); no I/O, no clock, no threads; ids come
  from a factory. The same calls at the same times give the same state, so a simulator can own everything.
- Writes return what the caller is told or raise ``StateError`` with Consul's text. What changed is collected
  as marks (``take_news``), so that whoever holds blocking queries knows which to look at again.
- What happens by itself (a session's TTL, a TTL check's timeout, the reaping of tombstones) happens in
  ``run_timers``, each at its own time; ``next_timer`` tells when the next one is due. The end of a lock-delay
  is not among them: it is no event.
- A session's TTL runs twice as long as it says, unless configured otherwise; timers live with the leader,
  start afresh with a new one and stop without.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from consul_coord.server import catalog, catalog_ops, kv, queries, sessions, snapshot, txn
from consul_coord.server.acl import DENIED
from consul_coord.server.catalog_ops import CatalogOp
from consul_coord.server.config import ServerConfig
from consul_coord.server.failures import StateError
from consul_coord.server.gotext import SECOND, GoParseError, format_duration, parse_duration, quote
from consul_coord.server.localchecks import LocalState, TtlCheck
from consul_coord.server.lockdelay import LockDelays
from consul_coord.server.records import (
    DELETE,
    PASSING,
    RELEASE,
    SERF_CHECK,
    CheckRecord,
    NodeRecord,
    ServiceRecord,
    SessionRecord,
)
from consul_coord.server.store import Store, fold
from consul_coord.server.timers import TimerQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from consul_coord.server.records import QueryRecord, ServiceCheck
    from consul_coord.server.tables import Mark

    Permitted = Callable[[txn.Op], bool]

LEADER: Mark = ("leader",)
CAUGHT_UP: Mark = ("caught-up",)
SERVER_PORT = 8300

_FIRST_INDEX = 8  # what a fresh single server has spent on its own before anybody writes
_ADDRESS = "127.0.0.1"

Timer = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDraft:
    """What a client asks for when it creates a session; the lock-delay is in nanoseconds."""

    node: str
    name: str = ""
    lock_delay: int = 15 * SECOND
    behavior: str = RELEASE
    ttl: str = ""
    node_checks: tuple[str, ...] | None = (SERF_CHECK,)
    service_checks: tuple[ServiceCheck, ...] | None = None
    checks: tuple[str, ...] = ()


class ConsulState:
    """One datacenter with one agent, which is a server and its own leader until told otherwise."""

    def __init__(
        self,
        *,
        now: float,
        new_id: Callable[[], str],
        node: str = "node1",
        datacenter: str = "dc1",
        config: ServerConfig | None = None,
    ) -> None:
        self.config = config or ServerConfig()
        self.node = node
        self.node_id = new_id()
        self.datacenter = datacenter
        self.address = _ADDRESS
        self.server_address = f"{_ADDRESS}:{SERVER_PORT}"
        self.leader = self.server_address
        self.store = Store()
        self.follower: Store | None = None
        self.leader_since = now
        self.local = LocalState()
        self.delays = LockDelays(self.config.lock_delay_max)
        self._new_id = new_id
        self._timers: TimerQueue[Timer] = TimerQueue()
        self._marks: list[Mark] = []
        self._begin(now)

    def _begin(self, now: float) -> None:
        self.store.raft_index = _FIRST_INDEX
        own = NodeRecord(
            self.node,
            self.node_id,
            self.address,
            self.datacenter,
            tagged_addresses=tuple((name, self.address) for name in ("lan", "lan_ipv4", "wan", "wan_ipv4")),
            meta=(("consul-network-segment", ""),),
        )
        serf = CheckRecord(
            self.node, SERF_CHECK, "Serf Health Status", status=PASSING, output="Agent alive and reachable"
        )
        consul = ServiceRecord(self.node, "consul", "consul", port=SERVER_PORT)
        self.register(catalog.Registration(self.node, own, consul, (serf,)), now)
        self.take_news()

    # Sessions

    def create_session(self, draft: SessionDraft, now: float) -> str:
        """Create a session and return its id."""
        if not draft.node:
            raise StateError("Must provide Node")
        behavior = draft.behavior or RELEASE
        if behavior not in (RELEASE, DELETE):
            message = f"Invalid Behavior setting '{behavior}'"
            raise StateError(message)
        self._check_ttl(draft.ttl)
        session = SessionRecord(
            self._new_id(),
            draft.name,
            draft.node,
            draft.lock_delay,
            behavior,
            draft.ttl,
            draft.node_checks,
            draft.service_checks,
            draft.checks,
        )
        with self.store.command() as index:
            sessions.create(self.store, index, session)
        self._start_ttl(session, now)
        return session.id

    def destroy_session(self, session: str, now: float) -> None:
        """End a session; an unknown one is fine."""
        with self.store.command() as index:
            found = sessions.find(self.store, session)
            if found is not None:
                sessions.invalidate(self.store, index, found, self._delayer(now))
                self._timers.drop(("session", found.id))
        self._schedule_reaping(index, now)

    def renew_session(self, session: str, now: float) -> SessionRecord | None:
        """Restart a session's TTL and return it; None when it is unknown."""
        found = sessions.find(self.store, session)
        if found is not None:
            self._start_ttl(found, now)
        return found

    def _check_ttl(self, ttl: str) -> None:
        if not ttl:
            return
        try:
            nanoseconds = parse_duration(ttl)
        except GoParseError as error:
            message = f"Session TTL '{ttl}' invalid: {error}"
            raise StateError(message) from None
        low, high = (
            round(bound * SECOND) for bound in (self.config.session_ttl_min, self.config.session_ttl_max)
        )
        if nanoseconds and not low <= nanoseconds <= high:
            bounds = f"{format_duration(low)}={format_duration(high)}"
            message = f"Invalid Session TTL '{nanoseconds}', must be between [{bounds}]"
            raise StateError(message)

    def _start_ttl(self, session: SessionRecord, now: float) -> None:
        if session.ttl and self.leader and (nanoseconds := parse_duration(session.ttl)):
            self._timers.set(
                ("session", session.id), now + self.config.session_ttl_factor * nanoseconds / SECOND
            )

    def _delayer(self, now: float) -> Callable[[str, int], None]:
        # At once, outside of the command: Consul keeps a delay even if the transaction is then rolled back.
        return lambda key, nanoseconds: self.delays.start(key, nanoseconds, now)

    # KV and transactions

    def write_kv(self, op: kv.KvOp, now: float) -> bool:
        """Apply one writing operation; False when it is refused (stale, held, lock-delay, not the holder)."""
        if op.verb == "lock" and self.delays.active(op.entry.key, now):
            return False
        with self.store.command() as index:
            done = kv.WRITES[op.verb](self.store, index, op)
        self._schedule_reaping(index, now)
        return bool(done)

    def write_txn(
        self, ops: Sequence[txn.Op], now: float, permitted: Permitted = lambda _: True
    ) -> txn.Outcome:
        """Apply all operations at one index, or none."""
        refused = _refused(ops, permitted, lambda op: self._refusal(op, now))
        if refused:
            return txn.Outcome(failures=refused)
        try:
            with self.store.command() as index:
                outcome = txn.apply(self.store, index, ops, self._delayer(now))
                if outcome.failures:
                    raise txn.Undo(outcome)
        except txn.Undo as undo:
            return undo.outcome
        self._schedule_reaping(index, now)
        return outcome

    def read_txn(
        self, ops: Sequence[txn.Op], store: Store, permitted: Permitted = lambda _: True
    ) -> txn.Outcome:
        """Run operations that only read, on the given store."""
        refused = _refused(ops, permitted, _malformed)
        return (
            txn.Outcome(failures=refused) if refused else txn.apply(store, store.raft_index, ops, _no_delay)
        )

    def _refusal(self, op: txn.Op, now: float) -> str | None:
        if (why := _malformed(op)) is not None or isinstance(op, CatalogOp):
            return why
        if op.verb == "lock" and self.delays.active(op.entry.key, now):
            return f"failed to lock key {quote(op.entry.key)} due to lock delay"
        return None

    def _schedule_reaping(self, index: int, now: float) -> None:
        if self.store.indexes.get("tombstones") != index:
            return
        grain = self.config.tombstone_granularity
        when = math.ceil((now + self.config.tombstone_ttl) / grain) * grain
        self._timers.set(("tombstones", str(index)), when)

    # Catalog

    def register(self, what: catalog.Registration, now: float) -> None:
        """Register a node, a service, checks; sessions that rely on a critical check end."""
        with self.store.command() as index:
            catalog.register(self.store, index, what, self._delayer(now))
        self._schedule_reaping(index, now)

    def deregister(self, node: str, now: float, *, check_id: str = "", service_id: str = "") -> None:
        """Remove a check, a service or a whole node, with the sessions that rely on it."""
        with self.store.command() as index:
            delay = self._delayer(now)
            if service_id:
                catalog.remove_service(self.store, index, node, service_id, delay)
            elif check_id:
                catalog.remove_check(self.store, index, node, check_id, delay)
            else:
                catalog.remove_node(self.store, index, node, delay)
        self._schedule_reaping(index, now)

    def leave(self, now: float) -> None:
        """Take the agent's own node out of the catalog, as the leader does when an agent leaves."""
        self.deregister(self.node, now)

    # The agent's own checks and services

    def add_check(self, check: TtlCheck, now: float) -> None:
        """Register a TTL check with the agent."""
        self.local.checks[check.record.id] = check
        self._timers.set(("check", check.record.id), now + check.ttl / SECOND)
        self._sync(check, now)

    def update_check(self, check_id: str, status: str, output: str, now: float) -> None:
        """Report a check's status, which starts its TTL again."""
        check = self.local.checks.get(check_id)
        if check is None:
            message = f"CheckID {quote(check_id)} does not have associated TTL"
            raise StateError(message)
        told = check.told(status, output)
        self.local.checks[check_id] = told
        self._timers.set(("check", check_id), now + check.ttl / SECOND)
        if told.record.status != check.record.status:
            self._sync(told, now)

    def remove_check(self, check_id: str, now: float) -> None:
        """Deregister a check from the agent; an unknown one is fine."""
        if self.local.checks.pop(check_id, None) is not None:
            self._timers.drop(("check", check_id))
            self.deregister(self.node, now, check_id=check_id)

    def add_service(self, service: ServiceRecord, checks: Sequence[TtlCheck], now: float) -> None:
        """Register a service and its TTL checks with the agent."""
        self.local.services[service.id] = service
        self.register(catalog.Registration(self.node, service=service), now)
        for check in checks:
            self.add_check(check, now)

    def remove_service(self, service: str, now: float) -> None:
        """Deregister a service and its checks from the agent; an unknown one is fine."""
        if self.local.services.pop(service, None) is None:
            return
        for check_id in self.local.checks_of(service):
            del self.local.checks[check_id]
            self._timers.drop(("check", check_id))
        self.deregister(self.node, now, service_id=service)

    def _sync(self, check: TtlCheck, now: float) -> None:
        self.register(catalog.Registration(self.node, checks=(check.record,)), now)

    # Prepared queries

    def put_query(self, query: QueryRecord) -> str:
        """Create a prepared query, or replace the one whose id is given; return its id."""
        if query.id and queries.find(self.store, query.id) is None:
            raise _no_query(query.id)
        stored = query if query.id else replace(query, id=self._new_id())
        with self.store.command() as index:
            queries.put(self.store, index, stored)
        return stored.id

    def delete_query(self, query: str) -> None:
        """Delete a prepared query."""
        try:
            found = queries.find(self.store, query)
        except StateError as error:
            message = f"Prepared Query lookup failed: {error}"
            raise StateError(message) from None
        if found is None:
            raise _no_query(query)
        with self.store.command() as index:
            queries.delete(self.store, index, found)

    # The passing of time

    def next_timer(self) -> float | None:
        """Return when something next happens by itself, or None."""
        return self._timers.earliest()

    def run_timers(self, now: float, *, most: float = math.inf) -> int:
        """Let what was due by ``now`` happen, in order, each at its own time; return how much that was."""
        done = 0
        while done < most and (due := self._timers.pop(now)) is not None:
            when, (kind, name) = due
            if kind == "session":
                self._expire_session(name, when)
            elif kind == "check":
                self._expire_check(name, when)
            else:
                self._reap(name)
            done += 1
        return done

    def _expire_session(self, session: str, now: float) -> None:
        if session in self.store.sessions.rows:
            self.destroy_session(session, now)

    def _expire_check(self, check_id: str, now: float) -> None:
        expired = self.local.checks[check_id].expired()
        changed = expired.record.status != self.local.checks[check_id].record.status
        self.local.checks[check_id] = expired
        if changed:
            self._sync(expired, now)

    def _reap(self, up_to: str) -> None:
        with self.store.command() as index:
            kv.reap_tombstones(self.store, index, int(up_to))

    # Leadership

    def lose_leader(self, now: float) -> None:
        """Be without a leader: nothing expires, nothing can be written."""
        self.leader = ""
        self.leader_since = now
        self._stop_ttls()
        self._marks.append(LEADER)

    def elect_leader(self, now: float) -> None:
        """Have a new leader, which starts every session's TTL afresh."""
        self.leader = self.server_address
        self.leader_since = now
        for session in self.store.sessions:
            self._start_ttl(session, now)
        self._marks.append(LEADER)

    def _stop_ttls(self) -> None:
        for timer in self._timers.names():
            if timer[0] == "session":
                self._timers.drop(timer)

    # Other views

    def view(self, *, stale: bool) -> Store:
        """Return what a read sees: a lagging follower's data for a stale one, if there is such a follower."""
        return self.follower if stale and self.follower is not None else self.store

    def lag(self) -> None:
        """Let stale reads see the data of this moment from now on."""
        self.follower = self.store.copy()

    def catch_up(self) -> None:
        """Let stale reads see the present data again."""
        self.follower = None
        self._marks.append(CAUGHT_UP)

    def snapshot(self) -> bytes:
        """Return everything that is replicated, as bytes."""
        return snapshot.save(self.store)

    def restore(self, data: bytes, now: float) -> None:
        """Go back to a snapshot: TTLs start afresh, lock-delays are forgotten, indexes may go backwards.

        Raises ``ValueError`` when the data is no snapshot.
        """
        restored = snapshot.load(data)
        restored.raft_index = max(self.store.raft_index, restored.raft_index) + 1
        self.store = restored
        self.follower = None
        self.delays.clear()
        self._stop_ttls()
        for session in self.store.sessions:
            self._start_ttl(session, now)

    # Watching

    def take_news(self) -> tuple[Mark, ...]:
        """Return the marks of what changed since the last call."""
        marks = (*self._marks, *self.store.take_news())
        self._marks.clear()
        return marks

    def session_deadline(self, session: str) -> float | None:
        """Return when a session expires unless renewed; None when it has no TTL or is unknown."""
        return self._timers.deadline(("session", fold(session)))


def _no_query(query: str) -> StateError:
    return StateError(f"Cannot modify non-existent prepared query: '{query}'")


def _refused(
    ops: Sequence[txn.Op], permitted: Permitted, refusal: Callable[[txn.Op], str | None]
) -> tuple[txn.OpFailure, ...]:
    whys = ((number, refusal(op) or (None if permitted(op) else DENIED)) for number, op in enumerate(ops))
    return tuple(txn.OpFailure(number, why) for number, why in whys if why is not None)


def _malformed(op: txn.Op) -> str | None:
    if isinstance(op, CatalogOp):
        return catalog_ops.refusal(op)
    return "Must provide key" if not op.entry.key and op.verb != "delete-tree" else None


def _no_delay(_key: str, _nanoseconds: int) -> None:
    """Impose nothing: what only reads ends no session."""
