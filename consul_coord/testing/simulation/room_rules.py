"""The rules of connections, where the agent has a limit on them.

Rules
- Where nothing goes wrong but the limit, no hold expires and no session ends early, however many others want
  a connection; and a release has an outcome. But a call that ends amid a request takes the connection with
  it, and its client may get no other one.
- There a release takes no longer than its hold has lasted, if that is half a second or more, and its client
  asks for nothing else just then.
- A connection that carries nothing is closed within ``IDLE`` seconds, also if its process does nothing then.
  It may be kept for as long as a request on another one has no answer: that may try out a new one.
- A process at rest, which sends renewals and blocking queries only, has no more connections than queries, or
  one between two of them. A renewal that meets the end of a query takes another connection, so the shorter
  the TTL, the longer that may take.
- Where there is room for all, a process does not close what it has just used, to open another one, again and
  again.
- Once everything was released, each process has a moment without any connection.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import TYPE_CHECKING

from consul_coord import events
from consul_coord.models import LossReason, ReleaseOutcome
from consul_coord.recipes.watch.engine import CROWDED
from consul_coord.testing.simulation.plan import CROWD_CHAOS, ENOUGH

if TYPE_CHECKING:
    from consul_coord.events import Event
    from consul_coord.http.messages import Request
    from consul_coord.recipes.hold.grant import Grant
    from consul_coord.testing.simulation.connections import Room
    from consul_coord.testing.simulation.judge import Judge
    from consul_coord.testing.simulation.plan import Plan
    from consul_coord.testing.simulation.process import Process

IDLE = 5.5
"""Seconds after its last use by which a connection that carries nothing is closed."""
REST = 10.0
"""Seconds after which a process has settled on the connections that it needs, with a TTL of ``USUAL``."""
USUAL = 8.0
LOOK = 0.1
"""Seconds between two looks at all connections."""
JUST_USED = 1.0
WITHIN = 10.0
MOST_WASTED = 10
"""So often in so many seconds a process may close a connection that it has used less than a second before,
and open another one in less than a second."""
STRUCK = 10.0
"""Seconds for which a Ctrl-C, which ends a release at once, is an excuse."""
_HARMLESS = frozenset({*CROWD_CHAOS, "crash"})
YOUNG = 0.5
"""Seconds that a hold has to last for its release to take no longer than that."""
ANSWERED = 0.3
"""Seconds that its requests take."""


class RoomRules:
    """The view of the agent's room."""

    def __init__(self, judge: Judge, plan: Plan, room: Room) -> None:
        self._judge = judge
        self._room = room
        self._alone = not plan.fates and plan.strike is None and plan.chaos.keys() <= _HARMLESS
        """Whether nothing goes wrong but the limit."""
        self._rest = REST * max(1.0, USUAL / (plan.spec.ttl or USUAL))
        self._is_ample = plan.connections == ENOUGH
        """Whether no client ever hears of a limit."""
        self._closed: dict[str, float] = {}
        """When each process has closed a connection that it had just used."""
        self._wasted: dict[str, deque[float]] = {}
        """When each has opened another one right after that."""
        self._without: set[str] = set()
        """The processes that have cut off a request, with its connection, and were not answered since."""
        self._look_at = 0.0
        self._many_since: dict[str, float] = {}
        """Since when each process has had too many connections for a rest."""
        self.free_at: dict[str, float] = {}
        """When each process had no connection last."""

    def reported(self, process: Process, event: Event) -> None:
        """Judge a loss, and the outcome of a release."""
        struck = self._judge.now < process.struck_at + STRUCK
        is_judged = self._alone and process.name not in self._without
        match event:
            case events.Lost(reason=LossReason.EXPIRED | LossReason.SESSION_GONE) if is_judged:
                self._judge.convict("limit of connections", f"{process.name}: {event.describe()}")
            case events.Released(outcome=ReleaseOutcome.UNKNOWN) if is_judged and not struck:
                self._judge.convict("limit of connections", f"{process.name}: {event.describe()}")
            case _:
                pass

    def released_within(self, process: Process, hold: Grant) -> float:
        """Return the seconds that the release of a hold may take."""
        age = process.host.now() - hold.granted_at
        is_judged = self._alone and age >= YOUNG and self._room.has(process.name)
        is_judged = is_judged and not self._is_kept_waiting(process.name, hold)
        return age + ANSWERED if is_judged else math.inf

    def _is_kept_waiting(self, who: str, hold: Grant) -> bool:
        """Return whether a process has a query under way that is for something other than this hold."""
        asked = [sock.asks for sock in self._room.places if sock.who == who and sock.asks]
        # Holds share the query of a folder. But that of a semaphore is its waiters'.
        below = [
            thing
            for thing in asked
            if thing.endswith("/") and hold.key.startswith(thing) and thing[:-1] not in self._judge.rules
        ]
        return not set(asked) <= {hold.key, hold.session, *below}

    def sent(self, process: Process, request: Request) -> None:
        """Take note that a process does more than rest: it sends what is no renewal and no query."""
        if not (request.urgent or request.hold_open):
            self._many_since.pop(process.name, None)

    def gave_up(self, who: str) -> None:
        """Take note that a call of a process ends amid a request, which ends the connection, too."""
        self._without.add(who)

    def answered(self, who: str) -> None:
        """Take note that a process has a connection that serves it."""
        self._without.discard(who)

    def closes(self, who: str, *, idle: float, keeps: bool) -> None:
        """Take note that a process closes a connection in order, ``idle`` seconds after its last reply."""
        if keeps and idle < JUST_USED:
            self._closed[who] = self._judge.now

    def opens(self, who: str) -> None:
        """Judge that a process opens a connection, and had not just closed one again and again."""
        now, wasted = self._judge.now, self._wasted.setdefault(who, deque())
        # A failure may be taken for a sign of the limit, for a while.
        failed_at = max(self._judge.promises.contact(who).failures, default=-math.inf)
        is_late = now > self._closed.pop(who, -math.inf) + JUST_USED
        if is_late or not self._is_ample or now < failed_at + CROWDED:
            return
        wasted.append(now)
        while wasted[0] < now - WITHIN:
            wasted.popleft()
        if len(wasted) > MOST_WASTED * self._judge.stretch:
            text = f"{who} closes connections that it has just used, and opens others, {len(wasted)} times"
            self._judge.convict("connections", f"{text} in {WITHIN:g} s")

    def kept_since(self, moment: float) -> list[str]:
        """Return the processes that have had a connection at every moment since then."""
        return [
            name
            for name in self._judge.names()
            if self.free_at.get(name, 0.0) < moment and self._room.has(name)
        ]

    def look(self) -> None:
        """Judge the connections that there are."""
        judge = self._judge
        now, stretch = judge.now, judge.stretch
        if now < self._look_at:
            return
        self._look_at = now + LOOK
        opened: Counter[str] = Counter()
        queries: Counter[str] = Counter()
        # What a process has closed takes a place until its last request has come, which may be late.
        places = [sock for sock in self._room.places if self._alone or not sock.is_closed]
        asking = {sock.who for sock in places if sock.busy and not sock.query}
        for sock in places:
            opened[sock.who] += 1
            queries[sock.who] += sock.busy and sock.query
            process = judge.process(sock.who)
            if process is None or not process.able or not sock.carries_nothing:
                continue
            idle = now - max(sock.used_at, process.awake_since)
            if idle > (IDLE + LOOK) * stretch and sock.who not in asking:
                judge.convict("connections", f"{sock.who} keeps one that is idle for {idle:.2f} s")
        for name in judge.names():
            process = judge.process(name)
            if not opened[name]:
                self.free_at[name] = now
            if opened[name] <= max(1, queries[name]) or process is None or not process.able:
                self._many_since.pop(name, None)
            elif process.foreign:
                continue
            elif now > max(self._many_since.setdefault(name, now), process.asked_at) + self._rest * stretch:
                judge.convict("connections", f"{name} rests, and keeps {opened[name]} of them")
