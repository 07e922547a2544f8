"""The rules of a semaphore.

Rules
- At the moment of each take, no more sessions than the limit of that record have a slot. At any time, no more
  than that rely on a slot that they got up to then, each by a session of its own. A lower limit expels
  nobody.
- A slot that a foreign client takes from a dead holder counts no more: such clients ask for no lock-delay,
  and afterwards nobody can know whose it was.
- While a client relies on a slot, its contender is there and the record names it, or its session has ended.
- The record stays one: it can be read, keeps its flags and the fields that this package does not know, and
  its limit changes by those who mean it alone.
- Among the waiters, free slots go to the first as many. A client that takes without queueing is not fair,
  and passes nobody who waited when it gave a slot back last. Once it queues, it is a waiter like any other.
- A waiter that wants several slots gets all of them by one request, and only if there is enough besides for
  all waiters before it.
- At the end the prefix is empty, except the record.

The record is read here by means of its own: a fault in the recipe's reading must not blind the judge.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from consul_coord.recipes.session.lease import RENEW_FRACTION, SPREAD_FRACTION
from consul_coord.testing.simulation.rules import Rules
from consul_coord.testing.simulation.trace import short

if TYPE_CHECKING:
    from collections.abc import Mapping

    from consul_coord.server.records import Entry
    from consul_coord.testing.simulation.claims import Claim
    from consul_coord.testing.simulation.cluster import Cluster
    from consul_coord.testing.simulation.judge import Judge
    from consul_coord.testing.simulation.plan import Pool
    from consul_coord.testing.simulation.shapes import Shape

GARBAGE: Final = b"not a record"
"""The text that an operator may write over a record, until the repair."""
_WAITING: Final = b"consul-coord:wait"
_THRICE: Final = 3


@dataclass(frozen=True, slots=True)
class Standing:
    """A semaphore at one moment."""

    record: Entry | None
    fields: Mapping[str, Any] | None
    """The content of the record; None when it is missing or can't be read."""
    live: Mapping[str, Entry]
    """The contenders that stand, by session."""

    @property
    def limit(self) -> int:
        """The record's limit, 0 without one."""
        return int(self.fields["Limit"]) if self.fields else 0

    @property
    def named(self) -> tuple[str, ...]:
        """Whom the record names."""
        return tuple(self.fields["Holders"]) if self.fields else ()

    @property
    def held(self) -> frozenset[str]:
        """The sessions that have a slot."""
        return frozenset(one for one in self.named if one in self.live)

    @property
    def queue(self) -> tuple[str, ...]:
        """The waiters by the rules of the queue, the first one first."""
        waiting = (
            (entry.create_index, session)
            for session, entry in self.live.items()
            if session not in self.named and entry.value.startswith(_WAITING)
        )
        return tuple(session for _, session in sorted(waiting))

    def wanted(self, *sessions: str) -> int:
        """Return how many slots some waiters want together."""
        marks = (self.live[session].value.partition(b"\n")[0] for session in sessions)
        return sum(int(mark[len(_WAITING) :] or 1) for mark in marks)

    def free_before(self, added: frozenset[str]) -> int:
        """Return how many slots the take of ``added``, which led here, found free.

        A session that it left in the record kept a slot, a dead one too. A session that it left out had none,
        even if its contender has come back since it was seen to be missing, by a request that arrived late:
        no client relies on that one.
        """
        return self.limit - len(set(self.named) - added)

    @property
    def unknown(self) -> dict[str, Any]:
        """The fields that nobody here knows."""
        return {
            name: value for name, value in (self.fields or {}).items() if name not in {"Limit", "Holders"}
        }


class SlotRules(Rules):
    """The view of one semaphore."""

    tells_own = True

    def __init__(self, judge: Judge, cluster: Cluster, pool: Pool) -> None:
        super().__init__(judge, cluster, pool.prefix)
        self._directory = pool.prefix + "/"
        self._record = self._directory + ".lock"
        self._most = pool.limit
        """The highest limit that there ever was."""
        self._limits: list[tuple[int, int]] = []
        """The index of each take, and the limit in force."""
        self._given: dict[str, int] = {}
        """The fence of each session's last take."""
        self._refused: Counter[str] = Counter()
        self._unheard: set[int] = set()
        self._used: set[str] = set()
        self._left_behind: dict[str, frozenset[str]] = {}
        """By process: who waited when it gave a slot back last."""
        self._written: set[str] = set()
        self._earned: set[str] = set()
        """Sessions that have taken a slot since the last hold by them."""
        self._standing = self._latest = Standing(None, None, {})
        self._held_before = frozenset[str]()
        """The sessions that had a slot before the last write."""
        self._read_at = -1
        """At which index of the server the latest reading was made."""

    @property
    def has_register(self) -> bool:
        """Whether there never was more than one slot."""
        return self._most == 1

    def standing(self) -> Standing:
        """Return the semaphore as the server has it."""
        index = self.cluster.state.store.raft_index
        if index != self._read_at:
            self._read_at, self._latest = index, self._read()
        return self._latest

    def _read(self) -> Standing:
        record, fields = self.cluster.entry(self._record), None
        live: dict[str, Entry] = {}
        for entry in self.cluster.under(self._directory):
            if entry.session and entry.key == self._directory + entry.session:
                live[entry.session] = entry
        if record is not None and record.value != GARBAGE:
            try:
                found = json.loads(record.value)
                fields = {"Limit": int(found["Limit"]), **found, "Holders": list(found["Holders"])}
            except (ValueError, TypeError, KeyError):
                self.judge.convict("record", f"{self._record} was damaged: {record.value!r}")
        return Standing(record, fields, live)

    def rewritten(self) -> None:
        """Take note that an operator may have changed the limit."""
        self._most = max(self._most, self.standing().limit)

    def was_written(self, session: str) -> None:
        """Take note that an operator has written to a contender, or released it: it may be passed."""
        self._written.add(session)

    def _waited(self, standing: Standing) -> list[str]:
        """Return the waiters whom nobody could miss, the first one first."""
        return [session for session in standing.queue if session not in self._written]

    # -- requests

    def before(self, shape: Shape) -> Standing:  # noqa: ARG002 - one of Rules
        """Return the state that a request finds."""
        return self.standing()

    def answered(self, who: str, shape: Shape, before: Standing, *, applied: bool, heard: bool) -> None:
        """Judge what was applied; count takes that came too late, and those that adopt what was not heard."""
        super().answered(who, shape, before, applied=applied, heard=heard)
        if not applied:
            self._count_refused(shape)
        elif not heard:
            self._unheard.add(self._given.get(shape.session, 0))

    def _count_refused(self, shape: Shape) -> None:
        if shape.name == "slot-take":
            self._refused[shape.session] += 1
            self.judge.see("slot-take refused")
            if self._refused[shape.session] == _THRICE:
                self.judge.see("slot-take refused thrice")
        if shape.name == "slot-take-at-once":
            self.judge.see("slot-take-at-once refused")

    def after(self, who: str, shape: Shape, before: Standing) -> None:
        """Judge what a request has made of the record."""
        now = self.standing()
        if shape.name == "slot-leave":
            self._left_behind[who] = frozenset(before.queue)
        if now.record is None or now.fields is None or now.record == before.record:
            return
        self._check_record(who, before, now)
        self._check_dropped(who, before, now)
        self._most = max(self._most, now.limit)
        if before.fields and before.limit != now.limit:
            self.judge.see("resized")
        added = now.held - before.held
        if who.startswith("go"):
            for session in set(before.named) - set(now.named) - before.live.keys():
                self.forced(session)
        if len(now.held) > now.limit and added:
            holders = ", ".join(map(short, sorted(now.held)))
            self.judge.convict("limit", f"{who} made {holders} holders of {self.name}, at most {now.limit}")
        for session in added:
            self._taken(who, session, shape, before, now, free=now.free_before(added))

    def _check_record(self, who: str, before: Standing, now: Standing) -> None:
        if before.record is None or before.fields is None or now.record is None:
            return
        foreign = self.judge.process(who) is None or who.startswith("go")
        kept = before.record.flags == now.record.flags and (foreign or before.unknown == now.unknown)
        if not kept:
            text = f"{who} damaged the record of {self.name}: {before.record.value!r}, {now.record.value!r}"
            self.judge.convict("record", text)

    def _check_dropped(self, who: str, before: Standing, now: Standing) -> None:
        """Judge a client that leaves holders out of the record, whose own clients may rely on it still."""
        if self.judge.process(who) is None or who.startswith("go"):
            return
        for session in set(before.named) - set(now.named) - before.live.keys():
            if self.cluster.in_lock_delay(f"{self.name}/{session}"):
                text = f"{who} gives away the slot of {short(session)} in {self.name} within its lock-delay"
                self.judge.convict("limit", text)

    def _taken(
        self, who: str, session: str, shape: Shape, before: Standing, now: Standing, *, free: int
    ) -> None:
        index = now.record.modify_index if now.record is not None else 0
        self._limits.append((index, now.limit))
        self._given[session] = index
        self._refused.pop(session, None)
        self._earned.add(session)
        if set(before.named) - before.live.keys():
            self.judge.see("dead holder pruned")
        if shape.name == "slot-take-at-once":
            self.judge.see("slot taken at once")
            process = self.judge.process(who)
            if process is not None and process.fair and (waited := self._waited(before)):
                text = f"{who}'s semaphore is fair, and went past {short(waited[0])} to {self.name}"
                self.judge.convict("fairness", text)
            self._check_passed(who, before)
        if session in before.queue:
            self._check_order(who, session, before, now, free=free)

    def _check_passed(self, who: str, before: Standing) -> None:
        """Judge a client that takes without queueing: nobody still waits who did when it was there last."""
        passed = [one for one in self._waited(before) if one in self._left_behind.get(who, ())]
        if passed:
            text = f"{who} goes past {short(passed[0])} to {self.name}, which waited when it left"
            self.judge.convict("fairness", text)

    def _check_order(self, who: str, session: str, before: Standing, now: Standing, *, free: int) -> None:
        """Judge a take of one who has queued."""
        passed = set(before.queue[: before.queue.index(session)])
        ahead, wanted = passed.intersection(self._waited(before)), before.wanted(session)
        got = now.held - before.held
        if wanted > 1:
            self.judge.see("several slots taken")
        if len(got) != wanted:
            text = f"{who} got {len(got)} slots of {self.name} by {short(session)}, and wanted {wanted}"
            self.judge.convict("all or none", text)
        if before.wanted(*ahead) + wanted > free:
            queue = ", ".join(f"{short(one)} ({before.wanted(one)})" for one in before.queue)
            text = f"{who} got a slot of {self.name} by {short(session)}, {free} free, queue {queue}"
            self.judge.convict("order", text)

    # -- claims

    def granted(self, claim: Claim) -> None:
        """Judge a new claim."""
        super().granted(claim)
        queue = self._waited(self.standing())
        if claim.session not in self._earned and not claim.resumes and queue:
            text = f"{claim} was not taken: its session was still named, and goes past {short(queue[0])}"
            self.judge.convict("order", text)
        self._earned.discard(claim.session)
        if claim.fence in self._unheard:
            self.judge.see("slot adopted")
        if claim.session in self._used:
            self.judge.see("slot session used again")
        self._used.add(claim.session)

    def was_given(self, session: str, fence: int) -> bool:
        """Return whether the session had taken a slot by then, for the last time."""
        # Somebody may have written to the contender before its owner read the index.
        return 0 < self._given.get(session, 0) <= fence

    def has_now(self, session: str, fence: int) -> bool:
        """Return whether the session's contender stands, and the fence is not of an earlier take.

        The record may not name it any more: the guard of a slot does not cover that, as is documented.
        """
        contender = self.standing().live.get(session)
        # A late copy of the join may have made another one since.
        is_it = contender is not None and contender.create_index <= fence
        return is_it and self.was_given(session, fence)

    def stands(self, claim: Claim) -> bool:
        """Return whether the contender is there and the record, if it can be read, names it."""
        now = self.standing()
        return claim.session in now.live and (now.fields is None or claim.session in now.named)

    def surely_stands(self, claim: Claim) -> bool:
        """Return whether the contender is there, and a record that can be read names it."""
        now = self.standing()
        return claim.session in now.live and claim.session in now.named

    def holders(self) -> frozenset[str]:
        """Return the sessions that have a slot, or are still named."""
        now = self.standing()
        return frozenset((*now.named, *now.live))

    def gave_up(self, session: str) -> bool:
        """Return whether a session that has just gone had a slot, and was no waiter."""
        return session in self._held_before

    def seldom(self, claim: Claim) -> float:
        """Return how long a query lasts, unless it is the hold's own contender that is gone.

        The record, and further contenders, are looked at when a query for that one ends: at the next renewal.
        """
        hold = claim.reference()
        if hold is None or hold.session not in self.standing().live:
            return 0.0
        return (RENEW_FRACTION + SPREAD_FRACTION) * min(self.judge.ttl, claim.covered)

    def check_belief(self, believed: list[Claim]) -> None:
        """Judge which clients rely on a slot at this moment."""
        believed.sort(key=lambda claim: claim.fence)
        for number, claim in enumerate(believed, start=1):
            limit = self._limit_at(claim.fence)
            if number > limit:
                holders = " and ".join(map(str, believed[:number]))
                self.judge.convict("limit", f"at most {limit}: {holders}")
        if len({claim.session for claim in believed}) < len(believed):
            self.judge.convict("limit", f"one session for two slots: {' and '.join(map(str, believed))}")
        now = self.standing() if believed else self._standing
        for claim in believed:
            gone = claim.session not in now.live or (
                now.fields is not None and claim.session not in now.named
            )
            if gone and self.cluster.lives(claim.session):
                self.judge.convict("limit", f"{claim} is relied on, and its slot is not there")

    def _limit_at(self, fence: int) -> int:
        """Return the limit of the take that a fence stems from; an operator may have written since."""
        return next((limit for index, limit in reversed(self._limits) if index <= fence), 0)

    def check_queue(self) -> None:
        """See who queues, after something was written."""
        before, now = self._standing, self.standing()
        if before.record == now.record and before.live == now.live:
            return
        self._standing, self._held_before = now, before.held
        queue = now.queue
        if before.queue != queue:
            self.note_dead(before.queue, in_lock_delay=False)
        if any(not self.cluster.lives(one) for one in before.held - now.held):
            self.judge.see("holder of a slot died")

    def waited_for(self) -> str:
        """Return who is first in the queue for a slot that is free."""
        now = self._standing
        queue, damaged = now.queue, now.record is not None and now.fields is None
        if not queue or damaged or not self.judge.in_care(queue[0]):
            return ""
        dead = set(now.named) - now.live.keys()
        closed = sum(self.cluster.in_lock_delay(self._directory + session) for session in dead)
        if closed:
            self.judge.see("slot in lock-delay")
        free = now.record is None or len(now.held) + closed + now.wanted(queue[0]) <= now.limit
        return queue[0] if free else ""

    def check_left(self) -> None:
        """Judge what is left at the end."""
        for entry in self.cluster.under(self._directory):
            if entry.key != self._record:
                self.judge.convict("nothing left", f"{entry.key} of {short(entry.session)} is left")
