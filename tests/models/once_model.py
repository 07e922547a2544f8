"""A job that runs once in each slot, as a model: callers that follow our own rules, and a tiny Consul.

What a record means for a caller is the recipe's own (`consul_coord.recipes.once.record.judge`). The lock is
taken as proven: whoever asks for a free one gets it, with a new fence.

Rules
- A caller asks for any slot at any time: its clock may say anything.
- The record's write is answered, or its reply is lost, or it is lost, or it is late: applied at any later
  time. Everything else is answered; the lock's own model is for the rest.
- A caller may die at any step. And its session may end while it lives on and knows nothing of that: it goes
  on with its work, and tries to record it.

Looked at: no slot has two successes; no slot has one without its work; no slot begins that has had its turn;
nobody is told of a success that is not in Consul; and from everywhere an end can be reached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from consul_coord.recipes.once.record import Ask, Record, judge
from tests.models.explorer import Broken, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Caller(NamedTuple):
    """One process: what it does next, and what it knows."""

    doing: str
    left: int
    """How many calls it still makes."""
    slot: int = 0
    fence: int = 0
    """That of its hold; 0 for none."""
    failed: bool = False
    doubt: bool = False
    """Whether a write of its record got no answer."""


class Write(NamedTuple):
    """A record, and the hold in whose name it is written."""

    slot: int
    fence: int
    failed: bool


class World(NamedTuple):
    """Everything there is."""

    record: Write
    """What stands in Consul; slot 0 before the first run."""
    holder: int
    """The fence under which the lock is held; 0 while it is free."""
    fences: int
    """How many there were."""
    callers: tuple[Caller, ...]
    late: tuple[Write, ...]
    successes: tuple[tuple[int, int], ...]
    """Slot and fence of each success that Consul has recorded."""
    worked: frozenset[tuple[int, int]]
    """Slot and fence of each piece of work that was finished."""
    faults: int
    deaths: int
    losses: int
    failures: int


@dataclass(frozen=True)
class OnceModel:
    """A job with some callers, each of which calls a number of times for any of the slots."""

    callers: int = 2
    calls: int = 2
    slots: int = 2
    faults: int = 1
    deaths: int = 1
    losses: int = 1
    failures: int = 0
    judge: Callable[[Ask, Record | None], str | Record] = judge
    reads_at_the_grant: bool = True
    guards: bool = True
    settles_by: str = "reading"
    """What a caller makes of a refusal after a doubt: it reads the record, or takes it for a success."""
    records_first: bool = False
    """Whether the record is written before the work."""

    def first(self) -> World:
        """Return the beginning: nothing has run."""
        callers = tuple(Caller("idle", self.calls) for _ in range(self.callers))
        budget = (self.faults, self.deaths, self.losses, self.failures)
        return World(Write(0, 0, failed=False), 0, 0, callers, (), (), frozenset(), *budget)

    def is_good_end(self, world: World) -> bool:
        """Return whether everybody is through, and nothing is held or under way."""
        through = all(
            each.doing == "dead" or (each.doing == "idle" and not each.left) for each in world.callers
        )
        return through and not world.holder and not world.late

    def steps(self, world: World) -> Iterator[Step[World]]:
        """Yield all that can happen."""
        for number, caller in enumerate(world.callers):
            for name, after in self._of(world, number, caller):
                yield Step(f"{number} {name}", after)
        for write in sorted(set(world.late)):
            rest = list(world.late)
            rest.remove(write)
            less = world._replace(late=tuple(rest))
            yield Step("- a late write is applied", self._written(less, write) or less)

    def _of(self, world: World, number: int, caller: Caller) -> Iterator[tuple[str, World | Broken]]:
        if caller.doing == "dead":
            return
        if world.deaths and caller.doing != "idle":
            yield "dies", self._died(world, number, caller)
        if world.losses and caller.fence and world.holder == caller.fence:
            yield "loses its session", world._replace(holder=0, losses=world.losses - 1)
        if caller.doing == "idle" and caller.left:
            for slot in range(1, self.slots + 1):
                yield f"asks for {slot}", self._looked(world, number, caller, slot)
        if caller.doing == "wait" and not world.holder:
            yield "gets the lock", self._granted(world, number, caller)
        if caller.doing == "work":
            yield from self._worked(world, number, caller)
        if caller.doing == "record":
            yield from self._recorded(world, number, caller)
        if caller.doing == "release":
            yield "releases", _with(self._freed(world, caller.fence), number, Caller("idle", caller.left))

    def _died(self, world: World, number: int, caller: Caller) -> World | Broken:
        success = (caller.slot, caller.fence)
        if success in world.successes and success not in world.worked:
            return Broken("a slot counts as done that nobody did")
        freed = self._freed(world, caller.fence)
        return _with(freed._replace(deaths=world.deaths - 1), number, Caller("dead", 0))

    def _runs(self, world: World, slot: int) -> bool:
        found = world.record
        record = Record(str(found.slot), found.failed, "", 0.0, found.fence) if found.slot else None
        return self.judge(Ask(job="job", slot=str(slot), now=0.0), record) == str(slot)

    def _looked(self, world: World, number: int, caller: Caller, slot: int) -> World:
        doing = "wait" if self._runs(world, slot) else "idle"
        return _with(world, number, Caller(doing, caller.left - 1, slot))

    def _granted(self, world: World, number: int, caller: Caller) -> World | Broken:
        fence = world.fences + 1
        world = world._replace(holder=fence, fences=fence)
        runs = self._runs(world, caller.slot) if self.reads_at_the_grant else True
        if runs and caller.slot in {slot for slot, _ in world.successes}:
            return Broken("a slot begins again that succeeded")
        if runs and caller.slot < max((slot for slot, _ in world.successes), default=0):
            return Broken("a slot begins that has had its turn")
        doing = ("record" if self.records_first else "work") if runs else "release"
        return _with(world, number, caller._replace(doing=doing, fence=fence))

    def _worked(self, world: World, number: int, caller: Caller) -> Iterator[tuple[str, World]]:
        doing = "release" if self.records_first else "record"
        done = world._replace(worked=world.worked | {(caller.slot, caller.fence)})
        yield "works", _with(done, number, caller._replace(doing=doing))
        if world.failures:
            less = world._replace(failures=world.failures - 1)
            yield "fails", _with(less, number, caller._replace(doing="record", failed=True))

    def _recorded(self, world: World, number: int, caller: Caller) -> Iterator[tuple[str, World | Broken]]:
        write = Write(caller.slot, caller.fence, caller.failed)
        applied = self._written(world, write)
        then = caller._replace(doing="work" if self.records_first else "release")
        unsure = caller._replace(doubt=True)
        if applied is not None:
            yield "record done", applied if isinstance(applied, Broken) else _with(applied, number, then)
        else:
            yield "record refused", self._refused(world, number, caller)
        if not world.faults:
            return
        less = world._replace(faults=world.faults - 1)
        yield "record lost", _with(less, number, unsure)
        yield "record late", _with(less._replace(late=(*world.late, write)), number, unsure)
        if applied is not None:
            if isinstance(applied, Broken):
                yield "record reply lost", applied
            else:
                yield "record reply lost", _with(applied._replace(faults=less.faults), number, unsure)

    def _refused(self, world: World, number: int, caller: Caller) -> World | Broken:
        """Say what a caller makes of a closed guard: its hold is over, and perhaps its record stands."""
        lost = _with(world, number, Caller("idle", caller.left))
        if not caller.doubt or caller.failed:
            return lost
        stands = world.record == Write(caller.slot, caller.fence, failed=False)
        told = stands if self.settles_by == "reading" else True
        if told and (caller.slot, caller.fence) not in world.successes:
            return Broken("somebody is told of a success that was none")
        return lost

    def _written(self, world: World, write: Write) -> World | Broken | None:
        """Apply a write; None when its guard is closed."""
        if self.guards and world.holder != write.fence:
            return None
        if write.slot < world.record.slot:
            return Broken("the recorded slot fell")
        world = world._replace(record=write)
        success = (write.slot, write.fence)
        if write.failed or success in world.successes:
            return world
        if write.slot in {slot for slot, _ in world.successes}:
            return Broken("a slot succeeds twice")
        return world._replace(successes=tuple(sorted((*world.successes, success))))

    @staticmethod
    def _freed(world: World, fence: int) -> World:
        return world._replace(holder=0) if fence and world.holder == fence else world


def _with(world: World, number: int, caller: Caller) -> World:
    callers = list(world.callers)
    callers[number] = caller
    return world._replace(callers=tuple(callers))
