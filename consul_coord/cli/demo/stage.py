"""The demo's play: starts the workers, ends their holds or kills one, prints each step, and judges.

Rules
- Consul and the library alone decide who gets the lock, and when. The stage only ends holds: each
  after ``WORK`` seconds, the second one by killing its process.
- Every worker ends with the stage, whatever happens to that: they all read from its pipes.
- Lines are at most ``WIDTH`` cells long. A hold that has ended is reported before the next one, although the
  two processes are heard through pipes of their own.
- A play that has not ended after ``LIMIT`` seconds more than the failover may take is over, and a fault.
"""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from consul_coord import failover_bound
from consul_coord.cli.demo.verdict import Held, faults, read_log
from consul_coord.cli.demo.worker import Part
from consul_coord.cli.tables import styled
from consul_coord.models.session import effective_lock_delay

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Self

    from consul_coord import SessionSpec

WORKERS = 4
VICTIM = 2
"""The hold, counted from 1, whose holder is killed."""
WORK = 0.5
"""Seconds that a hold lasts."""
LIMIT = 30.0

WIDTH = 80
_COLOURS = {"acquired": "green", "killed": "red", "jeopardy": "red", "lost": "red"}
_BLOCKED: dict[str, str] = {
    "lock_delay": "the killed worker's session has ended; Consul keeps the key locked for the lock-delay",
    "unreachable": "no answer from the server",
}
NEXT = (
    "Next: hold a lock of your own Consul while a command runs:",
    "  consul-coord lock jobs/nightly -- ./nightly.sh",
)


class _Actor:
    """A worker process, and what it tells."""

    def __init__(
        self, part: Part, *, environ: Mapping[str, str], told: Callable[[_Actor, bytes], object]
    ) -> None:
        self.name = part.name
        self._told = told
        self._process = subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-m", "consul_coord.cli.demo.worker", json.dumps(asdict(part))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(environ),
            process_group=0,
        )
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def go_on(self) -> None:
        """End its work; do nothing if it has died by itself."""
        stdin = self._process.stdin
        if stdin is not None:
            with suppress(BrokenPipeError):
                stdin.write(b"\n")
                stdin.flush()

    def kill(self) -> None:
        """Kill it, and return when it is dead."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def end(self) -> int:
        """Return its exit code once it has ended. To be called when it has told its last."""
        return self._process.wait()

    def close(self) -> None:
        """Kill it if it still runs, and close its pipes."""
        self.kill()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def _read(self, stdout: IO[bytes]) -> None:
        for line in stdout:
            self._told(self, line)
        self._told(self, b"")


class Stage:
    """Everything that one play needs; a context manager that leaves nothing behind."""

    def __init__(self, *, address: str, key: str, spec: SessionSpec, environ: Mapping[str, str]) -> None:
        self._address = address
        self._key = key
        self._spec = spec
        self._environ = environ
        self._start = time.monotonic()
        self._told: queue.SimpleQueue[tuple[_Actor, bytes]] = queue.SimpleQueue()
        self._due: list[tuple[float, Callable[[], object]]] = []
        self._actors: list[_Actor] = []
        self._granted = 0
        """How many workers have had the lock."""
        self._holding: _Actor | None = None
        self._early: list[tuple[_Actor, dict[str, Any]]] = []
        """Reports of holds that came before the report of the end of the hold before."""
        self._deaths: dict[str, float] = {}
        self._faults: list[str] = []
        self._open = ExitStack()

    def __enter__(self) -> Self:
        folder = self._open.enter_context(tempfile.TemporaryDirectory(prefix="consul-coord-demo-"))
        self._log = Path(folder) / "holds.jsonl"
        self._log.touch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def play(self) -> bool:
        """Run the play and return whether everything was right."""
        self._say(f"{WORKERS} processes want the lock {self._key!r} at {self._address}.")
        for number in range(1, WORKERS + 1):
            self._actors.append(self._hire(f"worker-{number}"))
        self._direct(deadline=self._start + failover_bound(self._spec) + LIMIT)
        return self._judge()

    def _hire(self, name: str) -> _Actor:
        part = Part(
            address=self._address,
            key=self._key,
            name=name,
            log=str(self._log),
            ttl=self._spec.ttl or 0.0,
            lock_delay=effective_lock_delay(self._spec),
        )
        actor = _Actor(part, environ=self._environ, told=lambda who, line: self._told.put((who, line)))
        self._open.callback(actor.close)
        return actor

    # -- the course of things ------------------------------------------------------------

    def _direct(self, *, deadline: float) -> None:
        playing = set(self._actors)
        while playing:
            now = time.monotonic()
            if now >= deadline:
                self._faults.append(
                    f"{', '.join(sorted(actor.name for actor in playing))} did not come to an end"
                )
                return
            next_due = min((when for when, _ in self._due), default=deadline)
            try:
                actor, line = self._told.get(timeout=max(0.0, min(next_due, deadline) - now))
            except queue.Empty:
                self._do_what_is_due()
                continue
            if line:
                self._hear(actor, json.loads(line))
            else:
                playing.discard(actor)
                self._left(actor)

    def _do_what_is_due(self) -> None:
        now = time.monotonic()
        ready = [action for when, action in self._due if when <= now]
        self._due = [(when, action) for when, action in self._due if when > now]
        for action in ready:
            action()

    def _hear(self, actor: _Actor, news: dict[str, Any]) -> None:
        what = news["what"]
        detail = ""
        if what == "acquired":
            if self._holding is not None:
                self._early.append((actor, news))
                return
            self._holding = actor
            self._granted += 1
            detail = f"fence {news['fence']}"
            second = self._granted == VICTIM
            self._due.append(
                (time.monotonic() + WORK, lambda: self._kill(actor) if second else actor.go_on())
            )
        elif what == "waiting":
            if news["blocker"]["kind"] == "held" and not news["holders"]:
                return  # a refused try, which names no holder: the next look does
            detail = self._blocked(news)
        elif what in {"jeopardy", "lost"}:
            detail = str(news.get("error") or news.get("reason"))
        elif what == "started":
            detail = f"pid {actor.pid}"
        self._line(actor, what, detail, at=news["time"])
        if what == "releases":
            self._vacant()

    def _vacant(self) -> None:
        self._holding = None
        early, self._early = self._early, []
        for actor, news in early:
            self._hear(actor, news)

    def _blocked(self, news: dict[str, Any]) -> str:
        blocker = news["blocker"]
        if blocker["kind"] == "held":
            return f"held by {news['holders'][0]}"
        if blocker["kind"] == "queued":
            return f"place {blocker['position'] or 1} in the queue"
        return _BLOCKED.get(blocker["kind"], str(blocker["kind"]))

    def _kill(self, actor: _Actor) -> None:
        actor.kill()
        self._deaths[actor.name] = time.monotonic()
        ttl = self._spec.ttl or 0.0
        self._line(
            actor,
            "killed",
            f"by SIGKILL, while it holds the lock; its session ends {ttl:g} to {2 * ttl:g} s after its last "
            f"renewal, and its lock is free {effective_lock_delay(self._spec):g} s later",
        )
        self._vacant()

    def _left(self, actor: _Actor) -> None:
        code = actor.end()
        if code and actor.name not in self._deaths:
            self._faults.append(f"{actor.name} failed with exit code {code}")
            self._line(actor, "failed", f"exit code {code}")
            self._deaths[actor.name] = time.monotonic()
        if self._holding is actor:
            self._vacant()

    # -- the end -------------------------------------------------------------------------

    def _judge(self) -> bool:
        holds = read_log(self._log.read_text(), deaths=self._deaths)
        self._faults += faults(holds, workers=[actor.name for actor in self._actors])
        if not self._deaths:
            self._faults.append("nobody was killed")
        for fault in self._faults:
            self._say(f"WRONG: {fault}", colour="red", bold=True)
        if not self._faults:
            order = " < ".join(str(hold.fence) for hold in holds)
            self._say(
                f"All is well: {len(holds)} holds, none overlapped another; fences rose: {order}. "
                f"{self._takeover(holds)}",
                colour="green",
                bold=True,
            )
            for line in NEXT:
                self._say(line)
        return not self._faults

    def _takeover(self, holds: list[Held]) -> str:
        (victim, died), *_ = self._deaths.items()
        heir = next((hold for hold in holds if hold.start > died), None)
        if heir is None:
            return f"Nobody came after {victim}."
        return f"{heir.worker} took over {heir.start - died:.2f} s after {victim} was killed."

    def _line(self, actor: _Actor, what: str, detail: str, *, at: float | None = None) -> None:
        elapsed = (time.monotonic() if at is None else at) - self._start
        self._say(
            f"{elapsed:6.2f} s  {actor.name}  {what:<8}  {detail}".rstrip(),
            colour=_COLOURS.get(what, ""),
            dim=what == "waiting",
        )

    @staticmethod
    def _say(text: str, *, colour: str = "", bold: bool = False, dim: bool = False) -> None:
        indent = " " * len("  0.00 s  worker-1  acquired  ")
        lines = textwrap.wrap(text, WIDTH, subsequent_indent=indent if text.startswith(" ") else "")
        for line in lines:
            click.echo(styled(line, sys.stdout, colour=colour, bold=bold, dim=dim))
