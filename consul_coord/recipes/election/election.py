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
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from consul_coord.errors import (
    AcquireCancelled,
    AcquireTimeout,
    ConsulCoordError,
    InvalidArgument,
    NotHeld,
    SessionNotFound,
    TxnFailed,
    ValueTooLarge,
)
from consul_coord.events import Elected, Failed, Resigned
from consul_coord.http.backoff import delay
from consul_coord.http.endpoints import kv
from consul_coord.http.failures import next_step, retryable
from consul_coord.http.messages import Retry
from consul_coord.http.retry import ask, perform
from consul_coord.io import Once, Signal
from consul_coord.models import (
    Blocker,
    LeaderInfo,
    LossReason,
    ReadOptions,
    ReleaseOutcome,
    TxnOp,
    _validate,
)
from consul_coord.recipes.cleanup.tasks import RemoveKey
from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.contend.attempt import deadline_of
from consul_coord.recipes.contend.changes import Changes
from consul_coord.recipes.contend.limits import ANY_SESSION, LONGEST, check_value
from consul_coord.recipes.contend.recipe import check_max_hold
from consul_coord.recipes.contend.refusals import within
from consul_coord.recipes.election import notes
from consul_coord.recipes.election.candidate import Candidate, electing
from consul_coord.recipes.election.leader import LeaderFollower
from consul_coord.recipes.election.leadership import check, told_as_leadership, why_over
from consul_coord.recipes.election.sight import Sight
from consul_coord.recipes.hold import asking as hold_ops
from consul_coord.recipes.hold.evidence import make_sure
from consul_coord.recipes.hold.holds import release
from consul_coord.recipes.lock.lock import LockObject
from consul_coord.recipes.lock.plan import LockPlan
from consul_coord.recipes.watch.follow import Follower

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from consul_coord.io import IO, Task
    from consul_coord.models import KVPair, SessionSpec
    from consul_coord.recipes.contend.shared import Shared
    from consul_coord.recipes.hold.grant import Grant, Handle

FOLLOWING_WAIT = 10.0
"""Seconds until the leader is looked at again without a change, at most."""
LONGEST_PAUSE = 15.0
"""Seconds between two attempts that are refused, at most."""
HEALTH_PATIENCE = 10.0
"""Seconds after which a health predicate that has not answered counts as False."""
LOW_PRIORITY_ATTEMPT = 1.0
"""Seconds that a candidate of low priority stays in the queue."""
HAND_OVER_TRIES = 5
"""How often a transfer starts over when the queue changes meanwhile."""
_CONSISTENT = ReadOptions(consistency="consistent")


class Calls(Protocol):
    """How users' functions are called: never by the program itself, and never two at once in order.

    ``until`` ends a function that can be ended, because it is being awaited.
    """

    def in_order(
        self,
        function: Callable[[], object],
        failed: Callable[[Exception], object],
        *,
        until: Signal | None = None,
    ) -> None:
        """Call a function when those handed over before have ended; what it raises goes to ``failed``."""
        ...

    def ask(
        self,
        function: Callable[[], object],
        answered: Callable[[object], object],
        failed: Callable[[Exception], object],
        *,
        until: Signal,
    ) -> None:
        """Call a function soon; what it returns goes to ``answered``, what it raises to ``failed``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionPlan:
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
        keys=(key,),
        value=value,
        accept_flags=frozenset(accept_flags),
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
        self, client: Shared, plan: ElectionPlan, lock: LockObject, calls: Calls, *, keeps: object
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
        self.refusal: Exception | None = None
        """Why the last attempt was refused."""
        self.attempt: Candidate | None = None
        self.task: Task | None = None
        self.noted_term = 0
        """The term that the note on the server tells, if it was written."""
        self._note_index = 0
        self._healthy = plan.health is None
        self._aside_until = -math.inf
        self._refusals = 0
        self._sight = Sight()
        self._told: list[LeaderInfo | None] = []
        """The last value given to ``on_change``; empty before the first time."""
        self._follows: Once[bool] = Once()
        """Settled when the leadership is followed."""

    # -- what it is at a moment

    @property
    def hold(self) -> Grant | None:
        """The latest leadership."""
        return None if self.handle is None else self.handle.grant

    def leading(self, now: float) -> Grant | None:
        """Return the leadership if it may be relied on at ``now``."""
        hold = self.hold
        return hold if hold is not None and hold.is_held(now) else None

    @property
    def problem(self) -> Exception | None:
        """The refusal of the last attempt, or that Consul does not answer; None without a problem."""
        return self.refusal or self.client.host.contact.problem

    def leader(self, now: float) -> LeaderInfo | None:
        """Return who leads, as far as this candidacy has seen."""
        hold, seen = self.hold, self._sight.at(now)
        ours = seen is not None and hold is not None and (seen.session, seen.term) == _leadership(hold)
        if hold is not None and hold.is_held(now):
            # The key may show this leadership later than the grant does.
            return seen if ours else LeaderInfo(hold.value, hold.session, None, hold.fence, hold.last_index)
        return None if ours else seen

    def leader_age(self, now: float) -> float | None:
        """Return the seconds since the leader was seen; 0 for one's own leadership."""
        return 0.0 if self.leading(now) is not None else self._sight.age(now)

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
            self.follow()
        self.client.standing[self] = None
        try:
            while await self._may_contend(io):
                handle = await self._contend(io)
                if handle is not None:
                    await self._lead(io, handle)
        finally:
            unsubscribe()
            self.client.standing.pop(self, None)
            self.stop()

    async def _may_contend(self, io: IO) -> bool:
        """Wait until nothing keeps it aside; returns False when it is over."""
        while not self.is_over:
            with self.changes.watching() as changed:
                if not self._must_stand_aside():
                    return True
                await io.wait(changed, deadline=self._aside_until if self._healthy else None)
        return False

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
            if self.plan.priority_delay:
                await self._wait_for_vacancy(io)
            timeout = LOW_PRIORITY_ATTEMPT if self.plan.priority_delay else None
            self.attempt = Candidate(
                io,
                self.client,
                self.lock.plan,
                self.lock.with_client(self.client),
                timeout=timeout,
                saw=self._saw_in_queue,
            )
            try:
                return await self.attempt.run()
            except AcquireTimeout:
                continue

    async def _wait_for_vacancy(self, io: IO) -> None:
        """Wait until nobody has held the key for the whole delay."""
        follower = self._key_follower()
        while True:
            seen = await follower.change(io)
            if seen is None or (seen.value is not None and seen.value.session is not None):
                continue
            await io.sleep(self.plan.priority_delay)
            again = kv.get(self.plan.key, options=_CONSISTENT)
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
                return
            # What was seen is out of date: a key that is as it was then by the next look would be no news.
            follower = self._key_follower()

    def _key_follower(self) -> Follower[KVPair | None]:
        follower = Follower(partial(kv.watch, self.plan.key))
        follower.bound = self.client.watches
        return follower

    def _refused(self, error: Exception) -> None:
        self._refusals += 1
        before, self.refusal = self.refusal, error
        if str(error) != str(before) and not self.is_over:
            self.report("candidacy", error)
        first = max(self.plan.retry_wait[0], 0.05)
        self.stand_aside(
            delay(self._refusals, self.client.host.random(), first=first, most=max(first, LONGEST_PAUSE))
        )

    async def _lead(self, io: IO, handle: Handle) -> None:
        hold = handle.grant
        if self._must_stand_aside():
            await release(io, self.client.holds, hold)
            self._remove_note(hold)
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
        self.client.host.emit(Elected(hold.key, hold.session, hold.fence))
        on_elected = self.plan.on_elected
        if on_elected is not None:
            self.calls.in_order(
                partial(on_elected, self, hold),
                partial(self.work_failed, hold, "on_elected"),
                until=hold.over,
            )
        hold.over.subscribe(partial(self._ended, hold, Once()))
        self.changes.tell()

    def _ended(self, hold: Grant, told: Once[Grant]) -> None:
        """Tell of a leadership's end, once; called by whoever ends it."""
        if not told.settle(hold):
            return
        reason = why_over(hold, self.client.host.now())
        if reason is LossReason.RESIGNED:
            self.client.host.emit(Resigned(hold.key, hold.session, hold.fence))
        if self.plan.on_lost is not None and reason is not None:
            self.calls.in_order(partial(self.plan.on_lost, reason), partial(self.report, "on_lost"))
            self.calls.in_order(partial(self._work_ended, hold), partial(self.report, "on_lost"))
        if reason is not LossReason.FORKED:
            self._remove_note(hold)
        self.rest()

    def _remove_note(self, hold: Grant) -> None:
        """Have the note of a leadership removed, unless a later leader has written it."""
        # The transaction that elected wrote it, so its index was the fence. A proclaim has written it again.
        index = self._note_index if self.noted_term == hold.fence else hold.fence
        self.client.reaper.add(RemoveKey(notes.term_key(hold.key), index))

    def _work_ended(self, hold: Grant) -> None:
        """Take note that ``on_lost`` has returned: no work goes on, unless it is that of a block."""
        if not hold.entered and not hold.released:
            hold.depth = 0
            self.client.holds.limits.holder_left(hold)

    # -- what goes on beside it

    async def _watch_health(self, io: IO) -> None:
        predicate = self.plan.health
        while predicate is not None and not self.is_over:
            answer = _Answer()
            self.calls.ask(predicate, answer.give, answer.fail, until=self.stopping)
            await io.wait(answer.given, deadline=io.now() + HEALTH_PATIENCE)
            if answer.error is not None and self._healthy:
                self.report("health", answer.error)
            hold = self.hold
            if hold is not None and (answer.error is not None or not answer.given.is_set()):
                hold.lose(LossReason.STALLED)
            self._set_healthy(healthy=answer.healthy)
            await io.wait(self.stopping, deadline=io.now() + self.plan.health_interval)

    def follow(self) -> None:
        """Follow the leadership from now on, as long as this stands; from any thread."""
        if not self.is_over and self._follows.settle(True):  # noqa: FBT003 - the value says nothing
            for program in (self._watch_leader, self._watch_age):
                self.client.host.spawn(program, name=f"follow the leader of {self.plan.key}")

    async def _watch_leader(self, io: IO) -> None:
        follower = LeaderFollower(self.plan.key, wait=FOLLOWING_WAIT, confirming=True)
        follower.bound = self.client.watches
        while not self.is_over:
            try:
                seen = await follower.next(io, until=self.stopping)
            except ConsulCoordError as error:
                if not retryable(error):
                    self.report("following the leader", error)
                await follower.pause(io, until=self.stopping)
                continue
            if seen is not None:
                self._saw(seen.value, follower.ttl)
                self._tell_change(io)

    async def _watch_age(self, io: IO) -> None:
        """Tell that nobody is known to lead any more when what was seen is too old."""
        while not self.is_over:
            with self.changes.watching() as changed:
                if self._told:
                    self._tell_change(io)
                until = self._sight.good_until
                await io.wait(changed, deadline=until if io.now() < until else None)

    def _saw_in_queue(self, leader: LeaderInfo | None) -> None:
        """Take note of what an attempt sees, which may be older than what was seen by following."""
        if not self._follows:
            self._saw(leader)

    def _saw(self, leader: LeaderInfo | None, ttl: float | None = None) -> None:
        """Take note of whom a look has shown to lead."""
        known = self._sight.leader
        same = (
            leader is not None
            and known is not None
            and replace(known, node=None) == replace(leader, node=None)
        )
        if same and (leader is None or leader.node is None):
            leader, ttl = known, ttl or self._sight.ttl
        self._sight = Sight(leader, self.client.host.now(), ttl or self.client.sessions.spec.ttl)
        self.changes.tell()

    def _tell_change(self, io: IO) -> None:
        leader, on_change = self.leader(io.now()), self.plan.on_change
        if on_change is not None and self._told != [leader]:
            self._told = [leader]
            self.calls.in_order(partial(on_change, leader), partial(self.report, "on_change"))

    def report(self, where: str, error: BaseException) -> None:
        """Report what a user's function, or an attempt, has raised."""
        text = f"{type(error).__name__}: {error}"
        self.client.host.emit(Failed(f"{where} of the election {self.plan.key!r}", text))

    def work_failed(self, hold: Grant, where: str, error: BaseException) -> None:
        """Report what the leader's work has raised, and resign."""
        self.report(where, error)
        self.client.host.spawn(
            lambda io: release(io, self.client.holds, hold), name=f"resign from {self.plan.key}"
        )

    # -- the leader's term, for others to read

    async def note_term(self, io: IO, hold: Grant) -> None:
        """Write down the term once, before the key's own index stops telling it."""
        if self.noted_term == hold.fence:
            return
        ops = (
            TxnOp.check_session(hold.key, hold.session),
            TxnOp.set(notes.term_key(hold.key), notes.term_value(hold.session, hold.fence)),
        )
        call = kv.txn(*ops, retry=Retry.IDEMPOTENT)
        try:
            result = await ask(io, call, timeout=self.client.timeout)
        except TxnFailed:
            return  # not permitted, or not the leader any more, which the write of the value will find
        self._note_index = result[1][0].modify_index
        self.noted_term = hold.fence


def _leadership(hold: Grant) -> tuple[str, int]:
    """Return what tells a leadership from all others."""
    return hold.session, hold.fence


class _Answer:
    """The answer of a health predicate; None yet, or never, counts as False."""

    def __init__(self) -> None:
        self.given = Signal()
        self.healthy = False
        self.error: Exception | None = None

    def give(self, healthy: object) -> None:
        self.healthy = bool(healthy)
        self.given.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self.given.set()


# -- what users ask for


async def start(io: IO, candidacy: Candidacy) -> None:
    """Begin a candidacy in the background; harmless when that was done before."""
    if candidacy.task is None:
        candidacy.task = io.spawn(candidacy.run, name=f"election {candidacy.plan.key}")


async def stop(io: IO, candidacy: Candidacy, *, timeout: float) -> None:
    """End a candidacy, resigning first; waits up to ``timeout`` seconds for that."""
    timeout = _validate.span("timeout", timeout)
    candidacy.stop()
    if candidacy.task is not None:
        async with io.shield(timeout) as deadline:
            await io.wait(candidacy.task.done, deadline=deadline)


async def wait_for_leadership(
    io: IO, candidacy: Candidacy | None, *, timeout: float | None
) -> tuple[Candidacy, Grant]:
    """Return the leadership, as soon as there is one.

    Raises AcquireTimeout, and AcquireCancelled when there is no candidate (any more).
    """
    began, deadline = io.now(), deadline_of(io, timeout)
    while candidacy is not None:
        with candidacy.changes.watching() as changed:
            hold = candidacy.leading(io.now())
            if hold is not None:
                return candidacy, hold
            if candidacy.is_over:
                break
            if not await io.wait(changed, deadline=deadline):
                raise _timeout(candidacy, waited=io.now() - began)
    key = "" if candidacy is None else candidacy.plan.key
    raise AcquireCancelled("this is not a candidate: the election was not started, or was stopped", key=key)


def _timeout(candidacy: Candidacy, *, waited: float) -> AcquireTimeout:
    key, attempt, problem = candidacy.plan.key, candidacy.attempt, candidacy.refusal
    just_begun = attempt is not None and attempt.blocker.kind == "unreachable" and attempt.cause is None
    if problem is not None and (attempt is None or just_begun):
        why = f"its last attempt was refused: {problem}"
    elif attempt is not None:
        why = attempt.blocker.describe(attempt.cause)
        why += next_step(attempt.cause) if attempt.blocker.kind == "unreachable" else ""
    else:
        why = "it does not stand at present: it just started, rests, is not healthy, or has low priority"
    message = f"not elected leader of {key!r} {within(waited)}: {why}"
    error = AcquireTimeout(message, key=key, blocker=candidacy.blocker, waited=waited)
    error.__cause__ = problem if attempt is None or attempt.cause is None else attempt.cause
    return error


async def wait_for_loss(
    io: IO, candidacy: Candidacy | None, *, key: str, timeout: float | None
) -> LossReason:
    """Return why the latest leadership of ``key`` has ended, as soon as it has.

    Raises NotHeld when there was none, and TimeoutError.
    """
    if candidacy is None or candidacy.hold is None:
        raise _not_leader(key)
    hold = candidacy.hold
    deadline = deadline_of(io, timeout)
    while True:
        with candidacy.changes.watching() as changed:
            reason = why_over(hold, io.now())
            if reason is not None:
                return reason
            if io.now() >= deadline:
                message = f"the leadership of {hold.key!r} was not lost in {timeout:g} s"
                raise TimeoutError(message)
            await io.wait(changed, deadline=min(deadline, hold.valid_until))


def report_work(candidacy: Candidacy | None, error: BaseException | None) -> None:
    """Report what the leader's work has raised, if anything; a cancellation is no error."""
    if candidacy is not None and isinstance(error, Exception):
        candidacy.report("the leader's work", error)


async def resign(io: IO, candidacy: Candidacy | None, *, pause: float) -> ReleaseOutcome:
    """Give up the leadership, and be no candidate for ``pause`` seconds, and a moment at least."""
    pause = _validate.span("pause", pause)
    if candidacy is None:
        return ReleaseOutcome.ALREADY_LOST
    if pause > 0:
        candidacy.stand_aside(pause)
    hold = candidacy.hold
    return ReleaseOutcome.ALREADY_LOST if hold is None else await release(io, candidacy.client.holds, hold)


async def proclaim(io: IO, candidacy: Candidacy, hold: Grant, value: bytes) -> None:
    """Change what the leader advertises. Raises LeadershipLost, and what the write raises."""
    check(hold, io.now())
    with told_as_leadership(hold):
        await candidacy.note_term(io, hold)
        try:
            await hold_ops.put(io, candidacy.client.sessions, hold, value)
        except TxnFailed:
            check(hold, io.now())
            raise


def leadership_of(candidacy: Candidacy | None, now: float, *, key: str) -> tuple[Candidacy, Grant]:
    """Return the present leadership of ``key``.

    Raises LeadershipLost, or NotHeld when there is none to be lost.
    """
    if candidacy is None or candidacy.hold is None or candidacy.hold.released:
        raise _not_leader(key)
    check(candidacy.hold, now)
    return candidacy, candidacy.hold


def _not_leader(key: str) -> NotHeld:
    return NotHeld(f"this is not the leader of {key!r}", key=key)


async def transfer(io: IO, candidacy: Candidacy, hold: Grant, heir: str) -> None:
    """Name a queueing candidate as the next leader, and resign.

    Raises SessionNotFound when no candidate of that session queues, ValueTooLarge when the value of the one
    before it does not fit into the request twice, and LeadershipLost.
    """
    await _name_heir(io, candidacy.client, hold, heir)
    await resign(io, candidacy, pause=0.0)


def _too_large_to_pass(key: str, ahead: KVPair, error: ValueTooLarge) -> ValueTooLarge:
    message = (
        f"the leadership of {key!r} was not transferred: the request writes the value of the candidate "
        f"before the heir (session {waitqueue.session_of(ahead)}) twice, and that has {len(ahead.value)} "
        "bytes. "
        "Transfer to the first one of candidates(), or give candidates a value of less than 190 kB"
    )
    return ValueTooLarge(message, size=error.size, limit=error.limit)


async def _name_heir(io: IO, client: Shared, hold: Grant, heir: str) -> None:
    key, deadline = hold.key, io.now() + client.timeout
    for _ in range(HAND_OVER_TRIES):
        call = kv.list_pairs(waitqueue.directory(key), options=_CONSISTENT)
        look = waitqueue.read(key, (await perform(io, call, deadline=deadline)).value)
        position = look.position(heir)
        if position is None:
            message = f"no candidate of the session {heir!r} waits for the leadership of {key!r}"
            raise SessionNotFound(message, session=heir)
        ops = [
            TxnOp.check_session(key, hold.session),
            TxnOp.check_session(look.live[position].key, heir),
            TxnOp.set(notes.heir_key(key), heir),
        ]
        if position > 0:
            # It watches the one before it: a write there wakes it, and then it sees the note. What is written
            # twice the same is no change to Consul, and wakes nobody: so another value comes in between.
            ahead = look.live[position - 1]
            ops.append(TxnOp.cas(ahead.key, ahead.value + b"\n", ahead.modify_index, flags=ahead.flags))
            ops.append(TxnOp.set(ahead.key, ahead.value, flags=ahead.flags))
        try:
            naming = kv.txn(*ops, retry=Retry.IDEMPOTENT)
        except ValueTooLarge as error:
            raise _too_large_to_pass(key, look.live[position - 1], error) from None
        try:
            await perform(io, naming, deadline=deadline)
        except TxnFailed as error:
            if all(failure.op_index > 0 and failure.kind != "denied" for failure in error.failures):
                continue  # the queue has changed since it was read
            await make_sure(io, client.sessions, hold)
            check(hold, io.now())
            raise
        return
    message = f"the queue of {key!r} kept changing: no heir was named, and this client still leads"
    raise AcquireTimeout(message, key=key, session=hold.session, blocker=Blocker("queued", heir))
