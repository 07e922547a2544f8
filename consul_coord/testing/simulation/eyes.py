"""The views that candidates and members of groups give without asking the servers, judged at each event.

Rules
- A candidate names the leader: itself while it leads, and never once that is over. Any other leader that it
  names had the key in that term, and not longer ago than it says.
- ``on_change`` reports each leader once, and no value that never was. It reports no term after a later one,
  also where an old leader of the servers answers. The exception is its own term, if the grant comes late.
- A candidate that says that Consul does not answer has heard nothing for a while.
- A candidate that nothing keeps aside queues or leads, whatever has failed before; one of low priority if
  nobody else does. It shows the leader that ``on_change`` has reported last.
- A candidate of low priority does not queue for long behind a leader.
- A candidate that leads has no problem, unless Consul does not answer.
- A call that waits for the leadership, for its end, or for a membership ends as soon as that is so, and
  callbacks come as soon.
- A member that says that it has joined is one on the servers. It shows the value that it was given last, also
  if that was given between two memberships: it joins with it, and does not give it only afterwards. Its joins
  and losses are events. One that was lost joins again soon, if it can ask and its id is free. If somebody
  else has its id, it has a problem that says so.

Nobody who looks sends a request or draws a number, so a run is the same with these eyes and without them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from consul_coord.errors import AcquireTimeout, RequestTimeout
from consul_coord.io import PATIENCE
from consul_coord.models import LossReason
from consul_coord.testing.simulation.promises import NOTICED_WITHIN
from consul_coord.testing.simulation.trace import short

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.models import LeaderInfo
    from consul_coord.recipes.election.candidacy import Candidacy
    from consul_coord.recipes.group.membership import Membership
    from consul_coord.recipes.hold.grant import Grant
    from consul_coord.testing.simulation.judge import Judge
    from consul_coord.testing.simulation.plan import Plan
    from consul_coord.testing.simulation.process import Process

LOOK = 0.02
"""Seconds between two looks, at least."""
OLD = 3.0
"""Seconds by which what is seen may be older than it is said to be: as long as an old leader answers."""
JUST_NOW = 0.3
"""The same where nothing goes wrong."""
SHOWN_WITHIN = 2.5
"""Seconds after a join, or after a value was given, within which a member shows it."""
TOLD_SOON = 0.1
"""Seconds after which a call that waits for something, and a callback about it, has come."""
LAST_READ = 0.25
"""Seconds more where requests may be lost: shortly before its time is up a call reads who leads."""
LED_FOR = 3.0
"""Seconds after an election within which every candidate has heard of it."""
UNHEARD = 30.0
"""Seconds after trouble for which a candidate may not have heard of the leader again."""
MODEST_FOR = 2.5
"""Seconds for which a candidate of low priority queues behind a leader, at most, when nothing goes wrong."""
STANDS_WITHIN, RENEWED_WITHIN = 2.0, 0.5
"""Seconds within which a candidate that nothing keeps aside queues or leads, when nothing goes wrong. It may
learn from its next renewal that its session is gone: after so much of the TTL, at most."""
JOIN_LOOK = 0.3
"""Seconds between two looks of a call that joins while another one does."""
JOINS_AGAIN = 3.0
"""Seconds within which a member that was lost is one again, if its id is free, when nothing goes wrong."""
_CHANGED_BY_HAND = {"restore", "overwrite", "permission revoked"}
"""The faults after which terms and values are others than those of the elections."""


class Stopwatch:
    """Since when each of several things has been so, at each look at a process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._since: dict[str, float] = {}

    def since(self, what: str, *, is_so: bool) -> float:
        """Return since when something is so, while the process was awake; infinite if it isn't."""
        if not is_so:
            self._since.pop(what, None)
            return math.inf
        return max(self._since.setdefault(what, self._process.judge.now), self._process.awake_since)

    def lasts(self, what: str, *, is_so: bool) -> float:
        """Return for how many seconds something has been so, without those for which its machine slept."""
        return max(0.0, self._process.judge.now - self.since(what, is_so=is_so) - self._process.slept)


class Eyes:
    """All that is looked at."""

    def __init__(self) -> None:
        self._looks: dict[Callable[[], object], None] = {}
        self._next = 0.0

    def open(self, look: Callable[[], object]) -> Callable[[], object]:
        """Have something looked at from now on; returns how to end that."""
        self._looks[look] = None
        return lambda: self._looks.pop(look, None)

    def look(self, now: float) -> None:
        """Look at everything, unless that was done a moment ago."""
        if self._looks and now >= self._next:
            self._next = now + LOOK
            for look in self._looks:
                look()


class CandidateEyes:
    """One candidacy's view of the leader, and its reports."""

    def __init__(self, process: Process, candidacy: Candidacy, plan: Plan) -> None:
        self._process = process
        self._judge: Judge = process.judge
        self._candidacy = candidacy
        self._rules = self._judge.keys[candidacy.plan.key]
        self._judges_terms = not (_CHANGED_BY_HAND & plan.chaos.keys())
        self._old = JUST_NOW if plan.calm else OLD
        # Over connections a client may hang up before it has read a reply; checks of agents are no contact.
        self._judges_problems = plan.agents == 1 and not plan.connections
        self._reported: list[LeaderInfo | None] = []
        self._latest = 0
        """The highest term that was reported."""
        self._watch = Stopwatch(process)
        self.waits = 0
        """How many calls wait for the leadership."""
        self.waits_for_loss = 0
        """How many wait for its end."""
        self.heard_of = 0
        """The term that ``on_elected`` was called with, while ``on_lost`` was not called after it."""
        self.busy_until = -math.inf
        """Until when a call of ``on_lost`` lasts: others wait for it."""
        self.is_aside = False
        """Whether its user has a reason not to let it stand."""

    def _convict(self, how: str) -> None:
        self._judge.convict("sight", f"{self._process.name}'s candidate for {self._rules.name} {how}")

    def reported(self, leader: LeaderInfo | None) -> None:
        """Judge a call of ``on_change``."""
        if self._reported and _same(self._reported[0], leader):
            self._convict(f"reports twice: {leader}")
        self._reported = [leader]
        if leader is None:
            self._check_nobody()
        if leader is None or not self._judges_terms:
            return
        # Its own grant may come late: it is over then, and known to be in a moment.
        claim = self._rules.claim(leader.term)
        if leader.term < self._latest and (claim is None or claim.process is not self._process):
            self._convict(f"reports term {leader.term} after {self._latest}")
        if not self._rules.showed(leader.session, leader.value):
            self._convict(f"reports the value {leader.value!r} of {short(leader.session)}, which never was")
        self._latest = max(self._latest, leader.term)

    def _check_nobody(self) -> None:
        """Judge a report that nobody is known to lead: not while the leader can be asked for."""
        judge, process = self._judge, self._process
        held = self._rules.holders_since(judge.now - LED_FOR * judge.stretch)
        if any(process.core.sessions.get(session) is not None for session in held or ()):
            return  # its own leadership is over, and the key not free yet
        disturbed = max(judge.promises.troubled(process.name), process.awake_since)
        if held is not None and "" not in held and judge.now > disturbed + UNHEARD * judge.stretch:
            self._convict(f"reports no leader, and {short(next(iter(held)))} leads")

    def look(self) -> None:
        """Judge what it shows at this moment."""
        process, candidacy, now = self._process, self._candidacy, self._process.clock.now()
        if not process.able:
            return
        self._check_calls(now)
        if candidacy.is_over:
            return
        shown, age, hold = candidacy.following.leader(now), candidacy.following.age(now), candidacy.hold
        leads = candidacy.leading(now) is not None
        own = shown is not None and hold is not None and shown.session == hold.session
        own = own and shown is not None and hold is not None and shown.term == hold.fence
        if own is not leads:
            self._convict(f"{'leads' if leads else 'leads no more'}, and shows {shown} as the leader")
        elif shown is not None and not own:
            self._check_other(shown, age)
        if self._judges_problems:
            self._check_problem()
        self._check_standing(leads=leads)
        self._check_reports(shown)

    def _check_calls(self, now: float) -> None:
        """Judge that each call, and each callback, comes as soon as what it is about is so."""
        candidacy, hold = self._candidacy, self._candidacy.hold
        leads = candidacy.leading(now) is not None
        is_due = self.waits > 0 and (leads or candidacy.is_over)
        within = TOLD_SOON if self._judge.calm else TOLD_SOON + LAST_READ
        if self._watch.lasts("wait", is_so=is_due) > within:
            self._judge.convict("in time", f"{self._process.name} leads, or stands no more, and a call waits")
        ended = hold is not None and hold.ended
        if self._watch.lasts("wait for loss", is_so=self.waits_for_loss > 0 and ended) > TOLD_SOON:
            self._judge.convict("in time", f"{self._process.name} leads no more, and a call waits for that")
        term = 0 if hold is None else hold.fence
        for what, is_so in (
            ("leads, and was not called back", leads and self.heard_of != term),
            ("leads no more, and was not called back", ended and self.heard_of == term),
        ):
            is_due = is_so and not candidacy.is_over and self._judge.now > self.busy_until
            if self._watch.lasts(what, is_so=is_due) > TOLD_SOON:
                self._judge.convict("callbacks", f"{self._process.name} {what}, in term {term}")

    def _check_standing(self, *, leads: bool) -> None:
        """Judge that it stands, whatever has failed before, unless its user or its plan keeps it aside."""
        judge, process, key = self._judge, self._process, self._rules.name
        kept = (judge.cluster.holder(key), *self._rules.queue)
        stands = leads or any(process.core.sessions.get(session) is not None for session in kept if session)
        is_modest = bool(self._candidacy.plan.priority_delay)
        # Who is of low priority lets everybody else go first, also one that does nothing.
        may_stay_aside = is_modest and (any(kept) or judge.cluster.in_lock_delay(key))
        # Who is stuck in its work is not joined by another one of its client.
        is_stuck = self._rules.is_stuck(process)
        may_stay_aside = may_stay_aside or is_stuck or judge.may_wait_without_place(process, key)
        is_absent = not (stands or self.is_aside or may_stay_aside)
        since = self._watch.since("absence", is_so=is_absent and not process.goes_without_queue(key))
        queues = any(process.core.sessions.get(session) is not None for session in self._rules.queue)
        is_led = judge.cluster.holder(key) and not leads
        presses = self._watch.since("modesty", is_so=bool(is_modest and queues and is_led))
        if judge.room is not None or judge.cluster.down:
            return
        undisturbed = judge.promises.undisturbed_since(process)
        if judge.now > max(presses, undisturbed) + MODEST_FOR * judge.stretch:
            judge.convict(
                "order", f"{process.name} is of low priority, and queues behind the leader of {key}"
            )
        since = max(since, process.aside.get(key, 0.0), undisturbed, self._rules.left_at(process))
        if judge.now > since + (STANDS_WITHIN + RENEWED_WITHIN * judge.ttl) * judge.stretch:
            judge.convict("progress", f"{process.name} stands for {key}, and does not queue")

    def _check_reports(self, shown: LeaderInfo | None) -> None:
        """Judge that what it shows is what ``on_change`` has reported."""
        if not self._reported:
            return
        said = self._reported[0]
        differs = (shown and shown.session) != (said and said.session)
        if self._watch.lasts("reports", is_so=differs) > TOLD_SOON:
            self._convict(f"shows {shown}, and its last report was {said}")

    def _check_other(self, shown: LeaderInfo, age: float | None) -> None:
        judge = self._judge
        if age is None or age < 0:
            self._convict(f"shows {shown}, seen {age} s ago")
            return
        if not self._judges_terms:
            return
        since = judge.now - (age + self._old) * judge.stretch
        if not self._rules.was_given(shown.session, shown.term):
            self._convict(f"shows {shown}, which never led in that term")
        elif not (self._rules.held_since(shown.session, since) or self._is_excused(since)):
            self._convict(f"shows {shown}, seen {age:.2f} s ago, and its leadership was over before")

    def _is_excused(self, since: float) -> bool:
        return self._judge.answers.excused(self._process, since=since)

    def _check_problem(self) -> None:
        problem, process = self._candidacy.problem, self._process
        refused = self._candidacy.leading(process.clock.now()) is not None and self._candidacy.refusal
        if self._watch.lasts("refusal", is_so=bool(refused)) > TOLD_SOON:
            self._convict(f"leads, and has the problem: {refused}")
        if self._candidacy.refusal is not None:
            self._judge.news.check_reported(process, self._rules.name, self._candidacy.refusal)
        silent = process.clock.now() - self._judge.promises.heard_at(process)
        if isinstance(problem, RequestTimeout) and silent < PATIENCE - LOOK and not problem.method:
            self._convict(f"says: {problem}, and was answered {silent:.2f} s ago")


def _same(one: LeaderInfo | None, other: LeaderInfo | None) -> bool:
    """Return whether two reports are of the same: the node of a leader may become known later."""
    if one is None or other is None:
        return one is other
    return (one.session, one.term, one.value, one.since_index) == (
        other.session,
        other.term,
        other.value,
        other.since_index,
    )


class WaiterEyes:
    """The place of one call that waits for a lock: it has one, or joins again soon."""

    def __init__(self, process: Process, key: str) -> None:
        self._process = process
        self._rules = process.judge.keys[key]
        self._watch = Stopwatch(process)

    def look(self) -> None:
        """Judge whether it queues at this moment, or has the lock."""
        process, key = self._process, self._rules.name
        judge, core = process.judge, process.core
        kept = (judge.cluster.holder(key), *self._rules.queue)
        stands = any(core.sessions.get(session) is not None for session in kept if session)
        # Its client may have to do something else before: it has lost a hold, or looks for a late request.
        has_other_work = self._rules.is_stuck(process) or core.pending_cleanup or core.closing.is_set()
        may_not = process.goes_without_queue(key) or judge.may_wait_without_place(process, key)
        is_absent = not (stands or has_other_work or may_not) and process.able
        since = self._watch.since("absence", is_so=is_absent)
        since = max(since, judge.promises.undisturbed_since(process), self._rules.left_at(process))
        late = judge.now > since + (STANDS_WITHIN + RENEWED_WITHIN * judge.ttl) * judge.stretch
        if late and judge.room is None and not judge.cluster.down:
            judge.convict("progress", f"{process.name} waits for {key}, and does not queue")


class MemberEyes:
    """One membership's view of itself."""

    def __init__(self, process: Process, membership: Membership, *, evictable: bool) -> None:
        self._process = process
        self._judge: Judge = process.judge
        self._membership = membership
        evicted = {LossReason.KEY_DELETED} if evictable else set[LossReason]()
        self.final = {LossReason.CLIENT_CLOSED, LossReason.FORKED, *evicted}
        """After such a loss it is a member no more, until its user has it join."""
        self._given = membership.value
        self._given_at = 0.0
        self._unsure_of: Grant | None = None
        """The membership of which a write has failed: it may show one value or the other."""
        self._gone_since: float | None = None
        self._wrong_since: float | None = None
        self._watch = Stopwatch(process)
        self._known: Grant | None = None
        """The latest membership whose news was judged, or is over."""
        self._seen: Grant | None = None
        """The latest one."""
        self._lost: Grant | None = None
        """The latest one whose loss was looked at."""
        self.joins = 0
        """How many calls wait for it to be a member."""
        self.others = 0
        """How many calls of other tasks do."""
        self.is_leaving = False
        """Whether its user has it leave."""

    def gives(self, value: bytes) -> None:
        """Take note that a value is being given."""
        self._given, self._given_at, self._unsure_of = value, self._judge.now, self._membership.hold

    def has_given(self) -> None:
        """Take note that it is said to be written."""
        self._unsure_of = None

    def look(self) -> None:
        """Judge what it shows at this moment."""
        process, judge, hold = self._process, self._judge, self._membership.hold
        joined = self._membership.is_joined(process.clock.now())
        if process.able and not process.core.closing.is_set():
            self._check_course(hold, joined=joined)
        if hold is None or not joined or not process.able:
            self._gone_since = self._wrong_since = None
            return
        entry = judge.cluster.entry(self._membership.key)
        if entry is None or entry.session != hold.session:
            self._wrong_since = None
            self._gone_since = judge.now if self._gone_since is None else self._gone_since
            if self._is_late(self._gone_since, NOTICED_WITHIN) and not judge.promises.is_forgiven(hold.fence):
                seconds = judge.now - self._gone_since
                text = f"{process.name} is no member for {seconds:.2f} s, and says that it is one"
                judge.convict("noticed", text)
            return
        self._gone_since = None
        if entry.value == self._given or hold is self._unsure_of:
            self._wrong_since = None
            return
        self._wrong_since = judge.now if self._wrong_since is None else self._wrong_since
        if self._is_late(max(self._wrong_since, self._given_at), SHOWN_WITHIN):
            text = f"{process.name} was given the value {self._given!r}, and shows {entry.value!r}"
            judge.convict("sharing", text)

    def _check_course(self, hold: Grant | None, *, joined: bool) -> None:
        """Judge what becomes of it: calls that join end, and a loss is an event."""
        judge, process, member = self._judge, self._process, self._membership
        if self._watch.lasts("join", is_so=joined and self.joins > 0) > TOLD_SOON + JOIN_LOOK:
            judge.convict("in time", f"{process.name} is a member, and a call still joins")
        is_out = self._seen is not None and self._seen.reason in self.final
        if is_out and hold is not self._seen and not (self.joins or self.others):
            judge.convict("sharing", f"{process.name} was evicted, and is {member.key} again")
        if hold is not self._seen:  # of the one before no news may have been due, after a sleep
            self._known, self._seen = self._seen or self._known, hold
            self._watch.lasts("news", is_so=False)
        if joined and hold is not None and hold is not self._known:
            if self._watch.lasts("news", is_so=True) > LOOK:
                # The one before may have been too short to be looked at.
                was_told = judge.news.was_told(process, "joined again", member.key, hold.fence)
                again = "joined again" if self._known is not None or was_told else "joined"
                judge.news.expect(process, again, member.key, hold.fence)
                self._check_first_value(hold)
                self._known = hold
        else:
            self._watch.lasts("news", is_so=False)
            if hold is not None and hold.ended:
                self._known = hold  # perhaps while its process slept
        is_lost = hold is not None and hold.reason is not None and hold is not self._lost
        if hold is not None and self._watch.lasts("loss", is_so=is_lost) > LOOK:
            judge.news.expect(process, "lost", member.key, hold.fence)
            self._lost = hold
        self._check_return(hold, joined=joined)

    def _check_return(self, hold: Grant | None, *, joined: bool) -> None:
        """Judge that a member that has lost its key has it again soon, or says why not."""
        judge, process, member = self._judge, self._process, self._membership
        entry = judge.cluster.entry(member.key)
        is_free = entry is None or not entry.session
        final = hold is not None and (hold.released or hold.reason in self.final)
        is_out = hold is not None and not joined and not final and not self.is_leaving
        since = self._watch.since("out", is_so=is_out and is_free)
        since = max(since, judge.promises.undisturbed_since(process))
        if judge.now > since + JOINS_AGAIN * judge.stretch and not judge.cluster.down:
            judge.convict("progress", f"{process.name} has lost {member.key}, and does not join again")
        is_taken = not is_free and entry is not None and process.core.sessions.get(entry.session) is None
        puzzled = self._watch.since("no reason", is_so=is_out and is_taken and member.problem is None)
        puzzled = max(puzzled, judge.promises.undisturbed_since(process))
        if judge.now > puzzled + JOINS_AGAIN * judge.stretch and not judge.cluster.down:
            judge.convict("answers", f"{process.name} can't have {member.key} again, and does not say why")
        if member.problem is not None and not (member.is_over or isinstance(member.problem, AcquireTimeout)):
            judge.news.check_reported(process, member.key, member.problem)
        is_well = joined and entry is not None and entry.value == self._given and self._unsure_of is None
        if self._watch.lasts("problem", is_so=is_well and member.problem is not None) > SHOWN_WITHIN:
            judge.convict("answers", f"{process.name} is a member, and has the problem {member.problem}")

    def _check_first_value(self, hold: Grant) -> None:
        """Judge the value with which it has become a member: the one that it was given last."""
        judge, process = self._judge, self._process
        entry = judge.cluster.entry(self._membership.key)
        given_long = self._given_at < process.clock.true(hold.granted_at) - TOLD_SOON
        if entry is None or entry.session != hold.session or not given_long:
            return
        if entry.modify_index == hold.fence and entry.value != self._given:
            if not judge.answers.excused(process, since=self._given_at):
                text = f"{process.name} has joined with {entry.value!r}, and was given {self._given!r} before"
                judge.convict("sharing", text)
        elif entry.modify_index != hold.fence and not judge.answers.excused(process, since=self._given_at):
            judge.convict("sharing", f"{process.name} has joined, and has given its value only then")

    def _is_late(self, since: float, within: float) -> bool:
        """Return whether something should have been done by now."""
        judge, process = self._judge, self._process
        contact = judge.promises.contact(process.name)
        began = max(since, judge.promises.troubled(process.name), process.awake_since)
        return judge.now > began + (within + contact.patience() + judge.plain.behind) * judge.stretch
