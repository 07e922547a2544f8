"""Sharing partitions among the members of a group: one process's part in it.

Rules
- The members' names alone decide the owner of each partition, so that no member has to ask another. While
  views differ, the locks ensure that a partition has one owner.
- After a change of the group it waits until nothing more has changed for a moment, or for some moments in
  all: members that come together cause one round of moves.
- A process that is no member is to own nothing, even if it has the id of one: it waits for that id.
- Few locks are taken at once, so that a first member of many partitions is no storm; those that have to be
  waited for do not count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

from consul_coord.errors import ConsulCoordError, InvalidArgument
from consul_coord.events import Failed
from consul_coord.http.endpoints import kv
from consul_coord.http.endpoints._keys import check_name
from consul_coord.http.failures import bare
from consul_coord.http.retry import ask
from consul_coord.io import Signal
from consul_coord.models import Holder, _validate
from consul_coord.models.reply import CONSISTENT
from consul_coord.recipes.contend.callbacks import Answer
from consul_coord.recipes.contend.changes import Changes
from consul_coord.recipes.group.follow import MembersFollower
from consul_coord.recipes.group.members import is_name
from consul_coord.recipes.partition.part import Part
from consul_coord.recipes.partition.rendezvous import Rendezvous
from consul_coord.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from consul_coord.io import IO, Task
    from consul_coord.models import Member
    from consul_coord.recipes.contend.callbacks import Callbacks
    from consul_coord.recipes.contend.shared import Shared
    from consul_coord.recipes.group.members import GroupPlan
    from consul_coord.recipes.hold.grant import Grant

MOST_SETTLING = 4
"""How many times ``settle`` changes that keep coming are waited out."""
WEIGHTS = 1e-100, 1e100
"""The least weight besides 0, and the greatest."""
AT_ONCE = 8
"""Locks that are being taken at the same time."""


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class PartitionPlan(Value):
    """The partitions to be shared, and the options."""

    group: GroupPlan
    partitions: tuple[str, ...]
    settle: float
    handover: float
    bound: float | None
    weight: Callable[[Member], float] | None
    on_acquired: Callable[[str, Grant], object] | None
    on_released: Callable[[str, Grant], object] | None

    def __post_init__(self) -> None:
        for partition in self.partitions:
            check_name(self.key(partition))
        for name, seconds in (("settle", self.settle), ("handover", self.handover)):
            _validate.span(name, seconds, endless=False)
        if self.bound is not None and _validate.number("bound", self.bound) < 1:
            message = f"bound must be a number of 1 or more (times the fair share), not {self.bound!r}"
            raise InvalidArgument(message)
        _validate.plain(weight=self.weight)

    @property
    def directory(self) -> str:
        """Where the partitions' locks are."""
        return f"{self.group.prefix}/partitions/"

    def key(self, partition: str) -> str:
        """Return the key of a partition's lock."""
        return self.directory + partition


def names_of(partitions: object) -> tuple[str, ...]:
    """Return the partitions' names: those given, or the numbers from 0. Raises InvalidArgument."""
    if isinstance(partitions, int) and not isinstance(partitions, bool) and partitions > 0:
        return tuple(map(str, range(partitions)))
    if isinstance(partitions, str | bytes) or not isinstance(partitions, Iterable):
        message = f"partitions must be a number of 1 or more, or a list of names, not {partitions!r}"
        raise InvalidArgument(message)
    names = tuple(cast("Iterable[str]", partitions))
    for name in names:
        if not is_name(name):
            message = f"a partition's name is a string without '/', and not empty: not {name!r}"
            raise InvalidArgument(message)
    if not names or len(set(names)) < len(names):
        raise InvalidArgument("partitions must be different names, one at least")
    return names


def _number(weight: Callable[[Member], float], member: Member) -> float:
    return float(weight(member))


class Partitioning:
    """One process's part, from its start to its stop."""

    def __init__(
        self,
        client: Shared,
        plan: PartitionPlan,
        member: Callable[[], str],
        calls: Mapping[str, Callbacks],
        *,
        keeps: object,
    ) -> None:
        self.keeps = keeps
        """The object that must live as long as this runs: a client that nobody refers to closes."""
        self.client = client
        self.handover = plan.handover
        self.stopping = Signal()
        self.changes = Changes()
        """Told whenever the program may have to look again."""
        self.parts: dict[str, Part] = {}
        """The partitions that this process owns, takes or hands over."""
        self.task: Task | None = None
        self._plan = plan
        self._member = member
        self.calls = calls
        """For each partition what calls its owner's functions, in one order."""
        self._rendezvous = Rendezvous(plan.partitions, bound=plan.bound)
        self._members: tuple[Member, ...] | None = None
        """The members, as last seen."""
        self._acted_on: tuple[Member, ...] | None = None
        """Those that the present owners follow from."""

    @property
    def is_over(self) -> bool:
        """Whether it was stopped, here or with its client."""
        return self.stopping.is_set() or self.client.closing.is_set()

    def owned(self, now: float) -> dict[str, Grant]:
        """Return what is owned at ``now``."""
        holds = {partition: part.hold for partition, part in self.parts.copy().items()}
        return {
            partition: hold for partition, hold in holds.items() if hold is not None and hold.is_held(now)
        }

    def stop(self) -> None:
        """End it: from any thread, returns at once."""
        self.stopping.set()
        self.changes.tell()

    # -- the program

    async def run(self, io: IO) -> None:
        """Own what is to be owned, until told to stop."""
        unsubscribe = self.client.closing.subscribe(self.changes.tell)
        io.spawn(self._follow, name=f"watch the members of {self._plan.group.prefix}")
        try:
            while await self._has_to_act(io):
                await self._settle(io)
                await self._share_out(io)
        finally:
            unsubscribe()
            self.stop()
            for part in list(self.parts.values()):
                part.leave()
        while self.parts:
            with self.changes.watching() as changed:
                if self.parts:
                    await io.wait(changed)

    async def _follow(self, io: IO) -> None:
        follower = MembersFollower(self._plan.group)
        follower.bound = self.client.watches
        while not self.is_over:
            try:
                seen = await follower.change(io, until=self.stopping)
            except ConsulCoordError as error:
                self.report("watching the group", error)
                await follower.pause(io, until=self.stopping)
                continue
            if seen is not None:
                self._members = seen.value.all
                self.changes.tell()

    async def _has_to_act(self, io: IO) -> bool:
        """Wait until others may be to own something; returns False when it is over."""
        while True:
            with self.changes.watching() as changed:
                if self.is_over:
                    return False
                if self._members is not self._acted_on:
                    return True
                await io.wait(changed)

    async def _settle(self, io: IO) -> None:
        """Wait until the group has not changed for a moment."""
        latest = io.now() + MOST_SETTLING * self._plan.settle
        while io.now() < latest:
            with self.changes.watching() as changed:
                until = min(latest, io.now() + self._plan.settle)
                if self.is_over or not await io.wait(changed, deadline=until):
                    return

    async def _share_out(self, io: IO) -> None:
        """Hand over what others are to own now, and take what this process is to."""
        members = self._acted_on = self._members
        weights = await self._weights(io, members or ())
        if weights is None or self._is_out_of_date(members):
            return
        me, ours = self._member(), self.client.sessions
        joined = any(one.id == me and ours.get(one.session) is not None for one in members or ())
        owners = self._rendezvous.owners(weights) if joined else {}
        wanted = {partition for partition, owner in owners.items() if owner == me}
        for partition, part in self.parts.copy().items():
            if partition not in wanted:
                part.leave()
        for partition in self._plan.partitions:
            if partition in wanted and partition not in self.parts:
                await self._wait_for_turn(io, members)
                if self._is_out_of_date(members):
                    return
                self._begin(io, partition)

    def _is_out_of_date(self, members: tuple[Member, ...] | None) -> bool:
        """Return whether what follows from these members is not to be done any more."""
        return self.is_over or self._members is not members

    async def _wait_for_turn(self, io: IO, members: tuple[Member, ...] | None) -> None:
        """Wait until no more than a few partitions are being taken, or these members are out of date."""
        while True:
            with self.changes.watching() as changed:
                busy = sum(not part.tried.is_set() for part in list(self.parts.values()))
                if busy < AT_ONCE or self._is_out_of_date(members):
                    return
                await io.wait(changed)

    def _begin(self, io: IO, partition: str) -> None:
        """Take a partition."""
        key, value = self._plan.key(partition), self._member().encode()
        part = Part(self.client, partition, key=key, value=value, told=self, calls=self.calls[partition])
        self.parts[partition] = part
        part.tried.subscribe(self.changes.tell)
        task = io.spawn(part.run, name=f"partition {key}")
        task.done.subscribe(partial(self._ended, partition, part))

    def _ended(self, partition: str, part: Part) -> None:
        if self.parts.get(partition) is part:
            del self.parts[partition]
        if not self.is_over:
            self._acted_on = None  # it may be wanted again since
        self.changes.tell()

    async def _weights(self, io: IO, members: tuple[Member, ...]) -> dict[str, float] | None:
        """Return the members' weights; None when it is over meanwhile."""
        weight = self._plan.weight
        if weight is None:
            return {member.id: 1.0 for member in members}
        weights = dict[str, float]()
        answers = {member.id: Answer() for member in members}
        for member in members:
            answer = answers[member.id]
            answer.given.subscribe(self.changes.tell)
            self.calls[""].ask(
                partial(_number, weight, member), answer.give, answer.fail, until=self.stopping
            )
        for name, answer in answers.items():
            while not answer.given.is_set():
                with self.changes.watching() as changed:
                    if self.is_over:
                        return None
                    if not answer.given.is_set():
                        await io.wait(changed)
            weights[name] = self._weight(name, answer)
        return weights

    def _weight(self, name: str, answer: Answer) -> float:
        if answer.error is not None:
            self.report(f"weight of the member {name!r}", answer.error)
            bare(answer.error)
            return 1.0
        weight = cast("float", answer.value)
        if weight and not WEIGHTS[0] <= weight <= WEIGHTS[1]:
            problem = ValueError(f"{weight!r} counts as 0: a weight is 0, or from 1e-100 to 1e100")
            self.report(f"weight of the member {name!r}", problem)
            return 0.0
        return weight

    # -- telling

    def acquired(self, partition: str, hold: Grant) -> object:
        """Tell that a partition is owned now."""
        return None if self._plan.on_acquired is None else self._plan.on_acquired(partition, hold)

    def released(self, partition: str, hold: Grant) -> object:
        """Tell that a partition is not owned any more, or in a moment."""
        return None if self._plan.on_released is None else self._plan.on_released(partition, hold)

    def report(self, where: str, error: BaseException) -> None:
        """Report what a user's function, or an attempt, has raised."""
        text = f"{type(error).__name__}: {error}"
        self.client.host.emit(Failed(f"{where} (group {self._plan.group.prefix!r})", text), cause=error)


# -- what users ask for


async def start(io: IO, partitioning: Partitioning) -> None:
    """Begin in the background; harmless when that was done before."""
    if partitioning.task is None:
        partitioning.task = io.spawn(partitioning.run, name="partitions")


async def stop(io: IO, partitioning: Partitioning, *, timeout: float) -> None:
    """Hand everything over; waits up to ``timeout`` seconds for that."""
    partitioning.stop()
    if partitioning.task is not None:
        async with io.shield(timeout) as deadline:
            await io.wait(partitioning.task.done, deadline=deadline)


async def holders(io: IO, client: Shared, plan: PartitionPlan) -> dict[str, Holder | None]:
    """Return who owns each partition, as the leader has it."""
    call = kv.list_pairs(plan.directory, options=CONSISTENT)
    pairs = {pair.key: pair for pair in (await ask(io, call, timeout=client.timeout)).value}
    found: dict[str, Holder | None] = {}
    for partition in plan.partitions:
        pair = pairs.get(plan.key(partition))
        found[partition] = (
            None
            if pair is None or pair.session is None
            else Holder(
                pair.session, value=pair.value, fence=pair.modify_index, since_index=pair.modify_index
            )
        )
    return found
