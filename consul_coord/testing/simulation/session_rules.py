"""The rules of sessions and of contact: renewals in time, tries at a decent pace, outages as they were.

Rules
- A session that a client keeps is renewed when two fifths of its horizon have passed, and with some jitter:
  clients that began together do not stay in step.
- A renewal that gets no answer leaves time for others: the next one is sent within a third of the horizon.
  The pause after one that fails is a twentieth of it at most.
- A client tries again after pauses that grow.
- Each renewal that succeeds is an event, as long as its session is kept. ``Jeopardy`` and ``Renewed`` say
  whether the one before has failed, too. Before a hold expires, at least one has.
- An outage is reported to begin once, and then to end once. It goes on while a living session waits for its
  renewal, and no longer than that. Its seconds are those since the last contact. The reports name all keys
  that the client holds, and say for how long none of them is lost.
- A client that closes gives back the keys of its sessions before it destroys them: otherwise the lock-delay
  would keep others out. So does a user who closes a session, which is gone soon then. A session that was
  handed over is nobody's to destroy until it is resumed.
- A closing client ends each session by one answered request, unless something goes wrong in between.

All of this is judged where nothing else has held up the process.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from consul_coord import events
from consul_coord.models import LossReason
from consul_coord.testing.simulation.trace import short

if TYPE_CHECKING:
    from collections.abc import Collection

    from consul_coord.events import Event
    from consul_coord.recipes.session.keeping import KeptSession
    from consul_coord.testing.simulation.judge import Judge
    from consul_coord.testing.simulation.plan import Plan
    from consul_coord.testing.simulation.process import Process
    from consul_coord.testing.simulation.shapes import Shape

DUE = 0.4
DUE_AT_LAST = 0.43
"""The parts of a horizon after which a renewal is due, without and with all of its jitter."""
MOMENT = 0.1
"""Seconds by which a renewal may come late."""
IN_STEP = 0.0025
"""Seconds by which renewals differ that have no jitter: timers go off a little late."""
COINCIDENCE = 1e-9
"""Renewals that look alike prove something if chance alone brings them in fewer than so many cases."""
NEXT_TRY = 0.34
"""The part of a horizon within which the next try follows."""
RETRIED = 0.05
"""The part of a horizon for which a client rests after a renewal that has failed."""
TRIED = 10.0
MOST_FAILED = 60
"""Tries of one thing in so many seconds, all of which failed. A lease has time for half as many."""
MOST_RENEWED = 36
"""Likewise, of one session's renewals: one program makes them, and its pauses leave time for no more."""
QUESTIONS = frozenset({"list", "look", "read", "watch-session", "other"})
"""The requests of a user who asks about everybody, beside what it does."""
MOST_ASKED = 12
"""Further failed tries of such a thing, for each user who may have asked meanwhile."""
ASKS_FOR = 20.0
"""Seconds that its questions take at most: two, one after the other."""
UNLOCKED_WITHIN = 10.0
"""Seconds after a failure within which a release may not have been answered: it is tried once more then."""
GONE_WITHIN = 3.0
"""Seconds after which a session that was closed or let go is gone, once requests are answered."""
LOOK = 0.2
"""Seconds between two looks at these."""
JUST = 1e-3
REPORTED_LATE = 1.0
"""Seconds for which a thread may stand still before it reports what it has met, and a bit."""


@dataclass(slots=True)
class Kept:
    """One session as its process renews it, by the clock of that."""

    horizon: float
    confirmed: float
    """When the last answered create or renewal was sent."""
    tried: float
    """When the last one was sent."""
    heard: float
    """When the last answer came."""
    failed: float = -math.inf
    """When one has failed last."""
    waits_until: float = -math.inf
    """Until when one that got no answer may be waited for, while others were sent."""
    by: int = 0
    """Which of the process's sessions has asked for the last renewal."""
    untold: bool = False
    """Whether the last renewal was no event so far."""
    parts: deque[float] = field(default_factory=deque[float])
    """The parts of the horizon after which the latest renewals came, where nothing hastened them."""

    def is_in_step(self, part: float) -> bool:
        """Note the part of the horizon after which a renewal came; return whether the latest have no jitter.

        Of a short lease more must be alike: late timers are a larger part of its jitter.
        """
        alike = IN_STEP / (self.horizon * (DUE_AT_LAST - DUE))
        self.parts.append(part)
        while max(self.parts) - min(self.parts) > IN_STEP / self.horizon:
            self.parts.popleft()
        seen = len(self.parts)
        return seen * alike ** (seen - 1) < COINCIDENCE


class SessionRules:
    """The judge of sessions."""

    def __init__(self, judge: Judge, plan: Plan) -> None:
        self._judge = judge
        self._kept: dict[tuple[str, str], Kept] = {}
        self._failing: dict[str, dict[KeptSession, None]] = {}
        """The sessions of each process whose last renewal failed, as it reports."""
        self._outages: dict[str, float] = {}
        """Since when each process has no contact, by its clock, as it reports."""
        self._over: dict[str | KeptSession, float] = {}
        """The processes and sessions whose trouble is over, and since when, before the thread that met it has
        reported it. That goes on soon, or another one has reported the same."""
        self._failed: dict[tuple[str, str], deque[float]] = {}
        """When each process has tried one thing, since that was answered last."""
        self._asked: dict[str, list[float]] = {}
        """When users of each process began to ask about everybody, beside what they do."""
        self._queried: dict[str, float] = {}
        """When each process has heard of a blocking query last: the next one lets a renewal go first."""
        self._closed: dict[str, tuple[Process, float]] = {}
        """The sessions that users have closed, or are closing: in which process, and since when."""
        self._destroyed: dict[tuple[str, str], float] = {}
        """By process and session, when a closing process got the answer that the session has ended."""
        self._in_care: dict[str, tuple[Process, KeptSession]] = {}
        """The sessions that each process keeps, and has to destroy."""
        self._let_go: dict[str, tuple[Process, float]] = {}
        """Those that it keeps no more, and since when that is known."""
        self._next_look = 0.0
        self.handed_over = set[str]()
        """Sessions that were handed over, and that nobody has begun to resume."""
        self.at_rest = False
        """Whether nobody wants anything for a while, so that nothing hastens a renewal."""
        # A semaphore has sessions of its own to make, several programs read a leader's key or a job's, all
        # that a member shares makes its session, and a curious user asks of its hold besides.
        several = plan.pools, plan.elections, plan.jobs, plan.sharing, plan.curious
        more = plan.callers + plan.keeping + sum(map(bool, several))
        self._most_failed = MOST_FAILED * (1 + more)
        self._comes_back = "restore" in plan.chaos
        """Whether a session may live again that had ended."""
        self._direct = plan.agents == 1 and not plan.connections
        """Whether a request is sent when its client wants it to be."""

    # -- renewals

    def sent(self, process: Process, shape: Shape) -> None:
        """Judge that a process sends something."""
        if process.foreign:
            return
        if shape.name == "renew" and (kept := self._kept.get((process.name, shape.about))) is not None:
            now = process.clock.now()
            if process.core.sessions.get(shape.about) is None:
                del self._kept[process.name, shape.about]  # it is being resumed, after others had it
                return
            if kept.untold:
                self._tell(process, f"{short(shape.about)} was renewed, and there was no event")
            if self._direct and not self._is_held_up(process, since=process.clock.true(kept.tried)):
                self._check_renewal(process, shape.about, kept, now)
            if max(kept.failed, kept.heard) < kept.tried:
                kept.waits_until = kept.tried + NEXT_TRY * kept.horizon
            kept.tried, kept.by = now, id(process.core.sessions.get(shape.about))
        elif shape.name == "destroy":
            if shape.about in self.handed_over:
                text = f"{process.name} destroys {short(shape.about)}, which was handed over"
                self._judge.convict("released", text)
            if process.core.closing.is_set() or shape.about in self._closed:
                self._check_destroyed(process, shape.about)

    def _check_renewal(self, process: Process, session: str, kept: Kept, now: float) -> None:
        due = max(kept.confirmed + DUE_AT_LAST * kept.horizon, kept.tried + NEXT_TRY * kept.horizon)
        if kept.tried == kept.confirmed:
            due = kept.confirmed + DUE_AT_LAST * kept.horizon
        elif kept.failed >= kept.tried:
            due = max(
                kept.confirmed + DUE_AT_LAST * kept.horizon,
                kept.failed + RETRIED * kept.horizon,
                kept.waits_until,
            )
        if now > max(due, kept.heard) + MOMENT:
            text = f"{process.name} renews {short(session)} {now - due:.3f} s late, of {kept.horizon:g} s"
            self._judge.convict("renewals", text)
        part = (now - kept.confirmed) / kept.horizon
        is_hastened = self._judge.now < self._queried.get(process.name, -MOMENT) + MOMENT
        if part < DUE - IN_STEP / kept.horizon and self.at_rest and not is_hastened:
            text = f"{process.name} has nothing to do, and renews {short(session)} early, at {part:.2%}"
            self._judge.convict("renewals", text)
        if kept.tried == kept.confirmed and part >= DUE and kept.is_in_step(part):
            text = f"{process.name} renews {short(session)} without jitter, each time at {part:.2%}"
            self._judge.convict("renewals", text)

    def _is_held_up(self, process: Process, *, since: float) -> bool:
        return process.awake_since >= since - MOMENT or not process.able or process.core.closing.is_set()

    def heard(self, process: Process, session: str, sent_at: float, horizon: float, *, renewed: bool) -> None:
        """Take note of an answered create or renewal."""
        mark, now = (process.name, session), process.clock.now()
        kept = self._kept.get(mark)
        if kept is None or kept.horizon != horizon:
            self._kept[mark] = Kept(horizon, sent_at, sent_at, now)
        elif sent_at >= kept.confirmed:
            kept.confirmed, kept.tried, kept.heard = sent_at, max(kept.tried, sent_at), now
            # One that was handed over meanwhile, and is resumed here, is another's to report.
            kept.untold = renewed and self._direct and kept.by == id(process.core.sessions.get(session))

    # -- tries

    def succeeded(self, process: Process, shape: Shape, *, waited: bool) -> None:
        """Take note of an answer that is no failure, perhaps to a blocking query."""
        if waited:
            self._queried[process.name] = self._judge.now
        self._failed.pop((process.name, str(shape)), None)
        if shape.name == "destroy" and process.core.closing.is_set():
            self._check_once(process, shape.about)

    def failed(self, process: Process, shape: Shape) -> None:
        """Judge how often a process tries what fails."""
        if shape.name == "renew" and (kept := self._kept.get((process.name, shape.about))) is not None:
            kept.failed = process.clock.now()
        times = self._failed.setdefault((process.name, str(shape)), deque())
        times.append(self._judge.now)
        while times[0] < self._judge.now - TRIED:
            times.popleft()
        # A client that closes tries once for each thing that it may have left.
        most = MOST_RENEWED if shape.name == "renew" else self._most_failed
        if shape.name in QUESTIONS:
            began = self._asked.get(process.name, ())
            most += MOST_ASKED * sum(at > times[0] - ASKS_FOR for at in began)
        if len(times) > most and not (process.foreign or process.core.closing.is_set()):
            text = f"{process.name} has failed {len(times)} times in {TRIED:g} s, and goes on: {shape}"
            self._judge.convict("pace", text)

    def asks_beside(self, process: Process) -> None:
        """Take note that a user begins to ask about something, beside what it does."""
        self._asked.setdefault(process.name, []).append(self._judge.now)

    # -- closing

    def closes(self, process: Process, session: str) -> None:
        """Take note that a user is about to close a session, or has."""
        self._closed[session] = process, self._judge.now

    def look(self) -> None:
        """Judge whether the sessions that were closed or let go are gone."""
        now = self._judge.now
        if now < self._next_look:
            return
        self._next_look = now + LOOK
        self._look_after()
        for what, sessions in (("has closed", self._closed), ("has let go of", self._let_go)):
            for session, (process, at) in list(sessions.items()):
                if self._is_settled(process, session):
                    del sessions[session]
                elif self._is_overdue(process, at):
                    text = f"{process.name} {what} {short(session)}, which goes on for {now - at:.1f} s"
                    self._judge.convict("nothing left", text)

    def _look_after(self) -> None:
        """Find the sessions that their clients keep no more; some are in another's care then, or will be."""
        for process in self._judge.running():
            for kept in process.core.sessions:
                if kept.ours_to_destroy:
                    self._in_care[kept.id] = process, kept
        for session, (process, kept) in self._in_care.copy().items():
            if process.core.sessions.get(session) is not kept:
                del self._in_care[session]
                self._let_go[session] = process, self._judge.now
                is_gone = kept.lease.ended_by is LossReason.SESSION_GONE and not self._comes_back
                if is_gone and self._judge.cluster.lives(session):
                    text = f"{process.name} takes {short(session)} for gone, and it lives"
                    self._judge.convict("cause", text)
        for session in list(self._let_go):
            if session in self.handed_over or self._judge.in_care(session):
                del self._let_go[session]

    def _is_settled(self, process: Process, session: str) -> bool:
        """Return whether a session has ended, or is left to the closing of its client."""
        return not self._judge.cluster.lives(session) or process.crashed or process.core.closing.is_set()

    def _is_overdue(self, process: Process, at: float) -> bool:
        """Return whether its process has had the time to destroy what it closed or let go at that time."""
        promises = self._judge.promises
        answered_from = promises.contact(process.name).answered_from
        since = max(at, answered_from, promises.undisturbed_since(process))
        return process.able and self._judge.now > since + GONE_WITHIN * self._judge.stretch

    def _check_destroyed(self, process: Process, session: str) -> None:
        judge = self._judge
        troubled = max(judge.promises.troubled(process.name), process.awake_since)
        if troubled > judge.now - UNLOCKED_WITHIN or process.core.holds.limits or process.slept:
            return
        for key, rules in judge.keys.items():
            if judge.cluster.holder(key) == session and rules.is_known_to(session):
                judge.convict("released", f"{process.name} destroys {short(session)}, which holds {key}")

    def _check_once(self, process: Process, session: str) -> None:
        now, troubled = self._judge.now, self._judge.promises.troubled(process.name)
        before = self._destroyed.get((process.name, session), -math.inf)
        # The answer to what was interrupted, or given up, may still come.
        if before > max(process.struck_at, troubled) and now > process.struck_at + UNLOCKED_WITHIN:
            text = f"{process.name} closes, and destroys {short(session)} twice"
            self._judge.convict("cost", text)
        self._destroyed[process.name, session] = now

    # -- outages

    def reported(self, process: Process, event: Event) -> None:
        """Judge what a client reports of its contact."""
        match event:
            case events.Jeopardy(session=session, repeated=repeated):
                self._renewal_failed(process, session, repeated=repeated)
            case events.Renewed(session=session, recovered=recovered):
                if renewed := self._kept.get((process.name, session)):
                    renewed.untold = False
                self._renewed(process, session, recovered=recovered)
            case events.OutageBegan(silent=silent, remaining=remaining, keys=keys):
                self._check_held(process, remaining, keys)
                self._begin_outage(process, silent)
            case events.Lost(key=key, fence=fence, session=session, reason=LossReason.EXPIRED):
                rules = self._judge.rules_of(key)
                claim = None if rules is None else rules.claim(fence)
                # Of several slots one may have expired, and the first one names them all.
                sessions = {session} if claim is None else {one.session for one in claim.whole}
                self._check_expired(process, session, sessions)
            case events.OutageEnded(seconds=seconds, remaining=remaining, keys=keys):
                self._check_held(process, remaining, keys)
                self._end_outage(process, seconds)
            case _:
                pass

    def _renewal_failed(self, process: Process, session: str, *, repeated: bool) -> None:
        kept = self._check_again(process, session, said=repeated)
        if kept is not None and not self._was_over(kept):
            self._failing.setdefault(process.name, {})[kept] = None

    def _renewed(self, process: Process, session: str, *, recovered: bool) -> None:
        kept = self._check_again(process, session, said=recovered)
        if kept is None:
            return
        failing = self._failing.get(process.name, {})
        if recovered and kept not in failing:
            self._over[kept] = self._judge.now
        failing.pop(kept, None)
        if process.name in self._outages and not self._failing_now(process):
            self._tell(process, "all its sessions were renewed, and its outage goes on")

    def _was_over(self, what: str | KeptSession) -> bool:
        """Return whether trouble that is reported was over before, by what another thread has reported."""
        return self._judge.now < self._over.pop(what, -math.inf) + REPORTED_LATE

    def _begin_outage(self, process: Process, silent: float) -> None:
        if self._was_over(process.name):
            return
        if process.name in self._outages:
            self._tell(process, "its outage has begun twice")
        self._outages[process.name] = process.clock.now() - silent

    def _check_expired(self, process: Process, session: str, sessions: Collection[str]) -> None:
        """Judge that nothing expires of which no renewal has failed before, as was reported."""
        renewed = self._kept.get((process.name, session))
        # It may be in care no more: its end is known a moment before that of its holds.
        has_failed = any(kept.id in sessions for kept in self._failing.get(process.name, {}))
        if renewed is None or not self._direct or has_failed:
            return
        if not self._is_held_up(process, since=process.clock.true(renewed.confirmed)):
            self._tell(process, f"{short(session)} has expired, and no renewal of it has failed")

    def _check_held(self, process: Process, remaining: float, keys: Collection[str]) -> None:
        """Judge what a client reports of its holds: which they are, and for how long all of them last."""
        now = process.clock.now()
        for claim in (claim for rules in self._judge.keys.values() for claim in rules.claims):
            hold = claim.reference()
            if claim.process is not process or hold is None or not claim.believed():
                continue
            if hold.key not in keys:
                self._tell(process, f"it holds {hold.key}, and names only {', '.join(keys)}")
            elif remaining > claim.lease.valid_until - now + JUST:
                left = claim.lease.valid_until - now
                self._tell(process, f"its hold of {hold.key} lasts {left:.3f} s, and not {remaining:.3f} s")

    def _end_outage(self, process: Process, said: float) -> None:
        since = self._outages.pop(process.name, None)
        if since is None:
            self._over[process.name] = self._judge.now
            self._tell(process, "an outage has ended that had not begun")
        elif abs(process.clock.now() - since - said) > JUST + process.lag * self._judge.stretch:
            self._tell(process, f"its outage of {process.clock.now() - since:.3f} s lasted {said:.3f} s")
        if len(self._failing_now(process)) > 1:
            self._tell(process, "its outage is over, and several sessions were not renewed")

    def _failing_now(self, process: Process) -> list[KeptSession]:
        failing = self._failing.get(process.name, {})
        return [kept for kept in failing if process.core.sessions.get(kept.id) is kept]

    def _check_again(self, process: Process, session: str, *, said: bool) -> KeptSession | None:
        """Judge whether a renewal has failed before, and return its session if it is in care."""
        kept = process.core.sessions.get(session)
        # Who resumes it here begins with a renewal, and knows nothing of those before.
        begins = kept is not None and kept.exported and not said
        if kept is not None and not begins and said != (kept in self._failing.get(process.name, {})):
            before = "had not failed" if said else "had failed"
            self._tell(process, f"the renewal of {short(session)} {before} before")
        return kept

    def _tell(self, process: Process, what: str) -> None:
        # What a thread that stands still would report is still to come, and what one that stood says is old.
        if not process.is_behind:
            self._judge.convict("told", f"{process.name} reports wrongly: {what}")
