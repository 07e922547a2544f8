"""Share partitions under fire: ``python -m proof.partitions --seconds 900 --seed 1 --keep FOLDER``.

Prints what was done and found. The exit code is 0 when no rule was broken, 1 when one was, and 2 when the
arguments can't be used. Ctrl-C or SIGTERM ends the harm early; what was seen until then is judged.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from consul_coord.errors import ConfigError
from consul_coord.testing.binary import find_consul
from proof.partitions.trial import Plan, play

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType


def main(arguments: Sequence[str]) -> int:
    """Run what the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m proof.partitions", description=__doc__)
    add, default = parser.add_argument, Plan()
    add("--seconds", type=float, default=default.seconds, help="for how long harm is done (%(default)g)")
    add("--seed", type=int, default=default.seed, help="what decides which harm comes when (%(default)s)")
    add("--members", type=int, default=default.members, help="how many members (%(default)s)")
    add("--partitions", type=int, default=default.partitions, help="how many partitions (%(default)s)")
    add("--ttl", type=float, default=default.ttl, help="seconds, those of the lock-delay too (%(default)g)")
    add("--pace", type=float, default=default.pace, help="mean seconds between two harms (%(default)g)")
    add(
        "--server-pace",
        type=float,
        default=default.server_pace,
        help="seconds between two harms to servers (%(default)g)",
    )
    add("--keep", type=Path, metavar="FOLDER", help="a new folder for looks, harms and the result")
    given = parser.parse_args(arguments)
    if given.keep is not None and given.keep.exists():
        parser.error(f"--keep: {given.keep} exists already")
    try:
        if (binary := find_consul()) is None:
            parser.error("no Consul binary: set CONSUL_BIN, or put one at .consul/consul or on PATH")
    except ConfigError as error:
        parser.error(str(error))
    folder = Path(tempfile.mkdtemp(prefix="consul-partitions-")) if given.keep is None else given.keep
    folder.mkdir(parents=True, exist_ok=given.keep is None)
    over = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        over.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    plan = Plan(**{name: value for name, value in vars(given).items() if name != "keep"})
    _say(f"seed {plan.seed}, harm for {plan.seconds:g} s")
    outcome = play(plan, folder, binary=binary, over=over, tell=_say)
    _say(str(outcome))
    if given.keep is None and not outcome.findings:
        shutil.rmtree(folder)
    else:
        (folder / "result.txt").write_text(f"{outcome}\n", encoding="utf-8")
        _say(f"kept in {folder}")
    return 1 if outcome.findings else 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
