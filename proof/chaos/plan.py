"""What a run consists of: values only, which also go to the worker processes, as JSON.

Rules
- The seed decides what the workers do next, and which faults come when. It does not make a run repeatable: a
  real cluster, a real network and a real scheduler take part.
- Workers differ: blocking and async ones, fair and barging ones, leases from 2 to 5 seconds, by a client
  agent or by a server.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from consul_coord.models import SessionSpec, failover_bound

if TYPE_CHECKING:
    from typing import Self

LOCK_DELAYS: Final = {2.0: 2.0, 3.0: 1.0, 5.0: 3.0}
"""Seconds: TTLs, each with its lock-delay. A process has one of them; its leases last for the shorter."""
LOCKS: Final = ("lock/a", "lock/b", "lock/c")
SLOTS: Final = {"slots/two": 2, "slots/three": 3}
LEADS: Final = ("lead/one", "lead/two")
LATE: Final = 10.0
"""Seconds by which a busy machine may delay what must happen once all is healed."""


@dataclass(frozen=True, slots=True)
class Role:
    """What one worker does: ``kind`` is ``lock``, ``slot`` or ``lead``; ``key`` lacks the run's prefix."""

    name: str
    kind: str
    key: str
    fair: bool


def roles(place: int) -> tuple[Role, ...]:
    """Return the ten workers of the process at this place."""
    locks = [("lock", LOCKS[each % len(LOCKS)]) for each in range(5)]
    slots = [("slot", key) for key in (*SLOTS, "slots/two")]
    leads = [("lead", key) for key in LEADS]
    return tuple(
        Role(f"{kind}{number}", kind, key, fair=(place + number) % 2 == 0)
        for number, (kind, key) in enumerate([*locks, *slots, *leads])
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One worker process: who it is, where its Consul is, and where it writes."""

    name: str
    place: int
    life: int
    """How often a process has been started in this place."""
    address: str
    folder: str
    prefix: str
    ttl: float
    blocking: bool
    seed: int
    drain: float

    @property
    def spec(self) -> SessionSpec:
        """The sessions of this process; their name is the run's prefix."""
        return SessionSpec(ttl=self.ttl, lock_delay=LOCK_DELAYS[self.ttl], name=self.prefix)

    def to_json(self) -> str:
        """Return it as an argument for the worker's command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the part that such an argument holds."""
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run: for how many seconds things are broken, by which seed, and who works meanwhile.

    ``pace`` is the mean of the seconds between two harms, ``longest`` the most that one lasts, ``only`` the
    kinds to choose from (all, if empty). ``drain`` is for how many seconds a process may clean up in the end;
    with 0 it need not, and what was still to be done is no finding. ``worker`` is the module that worker
    processes run, so that a test can plant a fault in it.
    """

    seconds: float = 60.0
    seed: int = 1
    processes: int = 5
    pace: float = 0.8
    longest: float = 8.0
    only: tuple[str, ...] = ()
    drain: float = 0.0
    prefix: str = "chaos"
    worker: str = "proof.chaos.worker"

    @property
    def limits(self) -> dict[str, int]:
        """How many may hold each key at once, where that is not one."""
        return {f"{self.prefix}/{key}": limit for key, limit in SLOTS.items()}

    @property
    def keys(self) -> tuple[str, ...]:
        """Everything that is contended for."""
        return tuple(f"{self.prefix}/{key}" for key in (*LOCKS, *SLOTS, *LEADS))

    @property
    def failover(self) -> float:
        """The seconds within which what a dead process has left is free again."""
        specs = (SessionSpec(ttl=ttl, lock_delay=lock_delay) for ttl, lock_delay in LOCK_DELAYS.items())
        return max(map(failover_bound, specs))

    @property
    def progress_bound(self) -> float:
        """The seconds within which everybody must have had a turn after the healing."""
        return self.failover + LATE

    def part(self, place: int, *, life: int, address: str, folder: str) -> Part:
        """Return what the process at a place is to do."""
        return Part(
            name=f"worker{place}",
            place=place,
            life=life,
            address=address,
            folder=folder,
            prefix=self.prefix,
            ttl=tuple(LOCK_DELAYS)[place % len(LOCK_DELAYS)],
            blocking=place % 5 in {1, 3},
            drain=self.drain,
            seed=self.seed * 10_007 + place * 101 + life,
        )
