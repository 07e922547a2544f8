"""``consul-coord simulate``: runs of the simulator, by seed.

Rules
- A broken rule ends it with code 1. It prints the seed, the rule and the end of the story. The files of
  ``--trace`` and ``--timeline`` have the whole story.
- The name of a file decides its content: a document for ``.json``, the lines of a history for ``.jsonl``, a
  picture for ``.svg`` or ``.html``, and otherwise the story for a person.
- The last line says what was run: it is the same for the same seeds.
"""

from __future__ import annotations

import io
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from consul_coord.cli import options
from consul_coord.cli.codes import ExitCode

if TYPE_CHECKING:
    from consul_coord.testing.simulation import Counts, Outcome

_REPORT_EVERY = 100
"""Runs after which the report is written again: a long series may be ended at any time."""


class _NewFile(click.Path):
    """A file that can be written. A missing folder, or a wrong ending, is reported before the runs."""

    def __init__(self, *endings: str) -> None:
        super().__init__(dir_okay=False, writable=True)
        self._endings = endings

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - as click has it
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not path.parent.is_dir():
            self.fail(f"there is no folder {str(path.parent)!r}", param, ctx)
        if self._endings and path.suffix not in self._endings:
            self.fail(f"{path.name!r} does not end in {' or '.join(self._endings)}", param, ctx)
        return path


_NEW_FILE = _NewFile()
_PICTURE = _NewFile(".svg", ".html")
EPILOG = """\b
Examples:
  consul-coord simulate --seed 1 --count 100
  consul-coord simulate --seed 217 --trace run.json
  consul-coord simulate --seed 217 --trace story.txt --timeline run.html
  consul-coord simulate --seed 1000000 --count 50000 --report runs.json

No Consul is needed: time, network and server are simulated, and the same seed gives the same run.
"""


@click.command(epilog=EPILOG)
@click.option("--seed", type=options.Whole(), required=True, metavar="N", help="The first run's seed.")
@click.option(
    "--count", type=options.Whole(1), default=1, show_default=True, metavar="N", help="Runs, one a seed."
)
@click.option(
    "--trace",
    type=_NEW_FILE,
    metavar="FILE",
    help="Write the last run to FILE: .json a document, .jsonl a history, else the story as text.",
)
@click.option(
    "--timeline",
    type=_PICTURE,
    metavar="FILE",
    help="Draw the last run's holders, waiters and faults over time to FILE: .svg or .html.",
)
@click.option(
    "--report",
    type=_NEW_FILE,
    metavar="FILE",
    help="Write what all runs together were, and how often each fault and rare branch was seen, as JSON.",
)
def simulate(*, seed: int, count: int, trace: Path | None, timeline: Path | None, report: Path | None) -> int:
    """Run clients against a Consul that misbehaves, in virtual time.

    Exits with 0 when no rule was broken, else with 1.
    """
    from consul_coord.testing.simulation import Counts, Simulation, SimulationFailed

    counts, events, seconds = Counts(), 0, 0.0
    for runs, number in enumerate(range(seed, seed + count), start=1):
        outcome = Simulation(seed=number).outcome()
        counts.add(outcome.counts)
        events += outcome.events
        seconds += outcome.seconds
        last = outcome.violation is not None or runs == count
        if last:
            _write(outcome, trace, timeline)
        if report is not None and (last or runs % _REPORT_EVERY == 0):
            report.write_text(_report(counts, seed, runs, events, seconds), encoding="utf-8")
        if outcome.violation is not None:
            click.echo(str(SimulationFailed(outcome)))
            return ExitCode.NO
    rare = sum(counts.seen[what] > 0 for what in counts.expected())
    click.echo(
        f"{count} runs, {events} events in {seconds:.0f} s of virtual time, no rule broken, "
        f"{rare} of {len(counts.expected())} rare branches seen"
    )
    return ExitCode.DONE


def _report(counts: Counts, seed: int, runs: int, events: int, seconds: float) -> str:
    whole = {
        "seed": seed,
        "runs": runs,
        "events": events,
        "hours": seconds / 3600,
        "missing": counts.missing(),
        "counts": dict(sorted(counts.seen.items())),
    }
    return json.dumps(whole, indent=1) + "\n"


def _write(outcome: Outcome, trace: Path | None, timeline: Path | None) -> None:
    if trace is not None:
        form = {".json": _document, ".jsonl": _history}.get(trace.suffix, _story)
        trace.write_text(form(outcome), encoding="utf-8")
    if timeline is not None:
        timeline.write_text(_picture(outcome, page=timeline.suffix == ".html"), encoding="utf-8")


def _story(outcome: Outcome) -> str:
    return f"{outcome.plan.describe()}\n{outcome.trace.text()}\n{_end(outcome)}\n"


def _end(outcome: Outcome) -> str:
    return "no rule was broken" if outcome.violation is None else str(outcome.violation)


def _document(outcome: Outcome) -> str:
    violation = outcome.violation
    document = {
        "seed": outcome.seed,
        "plan": outcome.plan.describe().splitlines(),
        "events": outcome.events,
        "seconds": outcome.seconds,
        "violation": None if violation is None else {"rule": violation.rule, "how": violation.how},
        "counts": dict(sorted(outcome.counts.seen.items())),
        "records": [asdict(record) for record in outcome.trace.records()],
    }
    return json.dumps(document, indent=1) + "\n"


def _history(outcome: Outcome) -> str:
    from consul_coord.testing.history import dump

    lines = io.StringIO()
    dump(outcome.trace.records(), lines)
    return lines.getvalue()


def _picture(outcome: Outcome, *, page: bool) -> str:
    from consul_coord.testing.history import timeline

    draw = timeline.html if page else timeline.svg
    return draw(outcome.trace.records(), title=f"Seed {outcome.seed}: {_end(outcome)}")
