"""A member as a process of its own that writes down what it believes to own, and the judge of many.

Each line is an instant of the machine's monotonic clock, read before the look, the partition and the fence.
Whoever believes in a fence after another process has believed in a higher one is a second believer.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from consul_coord.recipes.partition.rendezvous import Rendezvous

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

TICK = 0.5
"""Seconds within which a member that is well writes down what it owns."""
PROGRAM = """
import sys, threading, time
from consul_coord import *
address, prefix, name, partitions, ttl, tick, path = sys.argv[1:]
spec = SessionSpec(ttl=float(ttl), lock_delay=float(ttl))
with open(path, "a", buffering=1) as log, Client(address=address, session=spec) as client:
    group = Group(client, prefix, id=name)
    partitioner = Partitioner(group, int(partitions), settle=0.2)
    group.join(timeout=60)
    partitioner.start()
    print("joined", flush=True)
    while True:
        before = time.monotonic()
        log.write("".join(f"{before} {name} {hold.fence}\\n" for name, hold in partitioner.owned.items()))
        time.sleep(float(tick))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all members are started with."""

    address: str
    prefix: str
    partitions: int
    ttl: float
    tick: float
    folder: Path

    def start(self, name: str) -> subprocess.Popen[str]:
        """Start a member, under a name that may have been another one's before."""
        arguments = [self.address, self.prefix, name, self.partitions, self.ttl, self.tick]
        log = self.folder / f"{name}.log"
        command = [sys.executable, "-c", PROGRAM, *map(str, arguments), str(log)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def beliefs(self) -> list[Belief]:
        """Return all that was written down, in the order of time."""
        lines = [line for log in self.folder.glob("*.log") for line in _whole_lines(log)]
        return sorted(lines, key=lambda belief: belief.at)


@dataclass(frozen=True, slots=True)
class Belief:
    """One process found itself the owner of a partition."""

    at: float
    partition: str
    fence: int
    member: str


@dataclass(frozen=True, slots=True)
class Harm:
    """A member was killed, or stopped until ``over``."""

    member: str
    began: float
    over: float


def _whole_lines(log: Path) -> Iterable[Belief]:
    for line in log.read_text("utf-8").splitlines(keepends=True):
        parts = line.split()
        if line.endswith("\n") and len(parts) == 3:  # a killed process may have written half a line
            yield Belief(float(parts[0]), parts[1], int(parts[2]), log.stem)


@dataclass(slots=True)
class Verdict:
    """What many beliefs come to."""

    two_believers: list[tuple[Belief, Belief]] = field(default_factory=list)
    longest_gap: float = 0.0
    """Seconds for which a partition had no owner, at most; before the first one not counted.

    When an heir is hurt while it is to take over, they are counted from then.
    """
    owners: dict[str, set[str]] = field(default_factory=dict)
    """Who has owned each partition."""


def heirs(partition: str, members: Iterable[str]) -> list[str]:
    """Return who is to own a partition, the first choice first."""
    left, order = dict.fromkeys(members, 1.0), list[str]()
    while left:
        (first,) = Rendezvous([partition]).owners(left).values()
        order.append(first)
        del left[first]
    return order


def judge(beliefs: Iterable[Belief], harms: Iterable[Harm] = ()) -> Verdict:
    """Return whether a partition ever had two believers, and how long one had none. In the order of time."""
    harms = list(harms)
    names = {harm.member for harm in harms}
    verdict, latest, highest = Verdict(), dict[str, Belief](), dict[str, Belief]()
    for belief in beliefs:
        before = highest.get(belief.partition)
        if before is None or belief.fence >= before.fence:
            highest[belief.partition] = belief
        else:
            verdict.two_believers.append((before, belief))
        if (last := latest.get(belief.partition)) is not None:
            began = last.at
            if harms and belief.at - began > verdict.longest_gap:
                order = heirs(belief.partition, {*names, belief.member})
                asked = set(order[: order.index(belief.member) + 1])
                later = [harm for harm in harms if last.at + TICK < harm.began < belief.at]
                began = max((harm.over for harm in later if harm.member in asked), default=began)
            verdict.longest_gap = max(verdict.longest_gap, belief.at - began)
        latest[belief.partition] = belief
        verdict.owners.setdefault(belief.partition, set()).add(belief.member)
    return verdict
