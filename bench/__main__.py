"""``python -m bench``: run measures on a real agent and report them."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from bench.aims import judge
from bench.bed import Bed
from bench.machine import Start
from bench.markdown import render
from bench.publish import DOCS, publish
from bench.registry import MEASURES
from bench.results import Report
from consul_coord.testing.agent import RealAgent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.registry import Measure

# A client of many tasks, or many clients in one process, are one client to the agent.
AGENT = {"limits": {"http_max_conns_per_client": 8192}}


def run(measures: Sequence[Measure], *, quick: bool, address: str | None) -> Report:
    """Run measures on the agent at ``address``, or on one that is started for it."""
    start, began = Start.now(), perf_counter()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="consul-coord-bench-"))
        if address is None:
            address = stack.enter_context(RealAgent(config=AGENT)).address
        bed = Bed(address=address, quick=quick, folder=Path(folder))
        outcomes = []
        for measure in measures:
            print(f"{measure.name}: {measure.about} ...", end=" ", file=sys.stderr, flush=True)
            since = perf_counter()
            outcomes.append(measure.run(bed))
            print(f"{perf_counter() - since:.0f} s", file=sys.stderr, flush=True)
        machine = start.describe(bed)
    return Report(
        machine=machine,
        quick=quick,
        seconds=perf_counter() - began,
        outcomes=tuple(outcomes),
        verdicts=judge(outcomes),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, run, and write the report; Markdown goes to standard output by default."""
    names = [measure.name for measure in MEASURES]
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Run the benchmarks on a real Consul agent.",
        epilog="; ".join(f"{measure.name}: {measure.about}" for measure in MEASURES),
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds: within a minute")
    parser.add_argument(
        "--only", nargs="+", choices=names, metavar="NAME", default=names, help="these measures"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables here")
    parser.add_argument(
        "--publish",
        action="store_true",
        help=f"write all of it into {DOCS.name}/: JSON, tables and plots (needs matplotlib)",
    )
    parser.add_argument(
        "--address",
        metavar="URL",
        help="http://host:port of an agent that is a server, in place of a new one",
    )
    given = parser.parse_args(arguments)
    # What is lost on purpose, a thousand at a time, is no news.
    logging.getLogger("consul_coord").setLevel(logging.ERROR)
    report = run(
        [measure for measure in MEASURES if measure.name in given.only],
        quick=given.quick,
        address=given.address,
    )
    if given.json is not None:
        given.json.write_text(report.to_json(), encoding="utf-8")
    if given.publish:
        publish(report)
    if given.markdown is not None:
        given.markdown.write_text(render(report), encoding="utf-8")
    else:
        print(render(report))


if __name__ == "__main__":
    main()
