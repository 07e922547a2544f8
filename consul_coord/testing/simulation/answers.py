"""The answers that users get, judged by what has happened: results, errors, reasons of losses.

Rules
- A hold is lost only for the reason that its user is given. A lease has run out only if nothing answered its
  renewals for that long. A session is gone, a key deleted, only if the server has seen that.
- A call says that it could not reach the servers only if something went wrong.
- ``AcquireTimeout`` comes when the time is over, never before. The holders that it names held while the call
  waited, and the place in the queue is one that the caller had. Where nothing goes wrong, it names the holder
  of the last second, and its node.
- A reading is tried again until its time is over. A client that asks about everybody, or about a hold of its
  own, hears how that stands: no old leader may answer that. Nor may one answer what the background asks for
  holders, or to make sure of a change.
- ``AcquireCancelled`` comes only after a cancellation.
- A holder may write under its hold, and make sure of its lease, as long as nothing goes wrong. A value
  that is said to be written is there. No call that needs a hold succeeds once that is over.
  Each is soon done where nothing goes wrong.
- A leader that is named has led while that was asked.
- Where nothing goes wrong, a call takes no more requests than documented; one that waits, two more for each
  write of others, and a few for each second.

Nothing here knows how the recipes do it. Where something has gone wrong for a process lately, its answers may
say so.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from consul_coord.errors import TxnFailed
from consul_coord.http.transport.limit import MOST
from consul_coord.models import LossReason, ReleaseOutcome
from consul_coord.recipes.hold.grant import OVERDUE, error_at_exit
from consul_coord.testing.simulation.chaos import OLD_FOR
from consul_coord.testing.simulation.news import JUST
from consul_coord.testing.simulation.plan import ENOUGH, FATES
from consul_coord.testing.simulation.promises import DRIFT, NOTICED_WITHIN, OF_THE_AGENT
from consul_coord.testing.simulation.session_rules import RETRIED
from consul_coord.testing.simulation.shapes import only_reads
from consul_coord.testing.simulation.trace import short

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consul_coord.errors import AcquireTimeout
    from consul_coord.http.messages import Request
    from consul_coord.models import LeaderInfo
    from consul_coord.recipes.hold.grant import Grant
    from consul_coord.testing.simulation.claims import Claim
    from consul_coord.testing.simulation.judge import Judge
    from consul_coord.testing.simulation.plan import Plan
    from consul_coord.testing.simulation.process import Process
    from consul_coord.testing.simulation.program import SimTask
    from consul_coord.testing.simulation.rules import Rules

BEFORE = 1.0
"""Seconds for which a failure can be felt after it."""
RECOVERS_IN = 0.5
"""The part of a lease within which a renewal is answered again, once no request fails any more."""
ANSWERED_IN = 1.0
"""Seconds for the answer to a renewal that was tried again."""
CLEANING = 0.2
"""Seconds that a call may take to give up, once its time is over."""
EARLY = 0.06
"""Seconds before the end of a lease at which no renewal could be answered in time any more."""
ACQUIRE = 3
"""Requests of an acquire that need not wait: one, two in a queue, and one for a new session."""
OWN = 1
"""Writes of its own that are no reason for further requests."""
FIRST_TRIES = 4
"""Requests more of one that waits: in a lock-delay its first tries follow each other soon."""
STABLE = 1.5
"""Seconds after which a waiter has read who holds."""
LAST_PAUSE = 1.2
"""Seconds for which it may rest before the last try of a reading, which it leaves out then."""
DONE_WITHIN = 1.0
"""Seconds within which a call with a hold is done, when nothing goes wrong."""
GIVES_UP = 6
"""Requests more of one that gives up: it has watched, removes what it has, and asks who is in the way."""
AT_ONCE = 0.1
"""Seconds after which a call has waited."""
_FOR_HOLDERS = ("watch ", "keep session ", "create a session")
"""Tasks of the background that look after holds and their sessions."""
_OF_CHANGES = ("changes of groups", "follow the leader ")
"""Those that follow something, and look elsewhere when that has changed."""
_OF_MEMBERS = "watch the members "
"""The one that follows a whole group, by queries that an old leader may answer first."""
_ONCE = ("candidate for ", "join again", "stay a member", "partition ", "job ")
"""Those that read a key once to decide something. An old leader may answer their queries."""
_KEYS = "/v1/kv/"
_NODE = frozenset({"deregister node", "check critical", "check flapping", "permission revoked", "crowd"})
"""The faults by which the servers refuse what they would do otherwise."""
_LOST_ELSEWHERE = frozenset(
    {LossReason.RELEASED_BY_OTHER, LossReason.KEY_DELETED, LossReason.TAKEN_OVER, LossReason.SLOT_REMOVED}
)


class Start(NamedTuple):
    """How things stood as a call began."""

    process: Process
    task: SimTask
    what: str
    since: float
    """True time."""
    began: float
    """The time of its process."""
    sent: int
    """How many requests the task had sent."""
    written: int
    """How much had been written."""
    most: int
    """The requests that it takes if it need not wait."""


class Answers:
    """The judge of results, errors and reasons."""

    def __init__(self, judge: Judge, plan: Plan) -> None:
        self._judge = judge
        self._serves = not (_NODE & plan.chaos.keys()) and plan.connections in {0, ENOUGH}
        """Whether the servers do what they are asked, except for the faults of requests and links."""
        acts = {*plan.chaos, *(() if plan.strike is None else plan.strike[1:])}
        self._ended = "destroy session" in acts
        """Whether servers refuse requests now and then, as the session has just ended."""
        self._calm = plan.calm
        self._names_holders = plan.calm or plan.has_only_acts
        # A new connection that ends without a reply is taken for a sign of the limit: the next may come late.
        self._before = BEFORE + MOST if plan.connections else BEFORE
        # A client may hang up before it has read a late reply, which the wire has seen.
        self._early = math.inf if plan.connections else EARLY
        self._overwritten = bool({"overwrite", "rewrite record", "overwrite contender"} & plan.chaos.keys())
        self._one_failure = plan.strike is not None and plan.strike[1] in FATES
        """Whether nothing goes wrong but one request."""
        self._behind = OLD_FOR if plan.has_old_leader else 0.0
        """Seconds by which a reading may be out of date."""
        self._twice = "twice" in plan.fates
        # Each try for a place that a dead client has left looks at the queue first.
        self._first_tries = FIRST_TRIES * (1 + bool(plan.rwlocks))
        self._late = plan.agents > 1 or any("late" in fate for fate in plan.fates)
        """Whether a request may be applied long after it was sent."""

    def excused(self, process: Process, *, since: float) -> bool:
        """Return whether something has gone wrong for a process since then, or shortly before."""
        return (
            not (self._serves and process.able)
            or self._judge.promises.troubled(process.name) >= since - self._before
            or process.awake_since >= since - BEFORE
            or process.core.closing.is_set()
        )

    # -- losses

    def lost(self, claim: Claim, hold: Grant) -> None:
        """Judge the reason of a loss, when it is first seen."""
        reason, now = hold.reason, claim.process.clock.now()
        if reason is None:
            return
        claims = [
            one for rules in self._judge.rules.values() for one in rules.claims if one.reference() is hold
        ]
        if reason is LossReason.EXPIRED:
            self._expired(claim, claims)
        elif reason is LossReason.SESSION_GONE:
            if all(self._judge.cluster.lives(one.session) for one in claims):
                self._judge.convict("cause", f"{claim} was lost, as its session is gone, and it lives")
        elif reason in _LOST_ELSEWHERE:
            # A user may learn of a hold that was over before, and that its session has got again.
            if all(self._stood(one) and self._has_now(one) for one in claims):
                self._judge.convict("cause", f"{claim} was lost as {reason}, and the server has it")
        elif reason in OVERDUE:
            until = claim.limits.get(reason, now)
            if now < until - JUST:
                self._judge.convict("cause", f"{claim} was lost as {reason}, {until - now:.3f} s early")
        elif reason is LossReason.CLIENT_CLOSED and not (claim.left or self._closes(claim.process)):
            self._judge.convict("cause", f"{claim} was lost, as its client is closed, and it is not")

    def _has_now(self, claim: Claim) -> bool:
        return self._judge.rules[claim.of].has_now(claim.session, claim.fence)

    def _stood(self, claim: Claim) -> bool:
        """Return whether a claim has stood on the server from its beginning to now."""
        return not claim.was_gone and self._judge.rules[claim.of].surely_stands(claim)

    def _expired(self, claim: Claim, claims: list[Claim]) -> None:
        judge, process = self._judge, claim.process
        ends: list[float] = []
        for one in claims:
            sent_at = judge.promises.renewed_in_time(process, one.session)
            if not judge.cluster.lives(one.session):
                ends.append(-math.inf)  # what its lease was is not known any more
            elif sent_at is not None:
                ends.append(sent_at + (1 - DRIFT) * judge.promises.horizon(one))
        # A thread that stood still amid a renewal has told nobody of it, and knows of no other one.
        if ends and process.clock.now() < min(ends) - self._early and process.threads is None:
            left = min(ends) - process.clock.now()
            judge.convict("cause", f"{claim} expired {left:.3f} s before its lease was over")
        if self._one_failure:
            judge.convict("cause", f"{claim} expired, and one request has failed in all")
        longest = max(map(judge.promises.horizon, claims), default=math.inf)
        if not self.excused(process, since=judge.now - RECOVERS_IN * longest * judge.stretch):
            judge.convict("cause", f"{claim} expired, and nothing has gone wrong lately")
        served_for = judge.now - max(judge.promises.contact(process.name).served_from, process.awake_since)
        is_whole = self._serves and process.able and not process.core.closing.is_set()
        if is_whole and served_for > (RETRIED * longest + ANSWERED_IN) * judge.stretch:
            text = f"{claim} expired, and requests were served for {served_for:.2f} s"
            judge.convict("cause", text)

    # -- calls

    def timed_out(
        self,
        process: Process,
        names: Iterable[str],
        error: AcquireTimeout,
        *,
        took: float,
        timeout: float,
        queued_before: bool = False,
    ) -> None:
        """Judge a call that gave up after ``took`` seconds of its process's clock.

        ``queued_before``: its place in the queue may be from before the call.
        """
        judge, blocker = self._judge, error.blocker
        since = self.waited(process, error, took=took, timeout=timeout)
        # Less time may be left than one request takes, after another call of the same client.
        may_fail = self._ended or timeout < 3 * AT_ONCE or self.excused(process, since=since)
        # A candidate's attempt that has just begun has asked nothing yet.
        may_fail = may_fail or (queued_before and error.__cause__ is None)
        if blocker.kind == "unreachable" and not may_fail:
            judge.convict("answers", f"{process.name} could not reach the servers, it says: {error}")
        rules = [judge.rules[name] for name in names]
        # One in its own process may not have noticed its loss yet.
        patience = judge.promises.contact(process.name).patience()
        # In a lock-delay it is the last holder that is named, by any reading within the wait.
        is_late = blocker.kind == "lock_delay" or self.excused(process, since=since)
        asked = since if is_late else max(since, judge.now - STABLE)
        asked -= NOTICED_WITHIN + patience + self._behind
        if blocker.kind == "unreachable" or process.awake_since > asked:
            asked = -math.inf  # it is said to be what was seen last, perhaps before the process stood still
        puzzled = judge.now < judge.promises.undisturbed_since(process) + NOTICED_WITHIN
        for holder in blocker.holders:
            if puzzled and process.core.sessions.get(holder.session) is not None:
                continue  # its own hold, whose loss it could not notice yet
            if holder.session and not any(one.held_since(holder.session, asked) for one in rules):
                text = f"{short(holder.session)} has {error.key}, says {process.name}, and had not"
                judge.convict("answers", text)
        # A single try names the place that it would have got.
        if timeout and blocker.session is not None and blocker.position is not None and len(rules) == 1:
            asked = -math.inf if queued_before else since - BEFORE
            self._check_place(process, rules[0], error, since=since, asked=asked)
            if timeout >= AT_ONCE:  # a shorter one has no time to read it
                self._check_nodes(process, rules[0], error, since=since)
        # One that queues in its own client has read nothing.
        has_read = queued_before or blocker.kind == "held"
        if took >= STABLE and len(rules) == 1 and self._names_holders and has_read:
            self._check_named(process, rules[0], error, since=since)

    def _check_place(
        self, process: Process, rules: Rules, error: AcquireTimeout, *, since: float, asked: float
    ) -> None:
        """Judge the place in the queue, and the holder, that a call names which has waited there."""
        judge, blocker = self._judge, error.blocker
        place = blocker.position or 0
        if self.excused(process, since=since):
            return
        # The place may be from before the call: a candidate with a new session names that of its last one.
        is_new = math.isinf(asked) and rules.came_at(error.session) == math.inf
        if not (is_new or rules.had_place(error.session, place, since=asked)):
            text = f"{short(error.session)} was at place {place} for {error.key}, says {process.name}"
            judge.convict("answers", f"{text}, and never was")
        had_it = rules.holders_since(judge.now - STABLE)
        named = {holder.session for holder in blocker.holders}
        # Of a slot in a lock-delay nobody is named.
        nobody = set[str]() if blocker.kind == "lock_delay" else {""}
        if self._calm and had_it is not None and "" not in had_it and not had_it.issuperset(named or nobody):
            text = f"{error.key} is held by {', '.join(map(short, sorted(had_it)))}"
            judge.convict("answers", f"{text}, and {process.name} names {len(named)} others")

    def _check_named(self, process: Process, rules: Rules, error: AcquireTimeout, *, since: float) -> None:
        """Judge whether a call that has waited for a while says who has been in the way lately."""
        (session, *others) = rules.holders_since(self._judge.now - STABLE) or ("",)
        if others or not session or process.core.sessions.get(session) is not None:
            return
        named = {error.blocker.session, *(one.session for one in error.blocker.holders)}
        if session not in named and not self.excused(process, since=since):
            text = f"{process.name} does not say that {short(session)} has {error.key}: {error}"
            self._judge.convict("answers", text)

    def read(self, process: Process, task: SimTask, request: Request, *, follows: bool) -> None:
        """Judge a reading whose answer is to be what is so now: no old leader may serve it.

        Few runs have such a leader at that moment, and a difference between what it knows and what is so.
        ``follows``: the task follows something by such queries. An old leader may answer these, as the task
        asks again.
        """
        if "consistent" in dict(request.params) or process.foreign or request.path.startswith(OF_THE_AGENT):
            return
        wanted = task.wants_present or task.name.startswith(_FOR_HOLDERS)
        of_key = request.path.startswith(_KEYS)
        elsewhere = task.name.startswith(_OF_CHANGES) and not of_key
        once = task.name.startswith(_ONCE) and of_key and not follows
        if (wanted or elsewhere or once) and not task.name.startswith(_OF_MEMBERS) and only_reads(request):
            text = f"{process.name} reads {request.path} where an old leader may answer ({task.name})"
            self._judge.convict("answers", text)

    def read_in_vain(self, process: Process, what: str, error: Exception, *, left: float) -> None:
        """Judge a reading that failed with so many seconds left of its time."""
        is_simple = process.agents is None and self._judge.room is None
        if left > LAST_PAUSE and is_simple and process.able and not process.core.closing.is_set():
            text = f"{process.name} {what}: {error}, with {left:.2f} s left to try again"
            self._judge.convict("answers", text)

    def _check_nodes(self, process: Process, rules: Rules, error: AcquireTimeout, *, since: float) -> None:
        """Judge whether a call says where the holder is that it names: it has time to read that."""
        judge = self._judge
        known = self._calm and rules.holders_since(judge.now - STABLE) is not None
        # It may have waited for another call of its client until just before.
        is_new = 0.0 <= judge.now - rules.came_at(error.session) < AT_ONCE
        if not known or is_new or self.excused(process, since=since):
            return
        for holder in error.blocker.holders:
            if holder.node is None and judge.cluster.lives(holder.session):
                judge.convict("answers", f"{process.name} does not say where the holder of {error.key} is")

    def waited(self, process: Process, error: AcquireTimeout, *, took: float, timeout: float) -> float:
        """Judge the times of a call that gave up, and return the true time at which it began."""
        since = process.clock.true(process.clock.now() - took)
        if took < timeout - JUST:
            text = f"{process.name} gave up {error.key} after {took:.3f} s of {timeout:.3f}"
            self._judge.convict("answers", text)
        late = process.awake_since >= since
        if not (took - CLEANING <= error.waited <= took + JUST) and not late:
            text = f"{process.name} waited {took:.3f} s, and says {error.waited:.3f}"
            self._judge.convict("answers", text)
        return since

    def cancelled(self, process: Process, name: str, *, took: float) -> None:
        """Judge a call that says that it was cancelled."""
        at = process.cancelled.get(name, -math.inf)
        since = process.clock.now() - took
        if at < since - JUST and not process.core.closing.is_set():
            self._judge.convict("answers", f"{process.name}'s wait for {name} ended as cancelled by nobody")

    def succeeded(self, claim: Claim, what: str, *, was_over: bool) -> None:
        """Judge a call that needs a hold, and has succeeded; ``was_over``: the hold was, when it began."""
        if was_over:
            self._judge.convict("answers", f"{what} under {claim}: it is done, and the hold was over before")

    def wrote(self, claim: Claim, key: str, value: bytes, *, since: float) -> None:
        """Judge a write under a hold that is said to be done."""
        entry, rules = self._judge.cluster.entry(key), self._judge.rules[claim.of]
        if not rules.counts(claim):
            return
        if claim.gone_since is not None and claim.gone_since < since:
            self._judge.convict("answers", f"{claim} was written to, and was gone before that was asked")
        is_ours = entry is not None and entry.session == claim.session
        # A later hold of the same session has a value of its own.
        is_ours = is_ours and rules.has_now(claim.session, claim.fence)
        # A late copy of the request that locked it writes the first value once more.
        values = (value, claim.process.name.encode()) if self._late else value
        if is_ours and entry is not None and not entry.value.endswith(values) and not self._overwritten:
            text = f"{claim}: {key} is said to have the value {value!r}, and has {entry.value!r}"
            self._judge.convict("answers", text)

    def refused(self, claim: Claim, what: str, error: Exception, *, since: float) -> None:
        """Judge a call with a hold that failed."""
        process = claim.process
        if self.excused(process, since=since) or self._overwritten:
            return
        if (
            self._late
            and isinstance(error, TxnFailed)
            and "stale_index" in {one.kind for one in error.failures}
        ):
            return  # a late copy of the join has written the value once more
        if all(one.believed() and self._stood(one) for one in claim.whole):
            text = f"{process.name} {what}: {type(error).__name__}: {error}; {claim} stands"
            self._judge.convict("answers", text)

    def not_released(self, claim: Claim, outcome: object, *, since: float) -> None:
        """Judge a release that says that it has not released."""
        if outcome is ReleaseOutcome.UNKNOWN and not self.excused(claim.process, since=since):
            self._judge.convict("answers", f"{claim} may be released, says its release, and all went well")
        hold = claim.reference()
        lost = hold is None or hold.reason is not None or any(map(self._was_ended, claim.whole))
        if outcome is ReleaseOutcome.ALREADY_LOST and not lost and not claim.limits:
            self._judge.convict("answers", f"{claim} was lost before its release, it says, and was not")
        is_told = hold is None or error_at_exit(hold, claim.process.clock.now(), None) is not None
        if outcome is ReleaseOutcome.ALREADY_LOST and not is_told:
            self._judge.convict("told", f"{claim} was lost, and the end of its block does not say so")

    def _was_ended(self, claim: Claim) -> bool:
        """Return whether something else than its release has ended a claim."""
        judge, rules = self._judge, self._judge.rules[claim.of]
        if self._twice and not rules.surely_stands(claim):
            return True  # of a release that a proxy has made twice, only the second reply arrives
        return claim.was_gone or not judge.cluster.lives(claim.session) or not rules.counts(claim)

    def _closes(self, process: Process) -> bool:
        """Return whether a client closes, perhaps with the thread that has begun to."""
        return process.core.closing.is_set() or not process.able

    def ensured(self, claim: Claim, seconds: float, *, since: float) -> None:
        """Judge a call that says that so many seconds of the lease are left."""
        process = claim.process
        left, took = claim.lease.remaining(process.clock.now()), self._judge.now - since
        if left < seconds - took / (1 - self._judge.skew) - JUST and not self.excused(process, since=since):
            self._judge.convict("answers", f"{claim}: {seconds:.2f} s are sure, it says, and {left:.2f} are")

    def lasted(self, process: Process, what: str, took: float, *, since: float) -> None:
        """Judge how long a call has lasted that need not wait for anybody."""
        if took > DONE_WITHIN and not self.excused(process, since=since):
            self._judge.convict("in time", f"{process.name} {what}: {took:.2f} s, and all is well")

    def paid(self, process: Process, what: str, *, sent: int, most: float, since: float) -> None:
        """Judge the number of requests that a call took, where nothing goes wrong."""
        is_calm = self._calm or not (self._overwritten or self.excused(process, since=since))
        if is_calm and not self._judge.promises.contact(process.name).failures and sent > most:
            text = f"{process.name} {what}: {sent} requests, where {most:.0f} are enough"
            self._judge.convict("cost", text)

    def begins(self, process: Process, task: SimTask, what: str, *, most: int = ACQUIRE) -> Start:
        """Return how things stand as a call begins that may wait."""
        written = self._judge.cluster.state.store.raft_index
        return Start(process, task, what, self._judge.now, process.host.now(), task.sent, written, most)

    def paid_for_waiting(self, start: Start, *, got: object) -> None:
        """Likewise, of a call that may have waited while others wrote, and what it has got, if anything."""
        writes = self._judge.cluster.state.store.raft_index - start.written
        took = start.process.host.now() - start.began
        waited = self._first_tries + 5 * took if took > AT_ONCE else 0
        most = start.most + 2 * max(0, writes - OWN) + GIVES_UP * (not got) + waited
        self.paid(start.process, start.what, sent=start.task.sent - start.sent, most=most, since=start.since)

    def led(self, key: str, info: LeaderInfo | None, *, since: float) -> None:
        """Judge an answer to the question who leads."""
        rules = self._judge.keys[key]
        if info is not None and not rules.held_since(info.session, since):
            self._judge.convict("answers", f"{short(info.session)} leads {key}, is the answer, and did not")
        if info is None and self._judge.cluster.holder(key) and not rules.held_since("", since):
            self._judge.convict("answers", f"nobody leads {key}, is the answer, and somebody did")
