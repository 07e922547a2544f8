"""A member as a process of its own that writes down what it believes to own, and the judge of many.

Each line is an instant of the machine's monotonic clock, read before the look, the partition and the fence.
Whoever believes in a fence after another process has believed in a higher one is a second believer.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

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
    """Seconds for which a partition had no owner, at most; before the first one not counted."""
    owners: dict[str, set[str]] = field(default_factory=dict)
    """Who has owned each partition."""


def judge(beliefs: Iterable[Belief]) -> Verdict:
    """Return whether a partition ever had two believers, and how long one had none. In the order of time."""
    verdict, latest, highest = Verdict(), dict[str, Belief](), dict[str, Belief]()
    for belief in beliefs:
        before = highest.get(belief.partition)
        if before is None or belief.fence >= before.fence:
            highest[belief.partition] = belief
        else:
            verdict.two_believers.append((before, belief))
        if (last := latest.get(belief.partition)) is not None:
            verdict.longest_gap = max(verdict.longest_gap, belief.at - last.at)
        latest[belief.partition] = belief
        verdict.owners.setdefault(belief.partition, set()).add(belief.member)
    return verdict
