"""The rules of each run, checked after each event; and the branches seen on the way.

Each kind of hold has its own rules: ``key_rules`` for locks and leaderships, ``slot_rules`` for semaphores,
``rules`` for all of them. Besides these:

- Once all is healed, what is free with somebody waiting is taken soon.
- No program fails by a bug.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from consul_coord import events
from consul_coord.errors import ClientClosed
from consul_coord.models import LossReason
from consul_coord.testing.simulation.answers import Answers
from consul_coord.testing.simulation.belongings import Belongings
from consul_coord.testing.simulation.call_rules import CallRules
from consul_coord.testing.simulation.claims import Claim
from consul_coord.testing.simulation.counts import Counts
from consul_coord.testing.simulation.eyes import Eyes
from consul_coord.testing.simulation.jobs import JobRules
from consul_coord.testing.simulation.key_rules import KeyRules
from consul_coord.testing.simulation.news import News
from consul_coord.testing.simulation.promises import Promises
from consul_coord.testing.simulation.room_rules import RoomRules
from consul_coord.testing.simulation.rw_rules import RwRules
from consul_coord.testing.simulation.session_rules import SessionRules
from consul_coord.testing.simulation.shapes import GUARDED, LOCKING
from consul_coord.testing.simulation.sharing import SharingRules
from consul_coord.testing.simulation.slot_rules import SlotRules
from consul_coord.testing.simulation.trace import Trace, short
from consul_coord.testing.simulation.way_rules import WayRules

if TYPE_CHECKING:
    from collections.abc import Iterator

    from consul_coord.events import Event
    from consul_coord.http.messages import Request
    from consul_coord.recipes.hold.grant import Grant
    from consul_coord.server.wire import Reply
    from consul_coord.testing.simulation.cluster import Cluster
    from consul_coord.testing.simulation.connections import Room
    from consul_coord.testing.simulation.plan import Plan
    from consul_coord.testing.simulation.process import Process
    from consul_coord.testing.simulation.rules import Rules
    from consul_coord.testing.simulation.scheduler import Scheduler
    from consul_coord.testing.simulation.shapes import Shape
    from consul_coord.testing.simulation.ways import SimAgent

Rule = Literal[
    "exclusion",
    "limit",
    "all or none",
    "lease",
    "noticed",
    "in time",
    "granted",
    "lost for good",
    "told",
    "callbacks",
    "fences",
    "guard",
    "released",
    "answers",
    "cause",
    "cost",
    "pace",
    "renewals",
    "rest",
    "sight",
    "order",
    "fairness",
    "record",
    "once",
    "sharing",
    "fork",
    "stuck",
    "progress",
    "nothing left",
    "one cluster",
    "ways in",
    "limit of connections",
    "connections",
    "no bugs",
]
"""The rules that can be broken; for each there is a planted fault that breaks it."""

GOES_ON_WITHIN = 2.2
"""Seconds within which a release goes on at another agent, as documented, and the latter answers."""
SURVIVES = 3.75
"""Seconds that a lease has to last to survive an agent that hangs: that of a horizon of 4 s."""
_SEEN: dict[type[object], str] = {
    events.Forgotten: "hold forgotten",
    events.Overwritten: "overwritten",
    events.FailedOver: "failed over",
    events.AgentRefused: "stray agent refused",
    events.ConnectionsRefused: "limit reported",
}
_OK = 200
_FORBIDDEN = 403
_UNHEARD = {"reply lost", "reply cut off", "failed after"}
_SILENT = {"request lost", "reply lost", "late", "fading"}
_SLOW = {"slow", "index back", "twice"}
_LATE = {"late", "late and cut off"}
_EXPECTED = ("PermissionDenied", "SessionCheckFailed")
_REPORTS = ("of the election", "of the partition", "taking the partition", "watching the group")


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that was broken, and how."""

    rule: Rule
    how: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.how}"


class Judge:
    """The eyes of one run."""

    def __init__(self, scheduler: Scheduler, plan: Plan, cluster: Cluster) -> None:
        self.counts = Counts()
        self.trace = Trace()
        self.violation: Violation | None = None
        self.duty = ""
        """The subject of a reaper's task."""
        self.healed_at: float | None = None
        self.promises = Promises(self, plan)
        self.answers = Answers(self, plan)
        self.news = News(self, plan)
        self.sessions = SessionRules(self, plan)
        self.eyes = Eyes()
        self.ways = WayRules(self, plan)
        if plan.agents > 1:
            self.eyes.open(self.ways.look)
        self.belongings = Belongings(self, plan)
        self.quiet_at = float("inf")
        """From when on nothing that went wrong before can still be felt."""
        self.ttl = plan.spec.ttl or 0.0
        self._plan = plan
        self.room: RoomRules | None = None
        """The rules of connections, where the agent has a limit."""
        self.gentle = plan.gentle
        """Whether who could be served must be, also while things go wrong."""
        self.prompt = plan.gentle or plan.calm
        """Whether that can be judged by what anybody does at each moment."""
        self.permits = "permission revoked" not in plan.chaos
        """Whether nobody is ever refused anything for want of permission."""
        self.calm = plan.calm
        """Whether nothing goes wrong but what operators do."""
        self.skew = plan.skew
        self.bounded = plan.bounded
        """Whether all clocks run at rates within the stated bound."""
        self.stretch = plan.stretch
        """By how much the slowest clock makes waits longer."""
        self.cluster = cluster
        self._scheduler = scheduler
        self._processes: dict[str, Process] = {}
        self.keys = {
            key: KeyRules(self, cluster, key, is_removed=key in plan.removed_keys) for key in plan.all_keys
        }
        self.plain = CallRules(self, cluster, plan)
        self.jobs = {key: JobRules(self, cluster, key, plan.seed) for key in plan.jobs}
        self.sharing = None if plan.sharing is None else SharingRules(self, cluster, plan.sharing)
        self.pools = {pool.prefix: SlotRules(self, cluster, pool) for pool in plan.pools}
        self.rwlocks = {name: RwRules(self, cluster, name) for name in plan.rwlocks}
        self.rules: dict[str, Rules] = {**self.keys, **self.pools, **self.rwlocks}
        if not self.bounded:
            self.see("clocks beyond the bound")
        self._in_order = tuple(self.rules.values())
        self._index = -1
        self._deleted_contenders: set[str] = set()
        self._in_jeopardy: set[str] = set()

    @property
    def damages(self) -> bool:
        """Whether a semaphore can't be read now and then."""
        return "damage record" in self._plan.chaos

    @property
    def shows_terms(self) -> bool:
        """Whether everybody sees a leader's term, which a stranger's write hides for a while."""
        return self.permits and "overwrite" not in self._plan.chaos

    def knows_nodes(self, session: str) -> bool:
        """Return whether everybody may read on which node a session is."""
        return self.permits and self.cluster.lives(session)

    @property
    def now(self) -> float:
        """The true time."""
        return self._scheduler.now

    # -- telling

    def note(self, who: str, *what: object) -> None:
        """Write a line to the trace, of parts that are put together when it is read."""
        self.trace.add(self._scheduler.now, who, what)

    def record(self, process: str, kind: str, **fields: Any) -> None:  # noqa: ANN401 - a Record's
        """Write down a happening for the history."""
        self.trace.record(self._scheduler.now, process, kind, fields)

    def tell(self, claim: Claim, kind: str, **fields: Any) -> None:  # noqa: ANN401 - a Record's
        """Write down what became of a claim; not of a resumed one, whose fence is another's, too."""
        if claim.resumes:
            return
        self.record(
            claim.process.name,
            kind,
            actor=claim.actor,
            key=claim.of,
            session=claim.session,
            fence=claim.fence,
            **fields,
        )

    def see(self, what: str) -> None:
        """Count something rare."""
        self.counts.see(what)

    def convict(self, rule: Rule, how: str) -> None:
        """Record a violation; the first one counts."""
        if self.violation is None:
            self.violation = Violation(rule, how)
            self.note("judge", f"VIOLATION of {rule}: {how}")
            self.record("judge", "note", detail=f"{rule}: {how}")

    # -- who takes part

    def add(self, process: Process) -> None:
        """Take note of a new process."""
        self._processes[process.name] = process
        self.record(process.name, "started")

    def process(self, name: str) -> Process | None:
        """Return a process by its name."""
        return self._processes.get(name)

    def names(self) -> list[str]:
        """Return the names of all processes."""
        return list(self._processes)

    def in_use(self, name: str) -> bool:
        """Return whether a process runs, with a client that is open."""
        return not (self._processes[name].crashed or self._processes[name].core.closing.is_set())

    def running(self) -> list[Process]:
        """Return the processes that run, with a client that is open."""
        return [process for name, process in self._processes.items() if self.in_use(name)]

    def in_care(self, session: str) -> bool:
        """Return whether a client that runs takes care of a session."""
        return self.carer(session) is not None

    def carer(self, session: str) -> Process | None:
        """Return the process that runs and takes care of a session."""
        able = (
            one for one in self._processes.values() if one.able and one.core.sessions.get(session) is not None
        )
        return next(able, None)

    def any_without_queue(self, key: str) -> bool:
        """Return whether a client goes without a key's queue, for want of permission once."""
        return any(one.goes_without_queue(key) for one in self._processes.values())

    def watch_room(self, room: Room) -> None:
        """Judge the connections to an agent that has a limit."""
        self.room = RoomRules(self, self._plan, room)

    # -- requests

    def fate(self, who: str, shape: Shape, fate: str) -> None:
        """Take note of what becomes of a request."""
        self.see(f"fate: {fate}")
        self.note(who, shape, "  ~ ", fate)
        self.record(who, "fault", detail=f"{fate}: {shape}")
        self.promises.failed(who, silent=fate in _SILENT, slow=fate in _SLOW)

    def sent(self, process: Process, agent: SimAgent | None, request: Request, shape: Shape) -> None:
        """Judge that a process sends something, to one of several agents or to the only one."""
        self.promises.sent(process, request, shape)
        self.belongings.sent(request)
        if agent is not None:
            self.ways.sent(process, agent, request)

    def before(self, shape: Shape) -> list[tuple[Rules, Any]]:
        """Return the state that a request finds, for each thing that it may change."""
        if shape.name == "destroy":
            self.belongings.destroys(shape.about)
        return [(rules, rules.before(shape)) for rules in self._ruling(shape)]

    def _ruling(self, shape: Shape) -> Iterator[Rules]:
        for key in shape.locks if shape.name in LOCKING else ():
            if rules := self.rules_of(key):
                yield rules

    def served(
        self, who: str, shape: Shape, fate: str, before: list[tuple[Rules, Any]], reply: Reply | None
    ) -> None:
        """Take note of what the agent made of a request."""
        shown: object = "connection broken"
        if reply is not None:
            shown = "200" if reply.status == _OK else _Shown(reply)
        mark = "" if fate == "served" else f" ({fate})"
        self.note(who, shape, " ", short(shape.session) if shape.session else "", "-> ", shown, mark)
        if reply is None:
            return
        if reply.status == _OK:
            if shape.name == "join" and "/.wait/" in shape.about:
                self._joined(who, shape, heard=fate not in _UNHEARD | _LATE)
            if shape.name == "destroy":
                self.belongings.destroyed(shape.about)
            if shape.name == "guarded":
                self._check_guarded(shape)
            if shape.name == "put" and (entry := self.cluster.entry(shape.about)) is not None:
                self.news.wrote(who, shape.about, entry.modify_index)
        for rules, found in before:
            rules.answered(who, shape, found, applied=reply.status == _OK, heard=fate not in _UNHEARD)
        if reply.status != _OK or fate != "served" or shape.name in {"adopt", "join"}:
            self._count_reply(shape, fate, reply)

    def _joined(self, who: str, shape: Shape, *, heard: bool) -> None:
        rules = self.keys.get(shape.about.partition("/.wait/")[0])
        if rules is not None:
            rules.joined(who, shape.session, heard=heard)

    def _count_reply(self, shape: Shape, fate: str, reply: Reply) -> None:
        applied = reply.status == _OK
        if applied and fate in _UNHEARD:
            self.see(f"lost reply on {shape.name}")
        elif fate in _LATE:
            self.see(f"late {shape.name} {'applied' if applied else 'refused'}")
        elif fate == "twice":
            self.see(f"twice on {shape.name}")
        if b"lock delay" in reply.body:
            self.see("refused by lock-delay")
        if reply.status == _FORBIDDEN or b"Permission denied" in reply.body:
            self.see("permission denied")
        if applied and shape.name == "adopt":
            self.see("adopted")
        if not applied and shape.name == "guarded":
            self.see("guarded write refused")
        if applied and shape.name == "join" and shape.about in self._deleted_contenders:
            self._deleted_contenders.discard(shape.about)
            self.see("rejoined")

    def _check_guarded(self, shape: Shape) -> None:
        name = shape.about.removeprefix(GUARDED)
        rules, entry = self.rules_of(name), self.cluster.entry(shape.about)
        if rules is None or entry is None or entry.modify_index < self.cluster.state.store.raft_index:
            return  # of several that went through at once, when there was a leader again, the last is judged
        fence = int(entry.value)
        if not rules.has_now(shape.session, fence):
            text = f"a write to {name} by {short(shape.session)} under fence {fence} succeeded, which is over"
            self.convict("guard", text)
        claim = rules.claim(fence)
        # The hold's own key it writes itself, and the others never.
        for one in claim.others if claim is not None else ():
            if one.overwritten or not self.rules[one.of].has_now(one.session, one.fence):
                self.convict(
                    "guard", f"a write under the guard of {claim} succeeded, and {one.of} has changed"
                )

    # -- operators

    def contender_deleted(self, contender: str) -> None:
        """Take note of which contender an operator has deleted."""
        self._deleted_contenders.add(contender)

    def may_wait_without_place(self, process: Process, key: str) -> bool:
        """Return whether a process waits for another one, and need not know that its place was deleted."""
        deleted = (each for each in self._deleted_contenders if each.startswith(f"{key}/.wait/"))
        sessions = (process.core.sessions.get(each.rpartition("/")[2]) for each in deleted)
        return bool(self.keys[key].queue) and any(kept is not None for kept in sessions)

    def restored(self) -> None:
        """Take note that the state has gone back to a snapshot."""
        self.promises.went_back(max((rules.latest for rules in self._in_order), default=0))
        for rules in self.rules.values():
            rules.forced()
        for job in self.jobs.values():
            job.went_back()

    # -- clients

    def reported(self, process: Process, event: Event) -> None:
        """Take note of what a client reports."""
        self.note(process.name, _Described(event))
        self.news.reported(process, event)
        self.sessions.reported(process, event)
        self.ways.reported(process, event)
        self._look_for_ids(process, event)
        match event:
            case events.Lost(reason=reason):
                self.see(f"lost: {reason}")
                self._check_ways_in(process, event)
                self._tell_of(event, "lost", reason)
            case events.Released(outcome=outcome):
                self.see(f"released: {outcome}")
            case events.Cleaned(found=True):
                self.see(f"reaper found: {self.duty}")
            case events.Jeopardy(session=session):
                self._in_jeopardy.add(session)
                self._tell_session(session, "jeopardy")
            case events.Renewed(session=session):
                self._renewed(session)
            case events.Elected(key=key, term=term):
                self.see("elected")
                self._elected(process, key, term)
            case events.Resigned():
                self.see("resigned")
                self._tell_of(event, "resigned")
            case events.Failed():
                self._check_failure(process, event)
            case _ if type(event) in _SEEN:
                self.see(_SEEN[type(event)])
                self._tell_dropped(event)
            case _:
                pass

    def _check_failure(self, process: Process, event: events.Failed) -> None:
        if process.is_behind and event.error.startswith(ClientClosed.__name__):
            return  # while a thread that closes the client stands still
        if not (self.news.knows(process, event.where) or _is_expected(event.where, event.error)):
            self.convict("no bugs", f"{event.where} of {process.name}: {event.error}")

    def _look_for_ids(self, process: Process, event: Event) -> None:
        """Take note of a member whose id others want as well."""
        if isinstance(event, events.Joined) and event.key in self.keys:
            self._got(process, event.key, event.index, "have joined", actor="member")

    def _check_ways_in(self, process: Process, event: events.Lost) -> None:
        """Convict a loss where nothing goes wrong but with one of several agents at a time."""
        if self._plan.agents <= 1 or event.reason not in {LossReason.EXPIRED, LossReason.SESSION_GONE}:
            return
        rules = self.rules.get(event.key) or self.rules.get(event.key.rpartition("/")[0])
        claim = None if rules is None else rules.claim(event.fence)
        if claim is None or claim.lease.longest >= SURVIVES:
            text = f"{process.name} lost {event.key}, and another agent served: {event.reason}"
            self.convict("ways in", text)

    def check_goes_on(self, process: Process, what: str, *, since: float) -> None:
        """Judge that a release did not wait for one of several agents that does not serve."""
        took = self.now - max(since, process.awake_since)
        if self._plan.agents > 1 and took > GOES_ON_WITHIN and not process.core.closing.is_set():
            self.convict("ways in", f"{process.name} {what} in {took:.2f} s, and another agent served")

    def _renewed(self, session: str) -> None:
        survived = session in self._in_jeopardy
        if survived:
            self._in_jeopardy.discard(session)
            self.see("jeopardy survived")
        self._tell_session(session, "recovered" if survived else "valid")

    def _tell_dropped(self, event: Event) -> None:
        """Write down that a hold was given up by nobody's looking at it any more."""
        if isinstance(event, events.Forgotten):
            self._tell_of(event, "released", "dropped")

    def _tell_session(self, session: str, kind: str) -> None:
        for rules in self.rules.values():
            for claim in rules.claims:
                if claim.session == session and not claim.told:
                    self.tell(claim, kind, until=claim.until)

    def _tell_of(
        self, event: events.Lost | events.Resigned | events.Forgotten, kind: str, detail: str = ""
    ) -> None:
        rules = self.rules_of(event.key)
        fence = event.term if isinstance(event, events.Resigned) else event.fence
        claim = None if rules is None else rules.claim(fence)
        for one in () if claim is None else claim.whole:
            self.tell(one, kind, until=min(one.until, self.now), detail=detail)

    def _elected(self, process: Process, key: str, term: int) -> None:
        self._got(process, key, term, "lead", actor="candidate", kind="elected")

    def _got(
        self, process: Process, key: str, fence: int, what: str, *, actor: str, kind: str = "acquired"
    ) -> None:
        """Take note of a hold of a program in the background, which an event has reported."""
        hold = next((one for one in process.core.holds.all() if one.key == key and one.fence == fence), None)
        if hold is None:
            if not process.is_behind:  # another thread may have let go of it meanwhile
                text = f"{process.name} reports to {what} {key}, index {fence}, and has no hold"
                self.convict("granted", text)
            return
        claim = self.granted(process, hold, of=key, actor=actor, kind=kind)
        # Users hear of its end by callbacks and events of their own, which are looked at besides.
        process.core.holds.on_lost(hold, lambda _: self.told(claim))

    def rules_of(self, key: str) -> Rules | None:
        """Return the rules for what a hold's key stands for."""
        return (
            self.rules.get(key)
            or self.pools.get(key.rpartition("/")[0])
            or self.rwlocks.get(key.partition("/.rw/")[0])
        )

    def failed(self, process: Process, where: str, error: BaseException) -> None:
        """Take note of a program that raised what it must not."""
        self.convict("no bugs", f"{where} of {process.name}: {type(error).__name__}: {error}")

    def granted(
        self,
        process: Process,
        hold: Grant,
        *,
        of: str,
        actor: str,
        kind: str = "acquired",
        session: str | None = None,
    ) -> Claim:
        """Take note of a hold that a user has got; ``session`` is the one meant, where it has several."""
        session = hold.session if session is None else session
        # Without a lock-delay nothing covers a holder but the TTL, which must not have ended the session yet.
        delay = self.cluster.lock_delay(session) if self.cluster.lives(session) else 0.0
        covered = delay or self.ttl
        claim = Claim(process, hold, of=of, session=session, actor=actor, lock_delay=delay, covered=covered)
        before = self.rules[of].claim(hold.fence)
        claim.resumes = before is not None and before.exported and before.session == session
        self.note(process.name, f"holds {of} by {short(session)}, fence {hold.fence}")
        self.tell(claim, kind, until=claim.until)
        self.rules[of].granted(claim)
        return claim

    def resumed(self, claim: Claim, *, of: Claim) -> None:
        """Judge a hold by a session that was handed over with another one."""
        if claim.resumes:
            self.see("session resumed")
        elif self.rules[claim.of].is_untouched(of):
            self.convict("fences", f"{claim} resumes {of}, and has another fence")

    def asked(self, claim: Claim, *, held: bool) -> None:
        """Take note of the answer to a user that asked about its hold."""
        for one in claim.whole:
            self.rules[one.of].asked(one, held=held)

    def looked_at_by(self, process: Process) -> None:
        """Have the holds of a process looked at by its users, and judge what they see."""
        for rules in self.rules.values():
            for claim in rules.claims:
                if claim.process is process and (hold := claim.reference()) is not None:
                    rules.asked(claim, held=hold.is_held(process.host.now()))

    def told(self, claim: Claim) -> None:
        """Take note that a loss is reported to a user."""
        for one in claim.whole:
            self.rules[one.of].told(one)

    def released(self, claim: Claim, *, since: float) -> None:
        """Judge a release that reports RELEASED, to a user that asked at ``since``."""
        for one in claim.whole:
            if self.rules[one.of].has_now(one.session, one.fence):
                self.convict("released", f"{one} is said to be released, and the server still has it")
            self.belongings.released(one, since=since)
        was_gone = all(one.gone_since is not None and one.gone_since < since for one in claim.whole)
        if was_gone and not self.answers.excused(claim.process, since=since):
            self.convict("answers", f"{claim} is said to be released, and was gone before that was asked")

    def verified(self, claim: Claim, *, since: float) -> None:
        """Judge a report that the server has a hold, to a user that asked at ``since``."""
        for one in claim.whole:
            if one.gone_since is not None and one.gone_since < since:
                self.convict("answers", f"{one} was verified, and was gone before that was asked")

    def stuck(self, claim: Claim) -> None:
        """Take note that a user learnt that it has held for too long."""
        self.rules[claim.of].stuck(claim)

    def write(self, claim: Claim) -> None:
        """Write to the fenced resources under a hold."""
        for one in claim.whole:
            self.rules[one.of].write(one)

    # -- after every event

    def look(self) -> None:
        """See whether every rule holds at this moment."""
        index = self.cluster.state.store.raft_index
        written, self._index = index != self._index, index
        healed = self.healed_at is not None
        for rules in self._in_order:
            if written or healed or rules.claims:
                rules.look(written=written)
        if written:
            for job in self.jobs.values():
                job.look()
            if self._plan.callers:
                self.plain.look()
        if self.sharing is not None:
            self.sharing.look(written=written)
        self.promises.look()
        self.eyes.look(self.now)
        self.news.look()
        self.belongings.look()
        self.sessions.look()
        if self.room is not None:
            self.room.look()


def _is_expected(where: str, error: str) -> bool:
    """Return whether a recipe reports what it was refused, as it should."""
    if where.startswith("joining again"):
        return True  # also that the value could not be written which was given meanwhile
    return any(part in where for part in _REPORTS) and error.startswith(_EXPECTED)


class _Shown:
    """A reply as the trace shows it."""

    __slots__ = ("_reply",)

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    def __str__(self) -> str:
        return f"{self._reply.status} {self._reply.body[:160].decode(errors='replace')}"


class _Described:
    """An event as the trace shows it."""

    __slots__ = ("_event",)

    def __init__(self, event: Event) -> None:
        self._event = event

    def __str__(self) -> str:
        return self._event.describe()
