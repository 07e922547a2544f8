"""Members of a group that share partitions: they join, own what falls to them, hand it over, and leave.

Rules
- A partition's lock is judged as any other lock: exclusion, fences, losses.
- ``on_acquired`` and ``on_released`` take turns for each partition. No callback comes after
  its stop.
- The callback of an owner that has to hand over comes while it still holds the partition's lock.
- Once the world is healed, a member that was lost joins again, and each partition goes to the member that the
  names of all members call for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from consul_coord.errors import AcquireTimeout, ConsulCoordError, PermissionDenied, SessionCheckFailed
from consul_coord.http.failures import retryable
from consul_coord.recipes.group.members import GroupPlan
from consul_coord.recipes.group.membership import Membership, join, leave
from consul_coord.recipes.partition import partitioning as recipe
from consul_coord.recipes.partition.rendezvous import Rendezvous
from consul_coord.testing.simulation.candidates import CALLED_WITHIN
from consul_coord.testing.simulation.driver import SimCalls
from consul_coord.testing.simulation.holding import Holder

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from consul_coord.recipes.hold.grant import Grant
    from consul_coord.testing.simulation.claims import Claim
    from consul_coord.testing.simulation.driver import SimIO
    from consul_coord.testing.simulation.judge import Judge
    from consul_coord.testing.simulation.process import Process

SETTLE = 0.2
"""Seconds for which a group has to be quiet before partitions move."""
HANDOVER = 2.0
"""Seconds that an owner has to finish."""
CALM_JOIN = 2.0
"""Seconds within which all join in a calm world."""
CALM_STAY = 3.0
"""Seconds for which they stay, at least."""
LOOK = 0.1
"""Seconds between two looks of a member at what it owns."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """A group, and what its members share."""

    prefix: str
    partitions: tuple[str, ...]

    @property
    def group(self) -> GroupPlan:
        """The group."""
        return GroupPlan(self.prefix)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the partitions' locks."""
        return tuple(map(self.key, self.partitions))

    def key(self, partition: str) -> str:
        """Return the key of a partition's lock."""
        return f"{self.prefix}/partitions/{partition}"

    def is_settled(self, judge: Judge) -> bool:
        """Return whether each partition is locked by the member that is to own it."""
        start, cluster = self.group.directory + "/", judge.cluster
        members = [entry.key.rpartition("/")[2] for entry in cluster.under(start) if entry.session]
        owners = Rendezvous(self.partitions).owners(dict.fromkeys(members, 1.0))
        carers = {one: judge.carer(cluster.holder(self.key(one))) for one in owners}
        return bool(owners) and all(
            (carer := carers[partition]) is not None and carer.name == owner
            for partition, owner in owners.items()
        )


class MemberUser(Holder):
    """The member of one process."""

    def __init__(self, process: Process, sharing: Sharing, *, healed: Callable[[], bool]) -> None:
        super().__init__(process, "member", healed=healed)
        self._sharing = sharing
        process.fair = False  # as a partition's lock is

    async def run(self, io: SimIO) -> None:
        """Be a member now and then, until the world is healed."""
        while not self.healed():
            if await self._join(io, timeout=self.rng.uniform(0.0, 8.0)):
                await self._share(io, until=io.now() + self.rng.uniform(0.0, 15.0))
            await io.sleep(self.rng.uniform(0.0, 2.0))

    async def calm_rounds(self, io: SimIO) -> None:
        """Be a member for some time, until all partitions are with their owners."""
        await io.sleep(self.rng.uniform(0.0, CALM_JOIN))
        if await self._join(io, timeout=None):
            await self._share(io, until=io.now() + CALM_STAY)
        else:
            self.judge.convict("progress", f"{self.process.name} could not join, all being well")

    async def _join(self, io: SimIO, *, timeout: float | None) -> bool:
        core, name = self.process.core, self.process.name
        self._member = Membership(
            core, self._sharing.group, name, b"", evictable=self.rng.chance(0.2), keeps=self
        )
        try:
            await self.process.call(io.task, lambda io: join(io, self._member, timeout=timeout))
        except (AcquireTimeout, PermissionDenied, SessionCheckFailed):
            return False
        except ConsulCoordError as error:
            if not retryable(error):
                raise
            return False
        self.judge.see("joined")
        return True

    async def _share(self, io: SimIO, *, until: float) -> None:
        """Own partitions for a while; in a calm world, until each is with its owner, too."""
        core, sharing, office = self.process.core, self._sharing, Office(self)
        plan = recipe.PartitionPlan(
            group=sharing.group,
            partitions=sharing.partitions,
            settle=SETTLE,
            handover=HANDOVER,
            bound=None,
            weight=None,
            on_acquired=office.acquired,
            on_released=office.released,
        )
        partitioning = recipe.Partitioning(
            core, plan, lambda: self.process.name, lambda: SimCalls(self.process.host), keeps=self
        )
        await self.process.call(io.task, lambda io: recipe.start(io, partitioning))
        least = until if self.healed() else -math.inf
        try:
            while io.now() < least or not self._is_enough(io, office, partitioning, until=until):
                await io.sleep(LOOK)
                office.look(io)
        finally:
            if not self.process.crashed:
                await self._end("stops sharing", partial(recipe.stop, partitioning=partitioning), io)
                if partitioning.task is None or partitioning.task.done.is_set():
                    office.stopped = io.now()
                await self._end("leaves the group", partial(leave, membership=self._member), io)

    async def _end(self, what: str, program: Callable[..., Coroutine[Any, Any, object]], io: SimIO) -> None:
        """Stop something, in more or less time."""
        timeout = 5.0 if self.healed() else self.rng.choice((0.5, 5.0, 5.0))
        call = self.judge.promises.called(self.process, f"{what} of {self._sharing.prefix}", timeout)
        try:
            await self.process.call(io.task, lambda io: program(io, timeout=timeout), closing=True)
        finally:
            self.judge.promises.ended(call)

    def _is_enough(
        self, io: SimIO, office: Office, partitioning: recipe.Partitioning, *, until: float
    ) -> bool:
        if not self.healed():
            return io.now() >= until
        hold = self._member.hold
        if hold is not None and hold.reason in self._member.final:
            return True
        joined = self._member.is_joined(io.now())
        owned = partitioning.owned(io.now())
        return joined and self._sharing.is_settled(self.judge) and office.has_all(owned)


class Office:
    """The callbacks of one member."""

    def __init__(self, user: MemberUser) -> None:
        self._user = user
        self._owned: dict[str, tuple[Grant, Claim]] = {}
        self.stopped = math.inf
        """When its stop returned, by the process's clock."""

    def acquired(self, partition: str, hold: Grant) -> None:
        """Judge a call of ``on_acquired``."""
        user, process, judge = self._user, self._user.process, self._user.judge
        if partition in self._owned:
            judge.convict("sharing", f"{process.name} heard twice that it owns {partition}")
        if process.clock.now() > self.stopped + CALLED_WITHIN and not process.awake_since:
            judge.convict("sharing", f"{process.name} heard of {partition} after it had stopped")
        judge.see("partition acquired")
        claim = judge.granted(process, hold, of=hold.key, actor=user.actor)
        process.core.holds.on_lost(hold, lambda _: judge.told(claim))
        self._owned[partition] = hold, claim

    def released(self, partition: str, hold: Grant) -> None:
        """Judge a call of ``on_released``."""
        process, judge = self._user.process, self._user.judge
        owned, claim = self._owned.pop(partition, (None, None))
        if owned is not hold or claim is None:
            judge.convict("sharing", f"{process.name} heard that it owns {partition} no more, and never did")
            return
        judge.see("partition lost" if hold.ended else "partition handed over")
        if hold.released and not process.awake_since:
            judge.convict("sharing", f"{process.name} gave {partition} away, and told its owner afterwards")
        if not hold.ended:
            judge.write(claim)
            judge.tell(claim, "released")
        claim.left = True

    def look(self, io: SimIO) -> None:
        """Work on what is owned."""
        for hold, claim in list(self._owned.values()):
            self._user.judge.asked(claim, held=hold.is_held(io.now()))
            self._user.judge.write(claim)

    def has_all(self, owned: dict[str, Grant]) -> bool:
        """Return whether the callbacks have named exactly these."""
        return {name: hold for name, (hold, _) in self._owned.items()} == owned
