"""The state of a Consul datacenter, as far as sessions, locks and what surrounds them need it.

Rules
- Pure: each operation takes the time ``now`` (seconds, any start). There is no I/O, no clock and no thread;
  ids, and the date of an ACL token, come from factories. The same calls at the same times give the same
  state, so a simulator can own everything.
- This is where time and leadership meet the tables: what a write means stands in ``kv``, ``txn``,
  ``sessions``, ``catalog``, ``queries`` and ``tokens``; here it becomes one Raft command, with what follows
  from it in time.
- Writes return the caller's answer, or raise ``StateError`` with Consul's text. Changes are collected as
  marks (``take_news``), so that the keeper of blocking queries knows which to look at again.
- ``run_timers`` runs the timers (a session's TTL, a TTL check's timeout, the reaping of tombstones), each at
  its own time. ``next_timer`` says when the next one is due. The end of a lock-delay is not among them,
  because it is no event.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from consul_coord.server import catalog, kv, queries, sessions, snapshot, tokens, txn
from consul_coord.server.catalog_ops import CatalogOp
from consul_coord.server.config import ServerConfig
from consul_coord.server.events import EVENTS, Event, Events
from consul_coord.server.failures import StateError
from consul_coord.server.gotext import quote
from consul_coord.server.localagent import CHECK_TIMER, CRITICAL_TIMER, LocalAgent
from consul_coord.server.lockdelay import LockDelays
from consul_coord.server.records import PASSING, SERF_CHECK, CheckRecord, NodeRecord, ServiceRecord
from consul_coord.server.store import TOMBSTONES, Store, fold
from consul_coord.server.timers import Timer, TimerQueue
from consul_coord.server.ttl import SESSION_TIMER, SessionTtls

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from consul_coord.server.acl import AclConfig
    from consul_coord.server.records import PolicyRecord, QueryRecord, SessionRecord, TokenRecord
    from consul_coord.server.sessions import SessionDraft
    from consul_coord.server.tables import Mark
    from consul_coord.server.txn import Op, Permitted

LEADER: Mark = ("leader",)
CAUGHT_UP: Mark = ("caught-up",)
RESTORED: Mark = ("restored",)
"""The news after which each watch ends at once."""

SERVER_PORT = 8300

_FIRST_INDEX = 8  # what a fresh single server has spent on its own before anybody writes
_ADDRESS = "127.0.0.1"
_REAPING: Final = "tombstones"


class ConsulState:
    """One datacenter with one agent, which is a server and its own leader until told otherwise."""

    def __init__(
        self,
        *,
        now: float,
        new_id: Callable[[], str],
        node: str = "node1",
        node_id: str = "",
        datacenter: str = "dc1",
        config: ServerConfig | None = None,
        today: Callable[[], str] = tokens.wall_time,
    ) -> None:
        self.config = config or ServerConfig()
        self.node = node
        self.node_id = node_id or new_id()
        self.datacenter = datacenter
        self.meta = {"consul-network-segment": "", **self.config.node_meta}
        self.address = _ADDRESS
        self.server_address = f"{_ADDRESS}:{SERVER_PORT}"
        self.leader = self.server_address
        self.store = Store(self.config.dialect)
        self.follower: Store | None = None
        self.leader_since = now
        self.delays = LockDelays(self.config.lock_delay_max)
        self._new_id = new_id
        self._today = today
        self._timers: TimerQueue[Timer] = TimerQueue()
        self._ttls = SessionTtls(self._timers, self.config)
        self.local = LocalAgent(node, self, self._timers)
        self.events = Events(node)
        self.coordinates: dict[str, dict[str, object]] = {}
        self._due: dict[str, Callable[[str, float], None]] = {
            SESSION_TIMER: self._expire_session,
            CHECK_TIMER: self.local.check_is_due,
            CRITICAL_TIMER: self.local.has_been_critical,
            _REAPING: self._reap,
        }
        self._marks: list[Mark] = []
        self._begin(now)

    def _begin(self, now: float) -> None:
        self.store.raft_index = _FIRST_INDEX
        self.permit(self.config.acl)
        own = NodeRecord(
            self.node,
            self.node_id,
            self.address,
            self.datacenter,
            tagged_addresses=tuple((name, self.address) for name in ("lan", "lan_ipv4", "wan", "wan_ipv4")),
            meta=tuple(sorted(self.meta.items())),
        )
        serf = CheckRecord(
            self.node, SERF_CHECK, "Serf Health Status", status=PASSING, output="Agent alive and reachable"
        )
        consul = ServiceRecord(self.node, "consul", "consul", port=SERVER_PORT)
        self.register(catalog.Registration(self.node, own, consul, (serf,)), now)
        self.take_news()

    @contextmanager
    def _command(self) -> Generator[int, None, None]:
        """Apply one Raft command; newer versions mark what it refuses as the state machine's."""
        try:
            with self.store.command() as index:
                yield index
        except StateError as error:
            if not self.config.dialect.applied:
                raise
            message = f"{self.config.dialect.applied}{error}"
            raise StateError(message) from None

    # Sessions

    def create_session(self, draft: SessionDraft, now: float) -> str:
        """Create a session and return its id."""
        draft.require_valid()
        self._ttls.require_valid(draft.ttl)
        session = draft.session(self._new_id())
        with self._command() as index:
            sessions.create(self.store, index, session)
        self._start_ttl(session, now)
        return session.id

    def destroy_session(self, session: str, now: float) -> None:
        """End a session; an unknown one is fine."""
        with self._command() as index:
            found = sessions.find(self.store, session)
            if found is not None:
                sessions.invalidate(self.store, index, found, self._delayer(now))
                self._ttls.stop(found.id)
        self._schedule_reaping(index, now)

    def renew_session(self, session: str, now: float) -> SessionRecord | None:
        """Restart a session's TTL and return it; None when it is unknown."""
        found = sessions.find(self.store, session)
        if found is not None:
            self._start_ttl(found, now)
        return found

    def _start_ttl(self, session: SessionRecord, now: float) -> None:
        if self.leader:
            self._ttls.start(session, now)

    def _delayer(self, now: float) -> Callable[[str, int], None]:
        # At once, outside of the command: Consul keeps a delay even if the transaction is then rolled back.
        return lambda key, nanoseconds: self.delays.start(key, nanoseconds, now)

    # KV and transactions

    def write_kv(self, op: kv.KvOp, now: float) -> bool:
        """Apply one writing operation; False when it is refused (stale, held, lock-delay, not the holder)."""
        if op.verb == "lock" and self.delays.active(op.entry.key, now):
            return False
        with self._command() as index:
            done = kv.WRITES[op.verb](self.store, index, op)
        self._schedule_reaping(index, now)
        return bool(done)

    def write_txn(self, ops: Sequence[Op], now: float, permitted: Permitted = lambda _: True) -> txn.Outcome:
        """Apply all operations at one index, or none."""
        if refused := txn.refused(ops, permitted, lambda op: self._delayed(op, now), self.config.dialect):
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

    def read_txn(self, ops: Sequence[Op], store: Store, permitted: Permitted = lambda _: True) -> txn.Outcome:
        """Run operations that only read, on the given store."""
        if refused := txn.refused(ops, permitted, dialect=self.config.dialect):
            return txn.Outcome(failures=refused)
        return txn.apply(store, store.raft_index, ops, _no_delay)

    def _delayed(self, op: Op, now: float) -> str | None:
        if isinstance(op, CatalogOp) or op.verb != "lock" or not self.delays.active(op.entry.key, now):
            return None
        return f"failed to lock key {quote(op.entry.key)} due to lock delay"

    def _schedule_reaping(self, index: int, now: float) -> None:
        if self.store.indexes.get(TOMBSTONES) != index:
            return
        grain = self.config.tombstone_granularity
        when = math.ceil((now + self.config.tombstone_ttl) / grain) * grain
        self._timers.set((_REAPING, str(index)), when)

    # Catalog

    def register(self, what: catalog.Registration, now: float) -> None:
        """Register a node, a service, checks; sessions that rely on a critical check end."""
        with self._command() as index:
            catalog.register(self.store, index, what, self._delayer(now))
        self._schedule_reaping(index, now)

    def deregister(self, node: str, now: float, *, check_id: str = "", service_id: str = "") -> None:
        """Remove a check, a service or a whole node, with the sessions that rely on it."""
        with self._command() as index:
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

    # What the agent keeps by itself

    def fire(self, name: str, payload: bytes, node: str, service: str, tag: str) -> Event:
        """Fire a user event; it is kept if it concerns this agent."""
        event = Event(self._new_id(), name, payload, node, service, tag)
        if self.events.fire(event, self.local.services.values()):
            self._marks.append(EVENTS)
        return event

    # Prepared queries

    def put_query(self, query: QueryRecord) -> str:
        """Create a prepared query, or replace the one whose id is given; return its id."""
        stored = query if query.id else replace(query, id=self._new_id())
        with self._command() as index:
            queries.put(self.store, index, stored)
        return stored.id

    def require_query(self, query: str) -> QueryRecord:
        """Return a prepared query that is to be changed; refuse an unknown one."""
        try:
            found = queries.find(self.store, query)
        except StateError as error:
            message = f"Prepared Query lookup failed: {error}"
            raise StateError(message) from None
        if found is None:
            message = f"Cannot modify non-existent prepared query: '{query}'"
            raise StateError(message)
        return found

    def delete_query(self, query: str) -> None:
        """Delete a prepared query."""
        found = self.require_query(query)
        with self._command() as index:
            queries.delete(self.store, index, found)

    # Tokens and policies

    def permit(self, acl: AclConfig | None) -> None:
        """Have these ACLs from now on, in place of all that there were."""
        self.config = replace(self.config, acl=acl)
        tokens.clear(self.store)
        if acl is not None:
            tokens.seed(self.store, _FIRST_INDEX, acl, self.config.dialect.described_master, self._today())

    def put_policy(self, policy: PolicyRecord) -> PolicyRecord:
        """Create a policy, or replace the one whose id is given."""
        tokens.check_policy(self.store, policy)
        stored = replace(policy, id=policy.id or self._new_id())
        with self._command() as index:
            return tokens.put_policy(self.store, index, stored)

    def delete_policy(self, policy: str) -> None:
        """Delete a policy; an unknown one is fine."""
        tokens.find_policy(self.store, policy)
        tokens.check_deletion_of_policy(policy)
        with self._command() as index:
            tokens.delete_policy(self.store, index, policy)

    def create_token(self, token: TokenRecord, kind: str = "") -> TokenRecord:
        """Create a token; empty ids are made."""
        tokens.check_new(self.store, token.accessor, token.secret)
        accessor, secret = token.accessor or self._new_id(), token.secret or self._new_id()
        new = replace(token, accessor=accessor, secret=secret, created=self._today())
        return self._put_token(new, kind)

    def change_token(self, token: TokenRecord) -> TokenRecord:
        """Give a token another description and other policies."""
        known = tokens.token_to_set(self.store, token.accessor)
        known = tokens.check_change(known, token.accessor, token.secret, local=token.local)
        return self._put_token(replace(known, description=token.description, policies=token.policies))

    def _put_token(self, token: TokenRecord, kind: str = "") -> TokenRecord:
        stored = replace(token, digest=tokens.digest_of_token(token, kind))
        with self._command() as index:
            return tokens.put_token(self.store, index, stored)

    def bootstrap(self) -> TokenRecord:
        """Create the first token that may do everything; refuse a second one."""
        tokens.check_bootstrap(self.store)
        first = tokens.first_token()
        made = self.create_token(first, "management")
        self.store.changed(tokens.BOOTSTRAP, made.create_index)
        return made

    def delete_token(self, accessor: str, own: str) -> None:
        """Delete a token, except ``own``; an unknown one is fine."""
        tokens.check_deletion_of_token(accessor, own)
        with self._command() as index:
            tokens.delete_token(self.store, index, accessor)

    # The passing of time

    def next_timer(self) -> float | None:
        """Return when something next happens by itself, or None."""
        return self._timers.earliest()

    def run_timers(self, now: float, *, most: float = math.inf) -> int:
        """Let what was due by ``now`` happen, in order, each at its own time; return how much that was."""
        done = 0
        while done < most and (due := self._timers.pop(now)) is not None:
            when, (kind, name) = due
            self._due[kind](name, when)
            done += 1
        return done

    def _expire_session(self, session: str, now: float) -> None:
        if session in self.store.sessions.rows:
            self.destroy_session(session, now)

    def _reap(self, up_to: str, _now: float) -> None:
        with self._command():
            kv.reap_tombstones(self.store, int(up_to))

    # Leadership

    def lose_leader(self, now: float) -> None:
        """Be without a leader: nothing expires, nothing can be written."""
        self.leader = ""
        self.leader_since = now
        self._ttls.stop_all()
        self._marks.append(LEADER)

    def elect_leader(self, now: float) -> None:
        """Have a new leader, which starts the TTL of each session again."""
        self.leader = self.server_address
        self.leader_since = now
        for session in self.store.sessions:
            self._start_ttl(session, now)
        self._marks.append(LEADER)

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
        """Go back to a snapshot: TTLs start again, lock-delays are forgotten, indexes may go backwards.

        Raises ``ValueError`` when the data is no snapshot.
        """
        restored = snapshot.load(data)
        restored.dialect = self.store.dialect
        restored.raft_index = max(self.store.raft_index, restored.raft_index) + 1
        self.store = restored
        self._marks.append(RESTORED)
        self.follower = None
        self.delays.clear()
        self._ttls.stop_all()
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
        return self._ttls.deadline(session) if fold(session) in self.store.sessions.rows else None


def _no_delay(_key: str, _nanoseconds: int) -> None:
    """Impose nothing: what only reads ends no session."""
