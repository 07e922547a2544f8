"""Whether figures that were measured again and again under constant load stay flat. Pure.

Rules
- The first ``WARM_UP`` of the samples is left out: pools fill, modules load, memory settles.
- What is compared is the median of the first third of the rest with that of its last third: single samples
  catch the load at moments of its cycles, medians do not.
- A leak grows with the work done. So a bound is absolute, however long the run: a long run is the stricter
  one.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Figures = Mapping[str, float]

WARM_UP: Final = 0.25
BOUNDS: Final[Figures] = {
    "threads": 1,
    "files": 1,
    "sockets": 16,  # a pool keeps as many idle ones, and fills up by and by
    "tasks": 5,
    "sessions": 3,
    "keys": 4,
    "pending_cleanup": 50,  # what got no answer is looked at for a minute: it goes with the give-ups
    "blocks": 5_000,  # of Python's own allocator, about a twentieth of what such a process has
    "memory_kib": 4_096,  # the allocator's fragments are in it, too
}
"""By how much a figure's median may grow."""


@dataclass(frozen=True, slots=True)
class Trend:
    """One figure over a run: its medians, early and late, and the highest sample."""

    name: str
    early: float
    late: float
    most: float

    @property
    def growth(self) -> float:
        """By how much the median grew."""
        return self.late - self.early

    @property
    def is_flat(self) -> bool:
        """Whether that is within the bound."""
        return self.growth <= BOUNDS[self.name]

    def __str__(self) -> str:
        return f"| {self.name} | {self.early:g} | {self.late:g} | {self.most:g} | {BOUNDS[self.name]:g} |"


def trends(samples: Sequence[Figures]) -> list[Trend]:
    """Return how each figure went."""
    settled = samples[int(len(samples) * WARM_UP) :]
    third = len(settled) // 3
    return [
        Trend(
            name,
            early=median(sample[name] for sample in settled[:third]),
            late=median(sample[name] for sample in settled[-third:]),
            most=max(sample[name] for sample in samples),
        )
        for name in BOUNDS
    ]
