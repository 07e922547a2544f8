"""The rules of each kind of hold, however many may have it at once: a lock, a leadership, a slot.

Rules
- A hold that an acquire returns is held, at that moment. No two holds have the same fence, and the server
  gave the hold to that very session under its fence. So fences rise in the order of the grants, whatever
  clocks and operators do.
- No client relies on a hold for longer than the lock-delay after its session has ended, whatever has ended
  it; without a lock-delay, for no longer than the TTL.
- After each event, the holds that clients rely on are compared with the server's state, and with each other.
- A client that has held for too long, and is still at work, keeps others out for the lock-delay after it
  learnt of that.
- The loss of a hold is reported once, by its deadline or as soon as its process goes on, and never for one
  that goes on. A hold never comes back, neither in reports nor in answers.
- A write guarded by a hold succeeds only while its session has, under its fence, what it is a hold of.
- An operator's force exempts the holds that were granted before it from being counted. Their fences still
  are.
- Where clocks run at rates beyond the stated bound, belief proves nothing and is not judged: fences are, and
  guards, order, progress, and what is left.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from consul_coord.models import LossReason
from consul_coord.recipes.session.keeping import TRIES_PER_LEASE
from consul_coord.testing.simulation.trace import short

if TYPE_CHECKING:
    from consul_coord.testing.simulation.claims import Claim
    from consul_coord.testing.simulation.cluster import Cluster
    from consul_coord.testing.simulation.judge import Judge
    from consul_coord.testing.simulation.process import Process
    from consul_coord.testing.simulation.shapes import Shape

TOLD_WITHIN = 0.01
"""Seconds after its deadline by which a loss is known to a process that runs."""
TOLD_AFTER_SLEEP = 1.1
"""Seconds after its machine has slept, timers and all: keepers look at the clock every second, unless a
renewal is under way, which takes a part of the lease at most."""
TAKEN_WITHIN = 1.5
"""Seconds for which something free may be left to somebody who waits, when nothing goes wrong."""
TAKEN_BY_OWN = 0.5
"""The same where the client of whoever waits has given it back: it wakes its own waiters itself."""
TAKEN_AFTER_FAILURE = 2.5
"""The same where one request of each kind goes wrong."""
TAKEN_AT_THE_LIMIT = 10.0
"""The same at an agent's limit on connections: each step of a take waits for a query or for a connection."""

PAUSED_FOR = 2.0
"""Seconds for which a waiter rests after a failure, at most."""


class Rules(ABC):
    """The view of one object that can be held."""

    def __init__(self, judge: Judge, cluster: Cluster, name: str) -> None:
        self.judge = judge
        self.cluster = cluster
        self.name = name
        self.claims: list[Claim] = []
        self.latest = 0
        """The highest fence that anybody was given so far."""
        self._forced_up_to = 0
        """Up to which index holds were granted before an operator's force."""
        self._forced: dict[str, int] = {}
        """Likewise, of one session."""
        self._stuck: dict[Claim, float] = {}
        """Those that have lasted too long, and until when nobody else may get what they had."""
        self._at_work: dict[Claim, float] = {}
        """The same, and until when their clients may take their users to be at work, whoever has it then."""
        self._by_fence: dict[int, Claim] = {}
        self._holders: frozenset[str] = frozenset({""})
        """The sessions that have it, as of the last write; with an empty one if it can be had."""
        self._had: dict[str, float] = {}
        """Until when each of the others had it."""
        self._held_since = 0.0
        """Since when it is these that have it."""
        self._free_since: float | None = None
        self._freed_by: Process | None = None
        self._freed_at = 0.0
        """The client that had it last, if it goes on with the session by which it had it, and until when."""
        self._register: tuple[int, Claim | None] = (0, None)
        """The resource that takes no fence lower than the last one, and who wrote it last."""

    # -- what differs

    tells_own = False
    """Whether a client has several sessions for it, and tells its own next waiter what it gives back."""

    @abstractmethod
    def before(self, shape: Shape) -> Any:  # noqa: ANN401 - its own business
        """Return the state that a request finds."""

    def answered(
        self,
        who: str,
        shape: Shape,
        before: Any,  # noqa: ANN401 - see above
        *,
        applied: bool,
        heard: bool,  # noqa: ARG002 - for those who care
    ) -> None:
        """Take note of the answer to a request, which its sender may not have heard."""
        if applied:
            self.after(who, shape, before)

    @abstractmethod
    def after(self, who: str, shape: Shape, before: Any) -> None:  # noqa: ANN401 - see above
        """Judge what a request has changed."""

    @abstractmethod
    def was_given(self, session: str, fence: int) -> bool:
        """Return whether the server gave this to a session under this fence."""

    @abstractmethod
    def has_now(self, session: str, fence: int) -> bool:
        """Return whether a session still has what it got under this fence, as far as guards cover that."""

    @abstractmethod
    def stands(self, claim: Claim) -> bool:
        """Return whether the server has what a claim is about."""

    def surely_stands(self, claim: Claim) -> bool:
        """Return whether nobody could think that a claim is over."""
        return self.stands(claim)

    def seldom(self, claim: Claim) -> float:  # noqa: ARG002 - for slots
        """Return for how many seconds a holder need not look at what a claim lacks."""
        return 0.0

    @abstractmethod
    def holders(self) -> frozenset[str]:
        """Return the sessions that have it on the server, with an empty one if another could."""

    def held_since(self, session: str, since: float) -> bool:
        """Return whether a session has had it at some time since then."""
        return session in self._holders or self._had.get(session, -math.inf) >= since

    def holders_since(self, since: float) -> frozenset[str] | None:
        """Return the sessions that have had it since then, if nobody else has; None otherwise."""
        return self._holders if self._held_since <= since else None

    def had_place(self, session: str, place: int, *, since: float) -> bool:  # noqa: ARG002 - for locks
        """Return whether a session has had a place in the queue since then, counted from 1."""
        return place > 0

    def came_at(self, session: str) -> float:  # noqa: ARG002 - for locks
        """Return when a session came to the queue last: infinite if never, minus that if nobody knows."""
        return -math.inf

    def gave_up(self, session: str) -> bool:  # noqa: ARG002 - for semaphores
        """Return whether a session that the last write took from the holders had something to give."""
        return True

    @abstractmethod
    def check_belief(self, believed: list[Claim]) -> None:
        """Judge which clients rely on a hold at this moment."""

    @abstractmethod
    def check_queue(self) -> None:
        """See who queues, after something was written."""

    @abstractmethod
    def waited_for(self) -> str:
        """Return who waits for what is free; nobody if it isn't, or if that has a reason."""

    @abstractmethod
    def check_left(self) -> None:
        """Judge what is left at the end."""

    @property
    @abstractmethod
    def has_register(self) -> bool:
        """Whether writes under its fences are ordered by them: only one may hold at a time."""

    # -- operators

    def forced(self, session: str = "") -> None:
        """Count no holds any more that were granted so far, by one session or to anybody."""
        index = self.cluster.state.store.raft_index
        if session:
            self._forced[session] = index
        else:
            self._forced_up_to = index
        for claim in self.claims:
            if session in {"", claim.session}:
                self._end_by_force(claim)

    def overwritten(self) -> None:
        """Take note that an operator writes what is held: a guard of before matches no more."""
        for claim in self.claims:
            claim.overwritten = True

    def _end_by_force(self, claim: Claim) -> None:
        self.judge.record("agent", "ended", key=self.name, session=claim.session, detail="forced")

    def counts(self, claim: Claim) -> bool:
        """Return whether no force has ended what a claim is promised."""
        return claim.fence > max(self._forced_up_to, self._forced.get(claim.session, 0))

    # -- claims

    def claim(self, fence: int) -> Claim | None:
        """Return the claim with a fence."""
        return self._by_fence.get(fence)

    def is_untouched(self, claim: Claim) -> bool:
        """Return whether the server has what a claim is about as it was granted, whoever relies on it."""
        entry = self.cluster.entry(self.name)
        return entry is not None and entry.modify_index == claim.fence and entry.session == claim.session

    def granted(self, claim: Claim) -> None:
        """Judge a new claim."""
        if not self.counts(claim):
            self._end_by_force(claim)  # before its client has heard of it
        judge = self.judge
        if claim.resumes:
            self._by_fence[claim.fence] = claim
        if self._by_fence.setdefault(claim.fence, claim).reference is not claim.reference:
            judge.convict("fences", f"{claim} has the same fence as {self._by_fence[claim.fence]}")
        if not self.was_given(claim.session, claim.fence):
            judge.convict("fences", f"{claim}: the server gave nothing to that session under that fence")
        hold = claim.reference()
        # What an operator has ended since may be told late; whether that is so is judged as any loss is. So
        # may a lease that has run out since.
        lost = hold is not None and hold.reason is not None
        awoke = judge.now < claim.process.awake_since + TOLD_WITHIN
        if hold is not None and (hold.reason is LossReason.EXPIRED or (awoke and not lost)):
            lost = hold.granted_at < claim.lease.valid_until
        if not (claim.believed() or lost or claim.left or claim.process.is_behind):
            judge.convict("granted", f"{claim} was over before it began")
        self.claims.append(claim)
        self.check_fence(claim)
        self.latest = max(self.latest, claim.fence)

    def check_fence(self, claim: Claim) -> None:
        """Judge whether a new fence is above all earlier ones."""
        if claim.fence < self.latest and self.has_register and self._is_promised(claim):
            self.judge.convict("fences", f"{claim} came after one with {self.latest}")

    def asked(self, claim: Claim, *, held: bool) -> None:
        """Judge the answer to the owner of a claim that asked about it."""
        if held and (claim.said_lost or claim.told):
            self.judge.convict("lost for good", f"{claim} was said to be lost, and then to be held")
        # A thread that stood still amid its look says what was so before.
        if held and not (claim.believed() or claim.process.is_behind):
            self.judge.convict("lease", f"{claim} is said to be held, and its time is over")
        claim.said_lost = not held

    def told(self, claim: Claim) -> None:
        """Judge that a loss is reported to the owner of a claim."""
        if claim.told:
            self.judge.convict("told", f"the loss of {claim} was reported twice")
        if claim.believed():
            self.judge.convict("told", f"the loss of {claim} was reported, and it is relied on")
        hold = claim.reference()
        goes_on = claim.exported and hold is not None and hold.reason is LossReason.CLIENT_CLOSED
        if hold is not None and not (goes_on and claim.taken_up):
            news = "handed over" if goes_on else "lost"
            self.judge.news.expect(claim.process, news, hold.key, hold.fence)
        claim.told = True

    def stuck(self, claim: Claim) -> None:
        """Keep in mind that a claim has lasted too long, if its owner is at work still."""
        if not claim.left:
            since = self.judge.now if claim.found_lost is None else claim.found_lost
            # By the fastest of clocks, and a moment for the news; nothing is promised beyond their bound.
            rate = 1 + self.judge.skew if self.judge.bounded else 1 - self.judge.skew
            self._stuck[claim] = since + claim.lock_delay / rate - TOLD_WITHIN
            self._at_work[claim] = self.judge.now + claim.lock_delay * self.judge.stretch
            self.judge.see("stuck")

    def is_stuck(self, process: Process) -> bool:
        """Return whether a user of a process is at work, and its hold has lasted too long."""
        now = self.judge.now
        return any(
            claim.process is process and not claim.left and now < until and self.cluster.lives(claim.session)
            for claim, until in self._at_work.items()
        )

    def _check_stuck(self) -> None:
        for claim, until in self._stuck.copy().items():
            gone = claim.left or claim.process.crashed or not self.cluster.lives(claim.session)
            if gone or self.judge.now > until or not self.counts(claim):
                del self._stuck[claim]
            elif not self.stands(claim) and self.judge.bounded:
                left = until - self.judge.now
                self.judge.convict(
                    "stuck", f"{claim} was given away {left:.3f} s early, with its user at work"
                )

    def _is_promised(self, claim: Claim) -> bool:
        return self.judge.bounded and self.counts(claim) and claim.believed()

    def write(self, claim: Claim) -> None:
        """Write to the fenced resource under a hold."""
        fence, writer = self._register
        if not self.has_register:
            return
        if claim.fence < fence:
            self.judge.see("stale fence refused")
            self.judge.tell(claim, "refused")
            if self._is_promised(claim):
                self.judge.convict("fences", f"{claim} is relied on and was refused: {writer} wrote before")
        else:
            self._register = (claim.fence, claim)
            self.judge.tell(claim, "write")

    # -- after every event

    def look(self, *, written: bool) -> None:
        """See whether all is well at this moment."""
        if self.claims:
            self._check_claims(written=written)
        if written:
            self._check_stuck()
            self.check_queue()
            self._look_at_holders()
        if self.judge.healed_at is not None or self.judge.prompt:
            self._check_taken()

    def _look_at_holders(self) -> None:
        holders = self.holders()
        for session in self._holders - holders:
            self._had[session] = self.judge.now
            if self.gave_up(session):
                self._freed_at, self._freed_by = self.judge.now, self.judge.carer(session)
        if holders != self._holders:
            self._held_since = self.judge.now
        self._holders = holders

    def _check_claims(self, *, written: bool) -> None:
        over = [claim for claim in self.claims if self._is_over(claim)]
        for claim in over:
            self.claims.remove(claim)
        for claim in self.claims:
            if written:
                claim.stands = self.stands(claim)
                claim.was_gone = claim.was_gone or not self.surely_stands(claim)
            if claim.found_lost is None:
                self.judge.promises.look_at(claim, stands=claim.stands, seldom=self.seldom(claim))
        if not self.judge.bounded:
            return
        self.check_belief([claim for claim in self.claims if self.counts(claim) and claim.believed()])
        for claim in self.claims:
            self._check_session(claim)

    def _check_session(self, claim: Claim) -> None:
        now = self.judge.now
        if claim.session_ended is None:
            if not self.cluster.lives(claim.session):
                claim.session_ended = now
                self.judge.record("agent", "ended", key=self.name, session=claim.session)
        elif now > claim.session_ended + claim.covered and claim.believed():
            self.judge.convict(
                "lease", f"{claim} is relied on, {now - claim.session_ended:.2f} s after its session"
            )

    def _is_over(self, claim: Claim) -> bool:
        """Return whether nothing more is to be seen of a claim; a loss must have been reported by then."""
        hold, process, now = claim.reference(), claim.process, self.judge.now
        if hold is None or process.crashed or claim.told:
            return True
        if claim.found_lost is not None:
            if not hold.ended:
                self.judge.convict("lost for good", f"{claim} came back")
            if now > max(claim.found_lost, process.awake_since) + TOLD_WITHIN and process.able:
                self.judge.convict("told", f"the user of {claim} was not called back")
        elif hold.ended:
            if hold.released:
                return True
            if not hold.lost.is_set() and process.able:
                self.judge.convict("told", f"{claim} is lost, and its event is not set")
            claim.found_lost = now
            self.judge.answers.lost(claim, hold)
        elif process.able:
            asleep = TOLD_AFTER_SLEEP + claim.lease.longest / TRIES_PER_LEASE
            slack = self.judge.stretch * asleep if process.slept else TOLD_WITHIN
            if now > max(claim.until, process.awake_since) + slack:
                self.judge.convict(
                    "told", f"{claim} is over since {now - claim.until:.3f} s, and it was not reported"
                )
        return False

    def _check_taken(self) -> None:
        who, now = self.waited_for(), self.judge.now
        if not who:
            self._free_since = None
            return
        self._free_since = now if self._free_since is None else self._free_since
        since = max(self._free_since, self._undisturbed_since(who))
        is_own = self._freed_by is not None and self._freed_by is self.judge.carer(who)
        was_given = self._free_since == self._freed_at  # rather than that a lock-delay is over
        within = TAKEN_BY_OWN if self.tells_own and is_own and was_given else TAKEN_WITHIN
        within = TAKEN_AFTER_FAILURE if self.judge.gentle else within
        within = within if self.judge.room is None else TAKEN_AT_THE_LIMIT
        if now > since + within * self.judge.stretch:
            self.judge.convict(
                "progress", f"{self.name} is free for {now - since:.1f} s, and {short(who)} waits for it"
            )

    def _undisturbed_since(self, waiter: str) -> float:
        """Return since when a waiter could have taken what is free."""
        judge = self.judge
        process = judge.carer(waiter)
        if not judge.prompt or process is None or judge.now > judge.quiet_at:
            return judge.quiet_at
        # The one request that goes wrong may be that of whoever is first.
        held_up = [process.name] if judge.gentle else judge.names()
        return max(max(map(judge.promises.troubled, held_up)) + PAUSED_FOR, process.awake_since)

    def note_dead(self, before: tuple[str, ...], *, in_lock_delay: bool) -> None:
        """Count who has died in the queue."""
        for place, session in enumerate(before):
            if not self.cluster.lives(session):
                self.judge.see("head died" if place == 0 else "follower died")
                self.judge.see("session ended while it waited")
                if place == 0 and in_lock_delay:
                    self.judge.see("head died in lock-delay")
