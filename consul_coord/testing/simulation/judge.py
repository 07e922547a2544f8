"""What must hold in every run, looked at after every event; and what has been seen on the way.

Rules, for each key
- At most one process believes in a hold at the same true time, and while it does, no other session has the
  key. A hold is believed in by its own lease on its process's own clock, running or not.
- An operator's force ends that: holds granted before a release, a deletion, a snapshot, or the destruction of
  a session whose lock-delay is shorter than its TTL are not counted. Their fences still are.
- Nobody believes in a hold for longer than the TTL after its session has ended, whatever has ended it.
- What an acquire returns is held, at that moment.
- Fences rise: no two holds have the same one, and whoever believes in a hold is never refused by a resource
  that has seen a later one. A write guarded by a hold never
  succeeds after the key was given away again.
- Among those who queue, the key goes to the first; nobody whose lock is fair goes past them.
- The loss of a hold is told by its deadline, or as soon as its process goes on.
- Once all is healed, a free key with somebody waiting is taken soon.
- No program fails by a bug.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from consul_coord import events
from consul_coord.recipes import waitqueue
from consul_coord.recipes.session import TRIES_PER_LEASE
from consul_coord.testing.simulation.counts import Counts
from consul_coord.testing.simulation.shapes import LOCKING
from consul_coord.testing.simulation.trace import Trace, short

if TYPE_CHECKING:
    from consul_coord.events import Event
    from consul_coord.recipes.hold import HoldCore
    from consul_coord.server.wire import Reply
    from consul_coord.testing.simulation.cluster import Cluster
    from consul_coord.testing.simulation.plan import Plan
    from consul_coord.testing.simulation.process import Process
    from consul_coord.testing.simulation.scheduler import Scheduler
    from consul_coord.testing.simulation.shapes import Shape

TOLD_WITHIN = 0.01
"""Seconds after its deadline by which a loss is known to a process that runs."""
TOLD_AFTER_SLEEP = 1.1
"""Seconds after its machine has slept, timers and all: keepers look at the clock every second, unless a
renewal is under way, which takes a part of the lease at most."""
TAKEN_WITHIN = 2.5
"""Seconds for which a free key may be left to somebody who waits, when nothing goes wrong."""
GUARDED = "done/"
"""Prefix of the keys that are written under a hold's guard."""
_OK = 200


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that was broken, and how."""

    rule: str
    how: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.how}"


@dataclass(frozen=True, slots=True)
class Before:
    """A key and its queue as they were just before a request."""

    holder: str
    live: tuple[str, ...]


class Claim:
    """A hold as its user has got it."""

    __slots__ = (
        "fence",
        "found_lost",
        "key",
        "lease",
        "process",
        "reference",
        "session",
        "session_ended",
        "told",
    )

    def __init__(self, process: Process, hold: HoldCore) -> None:
        self.process = process
        self.key = hold.key
        self.session = hold.session
        self.fence = hold.fence
        self.lease = hold.lease
        self.reference = weakref.ref(hold)
        self.told = False
        """Whether its user's callback was called."""
        self.session_ended: float | None = None
        """When its session was first seen to be gone on the server."""
        self.found_lost: float | None = None
        """When its loss was first seen from outside."""

    def believed(self) -> bool:
        """Return whether its user would be told that it is held."""
        hold = self.reference()
        return (
            hold is not None
            and not hold.ended
            and not self.process.crashed
            and self.lease.is_valid(self.process.clock.now())
        )

    def __str__(self) -> str:
        return f"{self.process.name}'s hold of {self.key} by {short(self.session)} with fence {self.fence}"


class Judge:
    """The eyes of one run."""

    def __init__(self, scheduler: Scheduler, plan: Plan) -> None:
        self.counts = Counts()
        self.trace = Trace()
        self.violation: Violation | None = None
        self.duty = ""
        """What a reaper is about."""
        self.healed_at: float | None = None
        self.processes: list[Process] = []
        self._scheduler = scheduler
        self._plan = plan
        self._claims: dict[str, list[Claim]] = {key: [] for key in plan.keys}
        self._exempt: dict[str, int] = dict.fromkeys(plan.keys, 0)
        """Up to which index holds of a key were granted before an operator's force."""
        self._register: dict[str, tuple[int, Claim | None]] = dict.fromkeys(plan.keys, (0, None))
        """The resource that takes no fence lower than the last one, and who wrote it last."""
        self._given: dict[str, int] = dict.fromkeys(plan.keys, 0)
        """The fence that the server gave last."""
        self._fences: dict[tuple[str, int], Claim] = {}
        self._index = -1
        self._granted = False
        """Whether a hold was granted since the last look."""
        self._latest = dict.fromkeys(plan.keys, 0)
        """The highest fence that anybody was given so far."""
        self._heads: dict[str, tuple[str, ...]] = dict.fromkeys(plan.keys, ())
        self._free_since: dict[str, float] = {}
        self._deleted_contenders: set[str] = set()
        self._in_jeopardy: set[str] = set()

    cluster: Cluster

    # -- telling

    def note(self, who: str, what: str) -> None:
        """Write a line to the trace."""
        self.trace.add(self._scheduler.now, who, what)

    def see(self, what: str) -> None:
        """Count something rare."""
        self.counts.see(what)

    def convict(self, rule: str, how: str) -> None:
        """Record a violation; the first one counts."""
        if self.violation is None:
            self.violation = Violation(rule, how)
            self.note("judge", f"VIOLATION of {rule}: {how}")

    # -- requests

    def fate(self, who: str, shape: Shape, fate: str) -> None:
        """Take note of what becomes of a request."""
        self.see(f"fate: {fate}")
        self.note(who, f"{shape}  ~ {fate}")

    def before(self, shape: Shape) -> Before | None:
        """Return the state that a request finds, where that matters."""
        if shape.name not in LOCKING or shape.about not in self._claims:
            return None
        return Before(self.cluster.holder(shape.about), self._live(shape.about))

    def served(self, who: str, shape: Shape, fate: str, before: Before | None, reply: Reply | None) -> None:
        """Take note of what the agent made of a request."""
        status = 0 if reply is None else reply.status
        shown = "connection broken" if reply is None else _shown(reply)
        mark = "" if fate == "served" else f" ({fate})"
        self.note(who, f"{shape} {short(shape.session) if shape.session else ''}-> {shown}{mark}")
        if reply is not None:
            self._count_reply(shape, fate, reply)
        if status != _OK:
            return
        if shape.name == "guarded":
            self._check_guarded(shape)
        if before is not None:
            self._check_order(who, shape, before)

    def _count_reply(self, shape: Shape, fate: str, reply: Reply) -> None:
        applied = reply.status == _OK
        if applied and fate in {"reply lost", "reply cut off", "failed after"}:
            self.see(f"lost reply on {shape.name}")
        elif fate in {"late", "late and cut off"}:
            self.see(f"late {shape.name} {'applied' if applied else 'refused'}")
        elif fate == "twice":
            self.see(f"twice on {shape.name}")
        if b"lock delay" in reply.body:
            self.see("refused by lock-delay")
        if applied and shape.name == "adopt":
            self.see("adopted")
        if not applied and shape.name == "guarded":
            self.see("guarded write refused")
        if applied and shape.name == "join" and shape.about in self._deleted_contenders:
            self._deleted_contenders.discard(shape.about)
            self.see("rejoined")

    def _live(self, key: str) -> tuple[str, ...]:
        directory = waitqueue.directory(key)
        live = [
            (entry.create_index, entry.session)
            for entry in self.cluster.under(directory)
            if entry.key == directory + entry.session
        ]
        return tuple(session for _, session in sorted(live))

    def _check_order(self, who: str, shape: Shape, before: Before) -> None:
        key = shape.about
        holder = self.cluster.holder(key)
        entry = self.cluster.entry(key)
        if holder == before.holder or not holder or entry is None:
            return
        self._given[key] = entry.modify_index
        if holder in before.live and before.live[0] != holder:
            queue = ", ".join(map(short, before.live))
            self.convict("order", f"{who} got {key} by {short(holder)}, out of the order {queue}")
        process = next((one for one in self.processes if one.name == who), None)
        if shape.name == "barge" and process is not None and process.fair and before.live:
            self.convict("fairness", f"{who}'s lock is fair, and went past {short(before.live[0])} to {key}")

    def _check_guarded(self, shape: Shape) -> None:
        key = shape.about.removeprefix(GUARDED)
        entry = self.cluster.entry(GUARDED + key)
        fence = int(entry.value) if entry is not None else 0
        if fence < self._given[key]:
            self.convict("guard", f"a write to {key} under fence {fence} succeeded after {self._given[key]}")

    # -- operators

    def forced(self, key: str) -> None:
        """Count no holds any more that were granted so far: an operator has intervened."""
        self._exempt[key] = self.cluster.state.store.raft_index

    def contender_deleted(self, contender: str) -> None:
        """Take note of which contender an operator has deleted."""
        self._deleted_contenders.add(contender)

    def restored(self) -> None:
        """Take note that the state has gone back to a snapshot."""
        for key in self._given:
            self.forced(key)

    # -- clients

    def reported(self, process: Process, event: Event) -> None:
        """Take note of what a client reports."""
        self.note(process.name, event.describe())
        match event:
            case events.Lost(reason=reason):
                self.see(f"lost: {reason}")
            case events.Released(outcome=outcome):
                self.see(f"released: {outcome}")
            case events.Cleaned(found=True):
                self.see(f"reaper found: {self.duty}")
            case events.Jeopardy(session=session):
                self._in_jeopardy.add(session)
            case events.Renewed(session=session) if session in self._in_jeopardy:
                self._in_jeopardy.discard(session)
                self.see("jeopardy survived")
            case events.Forgotten():
                self.see("hold forgotten")
            case events.Overwritten():
                self.see("overwritten")
            case events.Failed(where=where, error=error):
                self.convict("no bugs", f"{where} of {process.name}: {error}")
            case _:
                pass

    def failed(self, process: Process, where: str, error: BaseException) -> None:
        """Take note of a program that raised what it must not."""
        self.convict("no bugs", f"{where} of {process.name}: {type(error).__name__}: {error}")

    def granted(self, process: Process, hold: HoldCore) -> Claim:
        """Take note of a hold that a user has got."""
        claim = Claim(process, hold)
        self.note(process.name, f"holds {hold.key} by {short(hold.session)}, fence {hold.fence}")
        other = self._fences.setdefault((hold.key, hold.fence), claim)
        if other is not claim:
            self.convict("fences", f"{claim} has the same fence as {other}")
        if not claim.believed():
            self.convict("granted", f"{claim} was over before it began")
        earlier = self._latest[hold.key]
        if hold.fence < earlier and claim.believed() and hold.fence > self._exempt[hold.key]:
            self.convict("fences", f"{claim} came after one with {earlier}")
        self._latest[hold.key] = max(earlier, hold.fence)
        self._granted = True
        self._claims[hold.key].append(claim)
        return claim

    def write(self, claim: Claim) -> bool:
        """Write to the fenced resource under a hold; returns whether it took it."""
        fence, writer = self._register[claim.key]
        if claim.fence < fence:
            self.see("stale fence refused")
            if claim.believed() and claim.fence > self._exempt[claim.key]:
                self.convict("fences", f"{claim} is believed in and was refused: {writer} wrote before")
            return False
        self._register[claim.key] = (claim.fence, claim)
        return True

    # -- after every event

    def look(self) -> None:
        """See whether every rule holds at this moment."""
        index = self.cluster.state.store.raft_index
        written, self._index = index != self._index, index
        for key, claims in self._claims.items():
            if claims:
                self._check_claims(key, claims, anew=written or self._granted)
            if written:
                self._check_queue(key)
        self._granted = False
        if self.healed_at is not None:
            for key in self._claims:
                self._check_taken(key)

    def _check_claims(self, key: str, claims: list[Claim], *, anew: bool) -> None:
        over = [claim for claim in claims if self._is_over(claim)]
        for claim in over:
            claims.remove(claim)
        for claim in claims:
            self._check_session(claim)
        if not anew:
            return  # belief begins with a grant, and the key changes hands with a write
        believed = [claim for claim in claims if claim.fence > self._exempt[key] and claim.believed()]
        if len(believed) > 1:
            self.convict("exclusion", " and ".join(map(str, believed)))
        for claim in believed:
            holder = self.cluster.holder(key)
            # Of a session that has ended, the key may be free until its lock-delay is over.
            if holder != claim.session and (holder or self.cluster.lives(claim.session)):
                self.convict("exclusion", f"{claim} is believed in, and {short(holder)} has the key")

    def _check_session(self, claim: Claim) -> None:
        now = self._scheduler.now
        if claim.session_ended is None:
            claim.session_ended = None if self.cluster.lives(claim.session) else now
        elif now > claim.session_ended + (self._plan.spec.ttl or 0.0) and claim.believed():
            self.convict(
                "lease", f"{claim} is believed in, {now - claim.session_ended:.2f} s after its session"
            )

    def _is_over(self, claim: Claim) -> bool:
        """Return whether nothing more is to be seen of a claim; a loss must have been told by then."""
        hold, process, now = claim.reference(), claim.process, self._scheduler.now
        if hold is None or process.crashed or claim.told:
            return True
        if claim.found_lost is not None:
            if not hold.ended:
                self.convict("lost for good", f"{claim} came back")
            if now > max(claim.found_lost, process.awake_since) + TOLD_WITHIN and process.able:
                self.convict("told", f"the user of {claim} was not called back")
        elif hold.ended:
            if not hold.lost.is_set():
                return True
            claim.found_lost = now
        elif process.able:
            until = process.clock.true(claim.lease.valid_until)
            asleep = TOLD_AFTER_SLEEP + claim.lease.longest / TRIES_PER_LEASE
            slack = asleep if process.slept else TOLD_WITHIN
            if now > max(until, process.awake_since) + slack:
                self.convict("told", f"{claim} is over since {now - until:.3f} s, and nobody was told")
        return False

    def _check_queue(self, key: str) -> None:
        before, live = self._heads[key], self._live(key)
        self._heads[key] = live
        if before == live:
            return
        sessions = self.cluster.state.store.sessions.rows
        for place, session in enumerate(before):
            if session not in sessions:
                self.see("head died" if place == 0 else "follower died")
                self.see("session ended while it waited")
                if place == 0 and self.cluster.in_lock_delay(key):
                    self.see("head died in lock-delay")

    def _check_taken(self, key: str) -> None:
        live, now = self._heads[key], self._scheduler.now
        waited_for = (
            live
            and not self.cluster.holder(key)
            and not self.cluster.in_lock_delay(key)
            and any(kept.id == live[0] for one in self.processes if one.able for kept in one.core.sessions())
        )
        if not waited_for:
            self._free_since.pop(key, None)
            return
        since = max(self._free_since.setdefault(key, now), self.quiet_at)
        if now > since + TAKEN_WITHIN:
            self.convict(
                "progress", f"{key} is free for {now - since:.1f} s, and {short(live[0])} waits for it"
            )

    quiet_at = float("inf")
    """From when on nothing that went wrong before can still be felt."""


def _shown(reply: Reply) -> str:
    if reply.status == _OK:
        return "200"
    return f"{reply.status} {reply.body[:160].decode(errors='replace')}"
