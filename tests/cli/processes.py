"""Real ``consul-coord`` processes under test: started, listened to, and ended with the test."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.programs import Program

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Mapping
    from typing import IO, Self

PATIENCE = 40.0
"""Seconds after which something that should have happened has not."""

PROGRAM = (sys.executable, "-m", "consul_coord")


def environ(**changes: str) -> dict[str, str]:
    """Return this process's environment without any Consul settings, but with ``changes``."""
    return {name: value for name, value in os.environ.items() if not name.startswith("CONSUL_")} | changes


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for what gives no notice."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE} s"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a dead one that nobody has waited for does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


class Lines:
    """The lines of a pipe, read as they come."""

    def __init__(self, pipe: IO[str]) -> None:
        self.seen: list[str] = []
        self._new: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._pipe = pipe
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, matches: Callable[[str], bool], what: str) -> str:
        """Return the next line that matches."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                line = self._new.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                line = None
            assert line is not None, f"no {what}; there was: {self.seen}"
            if matches(line):
                return line

    def all(self) -> list[str]:
        """Return every line, once the pipe has ended."""
        self._reader.join(PATIENCE)
        assert not self._reader.is_alive(), f"the pipe is still open; so far: {self.seen}"
        return self.seen

    def _read(self) -> None:
        for raw in self._pipe:
            line = raw.rstrip("\n")
            self.seen.append(line)
            self._new.put(line)
        self._new.put(None)
        self._pipe.close()


class Cli:
    """One ``consul-coord`` process, in a process group of its own."""

    def __init__(self, *arguments: str, env: Mapping[str, str], cwd: Path | None = None) -> None:
        self._process = Program([*PROGRAM[1:], *arguments], env=env, cwd=cwd, own_group=True)
        self.stdout = Lines(self._process.stdout)
        self.stderr = Lines(self._process.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self.stdout.all()
        self.stderr.all()

    @property
    def pid(self) -> int:
        return self._process.pid

    def feed(self, data: str) -> None:
        """Write to its stdin and end that."""
        self._process.stdin.write(data)
        self._process.stdin.close()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> int:
        """Return the exit code, as a shell would have it."""
        code = self._process.wait(PATIENCE)
        return code if code >= 0 else 128 - code

    def event(self, name: str) -> dict[str, Any]:
        """Return the next JSON event of this name on stderr."""
        line = self.stderr.wait_for(
            lambda line: any(event["event"] == name for event in parsed(line)), f"event {name!r}"
        )
        return parsed(line)[0]

    def events(self) -> list[dict[str, Any]]:
        """Return all JSON events on stderr, once it has ended."""
        return [event for line in self.stderr.all() for event in parsed(line)]


def parsed(line: str) -> list[dict[str, Any]]:
    """Return the event in a line of stderr; none when a shell under test wrote it."""
    return [json.loads(line)] if line.startswith("{") else []
