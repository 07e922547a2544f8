"""Members of a group that share partitions: they join, own what falls to them, hand it over, and leave.

Rules
- A partition's lock is judged as any other lock: exclusion, fences, losses.
- ``on_acquired`` and ``on_released`` take turns for each partition. No callback comes after
  its stop.
- The callback of an owner that has to hand over comes while it still holds the partition's lock. It keeps
  that until the callback has returned, or ``handover`` seconds have passed, and not much longer.
- A member takes a partition only if the members have called for that lately, and hands it over only if they
  have not. It does so when the group has been quiet for ``settle`` seconds, and not before. It takes a free
  partition soon.
- No member keeps a partition that is another one's by then, once it had time to finish. A partition whose
  owner could not begin is given up.
- The judge draws the owners by itself, also by the members' weights, and with a bound on what one of them may
  own: processes with different versions of this package agree on them.
- A partition whose owner could not begin is taken again after a pause that grows each time.
- The error of a user's function, or an invalid weight, is reported once.
- A stop that returns before its time is complete, and returns soon when nothing goes wrong.
- Once the world is healed, a member that was lost joins again, and each partition goes to the member that the
  names of all members call for.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.group.members import GroupPlan
from consul_coord.recipes.partition import partitioning as recipe
from consul_coord.testing.simulation.candidates import CALLED_WITHIN, ClumsyUser
from consul_coord.testing.simulation.dice import Dice
from consul_coord.testing.simulation.driver import SimCalls
from consul_coord.testing.simulation.joining import ENDED_SOON, HANDOVER, Joiner
from consul_coord.testing.simulation.mistakes import MAKES_MISTAKES, try_as_member
from consul_coord.testing.simulation.views import View, queued

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from consul_coord.io import IO
    from consul_coord.models import Member
    from consul_coord.recipes.hold.grant import Grant
    from consul_coord.testing.simulation.claims import Claim
    from consul_coord.testing.simulation.cluster import Cluster
    from consul_coord.testing.simulation.driver import SimIO
    from consul_coord.testing.simulation.judge import Judge
    from consul_coord.testing.simulation.process import Process

SETTLE = 0.2
"""Seconds for which a group has to be quiet before partitions move."""
CALM_JOIN = 2.0
"""Seconds within which all join in a calm world."""
CALM_STAY = 3.0
"""Seconds for which they stay, at least."""
LOOK = 0.1
"""Seconds between two looks of a member at what it owns."""
ACTED_WITHIN = 4 * SETTLE + 1.5
"""Seconds after a change of the members within which a member acts on what was so before."""
MOST_SETTLED = 4 * SETTLE + 0.2
"""Seconds for which changes that keep coming may be waited out, at most."""
QUIETLY = 0.02
"""Seconds by which a group may have been quiet for less, by clocks and timers."""
OWNED_WITHIN = 2.0
"""Seconds within which a free partition is owned by the member that is to, once that has settled."""
STEADY_SHARE, STEADY_STAY = 0.4, 15.0
"""So many members stay for so long at least."""
QUIET_SHARE = 0.5
"""So many change no value: others hear of nothing but who comes and goes."""
BRIEFLY = 0.5
"""Of so many times one of the others stays for a moment only, and is away for longer."""
BRIEF_STAY, LONGEST_STAY = 1.0, 15.0
"""Seconds for which it stays at most."""
REST, LONG_REST = (0.0, 2.0), (4.0, 8.0)
"""Seconds for which it is away then."""
TELLS_SHARE = 0.02
"""Of so many looks a member changes its value, or asks about the others."""
GIVEN_UP_WITHIN = 0.5
"""Seconds after an owner could not begin within which it hears that the partition is given up."""
FINISHES_SHARE = 0.4
"""Of so many callbacks before a handover the owner has still to finish something."""
LONGEST_FINISH = 5.0
"""Seconds that this takes at most: longer than it may."""
FAILS_SHARE = 0.04
"""Of so many partitions that it gets, its owner can't begin."""
FAILS_AGAIN = 0.6
"""The same right after that, up to so many times in a row:"""
MOST_FAILURES = 4
FIRST_PAUSE = 0.05
"""Seconds at least until its owner gets again what it could not begin; each time in a row they double."""
ENDS_BADLY = 0.05
"""Of so many partitions that it owns no more, its owner fails to take note."""
GIVES_SHARE = 0.02
"""Of so many looks a member is given another value."""
GIVES_WITHOUT_SHARE = 0.3
"""The same while it is no member: the value counts from its next join."""
WEIGHTS: Mapping[str, float | str] = {
    **dict.fromkeys("01234", 1.0),
    **dict.fromkeys("567", 2.0),
    **dict.fromkeys("89", 0.25),
    **dict.fromkeys("ab", 0.0),
    "c": "none",
    "d": 1e200,
    "e": math.nan,
    "f": -1.0,
}
"""The weight that a member's value names, by its first digit: sometimes no number, or an invalid one."""
LEAST, GREATEST = 1e-100, 1e100
"""The weights that count, besides 0, as documented."""


def weighed(value: bytes) -> float | str:
    """Return the weight that a member's value names, right or wrong."""
    return WEIGHTS[value.decode()[:1]] if value else 1.0


def counted(weight: float | str) -> float:
    """Return what such a weight counts as."""
    if isinstance(weight, str):
        return 1.0
    return weight if LEAST <= weight <= GREATEST else 0.0


@dataclass(frozen=True, slots=True)
class Sharing:
    """A group, and what its members share."""

    prefix: str
    partitions: tuple[str, ...]
    weighing: bool = False
    """Whether the members' values are their weights."""
    bound: float | None = None
    """How many times its fair share a member owns at most."""

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

    def owners(self, cluster: Cluster) -> dict[str, str]:
        """Return the member that each partition falls to; all versions of this package agree on that."""
        weights = {
            name: counted(weighed(value)) if self.weighing else 1.0
            for name, _, value in self.members(cluster)
        }
        weights = {name: weight for name, weight in weights.items() if weight}
        if self.bound is not None:
            return self._bounded(weights, self.bound)
        names = weights or ()
        return {
            one: min(names, key=lambda name: (_draw(name, one) / weights[name], name))
            for one in (self.partitions if weights else ())
        }

    def _bounded(self, weights: Mapping[str, float], bound: float) -> dict[str, str]:
        """Return the same where no member owns more than ``bound`` times its share, rounded up."""
        share = bound * len(self.partitions) / sum(weights.values()) if weights else 0.0
        room = {name: math.ceil(share * weight) for name, weight in weights.items()}
        owners: dict[str, str] = {}
        pairs = ((name, one) for name in weights for one in self.partitions)
        for name, one in sorted(pairs, key=lambda pair: (_draw(*pair) / weights[pair[0]], *pair[::-1])):
            if one not in owners and room[name] > len([each for each in owners.values() if each == name]):
                owners[one] = name
        return owners

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
        owners = self.owners(cluster)
        carers = {one: judge.carer(cluster.holder(self.key(one))) for one in self.partitions}
        return bool(self.members(cluster)) and all(
            owners.get(partition) == (None if carer is None else carer.name)
            for partition, carer in carers.items()
        )


@lru_cache(maxsize=4096)
def _draw(member: str, partition: str) -> float:
    """Return what a member draws for a partition; the least for its weight wins."""
    digest = hashlib.blake2b(f"{member}/{partition}".encode(), digest_size=8).digest()
    return -math.log((int.from_bytes(digest, "big") + 0.5) / 2**64)


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
        self._members: list[tuple[str, str, bytes]] = []
        self._changed: list[float] = []
        """When these have changed, lately."""
        self._moved: dict[str, list[float]] = {}
        """When each process has taken or given away something, lately."""

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
        before, self._members = self._members, sharing.members(self._cluster)
        if before != self._members:
            self._changed = [*(at for at in self._changed if at > now - 2 * ACTED_WITHIN), now]
        owners = sharing.owners(self._cluster)
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

    def is_due_since(self, since: float, partition: str, name: str) -> bool:
        """Return whether a partition has been a member's all the time since then, also for anybody's view."""
        since -= ACTED_WITHIN * self._judge.stretch
        ends = [at for at, _ in self._calls_for[1:]] + [math.inf]
        lately = [owners for (_, owners), end in zip(self._calls_for, ends, strict=True) if end > since]
        return self._calls_for[0][0] <= since and all(owners.get(partition) == name for owners in lately)

    def begins(self, process: Process) -> None:
        """Take note of a member that begins to share."""
        self._sharers[process.name] = self._judge.now

    def ends(self, process: Process) -> None:
        """Take note that it shares no more."""
        self._sharers.pop(process.name, None)
        self._free_since.clear()

    def _check_quiet(self, process: Process, partition: str, *, comes: bool) -> None:
        """Judge that a member does not act on the only change of a group before that has been quiet."""
        judge, now = self._judge, self._judge.now
        changed = self._changed[-1] if self._changed else -math.inf
        settled = changed + SETTLE / (1 + judge.skew) - QUIETLY
        window = changed - MOST_SETTLED * judge.stretch
        moves = self._moved.setdefault(process.name, [])
        held_up = judge.promises.troubled(process.name), process.awake_since  # what it wanted may come late
        since = self._sharers.get(process.name, now)
        busy = [at for at in (*self._changed[:-1], *moves, since, *held_up) if at > window]
        self._moved[process.name] = [*(at for at in moves if at > now - 2 * ACTED_WITHIN), now]
        (_, before), (called, owners) = self._calls_for[-2:] if len(self._calls_for) > 1 else [(0.0, {})] * 2
        is_asked = (owners.get(partition) == process.name) is comes
        is_new = is_asked and (before.get(partition) == process.name) is not comes
        if now < settled and not busy and called == changed and is_new:
            text = f"{process.name} moves {partition} {now - changed:.3f} s after a change of the group"
            judge.convict("sharing", text)

    def moved(self, process: Process, partition: str, *, comes: bool) -> None:
        """Judge that a member begins to own a partition, or hands it over while it goes on."""
        self._check_quiet(process, partition, comes=comes)
        since = self._judge.now - ACTED_WITHIN * self._judge.stretch
        if self._judge.answers.excused(process, since=since):
            return
        ends = [at for at, _ in self._calls_for[1:]] + [math.inf]
        lately = [owners for (_, owners), end in zip(self._calls_for, ends, strict=True) if end > since]
        if not any((owners.get(partition) == process.name) is comes for owners in lately):
            what = "takes" if comes else "gives away"
            text = f"{process.name} {what} {partition}, and its members did not call for that"
            self._judge.convict("sharing", text)


class MemberUser(Joiner):
    """The member of one process."""

    def __init__(self, process: Process, sharing: Sharing, *, healed: Callable[[], bool]) -> None:
        super().__init__(process, "member", sharing, healed=healed)
        self._partitions: recipe.PartitionPlan | None = None
        self._stays = Dice(process.seed, f"{process.name} stays")
        self._is_quiet = self._stays.chance(QUIET_SHARE)
        self._is_steady = self._stays.chance(STEADY_SHARE)
        """Whether it stays for long: what one that comes for a moment takes from it, it is to have again."""
        process.fair = False  # as a partition's lock is

    async def run(self, io: SimIO) -> None:
        """Be a member now and then, until the world is healed."""
        if self.more.chance(MAKES_MISTAKES):
            try_as_member(self.process)
        while not self.healed():
            is_brief = not self._is_steady and self._stays.chance(BRIEFLY)
            most, rest = (BRIEF_STAY, LONG_REST) if is_brief else (LONGEST_STAY, REST)
            stay = self.rng.uniform(0.0, most) + SETTLE * is_brief + STEADY_STAY * self._is_steady
            if await self._join_as(io, timeout=self.rng.uniform(0.0, 8.0)):
                await self._share(io, until=io.now() + stay)
            await io.sleep(self.rng.uniform(*rest))

    async def calm_rounds(self, io: SimIO) -> None:
        """Be a member for some time, until all partitions are with their owners."""
        await io.sleep(self.rng.uniform(0.0, CALM_JOIN))
        if await self._join_as(io, timeout=None):
            await self._share(io, until=io.now() + CALM_STAY)
        elif not self.process.core.closing.is_set():
            self.judge.convict("progress", f"{self.process.name} could not join, all being well")

    async def _join_as(self, io: SimIO, *, timeout: float | None) -> bool:
        return await self._join(io, self.process.name, timeout=timeout)

    async def _share(self, io: SimIO, *, until: float) -> None:
        """Own partitions for a while; in a calm world, until each is with its owner, too."""
        core, sharing, office = self.process.core, self._sharing, Office(self)
        plan = self._partitions = recipe.PartitionPlan(
            group=sharing.group,
            partitions=sharing.partitions,
            settle=SETTLE,
            handover=HANDOVER,
            bound=sharing.bound,
            weight=partial(self._weigh, office) if sharing.weighing else None,
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
                if self._is_quiet:
                    continue
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

    def _weigh(self, office: Office, member: Member) -> float:
        """Return a member's weight, as its value says it, or fail to."""
        weight = weighed(member.value)
        wrong = isinstance(weight, str) or (weight and counted(weight) != weight)
        if wrong:
            where = f"weight of the member {member.id!r}"
            self.judge.news.errs(self.process, where, unless=lambda: office.stopping)
        return float(weight)

    async def _stop(self, io: SimIO, office: Office, partitioning: recipe.Partitioning) -> None:
        """Own nothing any more, and leave."""
        office.stopping = True
        if await self._end("stops sharing", partial(recipe.stop, partitioning=partitioning), io):
            office.check_stopped(io)
        if partitioning.task is None or partitioning.task.done.is_set():
            office.stopped = io.now()
        await self._leave(io)

    async def _tell(self, io: SimIO) -> None:
        """Change the member's value, or ask about the others."""
        if self.rng.chance(0.5):
            await self._look_round(io, self._sharing.prefix)
            return
        await self._give_value(io)

    def views(self, of: str) -> Sequence[View]:
        """Ask who is a member, and who owns what."""
        core, sharing, partitions = self.process.core, self._sharing, self._partitions

        async def ask_owners(io: IO) -> object:
            found = {} if partitions is None else await recipe.holders(io, core, partitions)
            return {
                name: None if one is None else (one.session, one.value, one.fence)
                for name, one in found.items()
            }

        if partitions is None:
            return super().views(of)
        return (
            *super().views(of),
            View(f"asks who owns what in {of}", ask_owners, sharing.owned),
        )

    def _is_enough(
        self, io: SimIO, office: Office, partitioning: recipe.Partitioning, *, until: float
    ) -> bool:
        if not self.healed():
            return io.now() >= until
        hold = self._member.hold
        if hold is not None and hold.reason in self._eyes.final:
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
        self._failures: dict[str, tuple[int, float]] = {}
        """How often in a row that was so, of each partition, and when last by the process's clock."""
        self._busy_until: dict[str, float] = {}
        """Until when the latest callback of each partition lasts."""
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
        failures, failed_at = self._failures.pop(partition, (0, -math.inf))
        pause = process.clock.now() - failed_at
        began = process.clock.true(failed_at) if failures else 0.0
        is_due = judge.sharing is not None and judge.sharing.is_due_since(began, partition, process.name)
        if not is_due or hold.granted_at < failed_at:
            failures = 0  # the count may have begun again; what was lost was taken again before that failed
        if failures and pause < FIRST_PAUSE * 2.0 ** (failures - 1):
            text = f"{process.name} takes {partition} {pause:.3f} s after failure {failures} in a row"
            judge.convict("pace", text)
        fails = FAILS_AGAIN if 0 < failures < MOST_FAILURES else FAILS_SHARE * (failures == 0)
        if not user.healed() and user.more.chance(fails):
            self._failed[partition] = judge.now
            self._failures[partition] = failures + 1, process.clock.now()
            judge.see("on_acquired failed")
            judge.news.errs(process, f"on_acquired of the partition {partition!r}")
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
        if not self._user.healed() and more.chance(ENDS_BADLY):
            judge.news.errs(process, f"on_released of the partition {partition!r}")
            raise ClumsyUser
        if failed or hold.ended or self._user.healed() or not more.chance(FINISHES_SHARE):
            return None
        lasts, now = more.uniform(0.0, LONGEST_FINISH), process.clock.now()
        if now < self._busy_until.get(partition, -math.inf) + ENDED_SOON:
            return None  # it comes late, as the one before has taken long, and has less time
        self._busy_until[partition] = now + lasts
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
        for partition, (hold, since, until) in self._finishing.copy().items():
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
