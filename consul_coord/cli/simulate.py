"""``consul-coord simulate``: runs of the simulator, by seed.

Rules
- A broken rule ends it with code 1; the seed, the rule and the end of the story are told, and the whole story
  is in the file of ``--trace``.
- The last line says what was run: it is the same for the same seeds.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from consul_coord.cli.codes import ExitCode

if TYPE_CHECKING:
    from consul_coord.testing.simulation import Outcome

EPILOG = """\b
Examples:
  consul-coord simulate --seed 1 --count 100
  consul-coord simulate --seed 217 --trace story.txt

No Consul is needed: time, network and server are simulated, and the same seed gives the same run.
"""


@click.command(epilog=EPILOG)
@click.option("--seed", type=int, required=True, metavar="N", help="The first run's seed.")
@click.option(
    "--count", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Runs, one a seed."
)
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Write the story of the last run to FILE.",
)
def simulate(*, seed: int, count: int, trace: Path | None) -> int:
    """Run clients against a Consul that misbehaves, in virtual time.

    Exits with 0 when no rule was broken, else with 1.
    """
    from consul_coord.testing.simulation import Counts, Simulation, SimulationFailed

    counts, events, seconds = Counts(), 0, 0.0
    for number in range(seed, seed + count):
        outcome = Simulation(seed=number).outcome()
        counts.add(outcome.counts)
        events += outcome.events
        seconds += outcome.seconds
        if trace is not None and (outcome.violation is not None or number == seed + count - 1):
            trace.write_text(_story(outcome), encoding="utf-8")
        if outcome.violation is not None:
            click.echo(str(SimulationFailed(outcome)))
            return ExitCode.NO
    rare = sum(counts.seen[what] > 0 for what in counts.expected())
    click.echo(
        f"{count} runs, {events} events in {seconds:.0f} s of virtual time, no rule broken, "
        f"{rare} of {len(counts.expected())} rare branches seen"
    )
    return ExitCode.DONE


def _story(outcome: Outcome) -> str:
    end = "no rule was broken" if outcome.violation is None else str(outcome.violation)
    return f"{outcome.plan.describe()}\n{outcome.trace.text()}\n{end}\n"
