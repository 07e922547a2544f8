"""The server side: one agent over the reference server's pure service, and what operators do to it.

Rules
- Its clock is the true time. A timer that is due (a TTL, a blocking query's end) is an event like any
  other.
- While the agent is down, requests are refused, and those that wait have lost their connection.
- An operator acts on the state directly, by a Raft command of its own; watchers are notified as always.
- A new leader may not have applied all that was agreed on before: it knows of no session, until it has to
  write or to answer consistently.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from consul_coord.models import LOCK_FLAGS
from consul_coord.server import catalog
from consul_coord.server.acl import AclConfig, Token
from consul_coord.server.config import ServerConfig
from consul_coord.server.gotext import SECOND
from consul_coord.server.kv import KvOp
from consul_coord.server.records import CRITICAL, PASSING, SERF_CHECK, CheckRecord, Entry
from consul_coord.server.service import Service
from consul_coord.server.sessions import SessionDraft
from consul_coord.server.state import ConsulState
from consul_coord.server.wire import Blocked, text_reply
from consul_coord.testing.simulation.dice import Dice

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.server.acl import Rule
    from consul_coord.server.records import SessionRecord
    from consul_coord.server.wire import Reply, Request
    from consul_coord.testing.simulation.plan import Plan
    from consul_coord.testing.simulation.scheduler import Event, Scheduler

    Receiver = Callable[[Reply | None], object]

T = TypeVar("T")

CATCHES_UP = 1.0
"""Seconds within which a new leader has applied everything by itself, in half of the cases."""
RENEW = "/v1/session/renew/"


class Cluster:
    """One agent and its state."""

    def __init__(self, scheduler: Scheduler, plan: Plan, rng: Dice) -> None:
        self._scheduler = scheduler
        numbers = itertools.count(1)
        config = ServerConfig(
            session_ttl_min=0.1, session_ttl_factor=plan.ttl_factor, spurious_wakeups=plan.spurious
        )
        self.state = ConsulState(
            now=0.0,
            new_id=lambda: f"{next(numbers):08x}-0000-4000-8000-{rng.getrandbits(48):012x}",
            config=config,
        )
        (self._node,) = self.state.store.nodes
        self.service = Service(self.state, random=rng.random)
        self.down = False
        self._waiting: dict[int, Receiver] = {}
        self._timer: Event | None = None
        self._snapshot: bytes | None = None
        self._seed = plan.seed
        self._behind_until = -math.inf
        """Until when a new leader may not have applied everything."""
        self._of_two, self._behind = Dice(plan.seed, "which leader answers"), plan.behind
        self.refuses = False
        """Whether there were ever rules of permission."""

    # -- requests

    def serve(self, request: Request, receive: Receiver) -> Callable[[], None]:
        """Answer a request, now or later: ``receive`` gets the reply, None if the connection breaks first.

        Returns what to call when the client has gone.
        """
        if self.down:
            receive(None)
            return _nothing
        if self.state.follower is not None and _may_be_old(request) and self._of_two.chance(self._behind):
            request = replace(request, query=f"{request.query}&stale".removeprefix("&"))
        if self._scheduler.now < self._behind_until:
            if request.path.startswith(RENEW):
                receive(text_reply(404, f"Session id '{request.path.removeprefix(RENEW)}' not found"))
                return _nothing
            if request.method != "GET" or "consistent" in request.query:
                self._behind_until = -math.inf
        outcome = self.service.handle(request, self._scheduler.now)
        if not isinstance(outcome, Blocked):
            self._settle()
            receive(outcome)
            return _nothing
        ticket = outcome.ticket
        self._waiting[ticket] = receive
        self._settle()

        def hang_up() -> None:
            if self._waiting.pop(ticket, None) is not None:
                self.service.cancel(ticket)

        return hang_up

    def entry(self, key: str) -> Entry | None:
        """Return a key as it is."""
        return self.state.store.kv.get(key)

    def holder(self, key: str) -> str:
        """Return the session that has a key; empty when none has."""
        entry = self.state.store.kv.get(key)
        return entry.session if entry is not None else ""

    def held_by(self, session: str) -> list[str]:
        """Return the keys that a session has."""
        return self.state.store.kv.held_by(session)

    def under(self, prefix: str) -> list[Entry]:
        """Return the keys that begin with a prefix."""
        return self.state.store.kv.under(prefix)

    def lives(self, session: str) -> bool:
        """Return whether a session has not ended."""
        return session in self.state.store.sessions.rows

    def sessions(self) -> list[SessionRecord]:
        """Return all sessions, in order of their making."""
        return list(self.state.store.sessions)

    def in_lock_delay(self, key: str) -> bool:
        """Return whether a key refuses everybody for a while."""
        return self.state.delays.active(key, self._scheduler.now)

    # -- the agent and its servers

    def lose_leader(self) -> None:
        """Be without a leader."""
        self._do(self.state.lose_leader)

    def be_followed(self) -> None:
        """Have an old leader that knows neither of the new one nor of what happens from now on."""
        self.state.lag()

    def be_alone(self) -> None:
        """Have one leader again."""
        self._do(lambda _: self.state.catch_up())

    def elect_leader(self) -> None:
        """Have one."""
        if not self.state.leader and not self.down:
            self._do(self.state.elect_leader)
            dice = Dice(self._seed, f"elected at {self._scheduler.now}")
            if dice.chance(0.5):
                self._behind_until = self._scheduler.now + dice.uniform(0.0, CATCHES_UP)

    def stop(self) -> None:
        """Break all connections, and refuse new ones."""
        self._do(self.state.lose_leader)
        self.down = True
        waiting, self._waiting = self._waiting, {}
        for ticket, receive in waiting.items():
            self.service.cancel(ticket)
            receive(None)

    def start(self) -> None:
        """Be there again."""
        if self.down:
            self.down = False
            self.elect_leader()

    # -- operators

    def open_session(self, *, ttl: float, lock_delay: float = 0.0) -> str:
        """Make a session for a client that is no part of what is tested."""
        delay = int(lock_delay * SECOND)
        draft = SessionDraft(node=self.state.node, ttl=f"{ttl}s", node_checks=(), lock_delay=delay)
        return self._do(lambda now: self.state.create_session(draft, now))

    def destroy_session(self, session: str) -> None:
        """Destroy a session."""
        self._do(lambda now: self.state.destroy_session(session, now))

    def lock(self, key: str, session: str, *, flags: int = LOCK_FLAGS) -> None:
        """Lock a key for a session."""
        self._write("lock", Entry(key, session=session, flags=flags))

    def release(self, key: str, *, bare: bool = False) -> None:
        """Release a key from whichever session has it; ``bare``: without a body, so value and flags go."""
        entry = self.state.store.kv.get(key)
        if entry is not None and entry.session:
            self._write("unlock", Entry(key, session=entry.session) if bare else entry)

    def delete(self, key: str) -> None:
        """Delete a key."""
        self._write("delete", Entry(key))

    def put(self, key: str, value: bytes = b"a stranger's", *, flags: int = 0) -> None:
        """Write a key, as a client that knows nothing of it."""
        self._write("set", Entry(key, value=value, flags=flags))

    def overwrite(self, key: str, value: bytes) -> None:
        """Write a key's value, leaving flags and session as they are."""
        entry = self.state.store.kv.get(key)
        if entry is not None:
            self._write("set", replace(entry, value=value))

    def take_snapshot(self) -> None:
        """Save the state of this moment for ``restore``."""
        self._snapshot = self.state.snapshot()

    def restore(self) -> bool:
        """Go back to the snapshot, and destroy the sessions in it; returns whether there is one."""
        snapshot = self._snapshot
        if snapshot is None:
            return False
        self._do(lambda now: self.service.restore(snapshot, now))
        for session in self.sessions():
            self.destroy_session(session.id)
        return True

    def set_health(self, *, passing: bool) -> None:
        """Let the agent's own check pass or fail, on its node, which may have to be put back."""
        status = PASSING if passing else CRITICAL
        check = CheckRecord(self.state.node, SERF_CHECK, "Serf Health Status", status=status)
        what = catalog.Registration(self.state.node, node=self._node, checks=(check,))
        self._do(lambda now: self.state.register(what, now))

    def deregister(self) -> None:
        """Remove the agent's node from the catalog, and with it all sessions; ``set_health`` puts it back."""
        self._do(lambda now: self.state.deregister(self.state.node, now))

    @property
    def has_node(self) -> bool:
        """Whether the agent's node is in the catalog."""
        return any(True for _ in self.state.store.nodes)

    def lock_delay(self, session: str) -> float:
        """Return the seconds for which a living session's keys stay locked after its end."""
        return self.state.store.sessions.rows[session].lock_delay / SECOND

    def ttl(self, session: str) -> float:
        """Return the TTL of a living session; 0 for none."""
        return float(self.state.store.sessions.rows[session].ttl.removesuffix("s") or 0.0)

    def permit(self, rules: tuple[Rule, ...]) -> None:
        """Have these rules of permission, and let everything else be allowed."""
        self.refuses = self.refuses or bool(rules)
        self.state.permit(AclConfig(anonymous=Token(rules), default_policy="allow") if rules else None)

    def _write(self, verb: str, entry: Entry) -> None:
        self._do(lambda now: self.state.write_kv(KvOp(verb, entry), now))

    def _do(self, action: Callable[[float], T]) -> T:
        now = self._scheduler.now
        self.service.run_timers(now)
        result = action(now)
        self.service.publish(now)
        self._settle()
        return result

    # -- time

    def _settle(self) -> None:
        for ticket, reply in self.service.ready():
            receive = self._waiting.pop(ticket, None)
            if receive is not None:
                receive(reply)
        when = self.service.next_timer()
        if self._timer is not None and self._timer.action is not None:
            if self._timer.when == when:
                return
            self._timer.cancel()
        self._timer = None if when is None else self._scheduler.at(when, self._run_timers)

    def _run_timers(self) -> None:
        self.service.run_timers(self._scheduler.now)
        self._settle()


def _may_be_old(request: Request) -> bool:
    """Return whether an old leader would answer: it does not ask the others unless that is asked for."""
    return request.method == "GET" and "consistent" not in request.query and "stale" not in request.query


def _nothing() -> None:
    return None
