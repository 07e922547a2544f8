"""The rules of a read-write lock: one writer alone, or many readers.

Rules
- While a writer relies on its hold, no other client relies on one.
- A hold that a client relies on has its contender on the server, and no live contender that excludes it comes
  before.
- A fence is the CreateIndex of the contender, which only that session's join can have made.
- A contender without another one in its way becomes a hold soon.
- At the end no contender is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.rwlock import queue as rwqueue
from consul_coord.testing.simulation.rules import Rules
from consul_coord.testing.simulation.trace import short

if TYPE_CHECKING:
    from consul_coord.testing.simulation.claims import Claim
    from consul_coord.testing.simulation.cluster import Cluster
    from consul_coord.testing.simulation.judge import Judge
    from consul_coord.testing.simulation.shapes import Shape


@dataclass(frozen=True, slots=True)
class Place:
    """A contender as the server has it."""

    index: int
    """Its CreateIndex."""
    name: str
    """The session that made it."""
    lives: bool
    """Whether that session has it still."""
    writes: bool


class RwRules(Rules):
    """The state of one read-write lock, as the server has it."""

    tells_own = True

    def __init__(self, judge: Judge, cluster: Cluster, name: str) -> None:
        super().__init__(judge, cluster, name)
        self._directory = waitqueue.directory(rwqueue.base_of(name))
        self._made: dict[int, Place] = {}
        """Each contender that there ever was, by its CreateIndex, as it was at first."""
        self._places: tuple[Place, ...] = ()
        self._waiter = ""

    @property
    def has_register(self) -> bool:
        """Return False: readers write in any order."""
        return False

    def before(self, shape: Shape) -> None:
        """Return nothing: the rules look at the state, not at requests."""

    def after(self, who: str, shape: Shape, before: None) -> None:
        """Do nothing: see ``before``."""

    def was_given(self, session: str, fence: int) -> bool:
        """Return whether this session made the contender with this index."""
        return fence in self._made and self._made[fence].name == session

    def has_now(self, session: str, fence: int) -> bool:
        """Return whether that contender stands."""
        return any(place.lives and (place.name, place.index) == (session, fence) for place in self._read())

    def stands(self, claim: Claim) -> bool:
        """Return whether the claim's contender stands."""
        return self.has_now(claim.session, claim.fence)

    def holders(self) -> frozenset[str]:
        """Return all sessions that stand in the queue."""
        return frozenset(place.name for place in self._places)

    def holders_since(self, since: float) -> frozenset[str] | None:
        """Return the sessions that have stood there since then, unless one of them has ended.

        For its lock-delay that one keeps the others out, and nobody has the lock.
        """
        all_live = all(self.cluster.lives(place.name) for place in self._places)
        return super().holders_since(since) if all_live else None

    def granted(self, claim: Claim) -> None:
        """Judge a new claim."""
        super().granted(claim)
        self.judge.see("writer in" if self._writes(claim) else "reader in")

    def _writes(self, claim: Claim) -> bool:
        return claim.fence in self._made and self._made[claim.fence].writes

    def check_belief(self, believed: list[Claim]) -> None:
        """Judge the holds that clients rely on at this moment."""
        if len(believed) > 1:
            self.judge.see("several in")
            if any(map(self._writes, believed)):
                self.judge.convict("exclusion", " and ".join(map(str, believed)))
        for claim in believed:
            place = next((one for one in self._places if one.index == claim.fence), None)
            if place is None:
                self.judge.convict("exclusion", f"{claim} counts as held, and its contender is gone")
                continue
            before = [one for one in self._places if one.index < claim.fence and one.lives]
            if any(one.writes or self._writes(claim) for one in before):
                self.judge.convict(
                    "exclusion", f"{claim} counts as held, and {short(before[0].name)} comes first"
                )

    def check_queue(self) -> None:
        """Look for new contenders after each write."""
        before, self._places = self._places, self._read()
        for place in self._places:
            self._made.setdefault(place.index, place)
        dead = [place for place in self._places if not place.lives]
        for place in before:
            if place.lives and any(one.index == place.index for one in dead):
                self.judge.see("writer died" if place.writes else "reader died")

    def _read(self) -> tuple[Place, ...]:
        entries = [
            (entry, entry.key.removeprefix(self._directory)) for entry in self.cluster.under(self._directory)
        ]
        places = (
            Place(
                entry.create_index,
                name,
                lives=entry.session == name,
                writes=not entry.value.startswith(b"r"),
            )
            for entry, name in entries
        )
        return tuple(sorted(places, key=lambda place: place.index))

    def waited_for(self) -> str:
        """Return a session that could be in, and whose client has no hold yet."""
        waiter = next((place.name for place in self._places if self._could_be_in(place)), "")
        if waiter != self._waiter:
            self._waiter, self._free_since = waiter, None
        return waiter

    def _could_be_in(self, place: Place) -> bool:
        if not place.lives or self.claim(place.index) is not None or not self.judge.in_care(place.name):
            return False
        before = (one for one in self._places if one.index < place.index)
        # A dead one without a lock-delay is only to be removed.
        closed = (
            one for one in before if one.lives or self.cluster.in_lock_delay(self._directory + one.name)
        )
        return not any(one.writes or place.writes for one in closed)

    def check_left(self) -> None:
        """Judge what is left at the end."""
        for entry in self.cluster.under(self._directory):
            self.judge.convict("nothing left", f"{entry.key} of {short(entry.session)} is left")
