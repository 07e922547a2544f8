"""Keys, slots and places in queues that a client has for nobody: they go soon, not only at the end.

Rules
- A call that ends without a hold, and a hold that ends while its session goes on, leave nothing on the
  server: at once, or as soon as requests are answered again. The effect of a request that comes late goes
  with the next look of the clean-up.
- The note of a term goes with the leadership.
- A release closes nothing: one that destroys a session has tried, just before, to delete all that this had.
  Otherwise the lock-delay would keep others out.
- A client has something for somebody as long as one of its calls wants that, a user may rely on it, or it
  keeps the key of a holder that is stuck, for the lock-delay.

This is judged by looks at the server's state; nothing here knows what cleans up.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from consul_coord.models import LossReason
from consul_coord.recipes.election import notes
from consul_coord.testing.simulation.shapes import deleted_by
from consul_coord.testing.simulation.trace import short

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consul_coord.http.messages import Request
    from consul_coord.testing.simulation.claims import Claim
    from consul_coord.testing.simulation.judge import Judge
    from consul_coord.testing.simulation.plan import Plan
    from consul_coord.testing.simulation.process import Process

EVERY = 0.2
"""Seconds between two looks."""
GONE_WITHIN = 2.0
"""Seconds for which something may stay for nobody once requests are answered."""
SOON, FOUND_WITHIN, FOUND_AT_LAST = 8.0, 11.0, 46.0
"""The same of what comes up to 8 s late, and of what comes later: clean-up looks 1, 5, 15 and 60 s after a
request without an answer."""


class Belongings:
    """The judge of what is there for nobody."""

    def __init__(self, judge: Judge, plan: Plan) -> None:
        self._judge = judge
        self._has_users = plan.processes > 0
        self._places = {
            **{key: (key, f"{key}/.wait/") for key in plan.keys},
            **{pool.prefix: (f"{pool.prefix}/",) for pool in plan.pools},
            **{name: (f"{name}/.rw/.wait/",) for name in plan.rwlocks},
        }
        """By what users want: where on the server clients have something for them."""
        self._elections = plan.elections
        late = any("late" in fate for fate in plan.fates)
        # A silent agent carries out what it has taken when it goes on, which may be at the end of all faults.
        very_late = "agent silence" in plan.chaos or (late and plan.latest > SOON)
        self._within = FOUND_AT_LAST if very_late else FOUND_WITHIN if late else GONE_WITHIN
        self._since: dict[tuple[str, str, int], float] = {}
        """By key, session and index: since when it is there for nobody."""
        self._wanted: Counter[tuple[str, str]] = Counter()
        """How many calls of each process are to get each thing."""
        self._kept_until: dict[tuple[str, str], float] = {}
        """By process and thing: until when a dropped hold may keep it."""
        self._next_look = 0.0
        self._sees_tries = not plan.connections
        """Whether a try to delete something is seen also where there is no connection for it."""
        self._deleted: dict[str, float] = {}
        """When a client has last asked to delete a key, whoever had that."""
        self._had: list[str] = []
        self._closed: dict[str, tuple[float, list[str]]] = {}
        """The sessions that clients have destroyed with all that they had, when, and what that was."""

    def sent(self, request: Request) -> None:
        """Take note of the keys that are to be deleted, whoever has them."""
        for key in deleted_by(request):
            self._deleted[key] = self._judge.now

    def destroys(self, session: str) -> None:
        """Take note of what a session has that is about to be destroyed."""
        self._had = self._judge.cluster.held_by(session)

    def destroyed(self, session: str) -> None:
        """Take note that a client has destroyed it."""
        self._closed[session] = self._judge.now, self._had

    def released(self, claim: Claim, *, since: float) -> None:
        """Judge what a release has left behind that has said RELEASED, to a user that asked at ``since``."""
        at, keys = self._closed.get(claim.session, (-math.inf, []))
        kept = [key for key in keys if self._deleted.get(key, -math.inf) < since]
        # Where its lease has run out meanwhile, or its client closes, it ends with all that it has.
        is_whole = claim.lease.ended_by in {None, LossReason.CLIENT_CLOSED}
        is_whole = is_whole and not claim.process.core.closing.is_set()
        if kept and at >= since and is_whole and self._sees_tries:
            text = f"{claim} is said to be released, and its session was destroyed with {', '.join(kept)}"
            self._judge.convict("released", text)

    def wants(self, process: Process, names: Sequence[str]) -> None:
        """Take note that a call begins that is to get something."""
        self._wanted.update((process.name, name) for name in names)

    def wants_no_more(self, process: Process, names: Sequence[str]) -> None:
        """Take note that this call is over."""
        self._wanted.subtract((process.name, name) for name in names)

    def dropped(self, process: Process, names: Sequence[str], *, lasts: float) -> None:
        """Take note that a user has dropped a hold without a release: if it lost that, it may be stuck."""
        for name in names:
            self._kept_until[process.name, name] = self._judge.now + lasts * self._judge.stretch

    def look(self) -> None:
        """See what is there for nobody, now and then."""
        if not self._has_users or self._judge.now < self._next_look:
            return
        self._next_look = self._judge.now + EVERY
        before, self._since = self._since, {}
        for key in self._elections:
            self._look_at_term(key, before)
        for name, places in self._places.items():
            for entry in (entry for place in places for entry in self._judge.cluster.under(place)):
                process = self._judge.carer(entry.session) if entry.session else None
                if process is not None and not self._is_wanted(process, name, entry.session, key=entry.key):
                    mark = entry.key, entry.session, entry.modify_index
                    self._since[mark] = since = before.get(mark, self._judge.now)
                    hold = self._judge.rules[name].claim(entry.modify_index)
                    # No late request has made what a user has had: its client knows of it.
                    is_known = hold is not None and hold.session == entry.session and entry.key == name
                    self._check(process, entry.key, entry.session, since, is_known=is_known)

    def _look_at_term(self, key: str, before: dict[tuple[str, str, int], float]) -> None:
        """See whether a note tells the term of nobody."""
        note = self._judge.cluster.entry(notes.term_key(key))
        session = "" if note is None else note.value.decode().partition(" ")[0]
        process = self._judge.carer(session)
        if note is None or process is None or self._judge.cluster.holder(key) == session:
            return
        if note.value.decode() == session and self._judge.rules[key].claim(note.modify_index) is None:
            return  # nobody has heard of this election: its note may stay until the next one
        mark = note.key, session, note.modify_index
        self._since[mark] = since = before.get(mark, self._judge.now)
        self._check(process, note.key, session, since)

    def _is_wanted(self, process: Process, name: str, session: str, *, key: str) -> bool:
        kept, rules = process.core.sessions.get(session), self._judge.rules[name]
        return bool(
            # A call that has got the lock itself takes notice of that as soon as it can ask.
            (self._wanted[process.name, name] and key != name)
            or rules.is_stuck(process)
            or self._judge.now < self._kept_until.get((process.name, name), 0.0)
            or process.core.closing.is_set()
            or (kept is not None and kept.exported)
            or any(claim.process is process for claim in rules.claims)
        )

    def _check(
        self, process: Process, key: str, session: str, since: float, *, is_known: bool = False
    ) -> None:
        judge, within = self._judge, GONE_WITHIN if is_known else self._within
        began = max(since, judge.promises.contact(process.name).answered_from, process.awake_since)
        if judge.now > began + within * judge.stretch:
            had = f"{process.name} has had {key} by {short(session)}"
            judge.convict("nothing left", f"{had} for {judge.now - since:.1f} s, for nobody")
