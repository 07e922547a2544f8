"""Plant mutants and see who notices: ``python -m proof.mutants run --sample 40 --seed 1``.

``measure`` runs the tests once to see which of them reach what; ``run`` judges mutants, and goes on where it
ended; ``report`` prints the shares and the survivors; ``list`` prints all mutants there are. ``unreached``
prints those that no test reaches, which no share counts. ``unfailing`` shows mutants to the tests of the
recipes that have not failed so far, and prints those that are left.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from proof.mutants.catalogue import mutants, sample
from proof.mutants.report import judgements, report
from proof.mutants.run import JUDGES, SECONDS, Bench, Reached, judged, known, measure, unfailing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proof.mutants.catalogue import Mutant

FOLDER, RESULTS = Path(".mutants"), "results.jsonl"
TESTS = (
    "tests/unit",
    "tests/promises",
    "tests/queue",
    "tests/lock",
    "tests/lock_kinds",
    "tests/semaphore",
    "tests/election",
    "tests/once",
    "tests/group",
    "tests/partition",
    "tests/agents",
    "tests/conformance",
    "tests/observability",
    "tests/wire",
    "tests/simulation/test_found.py",
)
"""The functional tests: the folders whose tests run the core in their own process, and no searches."""
_SELECTED = ("-m", "not cluster and not search and not long", "--ignore-glob=*test_interrupt*")
"""Tests that interrupt each line trace lines themselves. An interrupt at any moment may come while
what measures the lines holds its lock, which stays locked then."""
_PORTIONS = 2


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m proof.mutants", description=__doc__)
    add = parser.add_argument
    add("what", choices=("measure", "run", "report", "list", "unreached", "unfailing"))
    add("--folder", type=Path, default=FOLDER, help="where results are kept")
    add("--sample", type=int, default=0, metavar="N", help="judge so many; all without it")
    add("--seed", type=int, default=0, help="which ones")
    add("--seconds", type=float, default=SECONDS, help="of the simulator for each")
    add("--who", choices=JUDGES, action="append", help="functional tests or the simulator; both without it")
    add("--again", action="store_true", help="judge those again that were missed, but the harmless ones")
    add("--only", default="", metavar="TEXT", help="mutants whose name or file has this in it")
    add("--tests", nargs="*", default=TESTS, help="for measure: the functional tests")
    options = parser.parse_args(arguments)
    if options.what == "measure":
        who = tuple(options.who or JUDGES)
        measure(options.folder, (*_SELECTED, *options.tests), who=who, portions=_PORTIONS)
        return 0
    chosen = [each for each in mutants() if options.only in f"{each.name} {each.file}"]
    if options.sample:
        chosen = sample(chosen, options.sample, seed=options.seed)
    todo = {"list": _list, "unreached": _unreached, "run": _run, "unfailing": _unfailing, "report": _report}
    todo[options.what](options, chosen)
    return 0


def _list(_: argparse.Namespace, chosen: Sequence[Mutant]) -> None:
    for mutant in chosen:
        print(mutant.name, mutant)


def _unreached(options: argparse.Namespace, chosen: Sequence[Mutant]) -> None:
    reached = Reached.load(options.folder)
    _list(options, [mutant for mutant in chosen if not reached.tests_of(mutant)])


def _run(options: argparse.Namespace, chosen: Sequence[Mutant]) -> None:
    if options.again:
        chosen = [each for each in chosen if each.name not in judgements()]
    bench = Bench(options.folder, seconds=options.seconds)
    results, who = options.folder / RESULTS, tuple(options.who or JUDGES)
    try:
        for result in judged(bench, chosen, results, who=who, again=options.again):
            found = f"{result.who:10} {result.verdict:11} {result.seconds:6.1f} s"
            print(f"{found}  {result.shown}  {result.by}", flush=True)
    finally:
        bench.close()


def _unfailing(options: argparse.Namespace, chosen: Sequence[Mutant]) -> None:
    bench = Bench(options.folder)
    left: list[str] = []
    try:
        for left in unfailing(bench, chosen, options.folder / "failed.txt"):
            print(len(left), "tests are left", flush=True)
    finally:
        bench.close()
    print("\n".join(left))


def _report(options: argparse.Namespace, chosen: Sequence[Mutant]) -> None:
    names = {each.name for each in chosen}
    print(report([result for result in known(options.folder / RESULTS).values() if result.name in names]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
