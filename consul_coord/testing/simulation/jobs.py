"""Jobs that run once in each slot: the hosts that try to run them, and what must hold of the jobs.

Rules
- No slot succeeds twice, and the recorded slot never falls, whatever slots the users' clocks make them ask
  for. A restored snapshot turns back both.
- A run begins only for a slot above the recorded one, or for one that has failed, as its caller asks.
- A call that reports success finds its run recorded. A call that reports an earlier run names its own slot,
  or a later one. It does not name a failed run of its own slot if its caller would have that repeated.
- A call ends in its time, and names who had the lock meanwhile.
- Once the world is healed, the next slot is done.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from consul_coord.errors import (
    AcquireCancelled,
    AcquireTimeout,
    ConsulCoordError,
    DecodeError,
    LockLost,
    PermissionDenied,
    SessionCheckFailed,
)
from consul_coord.http.failures import retryable
from consul_coord.models import LossReason
from consul_coord.recipes.contend.recipe import Waiting
from consul_coord.recipes.hold.grant import OVERDUE
from consul_coord.recipes.once import once as recipe
from consul_coord.recipes.once.record import Ask, Record, key_of
from consul_coord.testing.simulation.holding import CALM_HOLD, Holder
from consul_coord.testing.simulation.views import View

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from consul_coord.io import IO
    from consul_coord.recipes.hold.grant import Grant
    from consul_coord.testing.simulation.claims import Claim
    from consul_coord.testing.simulation.cluster import Cluster
    from consul_coord.testing.simulation.driver import SimIO
    from consul_coord.testing.simulation.judge import Judge
    from consul_coord.testing.simulation.process import Process

PERIOD = 4.0
"""Seconds between two slots."""
LATE = 3
"""Requests of a call whose slot has had its turn: one, and one more for each key that is not there."""
MOST_OFF = 2
"""Slots by which a user's clock is wrong, at most."""


class JobRules:
    """Judges one job's record."""

    def __init__(self, judge: Judge, cluster: Cluster, name: str) -> None:
        self._judge = judge
        self._cluster = cluster
        self._name = name
        self._index = 0
        self.slot = 0
        """The slot that is recorded."""
        self._failed = False
        """Whether its run has failed."""
        self._fences: dict[int, int] = {}
        """By slot: the fence under which it succeeded."""
        self._ever: set[tuple[int, int]] = set()
        """Slot and fence of each success, also of what a restore has undone."""

    def look(self) -> None:
        """Judge what stands in the record, after something was written."""
        entry = self._cluster.entry(key_of(self._name))
        if entry is None or entry.modify_index == self._index:
            return
        self._index = entry.modify_index
        found = json.loads(entry.value)
        slot, fence = int(found["slot"]), int(found["fence"])
        if slot < self.slot:
            self._judge.convict("once", f"the slot of {self._name} fell from {self.slot} to {slot}")
        self.slot, self._failed = slot, found["outcome"] == "failed"
        if self._failed:
            self._judge.see("job failed")
            return
        self._judge.see("job done")
        self._ever.add((slot, fence))
        if self._fences.setdefault(slot, fence) != fence:
            text = f"slot {slot} of {self._name} succeeded under fences {self._fences[slot]} and {fence}"
            self._judge.convict("once", text)

    def last(self, cluster: Cluster) -> object:
        """Return the slot, the outcome and the fence of the record; None without one."""
        entry = cluster.entry(key_of(self._name))
        if entry is None:
            return None
        found = json.loads(entry.value)
        return found["slot"], found["outcome"] == "failed", found["fence"]

    def went_back(self) -> None:
        """Take note that the state is an earlier one."""
        self.slot = self._index = 0
        self._fences.clear()
        self.look()  # the earlier state may have a record, too

    def told_done(self, slot: int, fence: int) -> None:
        """Judge a call that reports its run as recorded."""
        if (slot, fence) not in self._ever:
            self._judge.convict(
                "once", f"slot {slot} of {self._name} is reported as done, and was not recorded"
            )

    def check_turn(self, claim: Claim, slot: int, *, again: bool) -> None:
        """Judge a run that begins under a hold; ``again`` says whether a failed one is to be repeated."""
        may_run = slot > self.slot or (slot == self.slot and self._failed and again)
        if claim.believed() and not may_run:
            self._judge.convict("once", f"slot {slot} of {self._name} runs, and slot {self.slot} is recorded")

    def told_of(self, record: Record, asked: int, *, again: bool) -> None:
        """Judge a call that reports an earlier run."""
        self._judge.see("job skipped")
        if again and record.failed and int(record.slot) == asked:
            self._judge.convict("once", f"slot {asked} of {self._name} has failed, and is not run again")
        if int(record.slot) < asked:
            self._judge.convict("once", f"slot {asked} of {self._name} was skipped for slot {record.slot}")


class JobUser(Holder):
    """A host that tries to run a job in every slot, by a clock that may be wrong."""

    def __init__(self, process: Process, key: str, *, healed: Callable[[], bool]) -> None:
        super().__init__(process, f"job {key}", healed=healed)
        self.key = key
        self._at_most: float | None = None
        """For how long the present run may have the lock."""
        self._off = self.rng.randrange(2 * MOST_OFF + 1) - MOST_OFF
        self._rules = self.judge.jobs[key]
        self._once = recipe.OnceObject(key, value=process.name.encode(), session=None)
        # As all that this process contends for, so that one rule judges them alike.
        self._once.lock.plan = replace(self._once.lock.plan, fair=process.fair)

    async def run(self, io: SimIO) -> None:
        """Try until the world is healed."""
        while not self.healed():
            slot = max(1, int(self.judge.now / PERIOD) + self._off)
            # A fair lock that is only tried may lose a race against a newcomer of the same moment.
            kinds = (None, self.rng.uniform(0.0, 10.0), None if self.process.fair else 0.0)
            await self._try(io, slot, timeout=self.rng.choice(kinds))
            await io.sleep(self.rng.uniform(0.0, PERIOD))

    async def calm_rounds(self, io: SimIO) -> None:
        """Have the next slot done, whatever that takes."""
        slot = self._rules.slot + 1
        for _ in range(2):  # a first run may have had its turn before the last fault was noticed
            if self._rules.slot < slot:
                await self._try(io, slot, timeout=None)
        if self._rules.slot < slot:
            self.judge.convict(
                "progress", f"{self.process.name} could not have slot {slot} of {self.key} done"
            )

    def views(self, of: str) -> Sequence[View]:
        """Ask what ran last."""

        async def ask(io: IO) -> object:
            found = await recipe.last(io, self.process.core, self._once)
            return None if found is None else (found.slot, found.failed, found.fence)

        return (View(f"asks what {of} did last", ask, self._rules.last),)

    async def _begin(
        self, io: SimIO, ask: Ask, slot: int, *, timeout: float | None
    ) -> recipe.Turn | Record | None:
        """Try to get the turn; None if that failed."""
        process = self.process
        # A try takes no longer than one request may.
        limit, began = process.core.timeout if timeout == 0 else timeout, io.now()
        before, is_late = io.task.sent, slot < self._rules.slot
        max_hold = self._longest()
        call = self.judge.promises.called(process, f"begins {self.key}", limit)
        try:
            turn = await process.call(
                io.task,
                lambda io: recipe.begin(
                    io, process.core, self._once, ask, timeout=timeout, max_hold=max_hold
                ),
                interrupt=Waiting(self._once),
            )
            if isinstance(turn, Record) and is_late:
                sent = io.task.sent - before
                self.judge.answers.paid(process, f"comes too late for {self.key}", sent=sent, most=LATE)
        except AcquireTimeout as error:
            self.judge.see("job waited in vain")
            answers, took = self.judge.answers, io.now() - began
            answers.timed_out(process, (self.key,), error, took=took, timeout=timeout or 0.0)
        except AcquireCancelled:
            self.judge.see("job waited in vain")
        except (PermissionDenied, SessionCheckFailed, DecodeError):
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
        return None

    def _longest(self) -> float | None:
        """Return for how long a run may have the lock, if that is limited."""
        if self.healed() or not self.chance.chance(self.process.stuck):
            return None
        return self.chance.uniform(0.01, 3.0)

    async def _try(self, io: SimIO, slot: int, *, timeout: float | None) -> None:
        process, calm = self.process, self.healed()
        ask = Ask(slot=str(slot), now=0.0, retry_failed=calm or self.rng.chance(0.7))
        turn = await self._begin(io, ask, slot, timeout=timeout)
        if turn is None:
            return
        if isinstance(turn, Record):
            self._rules.told_of(turn, slot, again=ask.retry_failed)
            return
        hold = turn.handle.grant
        claim = self.judge.granted(process, hold, of=self.key, actor=self.actor)
        if self._at_most is not None:
            claim.limits[LossReason.MAX_HOLD] = hold.granted_at + self._at_most
        self._rules.check_turn(claim, slot, again=ask.retry_failed)
        process.core.holds.on_lost(hold, partial(self._told, claim, hold))
        try:
            if calm:
                await io.wait(hold.lost, deadline=io.now() + self.rng.uniform(0, CALM_HOLD))
            else:
                await self.work(io, hold, claim)
                await self.be_stuck(io, hold, claim)
            if calm or self.rng.chance(0.85):
                await self._finish(io, turn, failed=not calm and self.rng.chance(0.2))
            else:
                self.judge.see("job without a record")
        finally:
            await self.give_back(io, hold, claim)

    def _told(self, claim: Claim, hold: Grant, reason: LossReason) -> None:
        self.judge.told(claim)
        if reason in OVERDUE:
            self.judge.stuck(claim, lock_delay=hold.kept.lock_delay)

    async def _finish(self, io: SimIO, turn: recipe.Turn, *, failed: bool) -> None:
        async def finish(io: IO) -> None:
            record = await recipe.finish(io, self.process.core, self._once, turn, at=0.0, failed=failed)
            if not failed:
                self._rules.told_done(int(record.slot), record.fence)

        await self.call(io, finish)
