"""Which member owns which partition: rendezvous hashing, with weights. Pure.

Each member draws a number for each partition, from a hash of both names, and the least number wins. It is
drawn from an exponential distribution at the rate of the member's weight, so that a member of twice the
weight wins twice as often.

Rules
- Everybody who knows the same members and weights comes to the same owners.
- A member that comes takes partitions only for itself, and one that goes leaves only its own: nothing else
  moves. With a bound on the load some more do.
- A member of weight 0 owns nothing.

Source: Thaler and Ravishankar, "A name-based mapping scheme for rendezvous" (1996); for the bound, Mirrokni,
Thorup and Zadimoghaddam, "Consistent hashing with bounded loads" (2017).
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Rendezvous:
    """Assigns partitions to members."""

    def __init__(self, partitions: Sequence[str], *, bound: float | None = None) -> None:
        self._partitions = partitions
        self._bound = bound
        self._drawn: dict[str, list[float]] = {}
        """The draws of each member, for all partitions."""
        self._weights: dict[str, float] = {}
        self._owners = [""] * len(partitions)
        self._least = [math.inf] * len(partitions)
        """The owner of each partition with these weights, and its draw, where there is no bound."""

    def owners(self, weights: Mapping[str, float]) -> dict[str, str]:
        """Return the owner of each partition; none of them when nobody has a weight above 0."""
        standing = {member: weight for member, weight in weights.items() if weight > 0}
        self._drawn = {
            member: self._drawn.get(member) or [_draw(member, one) for one in self._partitions]
            for member in sorted(standing)
        }
        if not standing:
            return {}
        return self._best(standing) if self._bound is None else self._bounded(standing, self._bound)

    def _best(self, weights: dict[str, float]) -> dict[str, str]:
        """Look only at what changes: the partitions of those who go, and the draws of those who come."""
        least, owners, known = self._least, self._owners, self._weights
        stay = {member for member, weight in weights.items() if known.get(member) == weight}
        for number, owner in enumerate(owners):
            if owner not in stay:
                draws = ((self._drawn[member][number] / weights[member], member) for member in stay)
                least[number], owners[number] = min(draws, default=(math.inf, ""))
        for member in weights.keys() - stay:
            weight = weights[member]
            for number, drew in enumerate(self._drawn[member]):
                least[number], owners[number] = min((least[number], owners[number]), (drew / weight, member))
        self._weights = weights
        return dict(zip(self._partitions, owners, strict=True))

    def _bounded(self, weights: Mapping[str, float], bound: float) -> dict[str, str]:
        """Let no member own more than ``bound`` times its share, rounded up."""
        share = bound * len(self._partitions) / sum(weights.values())
        room = {member: math.ceil(share * weight) for member, weight in weights.items()}
        found: dict[str, str] = {}
        # The partition that somebody wants most comes first, whatever the names' order.
        wanted = sorted(
            (drawn[number] / weights[member], partition, member)
            for member, drawn in self._drawn.items()
            for number, partition in enumerate(self._partitions)
        )
        for _, partition, member in wanted:
            if partition not in found and room[member]:
                found[partition] = member
                room[member] -= 1
        return found


def _draw(member: str, partition: str) -> float:
    digest = hashlib.blake2b(f"{member}/{partition}".encode(), digest_size=8).digest()
    return -math.log((int.from_bytes(digest, "big") + 0.5) / 2**64)
