"""The commands for a lock, ours and Consul's, each running a program that does nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.bed import Unavailable
from bench.contenders.pairs import timed
from consul_coord.testing.binary import find_consul

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.bed import Bed
    from bench.contenders.pairs import Pairs

_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class LockCommand:
    """One process per pair, with a session of its own."""

    name: str
    find: Callable[[], Path | str | None]
    """Says where the program is; nothing if it isn't there."""
    options: tuple[str, ...]
    """With the agent as ``{agent}``."""
    before: tuple[str, ...] = ()
    """Comes between the key and the program that is run."""

    @contextmanager
    def open(self, bed: Bed) -> Iterator[Pairs]:
        """Find the program."""
        program = self.find()
        if program is None:
            message = f"the program of {self.name} is not here"
            raise Unavailable(message)
        agent = f"{bed.host}:{bed.port}"
        options = [option.format(agent=agent) for option in self.options]
        command = [str(program), "lock", *options, bed.key(), *self.before, "true"]

        def pair() -> None:
            subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT)  # noqa: S603 - as found

        yield timed(pair)


def _find_ours() -> str | None:
    """Return the command that was installed with this very Python."""
    return shutil.which("consul-coord", path=Path(sys.executable).parent)


OUR_COMMAND = LockCommand(
    "consul-coord lock (a process each)", _find_ours, ("--address", "http://{agent}"), before=("--",)
)
CONSUL_COMMAND = LockCommand(
    "consul lock (a process each)", find_consul, ("-http-addr={agent}", "-shell=false")
)
