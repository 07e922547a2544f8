"""Candidates of an election: they stand, lead, proclaim, resign, hand over, fall ill, and stand again.

Rules
- ``on_elected`` and ``on_lost`` take turns in each candidacy; nobody is elected once its stop has returned.
- ``on_lost`` and a wait for the end give the reason that there was, and so does the leadership itself, which
  calls back once. A leader whose health function fails may be stuck, so it does not resign.
- A user asks for the present leadership, and gets it. The error says that it was lost, or that there is none.
- After a leadership a candidate rests for ``retry_wait``.
- A leader that hands over names a candidate that queues, and leads no more then. It hears that there is no
  such candidate only if that did not queue all the time, and leads on.
- A stop that returns before its time is complete, and returns soon when nothing goes wrong. A leader that
  resigns for a while does not queue meanwhile.
- Once the world is healed a candidate stands until he has led once more, and then no more.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from consul_coord.errors import (
    AcquireCancelled,
    AcquireTimeout,
    ConsulCoordError,
    LockLost,
    NotHeld,
    SessionNotFound,
    TxnFailed,
)
from consul_coord.http.endpoints import kv
from consul_coord.http.retry import send_once
from consul_coord.models import LeaderInfo, LossReason, ReleaseOutcome
from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.election import asking, leader
from consul_coord.recipes.election.candidacy import Candidacy, ElectionPlan, lock_of
from consul_coord.recipes.election.leadership import LeadershipView, told_as_leadership
from consul_coord.recipes.hold.grant import OVERDUE
from consul_coord.recipes.hold.holds import release
from consul_coord.recipes.lock import lock
from consul_coord.testing.simulation.acts import HEARD_WITHIN, JUST
from consul_coord.testing.simulation.dice import Dice
from consul_coord.testing.simulation.driver import Awaited, Late, SimCalls
from consul_coord.testing.simulation.eyes import CandidateEyes
from consul_coord.testing.simulation.foreign import ForeignLock
from consul_coord.testing.simulation.holding import CALM_HOLD, Holder
from consul_coord.testing.simulation.key_rules import PRIORITY_DELAY
from consul_coord.testing.simulation.mistakes import MAKES_MISTAKES, try_as_candidate
from consul_coord.testing.simulation.program import Cancelled
from consul_coord.testing.simulation.promises import ENDED_WITHIN, RELEASED_WITHIN
from consul_coord.testing.simulation.trace import short
from consul_coord.testing.simulation.views import View, queued
from consul_coord.testing.simulation.watching import led

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from consul_coord.io import IO
    from consul_coord.recipes.hold.grant import Grant
    from consul_coord.testing.simulation.claims import Claim
    from consul_coord.testing.simulation.driver import SimIO
    from consul_coord.testing.simulation.plan import Plan
    from consul_coord.testing.simulation.process import Process
    from consul_coord.testing.simulation.promises import PendingCall, Sighting

WAITS_TOO = 0.4
"""So often another task of the process waits for the leadership, too, and then for its end."""
IN_A_BLOCK = 0.3
"""So often a leader works in a block, which may last longer than its leadership."""
FAILS_SHARE = 0.1
"""Of so many looks at its health one raises an error."""
HANGS_SHARE, HANGS_FOR = 0.05, (11.0, 16.0)
"""At so many looks the health function does not answer for so many seconds, longer than a candidate waits.
The leader's work does not end meanwhile, either."""
ENDS_BADLY = 0.05
"""Of so many calls of ``on_lost`` and ``on_change`` likewise."""
REST = (0.0, 0.5)
"""Seconds that a candidate stays aside after a leadership."""
LONG_REST = (0.3, 0.5)
"""Likewise, of some."""
ASKS_SHARE = 0.3
"""So often a leader asks for its leadership while it works, and wants to be called back at its end."""
WORKS_BADLY = 0.1
"""So often its work raises an error."""
NAMES_NOBODY = 0.15
"""So often it hands over to one that does not queue."""
PROCLAIMS_AT_LAST = 0.3
"""So often one proclaims something in its last leadership, and nothing may be left of that."""
LEADS_TWICE = 0.3
"""So often that one leads once more: what is known of its first term says nothing of the second."""
HEIR_LEAVES = 0.25
JUST_THEN, ASIDE_FOR = 0.01, 0.5
"""So often its heir leaves the queue within so many seconds, for so many."""
NAMES_LATE = 0.3
LATE_NAMING = 0.5
"""So often it names an heir that it has chosen up to so many seconds before."""
HEALTH_INTERVAL = 0.5
STOPPED_WITHIN = 1.0
"""Seconds within which a candidate has stopped, when nothing goes wrong."""
RESIGNED_WITHIN = 1.0
"""Seconds within which a leader that is ill, or whose ``on_elected`` has failed, leads no more."""
ILL = 0.9
"""Seconds after which a candidate that has fallen ill has left the queue, if all goes well."""
JOINED_LATE = 1.2
"""Seconds after which it has left even if it was about to join: it looks for that request a second later."""
CALLED_WITHIN = 0.01
"""Seconds after which a callback that was due has been called."""
TAKES_LONG_SHARE, LONGEST_CALL = 0.15, 2.0
"""So often ``on_lost`` takes its time, and ``on_elected`` is awaited, and up to so many seconds."""


class CandidateUser(Holder):
    """The user of a candidate in one process."""

    def __init__(self, process: Process, key: str, plan: Plan, *, healed: Callable[[], bool]) -> None:
        super().__init__(process, "candidate", healed=healed)
        self.key = self.asks_about = key
        self._candidacy: Candidacy | None = None
        self._office = Office(self)
        self._sighting: Sighting | None = None
        self._eyes: CandidateEyes | None = None
        self._resigning: list[PendingCall] = []
        """The resignations that it owes, each for a reason of its own."""
        self._ill_since = math.inf
        """Since when its health has been bad, the true time."""
        self._queued_then: frozenset[str] = frozenset()
        """Its contenders in the queue at that time."""
        sick = self.rng.chance(0.2)
        session = plan.own_spec if self.rng.chance(0.3) else None
        self._lock = lock_of(key=key, value=process.name.encode(), session=session, accept_flags=())
        self._plan = ElectionPlan(
            key=key,
            retry_wait=LONG_REST if self.more.chance(0.3) else REST,
            priority_delay=PRIORITY_DELAY
            if self.rng.chance(0.5 if plan.office == "short" else 0.15)
            else 0.0,
            health_interval=HEALTH_INTERVAL,
            on_elected=self._office.elected,
            on_lost=self._office.lost,
            on_change=partial(self._changed, self._office)
            if self.rng.chance(0.3) or plan.calm or self.more.chance(0.4)
            else None,
            health=self._health if sick else None,
            max_hold=self.chance.uniform(0.05, 3.0) if self.chance.chance(plan.stuck) else None,
        )

        self._awaits = Dice(plan.seed, f"{process.name} awaits on_elected")
        self._may_lead_twice = True
        """Whether its last candidacy may lead a second time."""
        self._manner = plan.office
        self._of_run = plan
        if self._plan.priority_delay:
            process.modest.add(key)

    put_takes = 2
    """The value, and the leader's note."""

    # -- callbacks

    def elected(self, hold: Grant) -> Awaited | None:
        """React to an election, or fail to; returns for how long that is awaited, if at all."""
        if self._plan.priority_delay:
            self.judge.see("low priority elected")
        if not (self.healed() or self._manner) and self.rng.chance(0.1):
            promises = self.judge.promises
            failed = promises.due(self.process, "resigns, as on_elected failed,", RESIGNED_WITHIN)
            self._resigning.append(failed)
            self.judge.news.doomed.append(hold)
            raise self._err("on_elected")
        if self.is_told_of_leaders or self.healed() or not self._awaits.chance(TAKES_LONG_SHARE):
            return None
        self.judge.see("on_elected awaited")
        return Awaited(self._awaits.uniform(0.0, LONGEST_CALL))

    def _err(self, where: str) -> ClumsyUser:
        """Return an error to be raised by one of the user's functions, which is to be reported."""
        self.judge.news.errs(self.process, f"{where} of the election {self.key!r}")
        return ClumsyUser()

    def heard_of(self, term: int) -> None:
        """Take note of the term of which it has heard, 0 for none."""
        if self._eyes is not None:
            self._eyes.heard_of = term

    def is_busy(self, *, until: float) -> None:
        """Take note that its user hears of nothing until then."""
        if self._eyes is not None:
            self._eyes.busy_until = until

    def rests(self) -> None:
        """Take note that it has just led: it lets others go first for a moment."""
        process, least = self.process, self._plan.retry_wait[0]
        until = self.judge.now + least / (1 + self.judge.skew) - ENDED_WITHIN
        if not process.awake_since:  # it may have learnt late of an earlier end
            process.aside[self.key] = max(until, process.aside.get(self.key, 0.0))

    def lost(self) -> None:
        """Take note that it leads no more."""
        self._owes_nothing()
        if not self.healed() and self.more.chance(ENDS_BADLY):
            raise self._err("on_lost")

    def _owes_nothing(self) -> None:
        """Take note that its resignations are done, or of no more interest."""
        while self._resigning:
            self.judge.promises.ended(self._resigning.pop())

    def _changed(self, office: Office, leader: LeaderInfo | None) -> None:
        self.judge.see("change of leadership seen")
        is_late = office is not self._office  # it is of the candidacy before, and may come now
        if self._eyes is not None and not is_late:
            self._eyes.reported(leader)
        if self._sighting is not None and not is_late:
            self._sighting.told = None if leader is None else self._as_told(leader.session, leader.value)
        if not self.healed() and self.more.chance(ENDS_BADLY):
            raise self._err("on_change")

    @property
    def is_told_of_leaders(self) -> bool:
        """Whether it has an ``on_change``, which is due soon."""
        return self._plan.on_change is not None

    def _leader(self) -> object:
        """Return what ``on_change`` should have reported by now."""
        entry, hold = self.judge.cluster.entry(self.key), self._candidacy and self._candidacy.hold
        if entry is None or not entry.session:
            return None
        ours = hold and self.judge.rules[self.key].has_now(hold.session, hold.fence)
        if hold and ours and not hold.is_held(self.process.clock.now()):
            return None  # one that was stuck keeps its key for a while, and leads no more
        return self._as_told(entry.session, entry.value)

    def _as_told(self, session: str, value: bytes) -> object:
        """Return a leader as it has to be known; where nothing goes wrong, what it advertises, too."""
        return (session, value) if self.judge.calm else session

    def _look_aside(self) -> None:
        """Have the eyes know whether its health keeps it aside."""
        if self._eyes is not None:
            self._eyes.is_aside = math.isfinite(self._ill_since)

    def _health(self) -> bool | Late:
        return self.look_at_health(self._office)

    def look_at_health(self, office: Office) -> bool | Late:
        """Return whether its user is well, or fail to say it, or say it much later."""
        if not self.healed() and office.hangs_for <= 0.0 and self.more.chance(HANGS_SHARE):
            office.hangs_until = self.judge.now + self.more.uniform(*HANGS_FOR)
            self._ill_since = math.inf  # its user will say that all is well
        if office.hangs_for > 0.0 and not self.healed():
            if self._eyes is not None:
                self._eyes.is_aside = True
            office.failed = False  # this call fails neither
            return Late(office.hangs_for, value=True)
        fails = not self.healed() and self.more.chance(FAILS_SHARE)
        well = self._look_at_health(fails=fails)
        self._look_aside()
        failed, office.failed = office.failed, fails
        if fails:
            raise ClumsyUser if failed else self._err("health")  # which is reported once in a row
        return well

    def _look_at_health(self, *, fails: bool) -> bool:
        well = not fails and (self.healed() or self.rng.chance(0.7))
        if not well and self._ill_since == math.inf:
            self._queued_then = self._queued()
        self._ill_since = math.inf if well else min(self._ill_since, self.judge.now)
        candidacy, promises = self._candidacy, self.judge.promises
        if not well and candidacy is not None and candidacy.leading(self.process.clock.now()) is not None:
            within = RESIGNED_WITHIN + self._office.busy_for
            self._resigning.append(promises.due(self.process, "resigns, as it is ill,", within))
            self.judge.news.doomed.append(candidacy.hold)
            if fails:
                self._office.stuck_in = candidacy.hold
        ill_for = self.judge.now - max(self._ill_since, promises.troubled(self.process.name))
        left = self._queued() if ill_for > JOINED_LATE else self._queued() & self._queued_then
        if left and ill_for > ILL and self.process.awake_since < self._ill_since:
            self.judge.convict("order", f"{self.process.name} is ill, and queues for {self.key}")
        return well

    def _queued(self) -> frozenset[str]:
        """Return its process's contenders for the key."""
        queue = self.judge.cluster.under(waitqueue.directory(self.key))
        return frozenset(entry.key for entry in queue if self.process.core.sessions.get(entry.session))

    # -- his life

    async def run(self, io: SimIO) -> None:
        """Stand again and again until the world is healed, then until elected once more."""
        if self.more.chance(MAKES_MISTAKES):
            try_as_candidate(self.process)
        while not self.healed():
            await self._stand(io, self._lead)
            await io.sleep(self.rng.uniform(0.0, 1.0))
        await self.calm_rounds(io)

    async def calm_rounds(self, io: SimIO) -> None:
        """Stand until elected, all being well."""
        self._may_lead_twice = True
        led = await self._stand(io, self._lead_briefly)
        if not (led or self.process.core.closing.is_set()):
            self.judge.convict(
                "progress", f"{self.process.name} did not get to lead {self.key}, all being well"
            )

    async def _stand(
        self, io: SimIO, lead: Callable[[SimIO, Candidacy, Grant], Coroutine[Any, Any, bool]]
    ) -> bool:
        """Be a candidate until ``lead`` says that it is enough; returns whether it ever led."""
        core = self.process.core
        self.process.aside.pop(self.key, None)
        self._office.look_back()
        office = self._office = Office(self)
        health = None if self._plan.health is None else partial(self.look_at_health, office)
        changed = None if self._plan.on_change is None else partial(self._changed, office)
        plan = replace(
            self._plan, on_elected=office.elected, on_lost=office.lost, on_change=changed, health=health
        )
        candidacy = Candidacy(core, plan, self._lock, SimCalls(self.process.host), keeps=self)
        self._candidacy = candidacy
        promises, eyes = self.judge.promises, CandidateEyes(self.process, candidacy, self._of_run)
        self._eyes = eyes
        self._look_aside()
        close_eyes = self.judge.eyes.open(eyes.look)
        if plan.on_change is not None:
            self._sighting = promises.follows(self.process, f"report of {self.key}'s leader", self._leader)
            self._sighting.fade(
                self.key, after=max(core.sessions.spec.ttl or 0.0, ForeignLock.spec.ttl or 0.0)
            )
        self.judge.record(self.process.name, "waiting", actor=self.actor, key=self.key)
        await self.process.call(io.task, lambda io: asking.start(io, candidacy))
        if self.more.chance(WAITS_TOO):
            self.process.spawn(partial(self._wait_too, candidacy, eyes), name="another that waits to lead")
        led = False
        try:
            while not led:
                timeout = None if self.healed() else self.rng.uniform(0.5, 8.0)
                try:
                    hold = await self._wait(io, candidacy, timeout)
                except AcquireTimeout:
                    if self.rng.chance(0.3) and not self.healed():
                        break
                    continue
                except AcquireCancelled:
                    break
                began = self.judge.now
                led = await lead(io, candidacy, hold)
                office.look_at(hold.fence, since=began)
        finally:
            close_eyes()
            if self._sighting is not None:
                promises.follows_no_more(self._sighting)
            if not self.process.crashed:
                await self._stop(io, candidacy)
                self._owes_nothing()  # a candidate that is stopped during a callback hears of no end
                office.stopped = io.now()
                office.stopped_at = self.judge.now
                if not led:
                    self.judge.record(self.process.name, "gave_up", actor=self.actor, key=self.key)
        return led

    async def _stop(self, io: SimIO, candidacy: Candidacy) -> None:
        """Stop, in more or less time."""
        process, judge = self.process, self.judge
        timeout = 0.0 if self.rng.chance(0.2) and not self.healed() else 5.0
        began, since, what = io.now(), judge.now, f"stops its candidate for {self.key}"
        call = judge.promises.called(process, what, timeout, gives_back=True)
        try:
            await process.call(io.task, lambda io: asking.stop(io, candidacy, timeout=timeout), closing=True)
        finally:
            judge.promises.ended(call)
        took, well = io.now() - began, not judge.answers.excused(process, since=since)
        if took > STOPPED_WITHIN and well:
            judge.convict("in time", f"{process.name} {what}: {took:.2f} s, and all is well")
        if took < timeout - ENDED_WITHIN and process.able:
            held = candidacy.hold
            if held is not None and held.is_held(io.now()):
                judge.convict("released", f"{process.name} {what}, and leads")
            if well and self._queued() and not process.core.reaper.pending:
                judge.convict("released", f"{process.name} {what}, and queues")

    async def _wait_too(self, candidacy: Candidacy, eyes: CandidateEyes, io: SimIO) -> None:
        """Wait for the leadership as another task of the process does, for as long as it takes."""
        eyes.waits += 1
        try:
            await self.process.call(
                io.task, lambda io: asking.wait_for_leadership(io, candidacy, timeout=None)
            )
        except AcquireCancelled:
            if not candidacy.is_over:
                self.judge.convict("answers", f"{self.process.name} waits to lead, and nobody ended that")
            return
        finally:
            eyes.waits -= 1
        if candidacy.leading(io.now()) is None and self.process.able:
            self.judge.see("leadership over at once")
        await self._await_loss(io, candidacy, eyes)

    async def _await_loss(self, io: SimIO, candidacy: Candidacy, eyes: CandidateEyes) -> None:
        """Wait for the end of a leadership, for a while."""
        eyes.waits_for_loss += 1
        seconds, began, hold = self.more.uniform(0.0, 6.0), io.now(), candidacy.hold
        what = f"waits for the end of its leadership of {self.key}"
        call = self.judge.promises.called(self.process, what, seconds)
        ask = partial(asking.wait_for_loss, candidacy=candidacy, key=self.key, timeout=seconds)
        try:
            reason = await self.process.call(io.task, ask, closing=True)
        except TimeoutError:
            if io.now() < began + seconds - JUST or (hold is not None and hold.ended):
                self.judge.convict("answers", f"{self.process.name} {what}, in vain, and that is wrong")
        else:
            if hold is not None and reason is not _end_of(hold) and not self.process.is_behind:
                text = f"{self.process.name} {what}: {reason} is the answer, not {_end_of(hold)}"
                self.judge.convict("answers", text)
        finally:
            self.judge.promises.ended(call)
            eyes.waits_for_loss -= 1

    async def _wait(self, io: SimIO, candidacy: Candidacy, timeout: float | None) -> Grant:
        promises, eyes = self.judge.promises, self._eyes
        call, began = promises.called(self.process, f"waits to lead {self.key}", timeout), io.now()
        if eyes is not None:
            eyes.waits += 1
        try:
            _, hold = await self.process.call(
                io.task, lambda io: asking.wait_for_leadership(io, candidacy, timeout=timeout)
            )
        except AcquireTimeout as error:
            answers, took = self.judge.answers, io.now() - began
            answers.timed_out(
                self.process, (self.key,), error, took=took, timeout=timeout or 0.0, queued_before=True
            )
            raise
        finally:
            promises.ended(call)
            if eyes is not None:
                eyes.waits -= 1
        return hold

    async def _lead(self, io: SimIO, candidacy: Candidacy, hold: Grant) -> bool:
        """Lead for a while; returns whether that is enough."""
        rules = self.judge.rules[self.key]
        claim = rules.claim(hold.fence)
        if claim is not None:
            view = _View(self.process, hold)
            if self.more.chance(ASKS_SHARE):
                view.listen()
            hold.entered = not self._manner and self.more.chance(IN_A_BLOCK)
            if self._manner:
                await io.wait(hold.over, deadline=io.now() + self.rng.uniform(0.0, 0.4))
            else:
                await self.work(io, hold, claim)
            await self._office.hang(io, hold)
            if not self.healed() and self.more.chance(WORKS_BADLY):
                asking.report_work(candidacy, self._err("the leader's work"))
                asking.report_work(candidacy, self.more.choice((None, Cancelled())))
            await (self._leave_block(io, hold, claim) if hold.entered else self._end(io, candidacy, hold))
            view.look(candidacy)
            await view.check_heard(io)
        return self.rng.chance(0.3)

    async def _leave_block(self, io: SimIO, hold: Grant, claim: Claim) -> None:
        """End the work of a block, which may have gone on for longer than the leadership."""
        if hold.reason in OVERDUE:
            self.judge.stuck(claim)
            await self.be_stuck(io, hold, claim)
        claim.left = True
        leave, was_held = partial(release, holds=self.process.core.holds, hold=hold), hold.is_held(io.now())
        outcome = await self.call(
            io, leave, what=f"leaves its block of {self.key}", within=RELEASED_WITHIN, gives_back=True
        )
        if was_held and outcome is ReleaseOutcome.RELEASED:
            self.judge.news.expect(self.process, "resigned", self.key, hold.fence)

    async def _use(self, io: SimIO, hold: Grant, claim: Claim) -> None:
        await super()._use(io, hold, claim)
        if self._candidacy is not None and self.more.chance(ASKS_SHARE):
            _View(self.process, hold).look(self._candidacy)

    async def _end(self, io: SimIO, candidacy: Candidacy, hold: Grant) -> None:
        match 1 if self._manner == "heirs" else self.rng.randrange(4):
            case 0:
                pause = self.rng.choice((0.0, 1.0))
                resign = partial(asking.resign, candidacy=candidacy, pause=pause)
                was_held = hold.is_held(io.now())
                if was_held:  # or it may be queueing again just now
                    until = self.judge.now + pause / (1 + self.judge.skew) - ENDED_WITHIN
                    self.process.aside[self.key] = until
                outcome = await self.call(io, resign, what=f"resigns from {self.key}", within=RELEASED_WITHIN)
                if was_held and outcome is ReleaseOutcome.RELEASED:
                    self.judge.news.expect(self.process, "resigned", self.key, hold.fence)
            case 1:
                within = 2.0 + LATE_NAMING + self.process.core.timeout + RELEASED_WITHIN
                hand_over = partial(self._hand_over, candidacy=candidacy, hold=hold)
                await self.call(io, hand_over, what="hands over", within=within)
            case 2:
                since, ask = self.judge.now, partial(leader.leader, client=self.process.core, key=self.key)
                info = await self.call(
                    io, ask, what="asks who leads", within=self.process.core.timeout, most=2, reads=True
                )
                if info is None or isinstance(info, LeaderInfo):
                    self.judge.answers.led(self.key, info, since=since)
            case _:
                pass

    def views(self, of: str) -> Sequence[View]:
        """Ask who leads, since when, and who else stands."""
        core = self.process.core

        async def ask(io: IO) -> object:
            found = await lock.contenders(io, core, self._lock)
            return [(each.session, each.create_index) for each in found]

        truth = partial(queued, directory=waitqueue.directory(of))
        return (led(self.process, of), View(f"asks who stands for {of}", ask, truth))

    async def _hand_over(self, io: IO, candidacy: Candidacy, hold: Grant) -> None:
        call = kv.list_pairs(waitqueue.directory(self.key))
        queue = waitqueue.read(self.key, (await send_once(io, call, deadline=io.now() + 2.0)).value).live
        if queue:
            heir = waitqueue.session_of(self.rng.choice(queue))
            if self.more.chance(NAMES_NOBODY):
                heir = hold.session
            if self.more.chance(NAMES_LATE):
                await io.wait(hold.over, deadline=io.now() + self.more.uniform(0.0, LATE_NAMING))
            if self.more.chance(HEIR_LEAVES):
                self._have_leave(heir)
            since, was_held = self.judge.now, hold.is_held(io.now())
            is_named = (
                self.judge.keys[self.key].heir_named_at(heir) >= since
            )  # to name it again changes nothing
            self._office.given_away = hold
            said = await self._transfer(io, candidacy, hold, heir)
            if said:
                self._office.given_away = None
            self._check_transfer(said, hold, heir, since=since, was_held=was_held, is_named=is_named)

    def _have_leave(self, heir: str) -> None:
        """Have an heir stand aside just while it is named."""
        process = self.judge.carer(heir)
        if process is None or process is self.process or self.healed():
            return
        for candidacy in process.core.standing:
            if isinstance(candidacy, Candidacy) and candidacy.plan.key == self.key:
                at = process.clock.now() + self.more.uniform(0.0, JUST_THEN)
                process.alarm(at, partial(_leave, process, candidacy))

    async def _transfer(self, io: IO, candidacy: Candidacy, hold: Grant, heir: str) -> str:
        """Have an heir lead next; returns what is said if that is not done."""
        try:
            await asking.transfer(io, candidacy, hold, heir)
        except SessionNotFound:
            self.judge.see("nobody to hand over to")
            return "that does not queue"
        except AcquireTimeout:
            self.judge.see("nobody to hand over to in time")
            return "the queue kept changing"
        except NotHeld:
            return "this does not lead"
        except TxnFailed as error:
            return f"not permitted: {error}"
        self.judge.see("handed over")
        return ""

    def _check_transfer(
        self, said: str, hold: Grant, heir: str, *, since: float, was_held: bool, is_named: bool
    ) -> None:
        """Judge what was said of a hand-over that began then."""
        rules, leads = self.judge.keys[self.key], hold.is_held(self.process.clock.now())
        is_wrong = {
            "": leads or (was_held and not is_named and rules.heir_named_at(heir) < since),
            "that does not queue": self.judge.permits and rules.has_queued_since(heir, since),
            "the queue kept changing": rules.is_unchanged_since(since),
            "this does not lead": leads,
        }.get(said, self.judge.permits)
        # Its user may have made it resign meanwhile.
        in_vain = said in {"that does not queue", "the queue kept changing"}
        gave_up = in_vain and was_held and hold.released and hold not in self.judge.news.doomed
        if is_wrong or gave_up:
            text = f"{self.process.name} hands {self.key} over to {short(heir)}: {said or 'done'}, it hears"
            self.judge.convict("answers", f"{text}, and {'has resigned' if gave_up else 'that is wrong'}")

    async def _lead_briefly(self, io: SimIO, candidacy: Candidacy, hold: Grant) -> bool:
        if self.more.chance(PROCLAIMS_AT_LAST):
            put = partial(self.put, hold=hold, value=b"at last")
            await self.call(io, put, what=f"proclaims for {self.key}", within=2 * self.process.core.timeout)
        await io.wait(hold.over, deadline=io.now() + self.rng.uniform(0, CALM_HOLD))
        if not self._may_lead_twice or not self.more.chance(LEADS_TWICE):
            return True
        self._may_lead_twice = False
        resign = partial(asking.resign, candidacy=candidacy, pause=0.0)
        await self.call(io, resign, what=f"resigns from {self.key}", within=RELEASED_WITHIN)
        return False

    async def ensure(self, io: IO, hold: Grant, seconds: float) -> None:
        """Make sure of some of the lease."""
        with told_as_leadership(hold):
            await super().ensure(io, hold, seconds)

    async def put(self, io: IO, hold: Grant, value: bytes) -> None:
        """Proclaim something."""
        if self._candidacy is not None:
            await asking.proclaim(io, self._candidacy, hold, value)
            self.judge.see("proclaimed")


class _View(LeadershipView):
    """A leadership as its user sees it."""

    @staticmethod
    def _check_callbacks(**_: object) -> None: ...

    def __init__(self, process: Process, hold: Grant) -> None:
        self._core = process.core
        self._hold = hold
        self._handle = None
        self._process = process
        self._heard: list[LossReason] | None = None

    def _convict(self, how: str) -> None:
        what = f"{self._process.name}'s leadership of {self.key} in term {self._hold.fence}"
        if not self._process.is_behind:  # it may have ended amid the question
            self._process.judge.convict("answers", f"{what} {how}")

    def look(self, candidacy: Candidacy) -> None:
        """Judge what it says of itself, and what the candidate says of it."""
        hold, now = self._hold, self._process.clock.now()
        if self.term != hold.fence or self.is_held is not hold.is_held(now):
            self._convict(f"says that it is of term {self.term}: {self.state}")
        if self.reason is not (hold.loss_found or _end_of(hold)):
            self._convict(f"is over as {self.reason}, it says, which is {hold.loss_found or _end_of(hold)}")
        said = _what_is_said(self.check)
        if (said == "") is not self.is_held or said not in {"", "LeadershipLost"}:
            self._convict(f"says of itself {said or 'nothing'}, and is {self.state}")
        if candidacy.hold is not hold:
            return
        asked = _what_is_said(partial(asking.leadership_of, candidacy, now, key=self.key))
        right = "NotHeld" if hold.released else said
        if asked != right:
            self._convict(f"is asked for: {asked or 'there it is'} is the answer, not {right or 'itself'}")

    def listen(self) -> None:
        """Want to be called back at its end."""
        heard = self._heard = list[LossReason]()
        self.on_lost(heard.append)

    async def check_heard(self, io: SimIO) -> None:
        """Judge that it was called back once, if it is over."""
        process, ended, since = self._process, self._hold.ended, self._process.judge.now
        if self._heard is None:
            return
        await io.sleep(HEARD_WITHIN)
        right = [_end_of(self._hold)] if ended else None
        is_free = process.able and process.awake_since < since and not process.core.closing.is_set()
        if right is not None and self._heard != right and is_free:
            text = (
                f"{process.name} hears of the end of its leadership of {self.key} {self._heard}, not {right}"
            )
            process.judge.convict("told", text)


def _what_is_said(ask: Callable[[], object]) -> str:
    """Return the kind of error that a question raises, if it does."""
    try:
        ask()
    except LockLost as error:
        return type(error).__name__
    except NotHeld as error:
        return type(error).__name__
    return ""


class Office:
    """The reports to one candidacy about its leaderships."""

    def __init__(self, user: CandidateUser) -> None:
        self._user = user
        self._held = False
        self._hold: Grant | None = None
        self.stuck_in: Grant | None = None
        """The leadership in which a look at its health raised an error, or was not answered."""
        self.failed = False
        """Whether the last look at its health raised an error."""
        self.given_away: Grant | None = None
        """The leadership that its user is giving, or has given, to another candidate."""
        self.terms: set[int] = set()
        """Those that ``on_elected`` was called with."""
        self.stopped_at = math.inf
        """The true time of that."""
        self.stopped = math.inf
        """When its stop returned, by the process's clock."""
        self._busy_until = -math.inf
        """The true time until which the latest call of ``on_lost`` lasts."""
        self.hangs_until = -math.inf
        """The true time until which looks at its health are not answered."""

    @property
    def hangs_for(self) -> float:
        """Seconds for which its user will not say whether he is well."""
        return self.hangs_until - self._user.judge.now

    async def hang(self, io: SimIO, hold: Grant) -> None:
        """Work on until the end of a leadership, while its user does not say whether he is well."""
        if hold.is_held(io.now()) and self.hangs_for > 0.0:
            self._user.judge.see("health unanswered")
            before, self.stuck_in = self.stuck_in, hold
            if not await io.wait(hold.over, deadline=io.now() + self.hangs_for):
                self.stuck_in = before

    @property
    def busy_for(self) -> float:
        """Seconds until its user can be called back."""
        return max(0.0, self._busy_until - self._user.judge.now)

    def look_at(self, term: int, *, since: float) -> None:
        """Judge the callback for a term that its user has known of since then."""
        if term not in self.terms and self._is_overdue(since):
            text = f"{self._user.process.name} leads in term {term}, and was not called back"
            self._user.judge.convict("callbacks", text)

    def look_back(self) -> None:
        """Judge whether the end of each leadership was reported, some time after the stop."""
        if self._held and self._is_overdue(self.stopped_at):
            text = f"{self._user.process.name} has stopped, and was not called back at its leadership's end"
            self._user.judge.convict("callbacks", text)

    def _is_overdue(self, since: float) -> bool:
        process, judge = self._user.process, self._user.judge
        is_free = process.able and not process.core.closing.is_set() and process.awake_since < since
        return is_free and judge.now > max(since, self._busy_until) + 10 * CALLED_WITHIN

    def elected(self, candidacy: Candidacy, hold: Grant) -> Awaited | None:  # noqa: ARG002 - as ElectionPlan has it
        """Judge news of an election."""
        user, process = self._user, self._user.process
        if self._held:
            user.judge.convict("callbacks", f"{process.name} was elected twice without a loss between")
        # What was handed over before is called within a moment, unless the process stands still.
        if process.clock.now() > self.stopped + 10 * CALLED_WITHIN and not process.awake_since:
            user.judge.convict("callbacks", f"{process.name} heard of an election after it had stopped")
        self._held = True
        self._hold = hold
        self.terms.add(hold.fence)
        user.heard_of(hold.fence)
        return user.elected(hold)

    def lost(self, reason: LossReason) -> float | None:
        """Judge news of a loss; returns the seconds that the leader takes for it, if any."""
        if not self._held:
            text = f"{self._user.process.name} lost a leadership twice, or none: {reason}"
            self._user.judge.convict("callbacks", text)
        hold = self._hold
        if hold is not None and reason is not _end_of(hold):
            text = f"{self._user.process.name} hears of the end of its leadership as {reason}"
            self._user.judge.convict("callbacks", f"{text}, which is {_end_of(hold)}")
        resigned = hold is not None and reason is LossReason.RESIGNED
        # Another thread may have resigned before the one that looked at its health could say so.
        excused = self._user.process.is_behind or hold is self.given_away
        if resigned and hold is self.stuck_in and not excused:
            text = f"{self._user.process.name} may be stuck, as its health failed, and has resigned"
            self._user.judge.convict("stuck", text)
        if hold is not None and reason is LossReason.STALLED and not self._may_be_stuck(hold):
            text = (
                f"{self._user.process.name} shows no sign of being stuck, and has lost its leadership for it"
            )
            self._user.judge.convict("stuck", text)
        self._held = False
        self._user.heard_of(0)
        if self._user.judge.now > self._busy_until + CALLED_WITHIN:
            self._user.rests()  # else it learns late of an earlier end
        self._user.lost()
        more = self._user.more
        if self._user.is_told_of_leaders or self._user.healed() or not more.chance(TAKES_LONG_SHARE):
            return None
        lasts = more.uniform(0.0, LONGEST_CALL)
        self._busy_until = self._user.judge.now + lasts * (1 + self._user.judge.skew) + 10 * CALLED_WITHIN
        self._user.is_busy(until=self._busy_until)
        return lasts

    def _may_be_stuck(self, hold: Grant) -> bool:
        """Return whether its health failed or hung, a beat was promised, or the process once stood still."""
        failed = self.failed or hold is self.stuck_in
        hung = self._user.judge.now < self.hangs_until + 10 * CALLED_WITHIN
        return (
            failed
            or hung
            or math.isfinite(hold.limit_of(LossReason.STALLED))
            or bool(self._user.process.awake_since)
        )


def _end_of(hold: Grant) -> LossReason | None:
    """Return why a leadership is over; None while it lasts."""
    return hold.reason or (LossReason.RESIGNED if hold.ended else None)


def _leave(process: Process, candidacy: Candidacy) -> None:
    """Have a candidate leave the queue, which may lead by now."""
    process.judge.news.doomed.append(candidacy.hold)
    candidacy.stand_aside(ASIDE_FOR)


class ClumsyUser(ConsulCoordError):
    """A user's own mistake, which his candidate has to bear."""
