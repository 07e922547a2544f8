"""How long until the reference server's first reply: within a process, and as a command."""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from bench.results import Outcome
from bench.rounds import figures, in_turns
from bench.serving import Served, reference_server
from consul_coord.server import ReferenceServer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.bed import Bed

IN_PROCESS = "ReferenceServer()"
WHAT = "start, one reply, stop"
COMMAND = "consul-coord serve"
_PATH = "/v1/status/leader"


def run(bed: Bed) -> Outcome:
    """Start one after the other."""
    ways: dict[str, Callable[[], None]] = {IN_PROCESS: _in_process, COMMAND: partial(_command, bed)}

    def start(_name: str, way: Callable[[], None]) -> Sequence[float]:
        began = perf_counter()
        way()
        return [perf_counter() - began]

    samples = in_turns(ways, start, rounds=bed.rounds(full=15, quick=3))
    return Outcome(
        measure="server_start",
        title="The reference server: start to first reply, and stop",
        figures=figures(samples, what=WHAT),
        notes=(
            "Within a process without its imports, which a first round has made; as a command with them.",
        ),
    )


def _in_process() -> None:
    with ReferenceServer() as server:
        Served(server.address).ask("GET", _PATH)


def _command(bed: Bed) -> None:
    with reference_server(bed.folder) as server:
        server.ask("GET", _PATH)
