"""Several candidate processes, what is done to them, and what must be true of what they believed."""

from __future__ import annotations

import itertools
import os
import time
from typing import TYPE_CHECKING

from consul_coord import failover_bound
from tests.election import ledger
from tests.election.candidate import SPEC
from tests.support.programs import Program

if TYPE_CHECKING:
    import signal
    from pathlib import Path
    from typing import Self

    from tests.election.ledger import Belief

PATIENCE = 30.0


class Fleet:
    """Candidates for one key."""

    def __init__(self, *, address: str, key: str, folder: Path, count: int) -> None:
        self._address = address
        self._key = key
        self._folder = folder
        self._count = count
        self._started = 0
        self._processes: dict[int, tuple[Program, Path]] = {}
        self._ended: list[Path] = []

    def __enter__(self) -> Self:
        for _ in range(self._count):
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        for process, _path in self._processes.values():
            process.__exit__()

    def start(self) -> None:
        """Add a candidate."""
        self._started += 1
        path = self._folder / f"candidate-{self._started}"
        environ = {name: value for name, value in os.environ.items() if not name.startswith("CONSUL_")}
        words = ("-W", "error", "-m", "tests.election.candidate", self._address, self._key, str(path))
        process = Program(words, env=environ)
        self._processes[process.pid] = process, path

    def send(self, pid: int, number: signal.Signals) -> None:
        self._processes[pid][0].send_signal(number)

    def end(self, pid: int, number: signal.Signals) -> int:
        """End a candidate by a signal; returns its exit code. What it believed stays known."""
        process, path = self._processes.pop(pid)
        self._ended.append(path)
        with process:
            process.send_signal(number)
            return process.wait(PATIENCE)

    def leader(self) -> tuple[int, Belief] | None:
        """Return who of the living believed last, and what."""
        latest = [
            (beliefs[-1], pid) for pid, (_, path) in self._processes.items() if (beliefs := ledger.read(path))
        ]
        if not latest:
            return None
        belief, pid = max(latest, key=lambda each: each[0].last)
        return pid, belief

    def successor(self, *, of: int) -> tuple[int, Belief]:
        """Wait for a leader of a later term."""
        deadline = time.monotonic() + PATIENCE
        while (found := self.leader()) is None or found[1].term <= of:
            assert time.monotonic() < deadline, f"no leader after term {of}; so far {self.beliefs()}"
            time.sleep(0.01)
        return found

    def beliefs(self) -> list[Belief]:
        """Return every belief of every candidate, dead ones too, by its beginning."""
        paths = [*self._ended, *(path for _, path in self._processes.values())]
        found = [belief for path in paths for belief in ledger.read(path)]
        return sorted(found, key=lambda belief: belief.first)


def assert_one_at_a_time(beliefs: list[Belief]) -> None:
    """Hold that no two believed at once, and that terms rise."""
    for before, after in itertools.pairwise(beliefs):
        assert before.last < after.first, f"two believed at once: {before} and {after}"
        assert before.term < after.term, f"terms do not rise: {before} and {after}"


def bound(*, extra: float = 0.0) -> float:
    """Return the seconds within which a leader that is gone must have been succeeded."""
    return failover_bound(SPEC) + extra
