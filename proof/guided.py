"""Search the simulator's worlds by what runs reach: ``python -m proof.guided search --seconds 600 --seed 1``.

Rules
- A run has a name, a line of descent: ``217/5/1003`` is the drawn plan of seed 217, changed by the numbers 5
  and 1003. So a name is all there is to keep, and to repeat.
- A number takes some of a plan's parts from another drawn plan, or makes one of its faults more frequent, and
  keeps the seed or brings one of its own. A scene gets another seed alone: its rules hold while one thing
  goes wrong.
- A run is interesting if it reaches a line of the core, a rare event (or many more of one), or a pair of
  requests in a row with their outcomes, which no run before it has reached. Its name is kept in the corpus,
  and it has descendants.
- A broken rule ends the search. ``show NAME`` prints the run.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from consul_coord.testing import Simulation
from consul_coord.testing.simulation.dice import Dice
from consul_coord.testing.simulation.worlds import draw_mixed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
    from types import CodeType, FrameType

    from consul_coord.testing.simulation.plan import Plan
    from consul_coord.testing.simulation.simulation import Outcome

CORPUS = Path(__file__).with_name("corpus.txt")
"""Names of runs, the more interesting ones first."""
MOST_KEPT = 240
"""So many names are kept: the builds repeat their runs, a twelfth each."""
CORE = tuple(str(Path(__file__).resolve().parents[1] / "consul_coord" / each) for each in ("recipes", "http"))
FRESH = 0.3
"""The part of the runs that are drawn instead of bred, so that the search does not stay where it is."""
PARTS = (
    ("fates", "hot", "hot_probability", "latest"),
    ("chaos", "chaos_seconds"),
    ("spec", "ttl_factor"),
    ("processes", "users"),
    ("timeout",),
    ("foreign",),
    ("skew",),
    ("lingering", "spurious"),
    ("stuck",),
)
"""Fields of a plan that another plan takes over together."""


def bred(name: str) -> Plan:
    """Return the plan of a name."""
    first, *numbers = map(int, name.split("/"))
    plan = draw_mixed(first)
    for number in numbers:
        plan = _changed(plan, number)
    return plan


def outcome_of(name: str) -> Outcome:
    """Do the run of a name."""
    plan = bred(name)
    return Simulation(seed=plan.seed, plan=plan).outcome()


def _changed(plan: Plan, number: int) -> Plan:
    rng, other = Dice(number, "breeding"), draw_mixed(number)
    if plan.gentle or other.gentle:
        return replace(plan, seed=number)
    if rng.chance(0.5):
        plan = replace(plan, seed=number)
    if rng.chance(0.3) and plan.chaos:
        often = rng.choice(sorted(plan.chaos))
        return replace(plan, chaos={**plan.chaos, often: max(1.0, plan.chaos[often] / 2)})
    taken: dict[str, Any] = {}
    for part in rng.sample(PARTS, rng.choice((1, 1, 2))):
        # Health checks fail in worlds that have sessions with checks.
        if not ("spec" in part and plan.pools != other.pools):
            taken |= {each: getattr(other, each) for each in part}
    return replace(plan, **taken)


class Seen:
    """Everything that the runs so far have reached."""

    def __init__(self) -> None:
        self.features: set[object] = set()
        self.lines = 0
        """How many lines of the core."""
        self._missing: dict[CodeType, set[int]] = {}

    def news(self, plan: Plan) -> tuple[Outcome, int]:
        """Do a run, and return how many things it has reached that none had before."""
        before = self.lines + len(self.features)
        with self._tracing():
            outcome = Simulation(seed=plan.seed, plan=plan).outcome()
        self.features.update(_events(outcome), _pairs(outcome))
        return outcome, self.lines + len(self.features) - before

    @contextmanager
    def _tracing(self) -> Generator[None]:
        was = sys.gettrace()
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(was)

    def _call(self, frame: FrameType, _event: str, _argument: object) -> Callable[..., Any] | None:
        code = frame.f_code
        missing = self._missing.get(code)
        if missing is None:
            missing = set[int]()
            if code.co_filename.startswith(CORE):
                missing = {line for _, _, line in code.co_lines() if line}
            self._missing[code] = missing
        return self._line if missing else None

    def _line(self, frame: FrameType, event: str, _argument: object) -> Callable[..., Any] | None:
        missing = self._missing[frame.f_code]
        if event == "line" and frame.f_lineno in missing:
            missing.discard(frame.f_lineno)
            self.lines += 1
        return self._line


def _events(outcome: Outcome) -> Iterator[object]:
    """Yield which things were seen, once, a few times, or often."""
    for what, times in outcome.counts.seen.items():
        yield what, times.bit_length()


def _pairs(outcome: Outcome) -> Iterator[object]:
    """Yield what each process was asked, and answered, twice in a row."""
    last: dict[str, tuple[str, str]] = {}
    for line in outcome.trace.lines():
        asked, arrow, answer = line.what.partition("-> ")
        if arrow:
            now = asked.split(" ", 1)[0], answer[:3] + answer.partition("(")[2]
            yield last.get(line.who), now
            last[line.who] = now


def search(
    seen: Seen, corpus: Iterable[str], *, seed: int, seconds: float, tell: Callable[[str], object] = print
) -> tuple[list[str], str]:
    """Breed runs until a rule is broken or the time is over.

    Returns the names of those that were interesting, the most interesting ones first, and of the one that has
    broken a rule.
    """
    rng, ends = Dice(seed, "guided"), time.process_time() + seconds
    waiting, kept, runs = list(dict.fromkeys(corpus)), dict[str, int](), 0
    while time.process_time() < ends:
        number = rng.randrange(10**6, 10**9)
        if waiting:
            name = waiting.pop(0)
        elif not kept or rng.chance(FRESH):
            name = str(number)
        else:
            # The latest ones have the fewest descendants so far.
            name = f"{list(kept)[int(len(kept) * rng.random() ** 0.5)]}/{number}"
        outcome, news = seen.news(bred(name))
        runs += 1
        if outcome.violation is not None:
            tell(f"{name}: {outcome.violation}")
            return _ranked(kept), name
        if news:
            kept[name] = news
            tell(f"run {runs}: {name} reaches {news} things for the first time; {len(kept)} kept")
    reached = f"{seen.lines} lines, {len(seen.features)} events and pairs"
    tell(f"{runs} runs, {len(kept)} kept, {reached}, no rule broken")
    return _ranked(kept), ""


def _ranked(kept: dict[str, int]) -> list[str]:
    return sorted(kept, key=kept.__getitem__, reverse=True)


@lru_cache(maxsize=1)
def corpus(file: Path = CORPUS) -> tuple[str, ...]:
    """Return the names that are kept."""
    return tuple(file.read_text().split()) if file.exists() else ()


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says; returns 1 when a rule was broken."""
    parser = argparse.ArgumentParser(prog="python -m proof.guided", description=__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    searching = commands.add_parser("search", help="breed runs, and keep the interesting ones")
    searching.add_argument("--seconds", type=float, default=60.0, help="of the processor")
    searching.add_argument("--seed", type=int, default=0)
    searching.add_argument("--corpus", type=Path, default=CORPUS, help="where names are read and written")
    showing = commands.add_parser("show", help="print one run")
    showing.add_argument("name")
    options = parser.parse_args(arguments)
    if options.what == "show":
        outcome = outcome_of(options.name)
        print(
            outcome.plan.describe(), outcome.trace.text(), outcome.violation or "no rule was broken", sep="\n"
        )
        return int(outcome.violation is not None)
    kept, broken = search(Seen(), corpus(options.corpus), seed=options.seed, seconds=options.seconds)
    options.corpus.write_text("".join(f"{name}\n" for name in kept[:MOST_KEPT]))
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
