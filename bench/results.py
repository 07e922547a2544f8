"""What a run of the benchmarks brings: plain values, and their form in JSON.

Rules
- A spread is always given with its median: the tenth and the ninetieth percentile, and of how many samples.
- Times are in milliseconds, memory in KiB, CPU in milliseconds or percent of one core; ``unit`` says which.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

FORMAT = 1
"""Version of the JSON form: grows when a reader of the old one would misread the new one."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle of some samples, and how far they lie apart."""

    median: float
    p10: float
    p90: float
    mean: float
    count: int

    @classmethod
    def of(cls, samples: Sequence[float], *, scale: float = 1.0) -> Spread:
        """Sum up samples, each multiplied by ``scale``. Raises ValueError without any."""
        if not samples:
            message = "no samples"
            raise ValueError(message)
        ordered = sorted(sample * scale for sample in samples)
        return cls(
            median=_quantile(ordered, 0.5),
            p10=_quantile(ordered, 0.1),
            p90=_quantile(ordered, 0.9),
            mean=math.fsum(ordered) / len(ordered),
            count=len(ordered),
        )


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile by linear interpolation between the two nearest samples."""
    place = share * (len(ordered) - 1)
    below, above = math.floor(place), math.ceil(place)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One thing measured of one contender."""

    contender: str
    what: str
    unit: str
    value: Spread
    ratio: Spread | None = None
    """The value as a multiple of the outcome's ``base``, taken round by round."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A contender that could not take part, and why."""

    contender: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one measure found."""

    measure: str
    title: str
    figures: tuple[Figure, ...]
    base: str = ""
    """The contender that ratios are multiples of; empty where there are none."""
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()

    def figure(self, contender: str, what: str) -> Figure:
        """Return one figure. Raises KeyError when it was not measured."""
        for figure in self.figures:
            if (figure.contender, figure.what) == (contender, what):
                return figure
        message = f"{self.measure} has no figure {what!r} of {contender!r}"
        raise KeyError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where and under what load it was run."""

    began: str
    system: str
    cores: int
    python: str
    consul: str
    go: str
    """Version of Go, empty where there is none."""
    commit: str
    """The commit that was measured, with a plus for changes since; empty where there is none."""
    packages: dict[str, str]
    load_before: tuple[float, float, float]
    load_after: tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a run said to one aim."""

    measure: str
    what: str
    kind: Literal["count", "time"]
    bound: str
    unit: str
    found: float
    met: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One whole run."""

    machine: Machine
    quick: bool
    seconds: float
    """How long the run took."""
    outcomes: tuple[Outcome, ...]
    verdicts: tuple[Verdict, ...] = ()

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=2, ensure_ascii=False) + "\n"
