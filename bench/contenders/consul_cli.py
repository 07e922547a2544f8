"""``consul lock``, the command line's lock, running a command that does nothing."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bench.bed import Unavailable
from bench.contenders.pairs import timed
from consul_coord.testing.binary import find_consul

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.bed import Bed
    from bench.contenders.pairs import Pairs

_TIMEOUT = 30.0


class ConsulCli:
    """One process per pair, with a session of its own."""

    name = "consul lock (a process each)"

    @contextmanager
    def open(self, bed: Bed) -> Iterator[Pairs]:
        """Find the binary."""
        binary = find_consul()
        if binary is None:
            message = "there is no Consul binary here"
            raise Unavailable(message)
        command = [
            str(binary),
            "lock",
            f"-http-addr={bed.host}:{bed.port}",
            "-shell=false",
            bed.key(),
            "true",
        ]

        def pair() -> None:
            subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT)  # noqa: S603 - Consul

        yield timed(pair)
