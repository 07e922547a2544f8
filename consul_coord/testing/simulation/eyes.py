"""The views that candidates and members of groups give without asking the servers, judged at each event.

Rules
- A candidate names the leader: itself while it leads, and never once that is over. Any other leader that it
  names had the key in that term, and not longer ago than it says.
- ``on_change`` reports each leader once, and no value that never was. It reports no term after a later one,
  except where an old leader of the servers answers.
- A candidate that says that Consul does not answer has heard nothing for a while.
- A member that says that it has joined is one on the servers. It shows the value that it was given last, also
  if that was given between two memberships.

Nobody who looks sends a request or draws a number, so a run is the same with these eyes and without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.errors import RequestTimeout
from consul_coord.io import PATIENCE
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
_CHANGED_BY_HAND = {"restore", "overwrite", "permission revoked"}
"""The faults after which terms and values are others than those of the elections."""


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
        self._judges_order = self._judges_terms and "old leader" not in plan.chaos
        self._old = JUST_NOW if plan.calm else OLD
        # Over connections a client may hang up before it has read a reply; checks of agents are no contact.
        self._judges_problems = plan.agents == 1 and not plan.connections
        self._reported: list[LeaderInfo | None] = []
        self._latest = 0
        """The highest term that was reported."""

    def _convict(self, how: str) -> None:
        self._judge.convict("sight", f"{self._process.name}'s candidate for {self._rules.name} {how}")

    def reported(self, leader: LeaderInfo | None) -> None:
        """Judge a call of ``on_change``."""
        if self._reported and _same(self._reported[0], leader):
            self._convict(f"reports twice: {leader}")
        self._reported = [leader]
        if leader is None or not self._judges_terms:
            return
        if leader.term < self._latest and self._judges_order:
            self._convict(f"reports term {leader.term} after {self._latest}")
        if not self._rules.showed(leader.session, leader.value):
            self._convict(f"reports the value {leader.value!r} of {short(leader.session)}, which never was")
        self._latest = leader.term

    def look(self) -> None:
        """Judge what it shows at this moment."""
        process, candidacy, now = self._process, self._candidacy, self._process.clock.now()
        if not process.able or candidacy.is_over:
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


class MemberEyes:
    """One membership's view of itself."""

    def __init__(self, process: Process, membership: Membership) -> None:
        self._process = process
        self._judge: Judge = process.judge
        self._membership = membership
        self._given = membership.value
        self._given_at = 0.0
        self._unsure_of: Grant | None = None
        """The membership of which a write has failed: it may show one value or the other."""
        self._gone_since: float | None = None
        self._wrong_since: float | None = None

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

    def _is_late(self, since: float, within: float) -> bool:
        """Return whether something should have been done by now."""
        judge, process = self._judge, self._process
        contact = judge.promises.contact(process.name)
        began = max(since, judge.promises.troubled(process.name), process.awake_since)
        return judge.now > began + (within + contact.patience()) * judge.stretch
