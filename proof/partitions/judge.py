"""Judge what members have believed to own. Pure.

A *span* is one time of owning a partition: from the first look to the last at which its owner found itself
the owner. All instants are of one clock.

Rules
- **believers**: no owner finds itself the owner after another one has found itself the owner under a higher
  fence.
- **without an owner**: the time from the last look of one owner to the first look of the next one is no
  longer than the bound. If a member that is due before the next owner, or right after the last one, is hurt
  meanwhile, the time counts from then, because it may have been the heir; from its recovery, if its session
  may have lived on. If the next owner was hurt itself, the time counts from its recovery. The time also
  counts from the moment at which the servers have a new leader, which begins the time of each session again.
- **moves**: a partition changes its owner only if one of the two came or went, that is: was hurt while the
  partition moved, or shortly before. A time without an answer of the servers is a harm to everybody, if it
  lasts longer than leases endure.
- Members have the same names from the beginning to the end, so the names say who is due first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from consul_coord.recipes.partition.rendezvous import Rendezvous

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from proof.partitions.member import Look

EVERYBODY: Final = ""
"""Whom it concerns that the servers are away."""
KILLED: Final = "killed"
NO_LEADER: Final = "no leader"
NO_ANSWER: Final = "no answer"
"""The servers answered nobody for a while, and kept their leader."""
TICK: Final = 0.5
"""Seconds within which a member that is well writes down what it owns."""


@dataclass(slots=True)
class Span:
    """One time of owning a partition."""

    partition: str
    fence: int
    member: str
    first: float
    """When its owner had found itself the owner for the first time: read after that look."""
    last: float
    """When it was to find itself the owner for the last time: read before that look."""

    def __str__(self) -> str:
        return f"{self.member} under fence {self.fence} ({self.first:.3f} to {self.last:.3f} s)"


@dataclass(frozen=True, slots=True)
class Harm:
    """A member, or everybody, was hurt until ``over``."""

    member: str
    kind: str
    began: float
    over: float

    def counts_from(self, lives: float) -> float:
        """Return from when another one could be the heir, if a session lives for so many seconds at most."""
        ends = self.member != EVERYBODY and (self.kind == KILLED or self.over - self.began > lives)
        return self.began if ends else self.over


@dataclass(slots=True)
class Verdict:
    """What many spans come to."""

    two_believers: list[str] = field(default_factory=list[str])
    too_long: list[str] = field(default_factory=list[str])
    """Partitions without an owner for longer than the bound."""
    needless: list[str] = field(default_factory=list[str])
    """Partitions that moved although neither owner had come or gone."""
    longest_gap: float = 0.0
    """Seconds for which a partition had no owner, at most."""
    spans: int = 0
    moves: int = 0

    @property
    def findings(self) -> list[str]:
        """All that must not be."""
        return [*self.two_believers, *self.too_long, *self.needless]


class Spans:
    """Spans by partition and fence, from the looks of many members in any order."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int, str], Span] = {}

    def add(self, member: str, look: Look) -> None:
        """Take note of a look."""
        for partition, fence in look.fences.items():
            span = self._found.get((partition, fence, member))
            if span is None:
                self._found[partition, fence, member] = Span(
                    partition, fence, member, look.after, look.before
                )
            else:
                span.first = min(span.first, look.after)
                span.last = max(span.last, look.before)

    def by_partition(self) -> dict[str, list[Span]]:
        """Return the spans of each partition, by their fences."""
        found: dict[str, list[Span]] = {}
        for span in sorted(self._found.values(), key=lambda span: (span.fence, span.first)):
            found.setdefault(span.partition, []).append(span)
        return found


def heirs(partition: str, members: Iterable[str]) -> list[str]:
    """Return who is to own a partition, the first choice first."""
    left, order = dict.fromkeys(members, 1.0), list[str]()
    while left:
        (first,) = Rendezvous([partition]).owners(left).values()
        order.append(first)
        del left[first]
    return order


def judge(
    spans: Spans,
    harms: Sequence[Harm] = (),
    *,
    members: Iterable[str],
    bound: float = math.inf,
    lives: float = math.inf,
    endures: float = 0.0,
    since: float = -math.inf,
) -> Verdict:
    """Return what many looks come to.

    ``members`` are all names. ``bound`` is how many seconds a partition may have no owner. ``lives`` is
    after how many seconds the session of a member that is not heard from has ended. ``endures`` is how many
    seconds without an answer cost nobody a lease. ``since`` is when all members had joined: earlier moves are
    not judged.
    """
    verdict, names = Verdict(), list(members)
    for partition, found in spans.by_partition().items():
        verdict.spans += len(found)
        verdict.two_believers += _believers(partition, found)
        order = heirs(partition, names)
        for before, after in _handovers(found):
            gap = after.first - _counted_from(before, after, harms, order, lives)
            verdict.longest_gap = max(verdict.longest_gap, gap)
            if gap > bound:
                verdict.too_long.append(
                    f"partition {partition} had no owner for {gap:.3f} s, from {before} to {after}"
                )
            if before.member != after.member and after.first > since:
                verdict.moves += 1
                if not _came_or_went(before, after, harms, shortly=bound, endures=endures):
                    verdict.needless.append(f"partition {partition} moved from {before} to {after}")
    return verdict


def _believers(partition: str, found: Sequence[Span]) -> Iterator[str]:
    for before, after in _handovers(found):
        if before.last > after.first or before.fence == after.fence:
            yield f"partition {partition} had two owners: {before} and {after}"


def _handovers(found: Sequence[Span]) -> Iterator[tuple[Span, Span]]:
    """Yield each span with the one before it that lasted longest."""
    longest: Span | None = None
    for span in found:
        if longest is not None:
            yield longest, span
        if longest is None or span.last > longest.last:
            longest = span


def _counted_from(
    before: Span, after: Span, harms: Iterable[Harm], order: Sequence[str], lives: float
) -> float:
    """Return from when a partition was without an owner that could have been."""
    asked = set(order[: max(order.index(after.member), order.index(before.member) + 1) + 1])
    meanwhile = (
        # The next owner was not due before it was back.
        harm.over if harm.member == after.member != before.member else harm.counts_from(lives)
        for harm in harms
        if harm.began < after.first
        and (
            harm.kind == NO_LEADER
            or (harm.member in asked and harm.began > before.last + TICK)
            or (harm.member == after.member != before.member and harm.over > before.last)
        )
    )
    return min(after.first, max((before.last, *meanwhile)))


def _came_or_went(
    before: Span, after: Span, harms: Iterable[Harm], *, shortly: float, endures: float
) -> bool:
    concerned = {before.member, after.member}
    return any(
        harm.member in concerned or (harm.member == EVERYBODY and harm.over - harm.began > endures)
        for harm in harms
        if harm.began < after.first and harm.over > before.last - shortly
    )
