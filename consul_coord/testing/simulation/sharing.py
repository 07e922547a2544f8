"""Members of a group that share partitions: they join, own what falls to them, hand it over, and leave.

Rules
- A partition's lock is judged as any other lock: exclusion, fences, losses.
- ``on_acquired`` and ``on_released`` take turns for each partition. No callback comes after
  its stop.
- The callback of an owner that has to hand over comes while it still holds the partition's lock. It keeps
  that until the callback has returned, or ``handover`` seconds have passed, and not much longer.
- A member takes a partition only if the members have called for that lately, and hands it over only if they
  have not. It takes a free partition soon.
- Nobody keeps what is another member's by then, once it had time to finish. A partition whose owner could
  not begin is given up.
- The judge draws the owners by itself: processes with different versions of this package agree on them.
- A stop or a leave that returns before its time is complete, and returns soon when nothing goes wrong.
- A member shows the value that it was given last.
- Once the world is healed, a member that was lost joins again, and each partition goes to the member that the
  names of all members call for.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from consul_coord.errors import AcquireTimeout, ConsulCoordError, PermissionDenied, SessionCheckFailed
from consul_coord.http.failures import retryable
from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.group.members import GroupPlan
from consul_coord.recipes.group.membership import Membership, join, leave, update
from consul_coord.recipes.group.membership import members as list_members
from consul_coord.recipes.partition import partitioning as recipe
from consul_coord.testing.simulation.candidates import CALLED_WITHIN, ClumsyUser
from consul_coord.testing.simulation.driver import SimCalls
from consul_coord.testing.simulation.eyes import MemberEyes
from consul_coord.testing.simulation.holding import FAILED, Holder
from consul_coord.testing.simulation.promises import ENDED_WITHIN
from consul_coord.testing.simulation.views import View, queued

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Sequence

    from consul_coord.io import IO
    from consul_coord.recipes.hold.grant import Grant
    from consul_coord.testing.simulation.claims import Claim
    from consul_coord.testing.simulation.cluster import Cluster
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
ACTED_WITHIN = 4 * SETTLE + 1.5
"""Seconds after a change of the members within which a member acts on what was so before."""
OWNED_WITHIN = 2.5
"""Seconds within which a free partition is owned by the member that is to, once that has settled."""
TELLS_SHARE = 0.02
"""Of so many looks a member changes its value, or asks about the others."""
GIVEN_UP_WITHIN = 0.5
"""Seconds after an owner could not begin within which it hears that the partition is given up."""
FINISHES_SHARE = 0.4
"""Of so many callbacks before a handover the owner has still to finish something."""
JOINS_TWICE = 0.2
"""So often two tasks of a process join at once."""
FAILS_SHARE = 0.04
"""Of so many partitions that it gets, its owner can't begin."""
GIVES_SHARE = 0.02
"""Of so many looks a member is given another value."""
GIVES_WITHOUT_SHARE = 0.3
"""The same while it is no member: the value counts from its next join."""
JOINED_WITHIN = 1.0
"""Seconds within which a member joins, when nothing goes wrong."""
ENDED_SOON = 1.0
"""Seconds within which a member has stopped and left, when nothing goes wrong."""


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

    def owners(self, members: Collection[str]) -> dict[str, str]:
        """Return the member that each partition falls to; all versions of this package agree on that."""
        if not members:
            return {}
        return {one: max(members, key=lambda name: (_draw(name, one), name)) for one in self.partitions}

    def members(self, cluster: Cluster) -> list[tuple[str, str, bytes]]:
        """Return each member with its session and its value, the longest one first."""
        entries = [entry for entry in cluster.under(self.group.directory + "/") if entry.session]
        entries.sort(key=lambda entry: entry.create_index)
        return [(entry.key.rpartition("/")[2], entry.session, entry.value) for entry in entries]

    def owned(self, cluster: Cluster) -> dict[str, tuple[str, bytes, int] | None]:
        """Return who owns each partition: its session, its value, and its fence."""
        found = {one: cluster.entry(self.key(one)) for one in self.partitions}
        return {
            one: (entry.session, entry.value, entry.modify_index)
            if entry is not None and entry.session
            else None
            for one, entry in found.items()
        }

    def is_settled(self, judge: Judge) -> bool:
        """Return whether each partition is locked by the member that is to own it."""
        cluster = judge.cluster
        owners = self.owners({name for name, _, _ in self.members(cluster)})
        carers = {one: judge.carer(cluster.holder(self.key(one))) for one in owners}
        return bool(owners) and all(
            (carer := carers[partition]) is not None and carer.name == owner
            for partition, owner in owners.items()
        )


@lru_cache(maxsize=4096)
def _draw(member: str, partition: str) -> int:
    """Return what a member draws for a partition; the most wins, as all of them have the same weight."""
    return int.from_bytes(hashlib.blake2b(f"{member}/{partition}".encode(), digest_size=8).digest(), "big")


class SharingRules:
    """Judges who owns what, by the members that there are on the server."""

    def __init__(self, judge: Judge, cluster: Cluster, sharing: Sharing) -> None:
        self._judge = judge
        self._cluster = cluster
        self._sharing = sharing
        self._calls_for: list[tuple[float, dict[str, str]]] = [(0.0, {})]
        """The owners that the members called for, and since when; as far back as anybody may act on it."""
        self._free_since: dict[str, float] = {}
        """Since when a partition is free, with the member there that is to own it."""
        self._next_look = 0.0
        self._kept_since: dict[str, float] = {}
        """Since when a member keeps what is another's."""
        self._sharers: dict[str, float] = {}
        """The processes that share, each since when."""

    def look(self, *, written: bool) -> None:
        """Take note of the members, and judge whether what is free is taken."""
        if written:
            self._look_at_members()
        now = self._judge.now
        if now >= self._next_look:
            self._next_look = now + LOOK
            self._check_kept()
        for partition, since in self._free_since.items():
            owner = self._judge.process(self._calls_for[-1][1][partition])
            if owner is None or not owner.able:
                continue
            began = max(since, self._calls_for[-1][0] + 4 * SETTLE, self._undisturbed_since(owner))
            if now > began + OWNED_WITHIN * self._judge.stretch:
                if self._has_dead_waiter(partition):
                    self._free_since[partition] = now  # it delays the others for as long as its session lasts
                    continue
                text = f"{partition} is free for {now - since:.2f} s, and {owner.name} is to own it"
                self._judge.convict("progress", text)

    def _check_kept(self) -> None:
        """Judge that nobody keeps what is another's by now, once it had time to finish."""
        since, owners = self._calls_for[-1]
        for name, began in self._sharers.items():
            process = self._judge.process(name)
            if process is None or not process.able or process.core.closing.is_set():
                continue
            for partition, owner in owners.items():
                holder = self._cluster.holder(self._sharing.key(partition))
                if owner == name or not holder or process.core.sessions.get(holder) is None:
                    self._kept_since.pop(partition, None)
                    continue
                kept = self._kept_since.setdefault(partition, self._judge.now)
                late = max(kept, since, began, self._judge.promises.undisturbed_since(process))
                if self._judge.now > late + (ACTED_WITHIN + HANDOVER + OWNED_WITHIN) * self._judge.stretch:
                    seconds = self._judge.now - since
                    text = f"{name} keeps {partition}, which {owner} is to own for {seconds:.2f} s"
                    self._judge.convict("sharing", text)

    def _has_dead_waiter(self, partition: str) -> bool:
        """Return whether a contender queues for a partition whose process has crashed."""
        directory = waitqueue.directory(self._sharing.key(partition))
        return any(self._judge.carer(one) is None for one, _ in queued(self._cluster, directory))

    def _look_at_members(self) -> None:
        now, sharing = self._judge.now, self._sharing
        owners = sharing.owners({name for name, _, _ in sharing.members(self._cluster)})
        if owners != self._calls_for[-1][1]:
            while len(self._calls_for) > 1 and self._calls_for[1][0] < now - 2 * ACTED_WITHIN:
                del self._calls_for[0]
            self._calls_for.append((now, owners))
            self._free_since.clear()
        for partition, owner in owners.items():
            key = sharing.key(partition)
            shares = owner in self._sharers
            if self._cluster.holder(key) or self._cluster.in_lock_delay(key) or not shares:
                self._free_since.pop(partition, None)
            else:
                self._free_since.setdefault(partition, now)

    def _undisturbed_since(self, process: Process) -> float:
        """Return since when a member could have taken what is free."""
        promises = self._judge.promises
        rest = promises.contact(process.name).patience()
        return max(promises.troubled(process.name), process.awake_since, self._sharers[process.name]) + rest

    def begins(self, process: Process) -> None:
        """Take note of a member that begins to share."""
        self._sharers[process.name] = self._judge.now

    def ends(self, process: Process) -> None:
        """Take note that it shares no more."""
        self._sharers.pop(process.name, None)
        self._free_since.clear()

    def moved(self, process: Process, partition: str, *, comes: bool) -> None:
        """Judge that a member begins to own a partition, or hands it over while it goes on."""
        since = self._judge.now - ACTED_WITHIN * self._judge.stretch
        if self._judge.answers.excused(process, since=since):
            return
        ends = [at for at, _ in self._calls_for[1:]] + [math.inf]
        lately = [owners for (_, owners), end in zip(self._calls_for, ends, strict=True) if end > since]
        if not any((owners.get(partition) == process.name) is comes for owners in lately):
            what = "takes" if comes else "gives away"
            text = f"{process.name} {what} {partition}, and its members did not call for that"
            self._judge.convict("sharing", text)


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
        self._eyes = MemberEyes(self.process, self._member)
        call = self.judge.promises.called(self.process, f"joins {self._sharing.prefix}", timeout)
        began, since = io.now(), self.judge.now
        self._close_eyes = self.judge.eyes.open(self._eyes.look)
        self._eyes.joins += 1
        if self.more.chance(JOINS_TWICE):
            self.process.spawn(partial(self._join_too, timeout), name="another that joins")
        try:
            await self.process.call(io.task, lambda io: join(io, self._member, timeout=timeout))
        except AcquireTimeout as error:
            took = io.now() - began
            self.judge.answers.waited(self.process, error, took=took, timeout=timeout or 0.0)
            if took > JOINED_WITHIN and not self.judge.answers.excused(self.process, since=since):
                self.judge.convict("progress", f"{self.process.name} could not join: {error}")
            return self._joined_not()
        except (PermissionDenied, SessionCheckFailed):
            return self._joined_not()
        except ConsulCoordError as error:
            if not retryable(error):
                raise
            return self._joined_not()
        finally:
            self.judge.promises.ended(call)
            self._eyes.joins -= 1
        self.judge.see("joined")
        return True

    def _joined_not(self) -> bool:
        """Stop looking at a membership that did not come about."""
        self._close_eyes()
        return False

    async def _join_too(self, timeout: float | None, io: SimIO) -> None:
        """Join as another task of the process does at the same time."""
        try:
            await self.process.call(io.task, partial(join, membership=self._member, timeout=timeout))
        except ConsulCoordError:
            self.judge.see("joined at once in vain")

    async def _share(self, io: SimIO, *, until: float) -> None:
        """Own partitions for a while; in a calm world, until each is with its owner, too."""
        core, sharing, office = self.process.core, self._sharing, Office(self)
        plan = self._partitions = recipe.PartitionPlan(
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
            core,
            plan,
            lambda: self.process.name,
            defaultdict(lambda: SimCalls(self.process.host)),
            keeps=self,
        )
        await self.process.call(io.task, lambda io: recipe.start(io, partitioning))
        least, rules = until if self.healed() else -math.inf, self.judge.sharing
        eyes = self.judge.eyes
        close_eyes = [self._close_eyes, eyes.open(office.check_finishing)]
        if rules is not None:
            rules.begins(self.process)
        try:
            while io.now() < least or not self._is_enough(io, office, partitioning, until=until):
                await io.sleep(LOOK)
                office.look(io)
                if self.rng.chance(TELLS_SHARE):
                    await self._tell(io)
                elif self.more.chance(
                    GIVES_SHARE if self._member.is_joined(io.now()) else GIVES_WITHOUT_SHARE
                ):
                    await self._give_value(io)
        finally:
            if rules is not None:
                rules.ends(self.process)
            if not self.process.crashed:
                await self._stop(io, office, partitioning)
            for close in close_eyes:
                close()

    async def _stop(self, io: SimIO, office: Office, partitioning: recipe.Partitioning) -> None:
        """Own nothing any more, and leave."""
        office.stopping = True
        if await self._end("stops sharing", partial(recipe.stop, partitioning=partitioning), io):
            office.check_stopped(io)
        if partitioning.task is None or partitioning.task.done.is_set():
            office.stopped = io.now()
        self._eyes.is_leaving = True
        has_left = await self._end("leaves the group", partial(leave, membership=self._member), io)
        if has_left and self._member.is_joined(io.now()):
            self.judge.convict("sharing", f"{self.process.name} has left, and is a member")
        hold, holder = self._member.hold, self.judge.cluster.holder(self._member.key)
        is_done = has_left and hold is not None and hold.released and not self.process.core.reaper.pending
        if is_done and hold is not None and holder == hold.session:
            self.judge.convict("released", f"{self.process.name} has left, and the server has it")

    async def _tell(self, io: SimIO) -> None:
        """Change the member's value, or ask about the others."""
        if self.rng.chance(0.5):
            await self._look_round(io, self._sharing.prefix)
            return
        await self._give_value(io)

    async def _give_value(self, io: SimIO) -> None:
        core, value = self.process.core, self.rng.randbytes(2).hex().encode()
        change = partial(update, membership=self._member, key=self._member.key, value=value)
        hold = self._member.hold
        self._eyes.gives(value)
        if await self.call(io, change, what="changes its value", within=core.timeout) is FAILED:
            return
        self._eyes.has_given()
        entry = self.judge.cluster.entry(self._member.key)
        if entry is not None and hold is not None and entry.session == hold.session and entry.value != value:
            text = f"{self.process.name}'s value is said to be {value!r}, and is {entry.value!r}"
            self.judge.convict("sharing", text)

    def views(self, of: str) -> Sequence[View]:
        """Ask who is a member, and who owns what."""
        core, sharing = self.process.core, self._sharing

        async def ask(io: IO) -> object:
            return [(one.id, one.session, one.value) for one in await list_members(io, core, sharing.group)]

        async def ask_owners(io: IO) -> object:
            found = await recipe.holders(io, core, self._partitions)
            return {
                name: None if one is None else (one.session, one.value, one.fence)
                for name, one in found.items()
            }

        return (
            View(f"asks who is in {of}", ask, sharing.members),
            View(f"asks who owns what in {of}", ask_owners, sharing.owned),
        )

    async def _end(self, what: str, program: Callable[..., Coroutine[Any, Any, object]], io: SimIO) -> bool:
        """Stop something, in more or less time; returns whether it has ended before its time was over."""
        timeout = 5.0 if self.healed() else self.rng.choice((0.5, 5.0, 5.0))
        began, since = io.now(), self.judge.now
        call = self.judge.promises.called(self.process, f"{what} of {self._sharing.prefix}", timeout)
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
        self._failed: dict[str, float] = {}
        """The partitions whose ``on_acquired`` has raised an error, and when: they are given up."""
        self._finishing: dict[str, tuple[Grant, float, float]] = {}
        """The partitions to be handed over while their owners finish, since when, and until when they may."""
        self.stopping = False
        self.stopped = math.inf
        """When its stop returned, by the process's clock."""

    def check_stopped(self, io: SimIO) -> None:
        """Judge a stop that is said to be complete."""
        process, judge = self._user.process, self._user.judge
        held = [partition for partition, (hold, _) in self._owned.items() if hold.is_held(io.now())]
        if held and process.able and not process.core.closing.is_set():
            judge.convict("sharing", f"{process.name} has stopped, and owns {', '.join(held)}")

    def acquired(self, partition: str, hold: Grant) -> None:
        """Judge a call of ``on_acquired``."""
        user, process, judge = self._user, self._user.process, self._user.judge
        if partition in self._owned:
            judge.convict("sharing", f"{process.name} heard twice that it owns {partition}")
        if process.clock.now() > self.stopped + CALLED_WITHIN and not process.awake_since:
            judge.convict("sharing", f"{process.name} heard of {partition} after it had stopped")
        judge.see("partition acquired")
        if judge.sharing is not None:
            judge.sharing.moved(process, partition, comes=True)
        claim = judge.granted(process, hold, of=hold.key, actor=user.actor)
        process.core.holds.on_lost(hold, lambda _: judge.told(claim))
        self._owned[partition] = hold, claim
        if not user.healed() and user.more.chance(FAILS_SHARE):
            self._failed[partition] = judge.now
            judge.see("on_acquired failed")
            raise ClumsyUser

    def released(self, partition: str, hold: Grant) -> float | None:
        """Judge a call of ``on_released``; returns the seconds that the owner takes to finish, if any."""
        process, judge = self._user.process, self._user.judge
        owned, claim = self._owned.pop(partition, (None, None))
        failed = self._failed.pop(partition, None) is not None
        if owned is not hold or claim is None:
            judge.convict("sharing", f"{process.name} heard that it owns {partition} no more, and never did")
            return None
        judge.see("partition lost" if hold.ended else "partition handed over")
        if hold.released and not process.awake_since:
            judge.convict("sharing", f"{process.name} gave {partition} away, and told its owner afterwards")
        if not hold.ended:
            judge.write(claim)
            judge.tell(claim, "released")
            if judge.sharing is not None and not (failed or self.stopping or process.core.closing.is_set()):
                judge.sharing.moved(process, partition, comes=False)
        claim.left = True
        more = self._user.more
        # What could not begin has nothing to finish.
        if failed or hold.ended or self._user.healed() or not more.chance(FINISHES_SHARE):
            return None
        lasts, now = more.uniform(0.0, 1.5 * HANDOVER), process.clock.now()
        self._finishing[partition] = hold, now, now + min(lasts, HANDOVER)
        return lasts

    def check_finishing(self) -> None:
        """Judge whether what is handed over is kept for as long as its owner may finish, and no longer."""
        process, judge = self._user.process, self._user.judge
        now = process.clock.now()
        for partition, at in self._failed.items():
            late = judge.now > max(at, process.awake_since) + GIVEN_UP_WITHIN + process.slept
            if late and process.able and not process.core.closing.is_set():
                judge.convict("sharing", f"{process.name} keeps {partition}, whose on_acquired has failed")
        for partition, (hold, since, until) in list(self._finishing.items()):
            if hold.reason is not None or process.core.closing.is_set() or not process.able:
                del self._finishing[partition]
            elif hold.released:
                del self._finishing[partition]
                judge.see("owner finished")
                if now < until - LOOK:
                    text = f"{process.name} gave {partition} away {until - now:.2f} s before its owner"
                    judge.convict("sharing", f"{text} had finished")
            elif now > until + ENDED_SOON and not judge.answers.excused(process, since=judge.now - HANDOVER):
                text = f"{process.name} keeps {partition} {now - since:.2f} s after it was to hand it over"
                judge.convict("in time", text)

    def look(self, io: SimIO) -> None:
        """Work on what is owned."""
        for hold, claim in list(self._owned.values()):
            self._user.judge.asked(claim, held=hold.is_held(io.now()))
            self._user.judge.write(claim)

    def has_all(self, owned: dict[str, Grant]) -> bool:
        """Return whether the callbacks have named exactly these."""
        return {name: hold for name, (hold, _) in self._owned.items()} == owned
