"""Users of locks, of locks of several keys, of read-write locks, and of semaphores."""

from __future__ import annotations

import weakref
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from consul_coord.errors import ConsulCoordError, DecodeError, PermissionDenied
from consul_coord.http.failures import retryable
from consul_coord.models import LOCK_FLAGS, SEMAPHORE_FLAGS, SessionSpec
from consul_coord.models.session import SERF_HEALTH
from consul_coord.recipes.contend.queue import directory
from consul_coord.recipes.contend.recipe import acquire
from consul_coord.recipes.lock import lock
from consul_coord.recipes.lock.plan import LockPlan
from consul_coord.recipes.rwlock import lock as rwlock
from consul_coord.recipes.rwlock.queue import base_of
from consul_coord.recipes.semaphore import semaphore
from consul_coord.recipes.semaphore.plan import SemaphorePlan
from consul_coord.testing.simulation.acts import acquire_again
from consul_coord.testing.simulation.dice import Dice
from consul_coord.testing.simulation.holding import User
from consul_coord.testing.simulation.mistakes import try_with_slots
from consul_coord.testing.simulation.views import (
    View,
    inside,
    outside,
    queued,
    slot_holders,
    slot_waiters,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from consul_coord.errors import SemaphoreLimitConflict
    from consul_coord.io import IO
    from consul_coord.recipes.hold.grant import Grant, Handle
    from consul_coord.testing.simulation.claims import Claim
    from consul_coord.testing.simulation.driver import SimIO
    from consul_coord.testing.simulation.plan import Plan, Pool
    from consul_coord.testing.simulation.process import Process


ACQUIRES_AGAIN = 0.2
"""So often a curious user acquires a lock that it holds."""


def locks_of(process: Process, plan: Plan) -> dict[str, lock.LockObject]:
    """Return a lock object for each key, shared by the users of a process."""
    return _lock_objects(process, plan, [(key,) for key in plan.keys])


def several_of(process: Process, plan: Plan) -> dict[str, lock.LockObject]:
    """Return a lock object for all keys together, shared by the users of a process."""
    return _lock_objects(process, plan, [plan.keys] if plan.several else [])


def _lock_objects(
    process: Process, plan: Plan, all_keys: Sequence[tuple[str, ...]]
) -> dict[str, lock.LockObject]:
    session = plan.own_spec if process.rng.chance(0.3) else None
    # Who hands its session over keeps no hold that could be entered again.
    enters = plan.curious and not plan.keeping
    reentrant = enters and Dice(plan.seed, f"{process.name} is re-entrant").chance(0.3)
    return {
        " and ".join(keys): lock.LockObject(
            LockPlan(
                keys=keys,
                value=process.name.encode(),
                fair=process.fair,
                reentrant=reentrant,
                session=session,
            )
        )
        for keys in all_keys
    }


def semaphores_of(process: Process, plan: Plan) -> dict[str, semaphore.SemaphoreObject]:
    """Return a semaphore object for each prefix, shared by the users of a process."""
    return {
        pool.prefix: semaphore.SemaphoreObject(_semaphore_plan(process, plan, pool), pool.limit)
        for pool in plan.pools
    }


def _semaphore_plan(process: Process, plan: Plan, pool: Pool) -> SemaphorePlan:
    return SemaphorePlan(
        prefix=pool.prefix,
        value=process.name.encode(),
        flags=SEMAPHORE_FLAGS,
        accept_flags=frozenset(),
        fair=process.fair,
        session=SessionSpec(ttl=plan.spec.ttl, lock_delay=pool.lock_delay, node_checks=(SERF_HEALTH,))
        if pool.lock_delay
        else None,
    )


def rwlocks_of(process: Process, plan: Plan) -> dict[str, rwlock.RwSide]:
    """Return both sides of each read-write lock, shared by the users of a process."""
    return {of: side for name in plan.rwlocks for of, side in _sides_of(process, name).items()}


def _sides_of(process: Process, name: str) -> dict[str, rwlock.RwSide]:
    return {f"{name} to {side.mode}": side for side in _sides_with(name, process.name.encode())}


def _sides_with(name: str, value: bytes) -> tuple[rwlock.RwSide, rwlock.RwSide]:
    return rwlock.sides(name, value=value, flags=LOCK_FLAGS, session=None)


class LockUser(User):
    """A user of locks."""

    writes_late = True
    _taken: Callable[[], lock.LockObject | None]
    """The lock that was acquired last. It is not kept here, because it keeps its hold."""

    def __init__(
        self, process: Process, actor: str, locks: dict[str, lock.LockObject], *, healed: Callable[[], bool]
    ) -> None:
        super().__init__(process, actor, healed=healed)
        self._locks = locks

    def choices(self) -> Sequence[str]:
        """Return the keys."""
        return list(self._locks)

    def claimed(self, of: str) -> Sequence[str]:
        """Return the keys of a lock."""
        return self._locks[of].plan.keys

    def object_for(self, of: str, *, alone: bool) -> lock.LockObject:
        """Return the lock of a key."""
        # A second lock object with a session of its own would be another client, to the server.
        return lock.LockObject(self._locks[of].plan) if alone else self._locks[of]

    def valued(self) -> Mapping[str, Callable[[bytes], object]]:
        """Return what makes these locks with another value."""
        return {of: partial(self._with_value, of) for of in self._locks}

    def _with_value(self, of: str, value: bytes) -> lock.LockObject:
        return lock.LockObject(replace(self._locks[of].plan, value=value))

    async def _use(self, io: SimIO, hold: Grant, claim: Claim) -> None:
        await super()._use(io, hold, claim)
        taken = self._taken()
        if self.process.curious and self.more.chance(ACQUIRES_AGAIN) and not hold.ended and taken is not None:
            limited = taken.reentrant and self.chance.chance(2 * self.process.stuck)
            max_hold = self.chance.uniform(0.01, 3.0) if limited else None
            await acquire_again(self.process, io, taken, claim, max_hold=max_hold)

    async def take(self, io: IO, what: Any, *, timeout: float | None) -> Handle:  # noqa: ANN401 - a LockObject
        """Acquire a lock."""
        self._taken = weakref.ref(what)
        return await acquire(io, self.process.core, what, timeout=timeout, max_hold=self.max_hold)

    def views(self, of: str) -> Sequence[View]:
        """Ask who queues for a key."""
        locked = next(each for each in self._locks.values() if of in each.plan.keys)

        async def ask(io: IO) -> object:
            found = await lock.contenders(io, self.process.core, locked)
            return [(each.session, each.create_index) for each in found]

        first = locked.plan.key
        return (View(f"asks who waits for {first}", ask, partial(queued, directory=directory(first))),)

    async def in_conflict(self, io: SimIO, of: str, error: SemaphoreLimitConflict) -> None:  # noqa: ARG002
        """Be surprised: a lock has no limit."""
        raise error


class RwUser(User):
    """A user of read-write locks, now to read, now to write."""

    def __init__(
        self,
        process: Process,
        actor: str,
        sides: dict[str, rwlock.RwSide],
        *,
        healed: Callable[[], bool],
    ) -> None:
        super().__init__(process, actor, healed=healed)
        self._sides = sides

    def choices(self) -> Sequence[str]:
        """Return the sides of the locks."""
        return list(self._sides)

    def claimed(self, of: str) -> Sequence[str]:
        """Return the lock of a side."""
        return (self._sides[of].name,)

    def valued(self) -> Mapping[str, Callable[[bytes], object]]:
        """Return what makes these read-write locks with another value."""
        return {side.name: partial(_sides_with, side.name) for side in self._sides.values()}

    def object_for(self, of: str, *, alone: bool) -> rwlock.RwSide:
        """Return a side of a lock."""
        return _sides_of(self.process, self._sides[of].name)[of] if alone else self._sides[of]

    async def take(self, io: IO, what: Any, *, timeout: float | None) -> Handle:  # noqa: ANN401 - an RwSide
        """Acquire a side of a lock."""
        return await acquire(io, self.process.core, what, timeout=timeout, max_hold=self.max_hold)

    def views(self, of: str) -> Sequence[View]:
        """Ask who is in, and who waits to get in."""
        core, side = self.process.core, next(each for each in self._sides.values() if each.name == of)

        async def ask_inside(io: IO) -> object:
            return [(each.session, each.fence) for each in await rwlock.holders(io, core, side)]

        async def ask_outside(io: IO) -> object:
            return [(each.session, each.position) for each in await rwlock.contenders(io, core, side)]

        queue = directory(base_of(of))
        return (
            View(f"asks who is in {of}", ask_inside, partial(inside, directory=queue)),
            View(f"asks who waits for {of}", ask_outside, partial(outside, directory=queue)),
        )

    async def in_conflict(self, io: SimIO, of: str, error: SemaphoreLimitConflict) -> None:  # noqa: ARG002
        """Be surprised: there is no limit."""
        raise error


class SlotUser(User):
    """A user of semaphores."""

    def __init__(
        self,
        process: Process,
        actor: str,
        semaphores: dict[str, semaphore.SemaphoreObject],
        *,
        several: bool,
        healed: Callable[[], bool],
    ) -> None:
        super().__init__(process, actor, healed=healed)
        self._semaphores = semaphores
        self._permits = Dice(process.seed, f"{process.name} {actor} takes several slots") if several else None

    def choices(self) -> Sequence[str]:
        """Return the prefixes."""
        return list(self._semaphores)

    def object_for(self, of: str, *, alone: bool) -> semaphore.SemaphoreObject:
        """Return the semaphore of a prefix."""
        shared = self._semaphores[of]
        return semaphore.SemaphoreObject(shared.plan, shared.limit) if alone else shared

    def try_mistakes(self) -> None:
        """Try limits and numbers of slots, too."""
        super().try_mistakes()
        for each in self._semaphores.values():
            try_with_slots(self.process, each)

    async def take(self, io: IO, what: Any, *, timeout: float | None) -> Handle:  # noqa: ANN401 - a SemaphoreObject
        """Acquire a slot, or several."""
        permits = 1 if self._permits is None else self._permits.randint(1, what.limit)
        return await acquire(io, self.process.core, what.of(permits), timeout=timeout, max_hold=self.max_hold)

    async def prepare(self, io: SimIO, what: Any) -> None:  # noqa: ANN401 - as above
        """Change the limit, once in a while."""
        if not self.healed() and self.rng.chance(0.03):
            limit = self.rng.choice((1, 2, 3))
            await self._change_limit(io, what, limit)

    def views(self, of: str) -> Sequence[View]:
        """Ask who holds the slots, and who waits for one, where the record can always be read."""
        core, what = self.process.core, self._semaphores[of]

        async def ask(io: IO) -> object:
            found = await semaphore.holders(io, core, what)
            return sorted((each.session, each.fence) for each in found), [each.since_index for each in found]

        async def ask_waiters(io: IO) -> object:
            return [(each.session, each.position) for each in await semaphore.contenders(io, core, what)]

        if self.judge.damages:
            return ()
        return (
            View(f"asks who holds {of}", ask, partial(slot_holders, prefix=of), requests=2),
            View(f"asks who waits for {of}", ask_waiters, partial(slot_waiters, prefix=of)),
        )

    async def in_conflict(self, io: SimIO, of: str, error: SemaphoreLimitConflict) -> None:
        """Insist on the own limit, or go on with a semaphore of the other one."""
        shared = self._semaphores[of]
        if self.healed() or self.rng.chance(0.6):
            self._semaphores[of] = semaphore.SemaphoreObject(shared.plan, max(error.remote, 1))
        else:
            await self._change_limit(io, shared, shared.limit)

    async def _change_limit(self, io: SimIO, what: semaphore.SemaphoreObject, limit: int) -> None:
        within = self.process.core.timeout
        await self.call(io, lambda io: self._resize(io, what, limit), what="resizes", within=within)

    async def _resize(self, io: IO, core: semaphore.SemaphoreObject, limit: int) -> None:
        try:
            await semaphore.resize(io, self.process.core, core, limit)
        except ConsulCoordError as error:
            if not retryable(error) and not isinstance(error, DecodeError | PermissionDenied):
                raise
        else:
            if core.limit != limit:
                text = f"{self.process.name} has changed {core.plan.prefix}'s limit to {limit}"
                self.judge.convict("answers", f"{text}, and goes on with {core.limit}")
