"""Jobs that run once in each slot: the hosts that try to run them, and what must hold of the jobs.

Rules
- No slot succeeds twice, and the recorded slot never falls, whatever slots the users' clocks make them ask
  for. A restored snapshot turns back both.
- A run begins only for a slot above the recorded one, or for one that has failed, as its caller asks.
- A call that reports success finds its run recorded, and tries that for as long as it has the lock. A call
  that reports an earlier run names its own slot, or a later one. It does not name a failed run of its own
  slot if its caller would have that repeated.
- A call ends in its time, and names who had the lock meanwhile.
- Slots have names or are periods, by the clock or since the last run, the same for all users of a job. Since
  the last run, nothing runs before its period is over, and a call that comes later runs.
- ``SlotAhead`` comes if a record names a period that begins more than one in the caller's future, with the
  seconds until then, and only then.
- Nothing runs while the record can't be read, and only ``forget`` deletes it.
- Once the world is healed, the next slot is done.
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from consul_coord.errors import (
    AcquireCancelled,
    AcquireTimeout,
    ConsulCoordError,
    DecodeError,
    KeyConflict,
    LockLost,
    PermissionDenied,
    SessionCheckFailed,
)
from consul_coord.http.failures import retryable
from consul_coord.models import LossReason
from consul_coord.recipes.contend.recipe import Waiting
from consul_coord.recipes.hold.grant import OVERDUE
from consul_coord.recipes.once import once as recipe
from consul_coord.recipes.once.record import Ask, Record, asked, key_of
from consul_coord.testing.simulation.answers import ACQUIRE
from consul_coord.testing.simulation.dice import Dice
from consul_coord.testing.simulation.holding import CALM_HOLD, Holder
from consul_coord.testing.simulation.mistakes import MAKES_MISTAKES, check_longest
from consul_coord.testing.simulation.program import Cancelled
from consul_coord.testing.simulation.views import View

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any

    from consul_coord.events import SlotAhead
    from consul_coord.io import IO
    from consul_coord.testing.simulation.claims import Claim
    from consul_coord.testing.simulation.cluster import Cluster
    from consul_coord.testing.simulation.driver import SimIO
    from consul_coord.testing.simulation.judge import Judge
    from consul_coord.testing.simulation.process import Process

PERIOD = 4.0
"""Seconds between two slots."""
BEGINS = ACQUIRE + 1
"""Requests of a beginning that need not wait: those of an acquire, and one for the record."""
LATE = 3
"""Requests of a call whose slot has had its turn: one, and one more for each key that is not there."""
MOST_OFF = 2
"""Slots by which a user's clock is wrong, at most; one in ten is far ahead."""
FAR = 9
BEGINNING = 1_700_000_000
"""When runs begin, in seconds since 1970: that of a slot."""
FAILS_LATE = 0.3
"""Of so many runs that have recorded their success the function raises an error after that."""
CUTS_SHORT = 0.1
"""So many runs bound the time for the record of their success, and fail if that ends first."""
FORGETS = 0.04
"""So often a user deletes the record."""
JUST = 0.1
"""Seconds by which what is said of times may be off."""
NAMED, ALIGNED, SINCE = "named", "periods", "periods since the last run"
_DAMAGES: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("slot", ("", "x" * 257, 7, None)),
    ("outcome", ("maybe", 7, ["done"], None)),
    ("by", (7, None)),
    ("at", (-1, 253_402_300_800, "0", True, None)),
    ("fence", ("7", True, 1.5, None)),
)
"""Wrong values of each field."""
_TEXTS = (b"", b"[]", b"null", b"7", b"\xff", b"[" * 100_000, b"{}")


def number_of(slot: str) -> int:
    """Return a number that rises with the slots of a job; -1 for an invalid one."""
    if "T" not in slot:
        return int(slot) if slot.isdecimal() else -1
    return round(datetime.fromisoformat(slot).timestamp()) - BEGINNING


class Wish(NamedTuple):
    """The wish of a call."""

    ask: Ask
    slot: int
    began: float
    """By the clock of its process."""
    wall: float
    """The time of its user's clock, in seconds since the beginning."""
    since: float
    """When it began, the true time."""


class JobRules:
    """Judges one job's record."""

    def __init__(self, judge: Judge, cluster: Cluster, name: str, seed: int) -> None:
        self._judge = judge
        self._cluster = cluster
        self.name = name
        self._index = 0
        self.style = Dice(seed, f"slots of {name}").choice((NAMED, ALIGNED, SINCE))
        self.slot = 0
        """The slot that is recorded."""
        self.at = -math.inf
        """When its run ended, by the clock of its user."""
        self.forgets = Dice(seed, f"users forget {name}").chance(0.5)
        """Whether users delete the record now and then."""
        self.forgetting = 0
        """How often its record was to be deleted."""
        self.deleted_at = -math.inf
        self._damaged: bytes | None = None
        """The damaged record, if an operator has written one."""
        self._damaged_at = math.inf
        self._warned: dict[str, SlotAhead] = {}
        """The last warning of each process."""
        self._failed = False
        """Whether its run has failed."""
        self._fences: dict[int, int] = {}
        """By slot: the fence under which it succeeded."""
        self._ever: set[tuple[int, int]] = set()
        """Slot and fence of each success, also of what a restore has undone."""

    def look(self) -> None:
        """Judge what stands in the record, after something was written."""
        entry = self._cluster.entry(key_of(self.name))
        if entry is None and self._index:
            self.deleted_at = self._judge.now
            if not self.forgetting:
                self._judge.convict(
                    "once", f"the record of {self.name} was deleted, and nobody has asked for that"
                )
            self.went_back()
        if entry is None or entry.modify_index == self._index or self.is_damaged:
            return
        self._index, self._damaged = entry.modify_index, None
        found = json.loads(entry.value)
        slot, fence, self.at = number_of(found["slot"]), int(found["fence"]), found["at"] - BEGINNING
        if slot < self.slot:
            self._judge.convict("once", f"the slot of {self.name} fell from {self.slot} to {slot}")
        self.slot, self._failed = slot, found["outcome"] == "failed"
        if self._failed:
            self._judge.see("job failed")
            if slot in self._fences:
                self._judge.convict("once", f"slot {slot} of {self.name} has succeeded, and counts as failed")
            return
        self._judge.see("job done")
        self._ever.add((slot, fence))
        if self._fences.setdefault(slot, fence) != fence:
            text = f"slot {slot} of {self.name} succeeded under fences {self._fences[slot]} and {fence}"
            self._judge.convict("once", text)

    def last(self, cluster: Cluster) -> object:
        """Return the slot, the outcome and the fence of the record; None without one."""
        entry = cluster.entry(key_of(self.name))
        if entry is None or self.is_damaged:
            return None if entry is None else DecodeError
        found = json.loads(entry.value)
        return found["slot"], found["outcome"] == "failed", found["fence"]

    @property
    def is_damaged(self) -> bool:
        """Whether nobody can read the record."""
        entry = self._cluster.entry(key_of(self.name))
        return self._damaged is not None and entry is not None and entry.value == self._damaged

    def damage(self, dice: Dice) -> bytes | None:
        """Return what is to be written over the record, which nobody can read; None without a record."""
        entry = self._cluster.entry(key_of(self.name))
        if entry is None or self.is_damaged:
            return None
        field, values = dice.choice(_DAMAGES)
        found = json.loads(entry.value)
        found[field] = dice.choice(values)
        if found[field] is None:
            del found[field]
        self._damaged = json.dumps(found).encode() if dice.chance(0.8) else dice.choice(_TEXTS)
        self._damaged_at = self._judge.now
        return self._damaged

    def warned(self, process: Process, event: SlotAhead) -> None:
        """Take note of a warning."""
        self._warned[process.name] = event

    def check_warning(self, process: Process, wish: Wish, record: Record) -> None:
        """Judge whether a call that returns a record has warned of a wrong clock."""
        event = self._warned.pop(process.name, None)
        if process.awake_since >= wish.since:
            return  # it may have looked at its clock long ago
        wall = wish.wall + process.clock.now() - wish.began
        ahead = number_of(record.slot) - wall if self.style != NAMED else 0.0
        if abs(ahead - PERIOD) < JUST or event is None:
            if ahead > PERIOD + JUST:
                self._judge.convict(
                    "once", f"{process.name} gets {record.slot}, {ahead:.1f} s ahead, and no warning"
                )
        elif ahead <= PERIOD or abs(event.seconds - ahead) > JUST or event.slot != record.slot:
            self._judge.convict(
                "once", f"{process.name} warns of {event.slot}, {event.seconds:.2f} s ahead: {ahead:.2f}"
            )

    def went_back(self) -> None:
        """Take note that the state is an earlier one."""
        self.slot = self._index = 0
        self.at = -math.inf
        self._fences.clear()
        self.look()  # the earlier state may have a record, too

    def told_done(self, slot: int, fence: int) -> None:
        """Judge a call that reports its run as recorded."""
        if (slot, fence) not in self._ever:
            self._judge.convict(
                "once", f"slot {slot} of {self.name} is reported as done, and was not recorded"
            )

    def check_turn(self, claim: Claim, turn: recipe.Turn, wish: Wish) -> None:
        """Judge a run that begins under a hold."""
        slot, again = number_of(turn.slot), self._failed and wish.ask.retry_failed
        may_run = slot > self.slot or (slot == self.slot and again)
        if self.style == SINCE:
            may_run = (again and slot >= self.slot) or (
                slot > self.slot and wish.wall >= self.at + PERIOD - 1e-3
            )
        if claim.believed() and self.is_damaged and self._damaged_at < wish.since:
            self._judge.convict("once", f"slot {slot} of {self.name} runs, and its record can't be read")
        elif claim.believed() and self.style != SINCE and slot != wish.slot:
            self._judge.convict("once", f"slot {slot} of {self.name} runs, where {wish.slot} was asked for")
        elif claim.believed() and not may_run:
            self._judge.convict("once", f"slot {slot} of {self.name} runs, and slot {self.slot} is recorded")

    def told_of(self, record: Record, wish: Wish) -> None:
        """Judge a call that reports an earlier run."""
        self._judge.see("job skipped")
        slot, asked, again = number_of(record.slot), wish.slot, wish.ask.retry_failed
        if again and record.failed and (slot == asked or self.style == SINCE):
            self._judge.convict("once", f"slot {asked} of {self.name} has failed, and is not run again")
        is_due = int(wish.wall) > slot and wish.wall >= record.at - BEGINNING + PERIOD + 1e-3
        if self.style == SINCE and is_due:  # a slot in the future has had its turn, too
            self._judge.convict("once", f"{self.name} was due since {record.at:.3f}, and is not run")
        if slot < asked and self.style != SINCE:
            self._judge.convict("once", f"slot {asked} of {self.name} was skipped for slot {record.slot}")


class JobUser(Holder):
    """A host that tries to run a job in every slot, by a clock that may be wrong."""

    def __init__(self, process: Process, key: str, *, healed: Callable[[], bool]) -> None:
        super().__init__(process, f"job {key}", healed=healed)
        self.key = self.asks_about = key
        self._at_most: float | None = None
        """For how long the present run may have the lock."""
        self._off = self.rng.randrange(2 * MOST_OFF + 1) - MOST_OFF
        if self.more.chance(0.1):
            self._off = FAR
        self._rules = self.judge.jobs[key]
        self._once = recipe.OnceObject(key, value=process.name.encode(), session=None)
        # As all that this process contends for, so that one rule judges them alike.
        self._once.lock.plan = replace(self._once.lock.plan, fair=process.fair)

    async def run(self, io: SimIO) -> None:
        """Try until the world is healed."""
        if self._values.chance(MAKES_MISTAKES):
            check_longest(
                self.process, "a job", lambda value: recipe.OnceObject(self.key, value=value, session=None)
            )
        while not self.healed():
            if self._rules.forgets and self.more.chance(FORGETS):
                await self._forget(io)
            wall = self.judge.now + (self._off + MOST_OFF + 1) * PERIOD
            # A fair lock that is only tried may lose a race against a newcomer of the same moment.
            kinds = (None, self.rng.uniform(0.0, 10.0), None if self.process.fair else 0.0)
            await self._try(io, wall, timeout=self.rng.choice(kinds))
            await io.sleep(self.rng.uniform(0.0, PERIOD))

    async def calm_rounds(self, io: SimIO) -> None:
        """Have the next slot done, whatever that takes."""
        rules = self._rules
        before, wall = (
            rules.slot,
            max(rules.slot * (PERIOD if rules.style == NAMED else 1), rules.at, 0.0) + PERIOD,
        )
        for _ in range(2):  # a first run may have had its turn before the last fault was noticed
            if rules.slot <= before:
                await self._try(io, wall, timeout=None)
        if rules.slot <= before and not self.process.core.closing.is_set():
            self.judge.convict("progress", f"{self.process.name} could not have a slot of {self.key} done")

    async def _forget(self, io: SimIO) -> None:
        """Delete the record."""
        began = self.judge.now
        self._rules.forgetting += 1
        forget = partial(recipe.forget, client=self.process.core, once=self._once)
        what, within = f"forgets {self.key}", self.process.core.timeout
        if await self._unless_damaged(io, forget, what=what, within=within) is True:
            self.judge.see("job forgotten")
            if self._rules.deleted_at < began:
                self.judge.convict("once", f"{self.process.name} {what}, it says, and has not")

    async def _unless_damaged(
        self,
        io: SimIO,
        program: Callable[..., Coroutine[Any, Any, object]],
        *,
        what: str,
        within: float | None,
    ) -> object:
        """Do something with the record, and return what came of it; DecodeError if nobody can read it."""
        try:
            return await self.call(io, program, what=what, within=within)
        except (DecodeError, KeyConflict) as error:
            return type(error)

    def _wish(self, wall: float, *, retry_failed: bool) -> Wish:
        """Return what is asked for at a time of its user's clock, in seconds since the beginning."""
        style, began, period = self._rules.style, self.process.clock.now(), int(PERIOD)
        slot = max(1, int(wall / PERIOD)) if style == NAMED else int(wall // PERIOD * PERIOD)
        ask = asked(
            self._rules.name,
            slot=str(slot) if style == NAMED else None,
            period=None if style == NAMED else period,
            align=style == ALIGNED,
            now=BEGINNING + wall,
            retry_failed=retry_failed,
        )
        return Wish(ask, slot, began, wall, self.judge.now)

    def views(self, of: str) -> Sequence[View]:
        """Ask what ran last."""

        async def ask(io: IO) -> object:
            try:
                found = await recipe.last(io, self.process.core, self._once)
            except DecodeError:
                return DecodeError
            return None if found is None else (found.slot, found.failed, found.fence)

        return (View(f"asks what {of} did last", ask, self._rules.last),)

    async def _begin(self, io: SimIO, wish: Wish, *, timeout: float | None) -> recipe.Turn | Record | None:
        """Try to get the turn; None if that failed."""
        process = self.process
        # A try takes no longer than one request may.
        limit, began = process.core.timeout if timeout == 0 else timeout, io.now()
        is_late = wish.slot < self._rules.slot and self._rules.style != SINCE and not self._rules.is_damaged
        max_hold = self._longest()
        call = self.judge.promises.called(process, f"begins {self.key}", limit)
        start, turn = self.judge.answers.begins(process, io.task, f"begins {self.key}", most=BEGINS), None
        try:
            turn = await process.call(
                io.task,
                lambda io: recipe.begin(
                    io, process.core, self._once, wish.ask, timeout=timeout, max_hold=max_hold
                ),
                interrupt=Waiting(self._once),
            )
            if isinstance(turn, Record) and is_late:
                sent, what = io.task.sent - start.sent, f"comes too late for {self.key}"
                self.judge.answers.paid(process, what, sent=sent, most=LATE, since=start.since)
        except AcquireTimeout as error:
            self.judge.see("job waited in vain")
            answers, took = self.judge.answers, io.now() - began
            answers.timed_out(process, (self.key,), error, took=took, timeout=timeout or 0.0)
        except AcquireCancelled:
            self.judge.see("job waited in vain")
        except (PermissionDenied, SessionCheckFailed, DecodeError, KeyConflict):
            self.judge.promises.ended(call)
            await io.sleep(0.2)
        except LockLost:
            self.judge.see("job lost before it began")
        except ConsulCoordError as error:
            if not retryable(error):
                raise
        else:
            self._at_most = max_hold
            return turn
        finally:
            self.judge.promises.ended(call)
            self.judge.answers.paid_for_waiting(start, got=turn)
        return None

    def _longest(self) -> float | None:
        """Return for how long a run may have the lock, if that is limited."""
        if self.healed() or not self.chance.chance(self.process.stuck):
            return None
        return self.chance.uniform(0.01, 3.0)

    async def _try(self, io: SimIO, wall: float, *, timeout: float | None) -> None:
        process, calm = self.process, self.healed()
        wish = self._wish(wall, retry_failed=calm or self.rng.chance(0.7))
        turn = await self._begin(io, wish, timeout=timeout)
        if turn is None:
            return
        if isinstance(turn, Record):
            self._rules.told_of(turn, wish)
            self._rules.check_warning(process, wish, turn)
            return
        hold = turn.handle.grant
        claim = self.judge.granted(process, hold, of=self.key, actor=self.actor)
        if self._at_most is not None:
            # It counts from the grant, or a moment later where a thread stood still in between.
            first = hold.granted_at + self._at_most
            last = first + min(process.lag * self.judge.stretch, process.clock.now() - hold.granted_at)
            claim.limits[LossReason.MAX_HOLD] = min(max(first, hold.limited_until), last)
        self._rules.check_turn(claim, turn, wish)
        process.core.holds.on_lost(hold, partial(self._told, claim))
        try:
            if calm:
                await io.wait(hold.lost, deadline=io.now() + self.rng.uniform(0, CALM_HOLD))
            else:
                await self.work(io, hold, claim)
                await self.be_stuck(io, hold, claim)
            if calm or self.rng.chance(0.85):
                at = BEGINNING + wish.wall + process.clock.now() - wish.began
                failed = not calm and self.rng.chance(0.2)
                if not (calm or failed) and self.more.chance(CUTS_SHORT):
                    await self._finish_soon(io, turn, at=at)
                else:
                    await self._finish(io, turn, at=at, failed=failed)
                if not (calm or failed) and self.more.chance(FAILS_LATE):
                    # It has recorded its success by itself, and raises an error afterwards.
                    await self._finish(io, turn, at=at, failed=True)
            else:
                self.judge.see("job without a record")
        finally:
            await self.give_back(io, hold, claim)

    def _told(self, claim: Claim, reason: LossReason) -> None:
        self.judge.told(claim)
        if reason in OVERDUE:
            self.judge.stuck(claim)

    async def _finish_soon(self, io: SimIO, turn: recipe.Turn, *, at: float) -> None:
        """Record a success in a bounded time; where that is not enough, the run counts as failed."""

        async def finish(io: SimIO) -> None:
            with suppress(Cancelled):
                await self._finish(io, turn, at=at, failed=False)

        task = self.process.spawn(finish, name=f"records {self.key}")
        if not await io.wait(task.done, deadline=io.now() + self.more.uniform(0.0, 0.1)):
            self.judge.see("record cut short")
            task.cancel()
            await io.wait(task.done)
            await self._finish(io, turn, at=at, failed=True)

    async def _finish(self, io: SimIO, turn: recipe.Turn, *, at: float, failed: bool) -> None:
        async def finish(io: IO) -> None:
            try:
                record = await recipe.finish(io, self.process.core, self._once, turn, at=at, failed=failed)
            except ConsulCoordError as error:
                if retryable(error) and not failed and turn.handle.grant.is_held(io.now()):
                    text = f"{self.process.name} gives up to record a run of {self.key}, whose lock it has"
                    self.judge.convict("answers", f"{text}: {error}")
                raise
            if not record.failed:
                self._rules.told_done(number_of(record.slot), record.fence)

        await self._unless_damaged(io, finish, what=f"records {self.key}", within=None)
