"""A report as Markdown: one table per measure, ratios first."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bench.results import Figure, Machine, Outcome, Report, Spread

_DIGITS = 3


def render(report: Report) -> str:
    """Return the whole report."""
    return "\n".join(["# Benchmarks", "", render_aims(report), render_outcomes(report.outcomes)])


def render_aims(report: Report) -> str:
    """Return where and when it was run, and what came of the aims."""
    return "\n".join([*_head(report), *_aims(report)])


def render_outcomes(outcomes: Iterable[Outcome]) -> str:
    """Return the tables of some measures."""
    return "\n".join(line for outcome in outcomes for line in _section(outcome))


def _aims(report: Report) -> Iterator[str]:
    if not report.verdicts:
        return
    missed = sum(not verdict.met for verdict in report.verdicts)
    yield "## Aims"
    yield ""
    yield f"{len(report.verdicts) - missed} of {len(report.verdicts)} met."
    yield ""
    yield _row(("measure", "what", "aim", "found", "met"))
    yield _row(("---", "---", "---:", "---:", "---"))
    for verdict in report.verdicts:
        found = f"{_number(verdict.found)} {verdict.unit}".rstrip()
        yield _row((verdict.measure, verdict.what, verdict.bound, found, "yes" if verdict.met else "**no**"))
    yield ""


def _head(report: Report) -> Iterator[str]:
    machine = report.machine
    form = "quick form, " if report.quick else ""
    versions = {
        "Python": machine.python,
        "Consul": machine.consul,
        "Go": machine.go,
        **machine.packages,
        "commit": machine.commit,
    }
    yield (
        f"{machine.began}, {form}{report.seconds:.0f} s. {machine.system}, {machine.cores} cores, "
        f"load {_loads(machine)}. "
        + ", ".join(f"{name} {version}" for name, version in versions.items() if version)
        + "."
    )
    yield ""
    yield "Medians, with the tenth and ninetieth percentile in brackets. A ratio is taken round by round."
    yield ""


def _loads(machine: Machine) -> str:
    before, after = (" ".join(f"{load:.2f}" for load in loads) for loads in _both(machine))
    return f"{before} before and {after} after"


def _both(machine: Machine) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return machine.load_before, machine.load_after


def _section(outcome: Outcome) -> Iterator[str]:
    yield f"## {outcome.title}"
    yield ""
    yield from _table(outcome)
    for note in outcome.notes:
        yield f"- {note}"
    for skipped in outcome.skipped:
        yield f"- {skipped.contender}: skipped, {skipped.why}"
    if outcome.notes or outcome.skipped:
        yield ""


def _table(outcome: Outcome) -> Iterator[str]:
    if not outcome.figures:
        return
    ratios = any(figure.ratio is not None for figure in outcome.figures)
    titles = ["contender", "what", *([f"× {outcome.base}"] if ratios else []), "value", "mean", "samples"]
    yield _row(titles)
    yield _row("---" if title in {"contender", "what"} else "---:" for title in titles)
    for figure in outcome.figures:
        yield _row(_cells(figure, ratios=ratios))
    yield ""


def _cells(figure: Figure, *, ratios: bool) -> Sequence[str]:
    value = figure.value
    ratio = ["" if figure.ratio is None else _spread(figure.ratio)] if ratios else []
    shown = f"{_spread(value)} {figure.unit}".rstrip()
    return [figure.contender, figure.what, *ratio, shown, _number(value.mean), str(value.count)]


def _spread(spread: Spread) -> str:
    if spread.p10 == spread.p90:
        return _number(spread.median)
    return f"{_number(spread.median)} ({_number(spread.p10)}–{_number(spread.p90)})"


def _number(value: float) -> str:
    """Return three significant digits, and all digits before the point."""
    return f"{value:.0f}" if abs(value) >= 10**_DIGITS else f"{value:.{_DIGITS}g}"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
