"""Leader election: a candidate contends, leads, loses or resigns, and contends again, until it is stopped.

===========  ===================================================  ==========
from         what                                                 to
===========  ===================================================  ==========
aside        healthy, and every pause is over                     contending
contending   the key is granted                                   leading
contending   stopped, told to pause, or not healthy               aside
contending   refused                                              aside, for longer each time
leading      lost, resigned, stopped, told to pause, not healthy  aside, for a random part of ``retry_wait``
aside        stopped, or the client closes                        over
===========  ===================================================  ==========

Rules
- Whether it leads is read off the hold at each look. This program learns of it no later than anybody else,
  but nobody relies on it for that.
- A user's functions are called in order, once: ``on_elected`` and ``on_lost`` take turns. The caller that
  ends the hold has ``on_lost`` called at that moment, so it is called also when this program does not run any
  more. An ``on_elected`` that is still being awaited is cancelled then, or ``on_lost`` might never come.
  Neither is called if an earlier function ends only after the candidate has stopped.
- An error of a user's function is reported and ends no candidacy. If it was the leader's work, including
  ``on_elected``, the leader resigns, because otherwise it would lead without working.
- A leader whose health function raises or does not answer may be stuck. So its leadership is lost, as
  STALLED, and the key is given back later, as the hold's limits say: when ``on_lost`` has returned, when the
  leader's block has ended, or after the lock-delay. So it is after ``max_hold``.
- Giving up is the lock's release: no lock-delay, and the next candidate takes over at once. A candidate
  that has led or was refused stays aside for a moment, so that others get their ticket.
- A candidate of low priority does not queue, as it would be in others' way. It joins when the leadership has
  been vacant for its delay, and leaves again if it does not get it soon.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from consul_coord.errors import AcquireTimeout, ConsulCoordError, InvalidArgument
from consul_coord.events import Elected, Failed, Resigned
from consul_coord.http.backoff import LONGEST_PAUSE, delay
from consul_coord.http.endpoints import kv
from consul_coord.http.endpoints._keys import check_parent
from consul_coord.http.failures import bare, retryable
from consul_coord.http.retry import perform
from consul_coord.io import Once, Signal
from consul_coord.models import Blocker, LeaderInfo, LossReason, TxnOp, _validate
from consul_coord.models.reply import CONSISTENT
from consul_coord.recipes.contend.callbacks import Answer
from consul_coord.recipes.contend.changes import Changes
from consul_coord.recipes.contend.limits import ANY_SESSION, LONGEST, check_value
from consul_coord.recipes.contend.recipe import check_max_hold
from consul_coord.recipes.election.candidate import Candidate, electing
from consul_coord.recipes.election.following import Following
from consul_coord.recipes.election.leadership import why_over
from consul_coord.recipes.election.term import Term
from consul_coord.recipes.hold.holds import release
from consul_coord.recipes.lock.lock import LockObject
from consul_coord.recipes.lock.plan import LockPlan
from consul_coord.recipes.watch.follow import Follower
from consul_coord.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from consul_coord.io import IO, Task
    from consul_coord.models import KVPair, SessionSpec
    from consul_coord.recipes.contend.callbacks import Callbacks
    from consul_coord.recipes.contend.shared import Shared
    from consul_coord.recipes.hold.grant import Grant, Handle

HEALTH_PATIENCE = 10.0
"""Seconds after which a health predicate that has not answered counts as False."""
LOW_PRIORITY_ATTEMPT = 1.0
"""Seconds that a candidate of low priority stays in the queue."""
LATE = 0.05
"""Seconds after its end in which a candidate still hears of an election: the calls may be a little behind."""


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class ElectionPlan(Value):
    """The target of a candidate, and its options."""

    key: str
    retry_wait: tuple[float, float]
    priority_delay: float
    health_interval: float
    on_elected: Callable[[Candidacy, Grant], object] | None
    on_lost: Callable[[LossReason], object] | None
    on_change: Callable[[LeaderInfo | None], object] | None
    health: Callable[[], object] | None
    max_hold: float | None = None

    def __post_init__(self) -> None:
        check_max_hold(self.max_hold)
        _validate.functions(on_lost=self.on_lost, on_change=self.on_change, health=self.health)
        try:
            shortest, longest = (_validate.span("", each, endless=False) for each in self.retry_wait)
        except (TypeError, ValueError):
            shortest, longest = 1.0, 0.0
        if shortest > longest:
            message = f"retry_wait must be (shortest, longest), in seconds, not {self.retry_wait!r}"
            raise InvalidArgument(message)
        _validate.span("priority_delay", self.priority_delay, endless=False)
        _validate.span("health_interval", self.health_interval, positive=True, endless=False)


def lock_of(
    *, key: str, value: bytes | None, session: SessionSpec | str | None, accept_flags: Collection[int]
) -> LockObject:
    """Return the lock that an election is about. Raises InvalidKey."""
    plan = LockPlan(
        keys=(check_parent(key),),
        value=value,
        accept_flags=_validate.flag_set("accept_flags", accept_flags),
        fair=True,
        session=session,
    )

    def take(value: bytes) -> tuple[TxnOp, ...]:
        return electing(plan, ANY_SESSION, value, index=LONGEST, heir=LONGEST)

    check_value(plan.keys, value or b"", (take,))
    return LockObject(plan)


class Candidacy:
    """One candidate, from its start to its stop."""

    def __init__(
        self,
        client: Shared,
        plan: ElectionPlan,
        lock: LockObject,
        calls: Callbacks,
        *,
        keeps: object,
        earlier: Grant | None = None,
    ) -> None:
        self.keeps = keeps
        """The object that must live as long as this runs: a client that nobody refers to closes."""
        self.client = client
        self.plan = plan
        self.lock = lock
        self.calls = calls
        self.changes = Changes()
        """Told whenever a waiting call or the program itself may have to look again."""
        self.stopping = Signal()
        self.handle: Handle | None = None
        """The latest leadership; what has become of it is its own affair."""
        self._earlier = earlier
        """The one before, of a candidacy that was stopped."""
        self.refusal: Exception | None = None
        """Why the last attempt was refused."""
        self.attempt: Candidate | None = None
        self.task: Task | None = None
        self.term = Term(client)
        self._healthy = plan.health is None
        self._aside_until = -math.inf
        self._ended_at = math.inf
        """When the program has ended."""
        self._refusals = 0
        self.following = Following(
            client,
            plan.key,
            own=lambda: self.hold,
            changes=self.changes,
            stopping=self.stopping,
            tell=self._leader_changed,
            failed=partial(self.report, "following the leader"),
        )

    # -- what it is at a moment

    @property
    def hold(self) -> Grant | None:
        """The latest leadership."""
        return None if self.handle is None else self.handle.grant

    @property
    def latest(self) -> Grant | None:
        """The latest leadership, that of an earlier candidacy too."""
        return self.hold or self._earlier

    def leading(self, now: float) -> Grant | None:
        """Return the leadership if it may be relied on at ``now``."""
        hold = self.hold
        return hold if hold is not None and hold.is_held(now) else None

    @property
    def problem(self) -> Exception | None:
        """The refusal of the last attempt, or that Consul does not answer; None without a problem."""
        return self.refusal or self.client.host.contact.problem

    @property
    def is_over(self) -> bool:
        """Whether it was stopped, here or with its client."""
        return self.stopping.is_set() or self.client.closing.is_set()

    def _must_stand_aside(self) -> bool:
        return self.is_over or not self._healthy or self.client.host.now() < self._aside_until

    @property
    def blocker(self) -> Blocker:
        """The obstacle to being elected."""
        return Blocker("queued") if self.attempt is None else self.attempt.blocker

    # -- being told

    def stop(self) -> None:
        """End it: from any thread, returns at once."""
        self.stopping.set()
        self.changes.tell()

    def stand_aside(self, seconds: float) -> None:
        """Be no candidate for a while; what was asked for before stays if it is longer."""
        self._aside_until = max(self._aside_until, self.client.host.now() + seconds)
        self.changes.tell()

    def _set_healthy(self, *, healthy: bool) -> None:
        if healthy is not self._healthy:
            self._healthy = healthy
            self.changes.tell()

    def rest(self) -> None:
        """Let others have their ticket: stand aside for a random part of ``retry_wait``."""
        shortest, longest = self.plan.retry_wait
        self.stand_aside(shortest + (longest - shortest) * self.client.host.random())

    # -- the program

    async def run(self, io: IO) -> None:
        """Be a candidate until told to stop."""
        unsubscribe = self.client.closing.subscribe(self.changes.tell)
        if self.plan.health is not None:
            io.spawn(self._watch_health, name=f"health of a candidate for {self.plan.key}")
        if self.plan.on_change is not None:
            self.following.begin()
        self.client.standing[self] = None
        try:
            while await self._may_contend(io):
                handle = await self._contend(io)
                if handle is not None:
                    await self._lead(io, handle)
        finally:
            unsubscribe()
            self.client.standing.pop(self, None)
            self._ended_at = self.client.host.now()
            self.stop()

    async def _may_contend(self, io: IO) -> bool:
        """Wait until nothing keeps it aside; returns False when it is over."""
        while True:
            with self.changes.watching() as changed:
                if self.is_over:
                    return False
                if not self._must_stand_aside():
                    return True
                await io.wait(changed, deadline=self._aside_until if self._healthy else None)

    async def _contend(self, io: IO) -> Handle | None:
        """Contend in a task of its own, which ends when it must; returns the key's hold, or None."""
        granted: list[Handle] = []

        async def attempt(io: IO) -> None:
            try:
                granted.append(await self._attempt(io))
            except Exception as error:  # noqa: BLE001 - nothing that an attempt raises ends the candidacy
                self._refused(error)

        task = io.spawn(attempt, name=f"candidate for {self.plan.key}")
        task.done.subscribe(self.changes.tell)
        while not task.done.is_set():
            with self.changes.watching() as changed:
                if self._must_stand_aside():
                    task.cancel()
                    await io.wait(task.done)
                elif not task.done.is_set():
                    await io.wait(changed)
        self.attempt = None
        return granted[0] if granted else None

    async def _attempt(self, io: IO) -> Handle:
        while True:
            vacancy = await self._next_vacancy(io) if self.plan.priority_delay else None
            self.attempt = Candidate(
                io,
                self.client,
                self.lock.plan,
                self.lock.with_client(self.client),
                timeout=None if vacancy is None else LOW_PRIORITY_ATTEMPT,
                vacancy=vacancy,
                saw=self._saw_in_queue,
                follows=self.following.has_begun,
            )
            try:
                return await self.attempt.run()
            except AcquireTimeout:
                self.attempt = None  # it stands no more, until the next vacancy

    def _saw_in_queue(self, leader: LeaderInfo | None) -> None:
        """Take note of who leads, as an attempt sees it."""
        if leader is not None and self.attempt is not None and self.attempt.contender is not None:
            self.refusal = None  # it waits for its turn
        self.following.saw_in_queue(leader)

    async def _next_vacancy(self, io: IO) -> int:
        """Wait until nobody has held the key for the whole delay; returns its index, 0 without a key."""
        follower = self._key_follower()
        while True:
            seen = await follower.change(io)
            if seen is None or (seen.value is not None and seen.value.session is not None):
                continue
            await io.sleep(self.plan.priority_delay)
            again = kv.get(self.plan.key, options=CONSISTENT)
            try:
                deadline = io.now() + self.client.timeout
                now = await perform(io, again, deadline=deadline)
            except ConsulCoordError as error:
                if not retryable(error):
                    raise
                follower = self._key_follower()
                await follower.pause(io)
                continue
            if now.value == seen.value:
                return 0 if now.value is None else now.value.modify_index
            # What was seen is out of date: a key that is as it was then by the next look would be no news.
            follower = self._key_follower()

    def _key_follower(self) -> Follower[KVPair | None]:
        follower = Follower(partial(kv.watch, self.plan.key), wait=self.following.wait)
        follower.bound = self.client.watches
        return follower

    def _refused(self, error: Exception) -> None:
        self._refusals += 1
        before, self.refusal = self.refusal, error
        if str(error) != str(before) and not self.is_over:
            self.report("candidacy", error)
        bare(error)
        first = max(self.plan.retry_wait[0], 0.05)
        self.stand_aside(
            delay(self._refusals, self.client.host.random(), first=first, most=max(first, LONGEST_PAUSE))
        )

    async def _lead(self, io: IO, handle: Handle) -> None:
        hold = handle.grant
        if self._must_stand_aside():
            await release(io, self.client.holds, hold)
            self.term.remove(hold)
            return
        self._begin(handle)
        while not hold.ended:
            with self.changes.watching() as changed:
                if self._must_stand_aside():
                    await release(io, self.client.holds, hold)
                elif not hold.ended:
                    await io.wait(changed, deadline=hold.valid_until)
                    hold.look(io.now())

    def _begin(self, handle: Handle) -> None:
        hold = handle.grant
        self.refusal, self._refusals = None, 0
        self.handle = handle
        self.client.holds.limit(hold, self.plan.max_hold)
        if not hold.ended:
            self.client.host.emit(Elected(hold.key, hold.session, hold.fence))
        called: Once[Grant] = Once()
        on_elected = self.plan.on_elected
        if on_elected is not None:
            self.calls.in_order(
                partial(self._tell_beginning, partial(on_elected, self, hold), hold, called),
                partial(self.work_failed, hold, "on_elected"),
                until=hold.over,
            )
        hold.over.subscribe(partial(self._ended, hold, Once(), called))
        self.changes.tell()

    def _tell_beginning(self, on_elected: Callable[[], object], hold: Grant, called: Once[Grant]) -> object:
        """Call ``on_elected``; if the candidate has ended before its turn, neither that nor ``on_lost``."""
        if self.client.host.now() > self._ended_at + LATE:
            called.settle(hold)
            return None
        return on_elected()

    def _ended(self, hold: Grant, told: Once[Grant], called: Once[Grant]) -> None:
        """Tell of a leadership's end, once; called by whoever ends it, and again if that was interrupted."""
        if told:
            return
        reason = why_over(hold, self.client.host.now())
        if self.plan.on_lost is not None and reason is not None:
            lost = partial(self.plan.on_lost, reason)
            self.calls.in_order(
                lambda: lost() if called.settle(hold) else None, partial(self.report, "on_lost")
            )
            self.calls.in_order(partial(self._work_ended, hold), partial(self.report, "on_lost"))
        if reason is not LossReason.FORKED:
            self.term.remove(hold)
        self.rest()
        if told.settle(hold) and reason is LossReason.RESIGNED:
            self.client.host.emit(Resigned(hold.key, hold.session, hold.fence))

    def _work_ended(self, hold: Grant) -> None:
        """Take note that ``on_lost`` has returned: no work goes on, unless it is that of a block."""
        if not hold.entered and not hold.released:
            hold.depth = 0
            self.client.holds.limits.holder_left(hold)

    # -- what goes on beside it

    async def _watch_health(self, io: IO) -> None:
        predicate, raises = self.plan.health, False
        while predicate is not None and not self.is_over:
            answer = Answer()
            # A candidate that stops does not wait for a function that hangs.
            unsubscribe = self.stopping.subscribe(answer.given.set)
            self.calls.ask(predicate, answer.give, answer.fail, until=self.stopping)
            await io.wait(answer.given, deadline=io.now() + HEALTH_PATIENCE)
            unsubscribe()
            if answer.error is not None and not raises:
                self.report("health", answer.error)
            raises = answer.error is not None
            hold = self.hold
            if hold is not None and (answer.error is not None or not answer.given.is_set()):
                hold.lose(LossReason.STALLED)
            self._set_healthy(healthy=bool(answer.value))
            if answer.error is not None:
                bare(answer.error)
            await io.wait(self.stopping, deadline=io.now() + self.plan.health_interval)

    def _leader_changed(self, leader: LeaderInfo | None) -> None:
        if self.plan.on_change is not None:
            self.calls.in_order(partial(self.plan.on_change, leader), partial(self.report, "on_change"))

    def report(self, where: str, error: BaseException) -> None:
        """Report what a user's function, or an attempt, has raised."""
        text = f"{type(error).__name__}: {error}"
        self.client.host.emit(Failed(f"{where} of the election {self.plan.key!r}", text), cause=error)

    def work_failed(self, hold: Grant, where: str, error: BaseException) -> None:
        """Report what the leader's work has raised, and resign."""
        self.report(where, error)
        self.client.host.spawn(
            lambda io: release(io, self.client.holds, hold), name=f"resign from {self.plan.key}"
        )
