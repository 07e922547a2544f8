"""Users of locks, as applications have them: they acquire, work, write under their fence, release, and err.

Rules
- A user does only what the public API allows, and all that it allows.
- Once the world is healed a user takes each of his rounds without a time limit and releases in order: whoever
  is still waiting then must get his turn.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

from consul_coord.errors import (
    AcquireCancelled,
    AcquireTimeout,
    AlreadyHeld,
    ConsulCoordError,
    LockLost,
    SessionCheckFailed,
    TxnFailed,
)
from consul_coord.http.endpoints import txn
from consul_coord.http.failures import retryable
from consul_coord.http.retry import send_once
from consul_coord.io import Interrupt
from consul_coord.models import LOCK_FLAGS, TxnOp
from consul_coord.recipes import hold_ops, lock, release
from consul_coord.testing.simulation.judge import GUARDED
from consul_coord.testing.simulation.program import Cancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from consul_coord.io import IO
    from consul_coord.recipes.hold import HoldCore
    from consul_coord.recipes.lock import LockCore
    from consul_coord.testing.simulation.driver import SimIO
    from consul_coord.testing.simulation.judge import Claim
    from consul_coord.testing.simulation.plan import Plan
    from consul_coord.testing.simulation.process import Process

FORGETFUL = 0.05
"""Of so many rounds the hold is dropped without a release."""
FORGOTTEN_WITHIN = 15.0
"""Seconds after which nobody in the client refers to a dropped hold any more."""
CALM_HOLD = 0.2
"""Seconds that a hold lasts at most, once the world is healed."""


def locks_of(process: Process, plan: Plan) -> dict[str, LockCore]:
    """Return a lock object for each key, shared by the users of a process."""
    session = plan.spec if process.rng.chance(0.3) else None
    return {
        key: lock.LockCore(
            lock.LockPlan(
                keys=(key,),
                value=process.name.encode(),
                flags=LOCK_FLAGS,
                accept_flags=frozenset(),
                fair=process.fair,
                reentrant=False,
                session=session,
            )
        )
        for key in plan.keys
    }


class User:
    """One thread or task of an application."""

    def __init__(self, process: Process, locks: dict[str, LockCore], *, healed: Callable[[], bool]) -> None:
        self.process = process
        self.rng = process.rng
        self.judge = process.judge
        self.locks = locks
        self._healed = healed
        self._forgot_at = -FORGOTTEN_WITHIN

    async def run(self, io: SimIO) -> None:
        """Take rounds until the world is healed."""
        while not self._healed():
            if await self._round(io):
                gc.collect()  # failures leave circles of tracebacks behind, which may refer to the hold
                self._forgot_at = io.now()
            await io.sleep(self.rng.choice((0.0, self.rng.uniform(0, 0.3), self.rng.uniform(0, 3.0))))

    async def calm_rounds(self, io: SimIO) -> None:
        """Take each lock once more, whatever that takes."""
        for key in self.locks:
            hold = await self._acquire(io, self.locks[key], timeout=None)
            if hold is None:
                self.judge.convict("progress", f"{self.process.name} could not take {key}, all being well")
                return
            claim = self._claim(hold)
            await io.wait(hold.lost, deadline=io.now() + self.rng.uniform(0, CALM_HOLD))
            self.judge.write(claim)
            await self._give_back(io, hold, claim)

    # -- one round

    async def _round(self, io: SimIO) -> bool:
        """Acquire and use a lock; returns whether the hold was dropped without a release."""
        locked = self.rng.choice(list(self.locks.values()))
        # A second lock object with a session of its own would be another client, to the server.
        forgetful = self.rng.chance(FORGETFUL)
        if forgetful:
            locked = lock.LockCore(locked.plan)  # which keeps its holds for as long as it lasts
        call_off = self._plan_attack(io, locked)
        try:
            hold = await self._acquire(io, locked, timeout=self._timeout())
            if hold is not None:
                claim = self._claim(hold)
                try:
                    await self._work(io, hold, claim)
                finally:
                    if not forgetful:
                        await self._give_back(io, hold, claim)
        except Cancelled:
            io.task.uncancel()
            self.judge.see("task cancelled")
        except KeyboardInterrupt:
            self.judge.see("interrupted by Ctrl-C")
        finally:
            call_off()
        return forgetful

    def _timeout(self) -> float | None:
        kinds: Sequence[float | None] = (None, None, self.rng.uniform(0.0, 2.0), self.rng.uniform(0.0, 15.0))
        # A fair lock that is only tried may lose a race against a newcomer of the same moment.
        return self.rng.choice(kinds if self.process.fair else (*kinds, 0.0))

    def _plan_attack(self, io: SimIO, locked: LockCore) -> Callable[[], None]:
        """Have the round ended from outside, perhaps; returns how to call that off."""
        if not self.rng.chance(0.2):
            return _nothing
        attacks = (locked.cancel, io.task.cancel, io.task.strike)
        attack, delay = self.rng.choice(attacks), self.rng.choice((0.005, 0.1, 3.0))
        return self.process.alarm(io.now() + self.rng.uniform(0.0, delay), attack)

    async def _acquire(self, io: SimIO, locked: LockCore, *, timeout: float | None) -> HoldCore | None:
        process = self.process
        limit = "" if timeout is None else f", within {timeout:.2f} s"
        self.judge.note(process.name, f"acquires {locked.plan.key}{limit}")
        interrupt = Interrupt()
        locked.enter(interrupt)
        try:
            return await process.call(
                io.task,
                lambda io: lock.acquire(io, process.core, locked, timeout=timeout),
                interrupt=interrupt,
            )
        except AcquireTimeout as error:
            self.judge.see("tried in vain" if timeout == 0 else f"timed out: {error.blocker.kind}")
            self.judge.note(process.name, f"timed out: {error.blocker.kind}")
        except AcquireCancelled:
            self.judge.see("cancelled")
            self.judge.note(process.name, "was cancelled")
        except AlreadyHeld:
            # Somebody may be looking at a dropped hold just now, and lets go of it soon.
            if io.now() > self._forgot_at + FORGOTTEN_WITHIN:
                raise
            await io.sleep(0.1)
        except SessionCheckFailed:
            self.judge.see("no session for a failing check")
            await io.sleep(0.2)
        finally:
            locked.leave(interrupt)
        return None

    def _claim(self, hold: HoldCore) -> Claim:
        claim = self.judge.granted(self.process, hold)

        def told(_: object) -> None:
            claim.told = True

        self.process.core.on_lost(hold, told)
        return claim

    # -- holding

    async def _work(self, io: SimIO, hold: HoldCore, claim: Claim) -> None:
        over = io.now() + self._duration(hold)
        try:
            while io.now() < over and not hold.lost.is_set():
                await io.wait(
                    hold.lost, deadline=min(over, io.now() + self.rng.uniform(0.0, over - io.now() + 0.1))
                )
                await self._use(io, hold, claim)
        finally:
            self.judge.write(claim)

    async def _give_back(self, io: SimIO, hold: HoldCore, claim: Claim) -> None:
        await self._call(io, lambda io: release.release(io, self.process.core, hold))
        self.judge.write(claim)
        if self.rng.chance(0.3):
            await self._guarded(io, hold)

    def _duration(self, hold: HoldCore) -> float:
        if self.rng.chance(0.6):
            return self.rng.uniform(0.0, 0.3)
        longest = 3.0 if self.rng.chance(0.6) else 2.5 * min(hold.lease.longest, 10.0)
        return self.rng.uniform(0.3, longest)

    async def _use(self, io: SimIO, hold: HoldCore, claim: Claim) -> None:
        core = self.process.core
        self.judge.write(claim)
        match self.rng.randrange(6):
            case 0:
                await self._guarded(io, hold)
            case 1:
                value = self.rng.randbytes(2).hex().encode()
                await self._call(io, lambda io: hold_ops.put(io, core, hold, value))
            case 2:
                await self._call(io, lambda io: hold_ops.verify(io, core, hold))
            case 3:
                seconds = self.rng.uniform(0.0, hold.lease.longest)
                await self._call(io, lambda io: hold_ops.ensure(io, core, hold, seconds=seconds))
            case _:
                pass

    async def _guarded(self, io: SimIO, hold: HoldCore) -> None:
        write = TxnOp.set(GUARDED + hold.key, str(hold.fence))

        async def send(io: IO) -> None:
            call = txn.txn(*hold.guard(), write)
            await send_once(io, call, deadline=io.now() + self.process.core.timeout)

        await self._call(io, send)

    async def _call(self, io: SimIO, program: Callable[[IO], Coroutine[Any, Any, object]]) -> None:
        """Do something with a hold; it may be lost, or the agent unable."""
        try:
            await self.process.call(io.task, program, closing=True)
        except (LockLost, TxnFailed):
            pass
        except ConsulCoordError as error:
            if not retryable(error):
                raise


def _nothing() -> None:
    return None
