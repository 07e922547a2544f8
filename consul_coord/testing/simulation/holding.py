"""The acts of users of any recipe: wait, work, write under their fence, release, and err.

Rules
- A user does only what the public API allows, and all that it allows.
- Once the world is healed a user takes each of his rounds without a time limit and releases in order: whoever
  is still waiting then must get his turn.
"""

from __future__ import annotations

import math
import weakref
from abc import ABC, abstractmethod
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from consul_coord.errors import (
    AcquireCancelled,
    AcquireTimeout,
    AlreadyHeld,
    ConsulCoordError,
    DecodeError,
    LockLost,
    PermissionDenied,
    SemaphoreLimitConflict,
    SessionCheckFailed,
    TxnFailed,
    ValueTooLarge,
)
from consul_coord.http.endpoints import kv
from consul_coord.http.failures import retryable
from consul_coord.http.retry import send_once
from consul_coord.models import LossReason, ReleaseOutcome, TxnOp
from consul_coord.recipes.contend.recipe import Waiting
from consul_coord.recipes.hold import asking as hold_ops
from consul_coord.recipes.hold.grant import OVERDUE
from consul_coord.recipes.hold.holds import release
from consul_coord.testing.simulation.acts import (
    hear_late,
    look_at_health,
    name_to_others,
    put_late,
    release_twice,
    wait_for_end,
)
from consul_coord.testing.simulation.dice import Dice
from consul_coord.testing.simulation.eyes import WaiterEyes
from consul_coord.testing.simulation.mistakes import MAKES_MISTAKES, TOO_LARGE, check_longest, longest_by
from consul_coord.testing.simulation.program import Cancelled
from consul_coord.testing.simulation.promises import RELEASED_WITHIN
from consul_coord.testing.simulation.shapes import GUARDED

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from consul_coord.io import IO
    from consul_coord.recipes.contend.recipe import Recipe
    from consul_coord.recipes.hold.grant import Grant, Handle
    from consul_coord.testing.simulation.claims import Claim
    from consul_coord.testing.simulation.driver import SimIO
    from consul_coord.testing.simulation.process import Process
    from consul_coord.testing.simulation.promises import PendingCall
    from consul_coord.testing.simulation.views import View

RELEASED = ReleaseOutcome.RELEASED
STUCK_FOR = 8.0
"""Seconds for which a user that is stuck goes on, at most, after his hold has ended."""
OUTLASTS, BEYOND_THE_DELAY = 0.5, 2.0
"""So often it goes on for so much longer than the lock-delay lasts, at least."""
REACHES_ITS_END = 0.5
"""So often a hold with an end in advance is kept until then."""
LIMITS, LIMITS_BEYOND, BEYOND = (0.01, 3.0), (3.0, 40.0), 0.2
"""Seconds of a ``max_hold``: mostly few, and in a fifth of the cases more than a lease may last."""
FAILED = object()
"""The answer to a call that was refused."""
FORGETFUL = 0.05
"""Of so many rounds the hold is dropped without a release."""
FORGOTTEN_WITHIN = 15.0
"""Seconds after which nobody in the client refers to a dropped hold any more."""
RELEASES_TWICE = 0.1
"""So often a curious user is not the only one to release its hold."""
USES_AT_ONCE = 0.7
AT_ONCE = 0.004
"""So often a user uses its hold within so many seconds after an operator has changed something."""
ASKS_TO_WAIT = 0.3
"""So often a curious user waits for the loss of its hold."""
WRITES_LATE = 0.2
"""So often it writes once more under its last hold, when its session has another one."""
PUTS_LATE, LATE = 0.1, (0.0, 0.1)
"""So often another task writes the value while the hold is released, by a request so many seconds late, and
the user acquires again at once."""
PUTS_MUCH = 0.03
"""So often it writes the longest value that there may be, after a longer one was refused."""
ASKS_WITHIN = 1.5
"""Seconds after an old leader began to answer within which users ask about everybody."""
LONGEST_STEP = 4.0
"""Seconds between two things done with a hold, at most."""
CALM_HOLD = 0.2
"""Seconds that a hold lasts at most, once the world is healed."""


class Holder:
    """Somebody with something in hand, in one process."""

    def __init__(self, process: Process, actor: str, *, healed: Callable[[], bool]) -> None:
        self.process = process
        self.actor = actor
        self.rng = process.rng
        self.judge = process.judge
        self.healed = healed
        self.chance = Dice(process.seed, f"{process.name} {actor} is stuck")
        self.more = Dice(process.seed, f"{process.name} {actor} does more")
        self.lingering = process.lingering
        self.max_hold: float | None = None
        """For how many seconds the present hold may last, as its acquire was asked for."""
        self._beats = False
        """Whether the present hold ends unless a beat comes in time."""
        self._in_hand: tuple[Grant, Claim] | None = None
        """The present hold, while it works under it."""
        self._others = 0
        """How many tasks use a hold of its, beside itself."""
        self._haste = Dice(process.seed, f"{process.name} {actor} is quick")
        self._values = Dice(process.seed, f"{process.name} {actor} tries long values")
        self._late = Dice(process.seed, f"{process.name} {actor} writes late")
        self._before: Grant | None = None
        """The hold that it has given back last."""
        self._hurries_for = ""
        """The name of the lock that it acquires next, at once."""
        self._writes = 0
        """The fence of the hold whose value it was writing last, if that was cut short."""

    asks_about = ""
    """The name that it asks about when an old leader may answer."""
    put_takes = 1
    """Requests of a write of its value."""

    async def work(self, io: SimIO, hold: Grant, claim: Claim) -> None:
        """Use a hold for a while, or until it is over."""
        seconds = self._duration(hold)
        if claim.limits and self.chance.chance(REACHES_ITS_END):
            seconds = max(seconds, LIMITS[-1] + 1.0)
        until, self._in_hand = io.now() + seconds, (hold, claim)
        before, self._before = self._before, None
        try:
            if before is not None and before.session == hold.session and self._late.chance(WRITES_LATE):
                await self._guarded(io, before, None)
            while io.now() < until and not hold.over.is_set() and not self.healed():
                longest = min(until - io.now() + 0.1, LONGEST_STEP)
                await self._be_idle(io, hold, min(until, io.now() + self.rng.uniform(0.0, longest)))
                await self._use(io, hold, claim)
        finally:
            self._in_hand = None
            self.judge.write(claim)

    async def use_at_once(self, io: SimIO) -> None:
        """Use what it is at work with, perhaps, before its client has heard of an operator's act."""
        if self._in_hand is None or not self._haste.chance(USES_AT_ONCE):
            return
        hold, claim = self._in_hand
        self.judge.sessions.asks_beside(self.process)
        self._others += 1
        try:
            await io.sleep(self._haste.uniform(0.0, AT_ONCE))
            # Beside a write of its value no guard stays as it is.
            verifies = self._haste.chance(0.5) or self._writes
            await (self._verify if verifies else self._guarded)(io, hold, claim)
        finally:
            self._others -= 1

    async def _be_idle(self, io: SimIO, hold: Grant, until: float) -> None:
        """Wait for something to happen to a hold."""
        if self.process.curious and self.more.chance(ASKS_TO_WAIT):
            await wait_for_end(self.process, io, hold, seconds=max(0.0, until - io.now()))
        else:
            await io.wait(hold.over, deadline=until)

    def plan_end(self) -> None:
        """Give the next hold an end in advance, perhaps: by ``max_hold``, or by a promise of beats."""
        limited = not self.healed() and self.chance.chance(self.process.stuck)
        at_most = limited and self.chance.chance(0.5)
        self._beats = limited and (not at_most or (self.judge.calm and self.chance.chance(0.5)))
        limits = LIMITS_BEYOND if self.more.chance(BEYOND) else LIMITS
        self.max_hold = self.chance.uniform(*limits) if at_most else None

    def limit(self, hold: Grant, claim: Claim) -> None:
        """Take note of the end that an acquire asked for, and promise the first beat if it is due."""
        now = self.process.host.now()
        if self.max_hold is not None:
            claim.limits[LossReason.MAX_HOLD] = now + self.max_hold
        if self._beats and hold.is_held(now):
            seconds = self.chance.uniform(0.5, 3.0)
            claim.limits[LossReason.STALLED] = now + seconds
            self.process.core.holds.beat(hold, seconds)
            self.process.alarm(self.process.clock.now() + 0.3, partial(self._beat_again, hold, claim))

    def _beat_again(self, hold: Grant, claim: Claim) -> None:
        now = self.process.host.now()
        if hold.is_held(now):
            seconds = self.chance.uniform(0.01, 3.0)
            claim.limits[LossReason.STALLED] = now + seconds
            self.process.core.holds.beat(hold, seconds)

    async def be_stuck(self, io: SimIO, hold: Grant, claim: Claim) -> None:
        """Go on for a while after the end of a hold that has lasted too long."""
        if hold.reason in OVERDUE and self.chance.chance(0.7):
            least = claim.lock_delay + BEYOND_THE_DELAY if self.chance.chance(OUTLASTS) else 0.0
            until = io.now() + least + self.chance.uniform(0.0, STUCK_FOR)
            while io.now() < until and not self.healed():
                await io.sleep(0.2)
                self.judge.asked(claim, held=hold.is_held(io.now()))
                self.judge.write(claim)

    async def give_back(self, io: SimIO, hold: Grant, claim: Claim) -> None:
        """Release a hold; a late write under it must find its guard closed."""
        for one in claim.whole:
            one.left = True
            if not hold.ended:
                self.judge.tell(one, "released")
        holds, what = self.process.core.holds, f"releases {hold.key}"
        began, before = self.judge.now, io.task.sent
        twice = self.process.curious and not self.healed() and self.more.chance(RELEASES_TWICE)

        async def let_go(also: IO) -> ReleaseOutcome:
            return await (release_twice(self.process, io, hold) if twice else release(also, holds, hold))

        within = math.inf if self.judge.room is None else self.judge.room.released_within(self.process, hold)
        turn = self.judge.promises.due(self.process, f"gives {hold.key} back at the limit", within)
        try:
            outcome = await self.call(io, let_go, what=what, within=RELEASED_WITHIN, gives_back=True)
        finally:
            self.judge.promises.ended(turn)
        self.judge.check_goes_on(self.process, what, since=began)
        if outcome in {RELEASED, ReleaseOutcome.UNKNOWN}:
            self.judge.news.expect(self.process, "released", hold.key, hold.fence, outcome)
        if outcome is RELEASED:
            self.judge.released(claim, since=began)
            most = 4 + len(claim.others) if self._writes == hold.fence else 2
            self.judge.answers.paid(self.process, what, sent=io.task.sent - before, most=most, since=began)
        else:
            self.judge.answers.not_released(claim, outcome, since=began)
        self.judge.write(claim)
        self._before = hold
        if self.rng.chance(0.3):
            await self._guarded(io, hold, None)

    def _duration(self, hold: Grant) -> float:
        if self.rng.chance(0.2 if self.lingering else 0.6):
            return self.rng.uniform(0.0, 0.3)
        if self.lingering:
            return self.rng.uniform(2.0, self.lingering)
        longest = 3.0 if self.rng.chance(0.6) else 2.5 * min(hold.lease.longest, 10.0)
        return self.rng.uniform(0.3, longest)

    async def _use(self, io: SimIO, hold: Grant, claim: Claim) -> None:
        core = self.process.core
        self.judge.asked(claim, held=hold.is_held(io.now()))
        self.judge.write(claim)
        name_to_others(self.process, hold)
        look_at_health(self.process, slack=self.more.uniform(0.0, hold.lease.longest))
        match self.rng.randrange(6):
            case 0:
                await self._guarded(io, hold, claim)
            case 1 if not self._others:
                value = self.rng.randbytes(2).hex().encode()
                if self._values.chance(PUTS_MUCH):
                    value = b"x" * await self._longest_value(io, hold)
                self._writes, began = hold.fence, self.judge.now
                was_over = hold.over.is_set()
                put = partial(self.put, hold=hold, value=value)
                done = await self.call(
                    io,
                    put,
                    what=f"puts {hold.key}",
                    within=self.put_takes * core.timeout,
                    claim=claim,
                    most=self.put_takes,
                )
                self._writes = 0
                if done is not FAILED:
                    self.judge.answers.succeeded(claim, "write", was_over=was_over)
                    self.judge.answers.wrote(claim, hold.key, value, since=began)
            case 2:
                await self._verify(io, hold, claim)
            case 3:
                seconds = hold.lease.longest * self.rng.random() ** 0.3  # mostly more than is left
                if seconds < hold.limited_until - io.now():
                    began, what = self.judge.now, f"ensures {hold.key}"
                    ensure = partial(self.ensure, hold=hold, seconds=seconds)
                    most = 0 if hold.lease.remaining(io.now()) >= seconds else len(claim.whole)
                    found = await self.call(
                        io, ensure, what=what, within=core.timeout, claim=claim, most=most
                    )
                    if found is not FAILED:
                        self.judge.answers.ensured(claim, seconds, since=began)
            case 4 if self.process.curious:
                await self._look_round(io, claim.of)
            case _:
                pass

    def views(self, of: str) -> Sequence[View]:  # noqa: ARG002 - for those who have some
        """Return what may be asked about everybody who wants the same."""
        return ()

    async def ask_around(self, io: SimIO) -> None:
        """Ask about everybody in a moment, beside what it does."""
        await io.sleep(self.more.uniform(0.0, ASKS_WITHIN))
        self.judge.sessions.asks_beside(self.process)
        await self._look_round(io, self.asks_about)

    async def _look_round(self, io: SimIO, of: str) -> None:
        """Ask something about everybody."""
        for view in self.views(of):
            cluster = self.judge.cluster
            truth, index = view.truth(cluster), cluster.state.store.raft_index
            timeout = self.process.core.timeout
            found = await self.call(
                io, view.ask, what=view.what, within=timeout, most=view.requests, reads=True
            )
            self.judge.see("looked round")
            if found is FAILED or not self.judge.permits:
                continue  # without permission, what is there reads as absent
            if index == cluster.state.store.raft_index and found != truth:
                text = f"{self.process.name} {view.what}: {found} is the answer, and it is {truth}"
                self.judge.convict("answers", text)

    async def put(self, io: IO, hold: Grant, value: bytes) -> None:
        """Write what everybody can read of a hold."""
        await hold_ops.put(io, self.process.core.sessions, hold, value)

    async def _longest_value(self, io: SimIO, hold: Grant) -> int:
        """Return the bytes of the longest value that a hold may have, after trying a longer one."""
        most = 0
        for too_large in (TOO_LARGE, None):
            sent, value = io.task.sent, b"x" * (most + 1) if too_large is None else too_large
            try:
                await self.process.call(io.task, partial(self.put, hold=hold, value=value))
            except ValueTooLarge as error:
                most = longest_by(error)
                if not 0 < most < len(value):
                    text = f"{hold.key} does not take {len(value)} bytes of {self.process.name}: {error}"
                    self.judge.convict("answers", text)
            except ConsulCoordError:
                return 0  # it is lost, or could not be made sure of
            else:
                if io.task.sent > sent:
                    text = f"{hold.key} takes {len(value)} bytes of {self.process.name}"
                    self.judge.convict("answers", text)
                return 0  # a candidate that stands no more says nothing
        return most

    async def ensure(self, io: IO, hold: Grant, seconds: float) -> None:
        """Make sure of some of the lease."""
        await hold_ops.ensure(io, self.process.core.sessions, hold, seconds=seconds)

    async def _verify(self, io: SimIO, hold: Grant, claim: Claim) -> None:
        core, began = self.process.core, self.judge.now
        verify = partial(hold_ops.verify, sessions=core.sessions, hold=hold)
        what, most = f"verifies {hold.key}", 1 + len(claim.whole)
        if await self.call(io, verify, what=what, within=core.timeout, claim=claim, most=most) is True:
            self.judge.verified(claim, since=began)

    async def _guarded(self, io: SimIO, hold: Grant, claim: Claim | None) -> None:
        write = TxnOp.set(GUARDED + hold.key, str(hold.fence))

        async def send(io: IO) -> None:
            call = kv.txn(*hold.guard(), write)
            await send_once(io, call, deadline=io.now() + self.process.core.timeout)

        await self.call(io, send, what=f"writes under {hold.key}'s guard", claim=claim, most=1)

    async def call(
        self,
        io: SimIO,
        program: Callable[[IO], Coroutine[Any, Any, object]],
        *,
        what: str = "",
        within: float | None = None,
        claim: Claim | None = None,
        most: float = math.inf,
        reads: bool = False,
        gives_back: bool = False,
    ) -> object:
        """Do something with a hold, and return what came of it: FAILED if it is lost, or the agent unable.

        ``what`` it is, and the seconds ``within`` which it has to end. ``claim``: the hold that it needs.
        ``most``: the requests that it takes, where nothing goes wrong. ``reads``: it changes nothing.
        ``gives_back``: it gives the hold back.
        """
        promises, began, before = self.judge.promises, self.judge.now, io.task.sent
        started = io.now()
        pending = promises.called(self.process, what, within, gives_back=gives_back)
        io.task.wants_present = reads or claim is not None
        try:
            found = await self.process.call(io.task, program, closing=True)
            self.judge.answers.paid(self.process, what, sent=io.task.sent - before, most=most, since=began)
            if within is not None:
                self.judge.answers.lasted(self.process, what, io.now() - started, since=began)
        except ConsulCoordError as error:
            if not (retryable(error) or isinstance(error, LockLost | TxnFailed | PermissionDenied)):
                raise
            if claim is not None:
                self.judge.answers.refused(claim, what, error, since=began)
            if reads and within is not None and retryable(error):
                left = within - (io.now() - started)
                self.judge.answers.read_in_vain(self.process, what, error, left=left)
            return FAILED
        finally:
            promises.ended(pending)
            io.task.wants_present = False
            self.process.asked_at = self.judge.now
        return found


class User(Holder, ABC):
    """One thread or task of an application, which takes rounds."""

    writes_late = False
    """Whether another of its tasks may write the value of what it releases."""
    says_once = True
    """Whether its calls report what is in their way once, until that changes."""

    def __init__(self, process: Process, actor: str, *, healed: Callable[[], bool]) -> None:
        super().__init__(process, actor, healed=healed)
        self._forgot_at = -FORGOTTEN_WITHIN
        self._call: PendingCall | None = None
        """The call that it waits for, or waited for last."""

    @property
    def asks_about(self) -> str:  # type: ignore[override]
        """The first of what it may acquire."""
        readable = () if self.judge.damages else self.choices()
        return next((self.claimed(of)[0] for of in readable), "")

    @abstractmethod
    def choices(self) -> Sequence[str]:
        """Return what may be acquired."""

    def valued(self) -> Mapping[str, Callable[[bytes], object]]:
        """Return what makes that with a value of its own."""
        return {}

    @abstractmethod
    def object_for(self, of: str, *, alone: bool) -> Recipe[Any]:
        """Return the lock or semaphore object; one of this round's own if it is to be ``alone``."""

    async def prepare(self, io: SimIO, what: Any) -> None:  # noqa: ANN401 - a LockObject or the like
        """Do something before acquiring, perhaps."""

    @abstractmethod
    async def take(self, io: IO, what: Any, *, timeout: float | None) -> Handle:  # noqa: ANN401 - see above
        """Acquire."""

    @abstractmethod
    async def in_conflict(self, io: SimIO, of: str, error: SemaphoreLimitConflict) -> None:
        """Make up for a limit that is another one."""

    def try_mistakes(self) -> None:
        """Try what is wrong, and what is right."""
        for what, make in self.valued().items():
            check_longest(self.process, what, make)

    async def run(self, io: SimIO) -> None:
        """Take rounds until the world is healed."""
        if self._values.chance(MAKES_MISTAKES):
            self.try_mistakes()
        while not self.healed():
            dropped = await self._round(io)
            if dropped is not None:
                self._forgot_at = io.now()
                # What looks after it may still wait for an answer that has got lost, or stand still.
                is_answered = self.judge.now > self.judge.promises.contact(self.process.name).answered_from
                is_free = is_answered and self.process.able and not self._others
                if dropped() is not None and is_free:
                    self.judge.convict("nothing left", f"{self.process.name} keeps a hold that was dropped")
            pause = self.rng.choice((0.0, self.rng.uniform(0, 0.3), self.rng.uniform(0, 3.0)))
            await io.sleep(0.0 if self._hurries_for else pause)

    async def calm_rounds(self, io: SimIO) -> None:
        """Take each thing once more, whatever that takes."""
        for of in self.choices():
            handle = None
            for _ in range(2):  # a semaphore may have another limit by now, which is told once
                handle = handle or await self._acquire(io, of, self.object_for(of, alone=False), timeout=None)
            if handle is None:
                if not self.process.core.closing.is_set():
                    text = f"{self.process.name} could not take {of}, all being well"
                    self.judge.convict("progress", text)
                return
            hold = handle.grant
            claim = self._claim(hold, of)
            await io.wait(hold.lost, deadline=io.now() + self.rng.uniform(0, CALM_HOLD))
            self.judge.write(claim)
            await self.give_back(io, hold, claim)

    async def _round(self, io: SimIO) -> weakref.ref[Handle] | None:
        """Acquire and use something; returns a hold that was dropped without a release."""
        dropped: weakref.ref[Handle] | None = None
        of = self.rng.choice(list(self.choices()))
        if self._hurries_for in self.choices():
            of = self._hurries_for
        self._hurries_for = ""
        forgetful = self.rng.chance(FORGETFUL)
        what = self.object_for(of, alone=forgetful)  # which keeps its holds for as long as it lasts
        self._call = None
        call_off = self._plan_attack(io, what)
        try:
            handle = await self._acquire(io, of, what, timeout=self._timeout())
            if handle is not None:
                hold = handle.grant
                claim = self._claim(hold, of)
                dropped = weakref.ref(handle) if forgetful else None
                try:
                    await self.work(io, hold, claim)
                    if self.process.curious and hold.reason is not None:
                        await hear_late(self.process, io, hold)
                    await self.be_stuck(io, hold, claim)
                    if not (forgetful or claim.others):
                        await self._write_late(io, hold, claim)
                finally:
                    if forgetful:
                        self.judge.belongings.dropped(self.process, self.claimed(of), lasts=claim.lock_delay)
                    else:
                        await self.give_back(io, hold, claim)
                    for one in claim.whole:
                        one.left = True
        except Cancelled:
            io.task.uncancel()
            self.judge.see("task cancelled")
        except KeyboardInterrupt:
            self.judge.see("interrupted by Ctrl-C")
        finally:
            call_off()
        return dropped

    async def _write_late(self, io: SimIO, hold: Grant, claim: Claim) -> None:
        """Have another task write the value, perhaps, while this one releases and acquires again."""
        if self.writes_late and self._late.chance(PUTS_LATE):
            self._writes, self._hurries_for = hold.fence, claim.of
            value = self._late.randbytes(4).hex().encode()
            await put_late(self.process, io, hold, value, late=self._late.uniform(*LATE))

    def _timeout(self) -> float | None:
        kinds: Sequence[float | None] = (None, None, self.rng.uniform(0.0, 2.0), self.rng.uniform(0.0, 15.0))
        # A fair lock that is only tried may lose a race against a newcomer of the same moment.
        return self.rng.choice(kinds if self.process.fair else (*kinds, 0.0))

    def _plan_attack(self, io: SimIO, what: Recipe[Any]) -> Callable[[], None]:
        """Have the round ended from outside, perhaps; returns how to call that off."""
        if not self.rng.chance(0.2):
            return _nothing
        attacks = (partial(what.cancel, self.process.core), io.task.cancel, io.task.strike)
        attack, delay = self.rng.choice(attacks), self.rng.choice((0.005, 0.1, 3.0))
        if self.rng.chance(0.1):
            io.task.cancel()  # before anything has begun
            return _nothing

        def strike() -> None:
            # A Ctrl-C may strike just when the program goes on, and is lost.
            if attack == io.task.strike:
                self.process.struck_at = self.judge.now
            elif self._call is not None:
                self._call.cancel()
            self.process.cancelled[what.name] = io.now()
            attack()

        return self.process.alarm(io.now() + self.rng.uniform(0.0, delay), strike)

    async def _acquire(
        self, io: SimIO, of: str, what: Recipe[Any], *, timeout: float | None
    ) -> Handle | None:
        process, name = self.process, self.process.name
        limit = "" if timeout is None else f", within {timeout:.2f} s"
        self.judge.note(name, f"acquires {of}{limit}")
        for key in self.claimed(of):
            self.judge.record(name, "waiting", actor=self.actor, key=key)
        handle: Handle | None = None
        self.plan_end()
        await self.prepare(io, what)
        # A try takes no longer than one request may.
        limit_of_call = process.core.timeout if timeout == 0 else timeout
        waiting = Waiting(what)
        call = self._call = self.judge.promises.called(process, f"acquires {of}{limit}", limit_of_call)
        began, since = io.now(), self.judge.now
        start = self.judge.answers.begins(process, io.task, f"acquires {of}")
        wait_no_more = self._begin_to_wait(io, of, tries=timeout == 0)
        try:
            try:
                handle = await process.call(
                    io.task, lambda io: self.take(io, what, timeout=timeout), interrupt=waiting
                )
            finally:
                self.judge.promises.ended(call)
                wait_no_more()
                self.judge.news.waits_no_more(io.task, process, f"acquires {of}", since=since)
            what.owners.keep(io.owner(), handle)
            self.judge.news.acquired(process, handle.grant, took=io.now() - began)
        except AcquireTimeout as error:
            self.judge.see("tried in vain" if timeout == 0 else f"timed out: {error.blocker.kind}")
            self.judge.note(name, f"timed out: {error.blocker.kind}")
            self.judge.news.timed_out(process, error)
            answers, took = self.judge.answers, io.now() - began
            answers.timed_out(process, self.claimed(of), error, took=took, timeout=timeout or 0.0)
        except AcquireCancelled:
            self.judge.answers.cancelled(process, what.name, took=io.now() - began)
            self.judge.see("cancelled")
            self.judge.note(name, "was cancelled")
        except AlreadyHeld:
            # Somebody may be looking at a dropped hold just now, and lets go of it soon.
            if io.now() > self._forgot_at + FORGOTTEN_WITHIN:
                raise
            await io.sleep(0.1)
        except SemaphoreLimitConflict as error:
            self.judge.see("limit conflict")
            await self.in_conflict(io, of, error)
        except (SessionCheckFailed, PermissionDenied, DecodeError) as error:
            self.judge.see(f"refused: {type(error).__name__}")
            await io.sleep(0.2)
        finally:
            self.judge.answers.paid_for_waiting(start, got=handle)
            for key in self.claimed(of) if handle is None and not process.crashed else ():
                self.judge.record(name, "gave_up", actor=self.actor, key=key)
        return handle

    def _begin_to_wait(self, io: SimIO, of: str, *, tries: bool) -> Callable[[], object]:
        """Have the judge look after a call that waits; returns how to end that."""
        process, judge = self.process, self.judge
        waiting = ExitStack()
        judge.belongings.wants(process, self.claimed(of))
        waiting.callback(judge.belongings.wants_no_more, process, self.claimed(of))
        if self.says_once:
            judge.news.waits(io.task)
        if of in judge.keys and not tries:
            waiting.callback(judge.eyes.open(WaiterEyes(process, of).look))
        return waiting.close

    def claimed(self, of: str) -> Sequence[str]:
        """Return the things that a hold claims."""
        return (of,)

    def _claim(self, hold: Grant, of: str) -> Claim:
        claim, *others = (
            self.judge.granted(self.process, hold, of=one, actor=self.actor, session=kept.id)
            for one in self.claimed(of)
            for kept in hold.all_kept
        )
        claim.others = tuple(others)
        self.limit(hold, claim)
        self.process.core.holds.on_lost(hold, partial(self._told, claim))
        return claim

    def _told(self, claim: Claim, reason: LossReason) -> None:
        self.judge.told(claim)
        for one in claim.whole if reason in OVERDUE else ():
            self.judge.stuck(one)


def _nothing() -> None:
    return None
