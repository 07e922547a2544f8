"""The events that clients report, judged by what has happened.

Rules
- Each loss, grant, release, resignation and timeout that a user learns of was an event before. A loss, a
  grant, a release, an election, a resignation and the write of somebody else are reported once.
- Each grant that was reported has an end that is reported, if its client closes.
- A client's own write under its hold is not reported as the write of somebody else.
- A waiting call reports what is in its way when that changes, and its place counted from 1. One that has
  waited for a while has reported something.
- An outage is reported only if something went wrong, and nothing else that this world has no cause for.
- The error of a user's function is reported, once.
- Each refusal that a candidate or a member reports as its problem was an event.
- Seconds in an event are right: for how long nothing was heard, for how long a lease lasts, how long a call
  waited.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from consul_coord import events
from consul_coord.testing.simulation.promises import DRIFT

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from consul_coord.errors import AcquireTimeout
    from consul_coord.events import Event
    from consul_coord.recipes.hold.grant import Grant
    from consul_coord.testing.simulation.claims import Claim
    from consul_coord.testing.simulation.judge import Judge
    from consul_coord.testing.simulation.plan import Plan
    from consul_coord.testing.simulation.process import Process

JUST = 1e-3
"""Seconds by which sums of times may be wrong."""
ONCE: dict[type[Event], tuple[str, str]] = {
    events.Lost: ("lost", "fence"),
    events.HandedOver: ("handed over", "fence"),
    events.Elected: ("elected", "term"),
    events.Resigned: ("resigned", "term"),
    events.Acquired: ("acquired", "fence"),
    events.Joined: ("a member", "index"),
    events.Overwritten: ("overwritten", "modify_index"),
}
"""The events that come once: a name for each, and the number that tells one from another."""
_ENDS = (events.Lost, events.Released, events.HandedOver, events.Forgotten)
WAITED = 1.5
"""Seconds after which a waiting call has said what is in its way."""
REPORTED_WITHIN = 0.1
"""Seconds after which what a user's function has raised was reported."""
UNREAD = 1.0
"""Seconds that a client may not count yet, as the reply that they are from is there, and not read."""


class News:
    """The judge of events."""

    def __init__(self, judge: Judge, plan: Plan) -> None:
        self._judge = judge
        # Over connections a client may hang up before it has read what was sent.
        self._unread = math.inf if plan.connections or plan.agents > 1 else UNREAD
        causes = {
            events.FencesRestarted: "restore" in plan.chaos,
            events.SessionDiffers: False,
            events.ShortHorizon: False,
            events.ConnectionsRefused: bool(plan.connections),
            events.FailedOver: plan.agents > 1,
            events.AgentRefused: plan.agents > 1,
        }
        self._causeless = {kind for kind, may_be in causes.items() if not may_be}
        """The events for which this world has no cause."""
        self.doomed: list[Grant | None] = []
        """The leaderships that clients had a reason to end by themselves."""
        self._seen: set[tuple[Hashable, ...]] = set()
        """The process of each event, its kind, its key, and what it says."""
        self._own_writes: set[tuple[str, str, int]] = set()
        """By process, key and index: the writes under holds that were applied."""
        self._in_the_way: dict[object, tuple[Hashable, ...]] = {}
        """By the task that waits: what stands in the way of its call, as it has said last."""
        self._errors: list[tuple[float, Process, str, Callable[[], bool]]] = []
        """The errors of users' functions that were not reported yet: when, where, by which function, and what
        tells that nobody cares any more.
        """
        self._failures: dict[tuple[str, str], str] = {}
        """By process and place: the error that was reported last."""
        self._granted: dict[tuple[str, str, int], None] = {}
        """By process, key and fence: the holds that were reported, and no end of theirs."""
        self._waited: dict[tuple[str, str, int], float] = {}
        """By process, key and fence: how long a hold was waited for."""

    def check_reported(self, process: Process, key: str, problem: Exception) -> None:
        """Judge that a problem which something in the background has with a key was an event."""
        text = f"{type(problem).__name__}: {problem}"
        said = (
            error for (who, where), error in self._failures.items() if who == process.name and key in where
        )
        if text not in said:
            self._judge.convict("told", f"{process.name} has had no event of its problem with {key}: {text}")

    def reported(self, process: Process, event: Event) -> None:
        """Judge an event, and keep it in mind."""
        self._count(process, event)
        match event:
            case events.Acquired(key=key, fence=fence):
                self._waited[process.name, key, fence] = event.waited
            case events.Released(key=key, fence=fence, outcome=outcome):
                self._note_once(process, "released", key, fence, outcome)
            case events.Overwritten(key=key, modify_index=index):
                is_own = (process.name, key, index) in self._own_writes
                if is_own and not self._judge.answers.excused(process, since=self._judge.now):
                    text = (
                        f"{process.name} says that {key} was overwritten, by its own write at index {index}"
                    )
                    self._judge.convict("told", text)
            case events.Joined(key=key, index=index, again=again):
                self._note(process, "joined again" if again else "joined", key, index)
            case events.TimedOut(key=key, waited=waited):
                self._note(process, "timed out", key, waited)
            case events.Waiting():
                self._check_waiting(process, event)
            case _:
                self._hear_of_contact(process, event)

    def _count(self, process: Process, event: Event) -> None:
        """Judge how often an event comes."""
        if type(event) in self._causeless:
            self._judge.convict("told", f"{process.name} reports without a cause: {event.describe()}")
        if (kind := ONCE.get(type(event))) is not None:
            name, number = kind
            self._note_once(process, name, getattr(event, "key", ""), getattr(event, number))
        if isinstance(event, events.Acquired):
            self._granted[process.name, event.key, event.fence] = None
        elif isinstance(event, _ENDS):
            self._granted.pop((process.name, event.key, event.fence), None)

    def _hear_of_contact(self, process: Process, event: Event) -> None:
        match event:
            case events.Failed(where=where, error=error):
                self._failures[process.name, where] = error
            case events.OutageBegan(error=error):
                self._check_reason(process, error)
                renewed = (self._judge.promises.confirmed(process, kept.id) for kept in process.core.sessions)
                sent_at = max((at for at in renewed if at is not None), default=None)
                self._check_seconds(process, event, event.silent, sent_at)
            case events.Jeopardy(error=error, session=session):
                self._check_reason(process, error)
                sent_at = self._judge.promises.confirmed(process, session)
                self._check_seconds(process, event, event.silent, sent_at)
                self._check_lease(process, event, session, event.remaining)
            case events.Renewed(session=session, remaining=remaining):
                self._check_lease(process, event, session, remaining)
            case _:
                pass

    def closed(self, process: Process) -> None:
        """Judge whether a client that has closed has reported how each of its holds has ended."""
        for who, key, fence in self._granted:
            if who == process.name:
                self._judge.convict("told", f"{who} never reported how its hold of {key}, {fence}, has ended")

    def wrote(self, who: str, key: str, index: int) -> None:
        """Take note that a write under a hold was applied."""
        self._own_writes.add((who, key, index))

    def errs(self, process: Process, where: str, *, unless: Callable[[], bool] = lambda: False) -> None:
        """Take note that a user's function raises, or returns nonsense: that is to be reported."""
        self._errors.append((self._judge.now, process, where, unless))

    def knows(self, process: Process, where: str) -> bool:
        """Return whether such an error was to be reported, which it is now."""
        found = [one for one in self._errors if one[1] is process and where.startswith(one[2])]
        if found:
            self._errors.remove(next((one for one in found if not one[3]()), found[0]))
        return bool(found)

    def look(self) -> None:
        """Judge whether users' errors are reported."""
        for error in list(self._errors):
            at, process, where, is_over = error
            if process.crashed:
                self._errors.remove(error)
            elif (
                process.able
                and not (process.core.closing.is_set() or is_over())
                and self._judge.now > max(at, process.awake_since) + REPORTED_WITHIN
            ):
                self._judge.convict("told", f"an error of {process.name} was not reported: {where}")

    def was_told(self, process: Process, kind: str, key: str, *what: Hashable) -> bool:
        """Return whether something was an event before."""
        return (process.name, kind, key, *what) in self._seen

    def expect(self, process: Process, kind: str, key: str, *what: Hashable) -> None:
        """Judge that something is reported that should have been an event before."""
        is_told = self.was_told(process, kind, key, *what)
        if not is_told and process.able and not process.core.closing.is_set():
            text = f"{process.name} tells its user that {key} is {kind}, and had no event of that"
            self._judge.convict("told", text)

    def acquired(self, process: Process, hold: Grant, *, took: float) -> None:
        """Judge what was reported of an acquire that took so many seconds."""
        self.expect(process, "acquired", hold.key, hold.fence)
        waited = self._waited.get((process.name, hold.key, hold.fence), took)
        began = self._judge.now - took / (1 - self._judge.skew) - JUST
        is_right = took - JUST <= waited <= took + JUST or process.awake_since > began
        if not is_right and process.able:
            text = f"{process.name} reports {waited:.3f} s of waiting for {hold.key}, which took {took:.3f}"
            self._judge.convict("told", text)

    def timed_out(self, process: Process, error: AcquireTimeout) -> None:
        """Judge what was reported of a call that gave up."""
        self.expect(process, "timed out", error.key, error.waited)

    def resumes(self, process: Process, claim: Claim) -> None:
        """Take note that a process may get a hold that was handed over, under the fence that it has.

        It may lose it or hand it over then, perhaps as it did before.
        """
        claim.taken_up = True
        for kind in ("acquired", "lost", "handed over"):
            self._seen.discard((process.name, kind, claim.of, claim.fence))

    def _note(self, process: Process, *what: Hashable) -> None:
        self._seen.add((process.name, *what))

    def _note_once(self, process: Process, kind: str, key: str, fence: int, *more: Hashable) -> None:
        if (process.name, kind, key, fence, *more) in self._seen:
            self._judge.convict("told", f"{process.name} reports twice that {key} is {kind}, index {fence}")
        self._note(process, kind, key, fence, *more)

    def waits(self, task: object) -> None:
        """Take note that a task begins a call that may wait."""
        self._in_the_way[task] = ()

    def waits_no_more(self, task: object, process: Process, what: str, *, since: float) -> None:
        """Take note that this call is over; judge whether one that has waited has said for what."""
        said = self._in_the_way.pop(task, None)
        has_waited = self._judge.now > since + WAITED and process.awake_since < since
        if said == () and has_waited and not self._judge.answers.excused(process, since=since):
            text = f"{process.name} {what} in {self._judge.now - since:.2f} s"
            self._judge.convict("told", f"{text}, and has never said what it waits for")

    def _check_waiting(self, process: Process, event: events.Waiting) -> None:
        """Judge what a waiting call says is in its way: something else than before, and a place from 1 on."""
        blocker = event.blocker
        said = (event.key, blocker.kind, blocker.position)
        before = self._in_the_way.get(process.running)
        if said == before or blocker.position == 0:
            self._judge.convict("told", f"{process.name} reports again or wrongly: {event.describe()}")
        if before is not None:
            self._in_the_way[process.running] = said

    def _check_reason(self, process: Process, error: str) -> None:
        # A renewal has failed by then, whose fate was drawn when it was sent.
        since = self._judge.now - process.core.timeout * self._judge.stretch
        if not self._judge.answers.excused(process, since=since):
            self._judge.convict("cause", f"{process.name} reports an outage: {error}")

    def _check_seconds(self, process: Process, event: Event, said: float, sent_at: float | None) -> None:
        right = said if sent_at is None else process.clock.now() - sent_at
        if not right - JUST <= said <= right + self._unread and not process.is_behind:
            text = f"{process.name} says {said:.3f} s without contact, which are {right:.3f}: {event}"
            self._judge.convict("told", text)

    def _check_lease(self, process: Process, event: Event, session: str, said: float) -> None:
        judge, sent_at = self._judge, self._judge.promises.confirmed(process, session)
        claims = [
            claim for rules in judge.rules.values() for claim in rules.claims if claim.session == session
        ]
        if sent_at is None or not claims or not judge.cluster.lives(session):
            return  # without its session, the horizon of a claim is not known
        lasts = sent_at + (1 - DRIFT) * min(map(judge.promises.horizon, claims)) - process.clock.now()
        # Who resumes a session here knows of its own renewals, and not of later ones by who had it before.
        least = 0.0 if any(claim.exported for claim in claims) else lasts - self._unread
        if not least <= said <= max(0.0, lasts) + JUST and not process.is_behind:
            text = f"{process.name} says {said:.3f} s of a lease that lasts {lasts:.3f}: {event}"
            judge.convict("told", text)
