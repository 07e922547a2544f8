"""One member as a process of its own, which writes down what it believes to own.

Each line of its file is one look: the machine's monotonic clock before it and after it, then each partition
with its fence. A member that was killed may have left half a line, so each life has a file of its own.

``python -m proof.partitions.member SETTING NAME FILE``, with the setting as JSON.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from consul_coord import Client, Group, Partitioner, SessionSpec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all members are started with."""

    address: str
    prefix: str
    partitions: int
    ttl: float
    """Seconds; the lock-delay is as long."""
    tick: float
    """Seconds between two looks."""
    settle: float = 0.2

    @property
    def spec(self) -> SessionSpec:
        """The sessions of the members."""
        return SessionSpec(ttl=self.ttl, lock_delay=self.ttl, name=self.prefix)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the setting that an argument holds."""
        return cls(**json.loads(text))

    def start(self, name: str, file: Path) -> subprocess.Popen[bytes]:
        """Start a member. What it says on its standard error goes beside its file."""
        argument = json.dumps(asdict(self))
        with file.with_suffix(".err").open("wb") as errors:
            return subprocess.Popen(  # noqa: S603 - this module itself
                [sys.executable, "-m", "proof.partitions.member", argument, name, str(file)],
                cwd=Path(__file__).parents[2],
                stdin=subprocess.DEVNULL,
                stderr=errors,
            )


@dataclass(frozen=True, slots=True)
class Look:
    """What a member found itself the owner of, at some instant from ``before`` to ``after``."""

    before: float
    after: float
    fences: dict[str, int]

    def __str__(self) -> str:
        owned = (f"{partition}={fence}" for partition, fence in self.fences.items())
        return " ".join((f"{self.before:.6f}", f"{self.after:.6f}", *owned, ".\n"))

    @classmethod
    def parse(cls, line: str) -> Self | None:
        """Return the look that a line shows; None for half a line."""
        parts = line.split()
        if not line.endswith(" .\n"):
            return None
        owned = (part.partition("=") for part in parts[2:-1])
        return cls(float(parts[0]), float(parts[1]), {name: int(fence) for name, _, fence in owned})


def looks(file: Path) -> Iterator[Look]:
    """Yield what a member has written down in one life."""
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            if (look := Look.parse(line)) is not None:
                yield look


def last_look(file: Path) -> Look | None:
    """Return the latest of them."""
    if not file.exists():
        return None
    lines = file.read_bytes()[-_TAIL:].decode().splitlines(keepends=True)
    # The first of these may be half a line, too.
    return next((look for line in reversed(lines[1:]) if (look := Look.parse(line))), None)


_TAIL = 8192


class _Stamped(logging.Formatter):
    """Puts the clock of the looks before each line."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{time.monotonic():.3f} {super().format(record)}"


def run(setting: Setting, name: str, file: Path) -> None:
    """Be a member, until the process is killed."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Stamped())
    logging.getLogger("consul_coord").addHandler(handler)
    with file.open("a", buffering=1) as log, Client(address=setting.address, session=setting.spec) as client:
        group = Group(client, setting.prefix, id=name)
        partitioner = Partitioner(group, setting.partitions, settle=setting.settle)
        group.join()
        partitioner.start()
        while True:
            before = time.monotonic()
            fences = {partition: hold.fence for partition, hold in partitioner.owned.items()}
            log.write(str(Look(before, time.monotonic(), fences)))
            time.sleep(setting.tick)


if __name__ == "__main__":
    run(Setting.from_json(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
