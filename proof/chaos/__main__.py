"""Break a cluster: ``python -m proof.chaos --seconds 60 --seed 1 --keep FOLDER``.

Prints what was done and found. The exit code is 0 when no rule was broken, 1 when one was, and 2 when the
arguments can't be used.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from consul_coord.errors import ConfigError
from consul_coord.testing.binary import find_consul
from consul_coord.testing.history.timeline import html
from proof.chaos import links
from proof.chaos.faults import FAULTS
from proof.chaos.plan import Plan
from proof.chaos.run import play

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consul_coord.testing.history import Record
    from proof.chaos.run import Outcome

_MODULE = "proof.chaos"
_SHOWN = 40.0
"""Seconds of the history that the picture shows."""


def main(arguments: Sequence[str]) -> int:
    """Run what the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {_MODULE}", description=__doc__, epilog=f"Kinds of harm: {', '.join(FAULTS)}."
    )
    add, default = parser.add_argument, Plan()
    add("--seconds", type=float, default=default.seconds, help="for how long harm is done (%(default)g)")
    add("--seed", type=int, default=default.seed, help="what decides which harm comes when (%(default)s)")
    add("--pace", type=float, default=default.pace, help="mean seconds between two harms (%(default)g)")
    add("--longest", type=float, default=default.longest, help="seconds that one lasts at most (%(default)g)")
    add(
        "--only",
        action="append",
        choices=FAULTS,
        help="do this kind of harm only; may be repeated",
        metavar="KIND",
        default=[],
    )
    add("--drain", type=float, default=default.drain, help="seconds for the last clean-ups (%(default)g)")
    add("--worker", default=default.worker, metavar="MODULE", help="the module that worker processes run")
    add("--keep", type=Path, metavar="FOLDER", help="a new folder for histories, registers and a picture")
    given = parser.parse_args(arguments)
    if given.keep is not None and given.keep.exists():
        parser.error(f"--keep: {given.keep} exists already")
    try:
        if find_consul() is None:
            parser.error("no Consul binary: set CONSUL_BIN, or put one at .consul/consul or on PATH")
    except ConfigError as error:
        parser.error(str(error))
    if not links.is_private() and links.available():
        links.enter_private(_MODULE, arguments)
    plan = Plan(
        seconds=given.seconds,
        seed=given.seed,
        pace=given.pace,
        longest=given.longest,
        only=tuple(given.only),
        drain=given.drain,
        worker=given.worker,
    )
    folder = Path(tempfile.mkdtemp(prefix="consul-chaos-")) if given.keep is None else given.keep
    folder.mkdir(parents=True, exist_ok=given.keep is None)
    ways = "with" if links.is_private() else "without"
    _say(f"seed {plan.seed}, harm for {plan.seconds:g} s, {ways} cut links")
    outcome = play(plan, folder)
    _say(str(outcome))
    if given.keep is None and not outcome.verdict.findings:
        shutil.rmtree(folder)
    else:
        picture = folder / "timeline.html"
        picture.write_text(html(_shown(outcome), title=f"Chaos, seed {plan.seed}"), encoding="utf-8")
        _say(f"kept in {folder}")
    return 1 if outcome.verdict.findings else 0


def _shown(outcome: Outcome) -> list[Record]:
    """Return the part of a history that a person should see: around the first finding, or the beginning."""
    records, findings = outcome.records, outcome.verdict.findings
    begin = findings[0].at - _SHOWN / 2 if findings else records[0].at
    return [record for record in records if begin <= record.at <= begin + _SHOWN]


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
