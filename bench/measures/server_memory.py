"""The reference server's memory, empty and with ten thousand keys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bench.bed import Unavailable
from bench.results import Figure, Outcome, Skipped, Spread
from bench.serving import REFERENCE, Served, reference_server

if TYPE_CHECKING:
    from bench.bed import Bed

KEYS = 10_000
EMPTY, FILLED = "resident, empty", "resident, filled"
_OPS = 64


def run(bed: Bed) -> Outcome:
    """Fill a server and look at its process."""
    title = f"The reference server's memory with {KEYS:,} keys"
    try:
        with reference_server(bed.folder) as server:
            empty = _resident(server)
            _fill(server)
            filled = _resident(server)
    except Unavailable as error:
        return Outcome(
            measure="server_memory", title=title, figures=(), skipped=(Skipped(REFERENCE, str(error)),)
        )
    return Outcome(
        measure="server_memory",
        title=title,
        figures=(
            Figure(contender=REFERENCE, what=EMPTY, unit="KiB", value=Spread.of([empty])),
            Figure(contender=REFERENCE, what=FILLED, unit="KiB", value=Spread.of([filled])),
        ),
    )


def _fill(server: Served) -> None:
    for first in range(0, KEYS, _OPS):
        batch = range(first, min(first + _OPS, KEYS))
        server.ask(
            "PUT",
            "/v1/txn",
            [{"KV": {"Verb": "set", "Key": f"memory/{each}", "Value": "dmFsdWU="}} for each in batch],
        )


def _resident(server: Served) -> float:
    """Return KiB of memory that a process has. Raises Unavailable where the system does not tell."""
    try:
        lines = Path(f"/proc/{server.pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        raise Unavailable("this system has no /proc") from None
    return float(next(line for line in lines if line.startswith("VmRSS:")).split()[1])
