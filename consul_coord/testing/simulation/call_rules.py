"""The rules of plain calls: what they read and write, judged by the past of the servers.

Rules
- A call that failed has not been applied if its error leaves nothing open, neither then nor later.
- ``update`` counts each call once: the value that it returns was written once, over the one that it was made
  from. It keeps the flags.
- A call without a reply says that the servers have no leader if that is why, and only then.
- ``connected`` and ``ready`` are false when the client has heard nothing for long although it asks, and true
  while it is answered. A caller that looks at them makes an idle client ask, now and then.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from consul_coord.server.gotext import SECOND
from consul_coord.testing.simulation.chaos import OLD_FOR
from consul_coord.testing.simulation.past import Past
from consul_coord.testing.simulation.plan import ODD_FATES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consul_coord.errors import RequestTimeout
    from consul_coord.models import KVPair, Session
    from consul_coord.server.records import Entry, SessionRecord
    from consul_coord.testing.simulation.cluster import Cluster
    from consul_coord.testing.simulation.diary import Diary
    from consul_coord.testing.simulation.judge import Judge
    from consul_coord.testing.simulation.past import Moment
    from consul_coord.testing.simulation.plan import Plan
    from consul_coord.testing.simulation.process import Process

PREFIX = "data/"
"""Of the keys of plain calls."""
COUNTED = "data/n"
"""A key that is only updated, and whose value counts that."""
COUNTED_FLAGS = 2**63 + 5
"""The flags that it has where there was one before."""
ANSWERED_WITHIN = 5.0
"""Seconds of quiet after which a client that is looked at says that it has contact."""
SILENT_AFTER = 15.0
"""Seconds without an answer after which a client that is looked at all the time says that it has none."""
LOOKED_AT = 61.0
"""Seconds after the last look for which a client may ask."""
LONGEST_BREAK = 1.5
"""Seconds between two looks, at most, of a client that is looked at all the time."""
LONG = 5.5
"""Seconds after which a call without a reply finds out whether the servers have a leader."""
ASKED_WITHIN = 0.4
"""Seconds before its end in which it does."""


def shown(found: KVPair | Entry | None) -> tuple[Any, ...] | None:
    """Return a key as everybody sees it."""
    if found is None:
        return None
    indexes = found.create_index, found.modify_index, found.lock_index
    return (found.key, found.value, found.flags, found.session or None, *indexes)


def session_shown(found: Session | None) -> tuple[Any, ...] | None:
    """Return a session as a client shows it."""
    if found is None:
        return None
    ttl, delay = found.ttl or 0.0, round(found.lock_delay * SECOND)
    checks = tuple(found.node_checks), tuple(found.service_checks)
    return (found.id, found.name, found.node, ttl, delay, found.behavior, *checks, found.create_index)


def session_kept(record: SessionRecord | None) -> tuple[Any, ...] | None:
    """Return a session as the servers have it."""
    if record is None:
        return None
    ttl = float(record.ttl.removesuffix("s") or 0.0)
    checks = tuple(record.node_checks or ()), tuple(one.id for one in record.service_checks or ())
    kept = record.id, record.name, record.node, ttl, record.lock_delay, record.behavior
    return (*kept, *checks, record.create_index)


class CallRules:
    """The judge of plain calls."""

    def __init__(self, judge: Judge, cluster: Cluster, plan: Plan) -> None:
        self._judge = judge
        self.past = Past(cluster, PREFIX, lambda: judge.now)
        self.behind = OLD_FOR if plan.has_old_leader else 0.0
        """Seconds by which a reading may be out of date."""
        self.odd = bool(ODD_FATES.keys() & plan.fates.keys())
        """Whether users get replies that no agent sends."""
        self._only_leaders_go = not plan.fates and set(plan.chaos) == {"leaderless"}
        """Whether nothing but a missing leader keeps a call from its reply."""
        self._never: dict[bytes, str] = {}
        """The values that must not be written, and why."""
        self._updated: dict[bytes, int] = {}
        """By the mark of a call: at which index it was counted."""
        self._looked_at: dict[str, tuple[float, float]] = {}
        """Since when each process is looked at without a break, and when it was looked at last."""

    def look(self) -> None:
        """Judge what was written."""
        before = self.past.present
        self.past.look()
        now = self.past.present
        if now is before:
            return
        for entry in now.keys.values():
            if entry.value in self._never and before.keys.get(entry.key) != entry:
                self.convict(f"{entry.value!r} was written, and {self._never[entry.value]}")
        counted, old = now.keys.get(COUNTED), before.keys.get(COUNTED)
        if counted is not None and counted != old and not now.blurred:
            self._check_count(counted, old)

    def _check_count(self, entry: Entry, old: Entry | None) -> None:
        is_first = old is None and entry.flags == COUNTED_FLAGS
        if count_of(entry) != count_of(old) + (not is_first):
            self.convict(f"{old} was updated to {entry}, which counts wrongly")
        if not is_first and entry.flags != (old.flags if old is not None else 0):
            self.convict(f"{old} was updated to {entry}, with other flags")
        mark = entry.value.partition(b" ")[2]
        if self._updated.setdefault(mark, entry.modify_index) != entry.modify_index:
            self.convict(f"{entry.value!r} was counted twice")

    def convict(self, how: str) -> None:
        """Record a violation."""
        self._judge.convict("answers", how)

    def forbid(self, value: bytes, why: str, moments: Sequence[Moment] | None) -> None:
        """Have a value never written, neither so far nor later."""
        self._never[value] = why
        if any(entry.value == value for moment in moments or () for entry in moment.keys.values()):
            self.convict(f"{value!r} was written, and {why}")

    def flaw_of_reason(self, error: RequestTimeout, diary: Diary, *, lasted: float) -> str:
        """Return what is wrong with what a call without a reply says of the servers; empty if nothing is."""
        state, now = self._judge.cluster.state, self._judge.now
        says, without = "have no leader" in str(error), 0.0 if state.leader else now - state.leader_since
        last = diary.tries[-1] if diary.tries else None
        if says and (state.leader and state.leader_since < now - lasted) and not diary.saw("NoLeader"):
            return "says that there is no leader, and there was"
        asked = last is not None and last.request.path.startswith("/v1/status/")
        if self._only_leaders_go and without > ASKED_WITHIN and lasted > LONG and not says:
            return f"does not say that there is no leader, and has {'asked' if asked else 'not asked'} for it"
        return ""

    # -- contact

    def look_at_contact(self, process: Process) -> None:
        """Judge what a client says of its contact, when it is looked at."""
        judge, core = self._judge, process.core
        since, last = self._looked_at.get(process.name, (judge.now, judge.now))
        if judge.now > last + LONGEST_BREAK or process.awake_since > last:
            since = judge.now
        self._looked_at[process.name] = since, judge.now
        connected, ready = core.connected, core.ready()
        if core.closing.is_set():
            return
        quiet = max(judge.promises.undisturbed_since(process), since)
        if judge.now > quiet + ANSWERED_WITHIN * judge.stretch:
            if not connected:
                self.convict(f"{process.name} says that it has no contact, and is answered")
            elif not ready and not core.standing:
                self.convict(f"{process.name} says that it is not ready, and is answered")
        unheard = min(process.clock.now() - judge.promises.any_heard_at(process), judge.now - since)
        if unheard > SILENT_AFTER * judge.stretch and (connected or ready):
            self.convict(
                f"{process.name} says that it has contact, and has heard nothing for {unheard:.1f} s"
            )
        if ready and not connected:
            self.convict(f"{process.name} says that it is ready, and has no contact")

    def looked_at_until(self, process: Process) -> float:
        """Return until when a client may ask for contact because it was looked at."""
        return self._looked_at.get(process.name, (0.0, -math.inf))[1] + LOOKED_AT


def count_of(entry: Entry | KVPair | None) -> int:
    """Return what a counted value counts."""
    return 0 if entry is None else int(entry.value.partition(b" ")[0])
