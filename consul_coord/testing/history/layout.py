"""Where everything of a timeline stands: lanes, scale and ticks. Pure numbers, no drawing.

Rules
- A lane belongs to one actor and one key; lanes of a key stand together, in the order in which they first
  appear. Faults have lanes of their own, one for each process or agent, above all others.
- The scale gives a typical hold room for its fence. A short run fills the width of a page; a long one becomes
  as wide as it needs, up to ``WIDEST``, and is scrolled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from consul_coord.testing.history.record import Record
    from consul_coord.testing.history.spans import Span, Spans

NARROWEST: Final = 1000.0
WIDEST: Final = 30_000.0
LANE: Final = 24.0
"""Height of a lane, in pixels."""
HEADING: Final = 30.0
"""Height of a group's heading, in pixels."""
_HOLD: Final = 44.0
"""How wide a typical hold shall be, in pixels."""
_OF_PROCESSES: Final = frozenset({"fault", "healed", "ended"})
_TICK: Final = 90.0
"""How far ticks of the time axis are apart at least, in pixels."""
_STEPS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600)


@dataclass(frozen=True, slots=True)
class Lane:
    """One row: whose, of which key (empty: faults), and how far down it begins."""

    process: str
    actor: str
    key: str
    top: float

    @property
    def label(self) -> str:
        """Return what stands before the lane."""
        return f"{self.process} · {self.actor}" if self.actor else self.process or "(nobody)"


@dataclass(frozen=True, slots=True)
class Group:
    """The heading over some lanes, and how far down it begins."""

    title: str
    top: float


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of a whole picture: time to pixels across, lanes down."""

    start: float
    scale: float
    width: float
    height: float
    groups: tuple[Group, ...]
    lanes: dict[tuple[str, str, str], Lane]

    def x(self, at: float) -> float:
        """Return how far to the right a moment is."""
        return (at - self.start) * self.scale

    def ticks(self) -> Iterable[tuple[float, str]]:
        """Yield where the time axis has marks, and what they say."""
        step = _step(_TICK / self.scale)
        count = math.floor(self.width / self.scale / step + 1e-9)
        return ((number * step * self.scale, clock(number * step, step)) for number in range(count + 1))


def place_of(record: Record) -> tuple[str, str, str]:
    """Return whose lane a record is on: what happens to a whole process or agent is on that one's."""
    if record.kind in _OF_PROCESSES:
        return record.process, "", ""
    return record.process, record.actor, record.key


def arrange(records: Sequence[Record], spans: Spans) -> Layout:
    """Return the places for a history and what lasts in it."""
    keys: dict[str, dict[tuple[str, str], None]] = {}
    for record in records:
        process, actor, key = place_of(record)
        keys.setdefault(key, {})[process, actor] = None
    groups: list[Group] = []
    lanes: dict[tuple[str, str, str], Lane] = {}
    down = 0.0
    for key, actors in sorted(keys.items()):
        groups.append(Group(key or "processes and agents", down))
        down += HEADING
        for process, actor in actors:
            lanes[process, actor, key] = Lane(process, actor, key, down)
            down += LANE
    lasts = max(spans.whole.ended - spans.whole.began, 1e-3)
    width = min(max(NARROWEST, _wanted(hold.relied for hold in spans.holds) * lasts), WIDEST)
    return Layout(
        start=spans.whole.began,
        scale=width / lasts,
        width=width,
        height=max(down, LANE),
        groups=tuple(groups),
        lanes=lanes,
    )


def _wanted(holds: Iterable[Span]) -> float:
    """Return the pixels a second at which a typical hold has room for its fence."""
    lengths = [hold.ended - hold.began for hold in holds if hold.ended > hold.began]
    return _HOLD / median(lengths) if lengths else 0.0


def _step(least: float) -> float:
    """Return a round number of seconds that is no less."""
    if least >= 1:
        return next((step for step in _STEPS if step >= least), math.ceil(least / 3600) * 3600)
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= least * (1 - 1e-9))


def clock(seconds: float, step: float = 1.0) -> str:
    """Return a time since the beginning, as exact as ticks of that step need it."""
    if step < 1:
        return f"{seconds:.{max(0, -math.floor(math.log10(step)))}f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
