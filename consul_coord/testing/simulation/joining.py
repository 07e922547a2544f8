"""Members of groups: they join, show values, and leave; some under ids that others want as well.

Rules
- Where several want one id, it is judged as a lock: two members never have the same, and one that is free is
  soon that of a client that joins.
- A join that gives up names the session in the way, as any acquire does. One of two that join at once waits
  for the other no longer than it was to.
- Leaving ends the calls that join. A leave that returns before its time is complete, and returns soon when
  nothing goes wrong.
- A member that is evicted, and asked for that to be the end, does not join again.
- A member shows the value that it was given last. Only a member can be given one.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from consul_coord.errors import (
    AcquireCancelled,
    AcquireTimeout,
    ConsulCoordError,
    KeyConflict,
    NotHeld,
    PermissionDenied,
    SessionCheckFailed,
)
from consul_coord.http.failures import retryable
from consul_coord.models import ReleaseOutcome
from consul_coord.recipes.contend.recipe import Waiting
from consul_coord.recipes.group.membership import Membership, join, leave, update
from consul_coord.recipes.group.membership import members as list_members
from consul_coord.testing.simulation.eyes import JOINS_AGAIN, MemberEyes, Stopwatch
from consul_coord.testing.simulation.holding import FAILED, Holder
from consul_coord.testing.simulation.plan import IDS
from consul_coord.testing.simulation.promises import ENDED_WITHIN
from consul_coord.testing.simulation.views import View

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from consul_coord.io import IO
    from consul_coord.recipes.hold.grant import Grant
    from consul_coord.testing.simulation.driver import SimIO
    from consul_coord.testing.simulation.process import Process
    from consul_coord.testing.simulation.promises import PendingCall
    from consul_coord.testing.simulation.sharing import Sharing

HANDOVER = 2.0
"""Seconds that the owner of a partition has to finish."""
JOINS_TWICE = 0.4
"""So often two tasks of a process join at once."""
JOINS_SECOND = 0.02
"""Seconds after which it joins where the other one is to be the first."""
JOINED_WITHIN = 1.0
"""Seconds within which a member joins, when nothing goes wrong."""
ENDED_SOON = 1.0
"""Seconds within which a member has stopped and left, when nothing goes wrong."""
LONGEST_STAY = 5.0
"""Seconds for which one of them is a member, at most."""
TOLD_SHARE = 0.15
"""Of so many looks it is given another value, or asks who is there."""
LEAVES_AMID = 0.25
"""Of so many joins the leave comes before their end, perhaps."""
REACTS, SOON = 0.7, 0.01
"""So often it does something within so many seconds after a loss, while it joins again."""
SOONEST_LEAVES = 0.005, 0.1, 3.0


class Joiner(Holder):
    """A user that joins a group, in one process."""

    def __init__(self, process: Process, actor: str, sharing: Sharing, *, healed: Callable[[], bool]) -> None:
        super().__init__(process, actor, healed=healed)
        self._sharing = sharing
        self.asks_about = sharing.prefix
        self._call: PendingCall | None = None
        """The call that joins."""
        self._joins_too: PendingCall | None = None
        """That of another task."""

    async def _join(self, io: SimIO, name: str, *, timeout: float | None) -> bool:
        """Join; returns whether that makes it a member."""
        evictable = self.rng.chance(0.2)
        core, group = self.process.core, self._sharing.group
        self._member = Membership(core, group, name, b"", evictable=evictable, keeps=self)
        self._eyes = MemberEyes(self.process, self._member, evictable=evictable)
        what, limit = f"joins {self._sharing.prefix} as {name}", self._limit(timeout)
        self._close_eyes = self.judge.eyes.open(self._eyes.look)
        if self.more.chance(JOINS_TWICE):
            other = None if timeout is None else timeout * self.more.uniform(0.3, 1.5)
            self.process.spawn(partial(self._join_too, other), name="another that joins")
            if self.more.chance(0.5):
                await io.sleep(JOINS_SECOND)
        call = self._call = self.judge.promises.called(self.process, what, limit)
        began, since = io.now(), self.judge.now
        start, joined = self.judge.answers.begins(self.process, io.task, what), False
        self._eyes.joins += 1
        try:
            await self._call_join(io, self._member, timeout=timeout)
            joined = True
        except AcquireTimeout as error:
            took = io.now() - began
            self._joins_in_vain(error, took=took, timeout=timeout or 0.0, since=since)
            return await self._joined_not(io)
        except AcquireCancelled:
            if not self._member.is_over:
                self.judge.convict(
                    "answers", f"{self.process.name} hears that its join was cancelled, and nobody did that"
                )
            return await self._joined_not(io)
        except (PermissionDenied, SessionCheckFailed, KeyConflict):
            return await self._joined_not(io)
        except ConsulCoordError as error:
            if not retryable(error):
                raise
            return await self._joined_not(io)
        finally:
            self.judge.promises.ended(call)
            self.judge.answers.paid_for_waiting(start, got=joined)
            self._eyes.joins -= 1
        self.judge.see("joined")
        return True

    async def _call_join(self, io: SimIO, member: Membership, *, timeout: float | None) -> None:
        program = partial(join, membership=member, timeout=timeout)
        await self.process.call(io.task, program, interrupt=Waiting(member))

    def _limit(self, timeout: float | None) -> float | None:
        """Return how long a call may take; a try takes no longer than one request may."""
        return self.process.core.timeout if timeout == 0 else timeout

    async def _joined_not(self, io: SimIO) -> bool:
        """Be surely no member: the join of another task may go on. Returns False."""
        if self._call is not None:
            self.judge.promises.ended(self._call)
        await self._leave_at_once(io)
        self._close_eyes()
        return False

    async def _leave_at_once(self, io: SimIO) -> None:
        """Leave, which ends the calls that join."""
        self._eyes.is_leaving = True
        for call in (self._call, self._joins_too):
            if call is not None:
                call.cancel()
        await self._end("leaves the group", partial(leave, membership=self._member), io)

    async def _join_too(self, timeout: float | None, io: SimIO) -> None:
        """Join as another task of the process does at the same time."""
        member, began = self._member, io.now()
        what = f"joins {self._sharing.prefix} at once"
        call = self._joins_too = self.judge.promises.called(self.process, what, self._limit(timeout))
        eyes = self._eyes
        eyes.others += 1
        try:
            await self._call_join(io, member, timeout=timeout)
        except AcquireTimeout as error:
            self.judge.answers.waited(self.process, error, took=io.now() - began, timeout=timeout or 0.0)
        except ConsulCoordError:
            self.judge.see("joined at once in vain")
        else:
            if member.hold is None:
                self.judge.convict("answers", f"{self.process.name} {what}, it hears, and is no member")
        finally:
            eyes.others -= 1
            self.judge.promises.ended(call)

    def _joins_in_vain(self, error: AcquireTimeout, *, took: float, timeout: float, since: float) -> None:
        """Judge a join that gave up."""
        self.judge.answers.waited(self.process, error, took=took, timeout=timeout)
        if took > JOINED_WITHIN and not self.judge.answers.excused(self.process, since=since):
            self.judge.convict("progress", f"{self.process.name} could not join: {error}")

    async def _leave(self, io: SimIO) -> None:
        """Be a member no more."""
        process, member, judge, since = self.process, self._member, self.judge, self.judge.now
        self._eyes.is_leaving = True
        outcomes = list[ReleaseOutcome]()

        async def let_go(io: IO, *, timeout: float) -> None:
            outcomes.append(await leave(io, member, timeout=timeout))

        has_left = await self._end("leaves the group", let_go, io)
        if has_left and member.is_joined(io.now()):
            judge.convict("sharing", f"{process.name} has left, and is a member")
        hold, rules = member.hold, judge.keys.get(member.key)
        is_done = has_left and hold is not None and hold.released and not process.core.reaper.pending
        is_done = is_done or outcomes == [ReleaseOutcome.RELEASED]
        if is_done and hold is not None and self._is_there(hold):
            judge.convict("released", f"{process.name} has left, and the server has it")
        claim = None if rules is None or hold is None else rules.claim(hold.fence)
        if claim is not None and outcomes and outcomes != [ReleaseOutcome.RELEASED]:
            judge.answers.not_released(claim, outcomes[0], since=since)

    def _is_there(self, hold: Grant) -> bool:
        """Return whether the server still has this hold, and not a later one of another guest."""
        if rules := self.judge.keys.get(hold.key):
            return rules.has_now(hold.session, hold.fence)
        return self.judge.cluster.holder(hold.key) == hold.session

    async def _give_value(self, io: SimIO) -> None:
        core, value = self.process.core, self.rng.randbytes(2).hex().encode()
        change = partial(update, membership=self._member, key=self._member.key, value=value)
        hold = self._member.hold
        self._eyes.gives(value)
        try:
            if await self.call(io, change, what="changes its value", within=core.timeout) is FAILED:
                return
        except NotHeld:
            if self._member.stopping.is_set():
                return  # another task has left meanwhile
            raise
        self._eyes.has_given()
        entry = self.judge.cluster.entry(self._member.key)
        if entry is not None and hold is not None and entry.session == hold.session and entry.value != value:
            text = f"{self.process.name}'s value is said to be {value!r}, and is {entry.value!r}"
            self.judge.convict("sharing", text)

    def views(self, of: str) -> Sequence[View]:
        """Ask who is a member."""
        core, sharing = self.process.core, self._sharing

        async def ask(io: IO) -> object:
            return [(one.id, one.session, one.value) for one in await list_members(io, core, sharing.group)]

        return (View(f"asks who is in {of}", ask, sharing.members),)

    async def _end(self, what: str, program: Callable[..., Coroutine[Any, Any, object]], io: SimIO) -> bool:
        """Stop something, in more or less time; returns whether it has ended before its time was over."""
        timeout = 5.0 if self.healed() else self.rng.choice((0.5, 5.0, 5.0))
        began, since = io.now(), self.judge.now
        what_of = f"{what} of {self._sharing.prefix}"
        call = self.judge.promises.called(self.process, what_of, timeout, gives_back=True)
        try:
            await self.process.call(io.task, lambda io: program(io, timeout=timeout), closing=True)
        finally:
            self.judge.promises.ended(call)
        took = io.now() - began
        if took > ENDED_SOON + HANDOVER * ("sharing" in what) and not self.judge.answers.excused(
            self.process, since=since
        ):
            self.judge.convict("in time", f"{self.process.name} {what}: {took:.2f} s, and all is well")
        return took < timeout - ENDED_WITHIN


class Guest(Joiner):
    """A member under an id that others want as well."""

    _joining = False

    async def run(self, io: SimIO) -> None:
        """Be a member now and then, until the world is healed."""
        while not self.healed():
            longest = self.rng.choice((None, 8.0, 8.0, 1.0, 0.0))
            await self._visit(io, timeout=None if longest is None else self.rng.uniform(0.0, longest))
            await io.sleep(self.rng.uniform(0.0, 1.0))

    async def calm_rounds(self, io: SimIO) -> None:
        """Be a member for a moment under each of the ids."""
        for name in IDS:
            if await self._join(io, name, timeout=None):
                await self._leave(io)
                self._close_eyes()
            elif not self.process.core.closing.is_set():
                text = f"{self.process.name} could not join as {name}, all being well"
                self.judge.convict("progress", text)

    async def _visit(self, io: SimIO, *, timeout: float | None) -> None:
        self._watch, self._joining = Stopwatch(self.process), True
        close = self.judge.eyes.open(self._look)
        try:
            joined = await self._join(io, self.rng.choice(IDS), timeout=timeout)
        finally:
            self._joining = False
            close()
        if not joined:
            await self._give_in_vain(io)
            return
        until = io.now() + self.rng.uniform(0.0, LONGEST_STAY)
        try:
            while io.now() < until and not (self.healed() or self._is_out):
                if await self._has_reacted(io, until=io.now() + self.rng.uniform(0.0, 0.3)):
                    break
                if self.rng.chance(TOLD_SHARE):
                    await self._give_value(io)
                elif self.rng.chance(TOLD_SHARE):
                    await self._look_round(io, self._sharing.prefix)
        finally:
            if not self.process.crashed:
                await self._leave(io)
                await self._give_in_vain(io)
            self._close_eyes()

    async def _has_reacted(self, io: SimIO, *, until: float) -> bool:
        """Wait for a moment; at a loss give another value at once, or leave, while it joins again, perhaps.

        Returns whether it is to leave.
        """
        hold = self._member.hold
        if hold is None or hold.over.is_set() or self.judge.calm:  # there, requests are counted
            await io.sleep(until - io.now())
        elif await io.wait(hold.over, deadline=until) and self.more.chance(REACTS):
            await io.sleep(self.more.uniform(0.0, SOON))
            if self.more.chance(0.7):
                await self._give_value(io)
            await io.sleep(self.more.uniform(0.0, SOON))
            return self.more.chance(0.5)
        return False

    @property
    def _is_out(self) -> bool:
        """Whether it does not join again."""
        hold = self._member.hold
        return hold is not None and hold.reason in self._eyes.final

    async def _join(self, io: SimIO, name: str, *, timeout: float | None) -> bool:
        if not self.healed() and self.more.chance(LEAVES_AMID):
            delay = self.more.uniform(0.0, self.more.choice(SOONEST_LEAVES))
            self.process.spawn(partial(self._leave_amid, delay), name="another that leaves")
        return await super()._join(io, name, timeout=timeout)

    async def _leave_amid(self, delay: float, io: SimIO) -> None:
        """Leave as another task of the process does; the join, if it goes on, ends with that."""
        await io.sleep(delay)
        if self._call is None:
            return  # the join has not begun
        member = self._member
        if self._joining and member.hold is None:
            self.judge.see("left amid a join")
            await self._leave_at_once(io)

    def _joins_in_vain(
        self,
        error: AcquireTimeout,
        *,
        took: float,
        timeout: float,
        since: float,  # noqa: ARG002 - its base's
    ) -> None:
        key = self._member.key
        if error.blocker.kind == "queued":
            self.judge.answers.waited(self.process, error, took=took, timeout=timeout)
        else:
            self.judge.answers.timed_out(self.process, (key,), error, took=took, timeout=timeout)

    async def _give_in_vain(self, io: SimIO) -> None:
        """Give a value as one that is no member."""
        member = self._member
        if member.hold is not None and not member.stopping.is_set():
            return
        try:
            await self.process.call(io.task, partial(update, membership=member, key=member.key, value=b"x"))
        except NotHeld:
            return
        self.judge.convict("answers", f"{self.process.name} is given a value, and is no member")

    def _look(self) -> None:
        """Judge that an id that is free is taken."""
        if self._call is None:
            return  # its first join has not begun
        judge, process, member = self.judge, self.process, self._member
        is_free = self._joining and process.able and not member.is_over
        is_free = is_free and not judge.cluster.holder(member.key)
        since = self._watch.since("free", is_so=is_free and member.hold is None)
        since = max(since, judge.promises.undisturbed_since(process))
        if judge.now > since + JOINS_AGAIN * judge.stretch and judge.room is None and not judge.cluster.down:
            judge.convict(
                "progress", f"{process.name} joins as {member.id}, which is free, and does not get it"
            )
