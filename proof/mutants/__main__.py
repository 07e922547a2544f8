"""Plant mutants and see who notices: ``python -m proof.mutants run --sample 40 --seed 1``.

``measure`` runs the tests once to see which of them reach what; ``run`` judges mutants, and goes on where it
ended; ``report`` prints the shares and the survivors; ``list`` prints all mutants there are.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from proof.mutants.catalogue import mutants, sample
from proof.mutants.report import report
from proof.mutants.run import SEEDS, Bench, judged, known, measure

if TYPE_CHECKING:
    from collections.abc import Sequence

FOLDER = Path(".mutants")
TESTS = (
    "tests/unit",
    "tests/promises",
    "tests/queue",
    "tests/lock",
    "tests/lock_kinds",
    "tests/semaphore",
    "tests/election",
    "tests/simulation/test_found.py",
)
"""The functional tests: those with a Consul agent are left out, and searches."""
_SELECTED = ("-m", "not agent and not cluster and not search and not long")


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m proof.mutants", description=__doc__)
    add = parser.add_argument
    add("what", choices=("measure", "run", "report", "list"))
    add("--folder", type=Path, default=FOLDER, help="where results are kept")
    add("--sample", type=int, default=0, metavar="N", help="judge so many; all without it")
    add("--seed", type=int, default=0, help="which ones")
    add("--seeds", type=int, default=SEEDS, metavar="N", help="runs of the simulator for each")
    add("--only", default="", metavar="TEXT", help="mutants whose name or file has this in it")
    add("--tests", nargs="*", default=TESTS, help="for measure: the functional tests")
    options = parser.parse_args(arguments)
    results = options.folder / "results.jsonl"
    if options.what == "measure":
        measure(options.folder, (*_SELECTED, *options.tests), seeds=options.seeds)
        return 0
    chosen = [each for each in mutants() if options.only in f"{each.name} {each.file}"]
    if options.sample:
        chosen = sample(chosen, options.sample, seed=options.seed)
    if options.what == "list":
        for mutant in chosen:
            print(mutant.name, mutant)
    elif options.what == "run":
        bench = Bench(options.folder, seeds=options.seeds)
        for result in judged(bench, chosen, results):
            print(
                f"{result.functional:12} {result.simulator:12} {result.seconds:6.1f} s  {result.shown}",
                flush=True,
            )
    else:
        found = known(results)
        print(report([found[each.name] for each in chosen if each.name in found]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
