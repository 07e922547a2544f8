"""A report's curves and bars as SVG. Needs matplotlib (extra ``bench``).

Rules
- A picture shows one thing, with its unit on the axis. Spreads are the tenth to the ninetieth percentile;
  curves over sizes are on logarithmic axes.
- The same report gives the same bytes. Colours can be told apart by the colour-blind, lines by their marks.
- What was not measured has no picture.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.measures import capacity, handoff, semaphore_crowd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from bench.results import Figure, Outcome, Report

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
MARKS = ("o", "s", "^", "D")
_SIZE = (7.0, 3.6)


@dataclass(frozen=True, slots=True)
class Curve:
    """One line: a name, and points of size and number."""

    name: str
    points: Sequence[tuple[float, float]]


def draw(report: Report, folder: Path) -> None:
    """Write the pictures of what was measured. Raises ImportError without matplotlib."""
    import matplotlib as mpl

    mpl.use("svg")
    outcomes = {outcome.measure: outcome for outcome in report.outcomes}
    with mpl.rc_context():
        mpl.rc("svg", hashsalt="consul-coord", fonttype="none")
        mpl.rc("font", size=9)
        mpl.rc("axes", grid=True)
        mpl.rc("axes.spines", top=False, right=False)
        mpl.rc("grid", alpha=0.3)
        for measure, name, picture in PICTURES:
            if measure in outcomes:
                _save(folder / f"perf-{name}.svg", picture, outcomes[measure])


def _save(path: Path, picture: Callable[[Axes, Outcome], None], outcome: Outcome) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=_SIZE, layout="constrained")
    try:
        picture(axes, outcome)
        figure.savefig(path, metadata={"Date": None})
    finally:
        plt.close(figure)


def _pairs(axes: Axes, outcome: Outcome) -> None:
    """Show one bar per contender."""
    figures = [figure for figure in outcome.figures if figure.unit == "ms"][::-1]
    values = [figure.value for figure in figures]
    axes.barh(
        [figure.contender for figure in figures],
        [value.median for value in values],
        xerr=(
            [value.median - value.p10 for value in values],
            [value.p90 - value.median for value in values],
        ),
        color=[COLOURS[0] if figure.contender.startswith("ours") else "#999999" for figure in figures],
        error_kw={"elinewidth": 0.8},
    )
    axes.set_xscale("log")
    axes.set_xlabel("ms, acquire + release")


def _handoffs(axes: Axes, outcome: Outcome) -> None:
    sizes = handoff.ROUNDS
    found: list[Curve] = []
    for name in (handoff.GO.name, handoff.NAME):
        by_size = _by_size(outcome, name, sizes, "{} waiting")
        found.append(Curve(f"{name}, median", [(size, each.value.median) for size, each in by_size]))
        found.append(Curve(f"{name}, mean", [(size, each.value.mean) for size, each in by_size]))
    _curves(axes, found, x="waiting", y="ms from release to the next holder")


def _slots(axes: Axes, outcome: Outcome) -> None:
    sizes = semaphore_crowd.ROUNDS
    found: list[Curve] = []
    for name in (semaphore_crowd.GO.name, handoff.NAME):
        for what in (semaphore_crowd.REQUESTS, semaphore_crowd.FAILED):
            by_size = _by_size(outcome, name, sizes, f"{{}} contenders: {what}")
            found.append(Curve(f"{name}, {what}", [(size, each.value.median) for size, each in by_size]))
    _curves(axes, found, x="contenders for 3 slots", y="per acquisition")


def _capacity(axes: Axes, outcome: Outcome) -> None:
    found: list[Curve] = []
    for what in (capacity.REQUESTS, capacity.ENTRIES, capacity.READ, capacity.JOIN_READ):
        points = [
            (size, outcome.figure(capacity.queue(size), what).value.median)
            for size in (*capacity.QUICK_SIZES, *capacity.SIZES)
            if _has(outcome, capacity.queue(size), what)
        ]
        found.append(Curve(what, sorted(set(points))))
    _curves(axes, found, x="length of the queue", y="")


def _has(outcome: Outcome, contender: str, what: str) -> bool:
    with suppress(KeyError):
        outcome.figure(contender, what)
        return True
    return False


def _by_size(
    outcome: Outcome, contender: str, sizes: Iterable[int], what: str
) -> Sequence[tuple[int, Figure]]:
    return [
        (size, outcome.figure(contender, what.format(size)))
        for size in sizes
        if _has(outcome, contender, what.format(size))
    ]


def _curves(axes: Axes, curves: Sequence[Curve], *, x: str, y: str) -> None:
    for at, curve in enumerate(curve for curve in curves if curve.points):
        places, numbers = zip(*curve.points, strict=True)
        axes.plot(places, numbers, color=COLOURS[at], marker=MARKS[at], label=curve.name, linewidth=1.2)
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=0.1)  # which has a place for 0
    axes.set_ylim(bottom=0)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.legend(fontsize=8)


PICTURES: Sequence[tuple[str, str, Callable[[Axes, Outcome], None]]] = (
    ("pair", "pair", _pairs),
    ("semaphore_pair", "semaphore-pair", _pairs),
    ("handoff", "handoff", _handoffs),
    ("semaphore_crowd", "semaphore-crowd", _slots),
    ("capacity", "capacity", _capacity),
)
"""Which measure, under which name, and how it is drawn."""
