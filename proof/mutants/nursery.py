"""``python -m proof.mutants.nursery``: has read all tests, or the simulator, and forks for each mutant.

Rules
- A line on its input is a ``Task`` as JSON; its answer is a line on its output, an ``Answer``.
- A mutant is planted in a fork, which ends with all its descendants as soon as a test or a run has failed,
  or when its time is over. Nothing of a mutant reaches the next one. An agent of Consul is such a descendant:
  the first test of a fork that needs one starts it, so that no two mutants share one.
- The mutant stands in the module's file as well, for the programs that tests start.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, TypeAlias

import pytest

from proof.mutants.plant import plant

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
PYTEST = ("-q", "-p", "no:cacheprovider", "--no-header")
_TEST_SECONDS = 40
FEW, _ONE_OF_MANY_SECONDS = 100, 6
"""Of one test, where more than a few are shown one mutant: most of them may wait for ever."""
NO_FILE = "none"
"""The file of a task that plants nothing."""
_USAGE_ERROR = 4
_SET_CHILD_SUBREAPER = 36
"""Of ``prctl``: descendants whose parents have ended become children of this program."""
_HANGS = 60.0
"""Seconds of the processor after which a run of the simulator hangs."""
_MOST_MEMORY = 4 << 30
"""Bytes that each program of a fork may have: a mutant that collects things without an end fails by that."""


@dataclass(frozen=True, slots=True)
class Task:
    """One mutant, and what it is shown to."""

    file: str
    function: str
    text: str
    mutated: str
    shown_to: list[str]
    """Tests, or runs of the simulator."""
    seconds: float
    """For the simulator, of the processor; for tests, of the clock."""
    most: int = 1
    """After so many failures of tests it is enough."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of it."""

    planted: bool
    caught: bool
    by: str
    number: int
    """How many tests or runs there were."""
    failed: list[str] = field(default_factory=list[str])
    """The tests that failed."""


class _Failed:
    """Notes the tests that fail, and tells of each at once."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.failed: list[str] = []
        self.number = 0
        self._tell = tell

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Look at one report."""
        self.number += report.when == "call"
        if report.failed and report.nodeid not in self.failed:
            self.failed.append(report.nodeid)
            self._tell(report.nodeid)


Judge: TypeAlias = "Callable[[Task, Callable[[str], None]], Answer]"
"""Judges a task; it may tell of each failure meanwhile."""


def tests_on(task: Task, tell: Callable[[str], None]) -> Answer:
    """Run tests until enough of them have failed; ``tell`` is told of each that fails."""
    noted = _Failed(tell)
    many = task.most > 1 and len(task.shown_to) > FEW
    timeout = _ONE_OF_MANY_SECONDS if many else _TEST_SECONDS
    options = (*PYTEST, f"--maxfail={task.most}", f"--timeout={timeout}")
    code = pytest.main([*options, *task.shown_to], plugins=[noted])
    if code == _USAGE_ERROR:
        message = f"no such tests: {task.shown_to[:3]}"
        raise LookupError(message)
    by = noted.failed[0] if noted.failed else f"exit code {code}"
    return Answer(planted=True, caught=code != 0, by=by, number=noted.number, failed=noted.failed)


def simulator_on(task: Task, _tell: Callable[[str], None]) -> Answer:
    """Run the simulator until a rule is broken."""
    from proof.mutants.simulate import search

    most = int(time.process_time() + task.seconds + _HANGS)
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))
    broken, number = search(task.shown_to, seconds=task.seconds)
    return Answer(planted=True, caught=bool(broken), by=broken, number=number)


def judged(task: Task, judge: Judge, *, limit: float) -> Answer:
    """Plant a mutant in a fork, and return what the fork says: its answer, or what failed before its end.

    Raises RuntimeError if it ended in an error, and nothing had failed: no test, but the judge itself.
    """
    with TemporaryFile() as said:
        code = _fork(task, judge, said.fileno(), limit=limit)
        said.seek(0)
        lines = [json.loads(line) for line in said if line.endswith(b"\n")]
    failed = [each for each in lines if isinstance(each, str)]
    if len(failed) < len(lines):
        return Answer(**lines[-1])
    if code and not failed:
        message = f"the judge failed at {task.function} of {task.file}"
        raise RuntimeError(message)
    by = f"exit code {code}" if code else "hangs"
    return Answer(planted=True, caught=True, by=by, number=0, failed=failed)


def _fork(task: Task, judge: Judge, writer: int, *, limit: float) -> int:
    """Have a fork write what it finds until its time is over; return its exit code, 0 if it was killed."""
    child = os.fork()
    if not child:
        _be_child(task, judge, writer)
    ends = time.monotonic() + limit
    while (
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None and time.monotonic() < ends
    ):
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    end_children()
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parents end, where the system can do that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1)


def end_children() -> None:
    """Kill this program's children until there are none: whoever outlives a fork has become one of them."""
    while True:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        children = [
            int(stat.parent.name)
            for stat in Path("/proc").glob("[0-9]*/stat")
            if _parent(stat) == os.getpid()
        ]
        if not children:
            return
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _parent(stat: Path) -> int:
    try:
        return int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _be_child(task: Task, judge: Judge, writer: int) -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY, _MOST_MEMORY))
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    code = 1

    def say(what: object) -> None:
        os.write(writer, f"{json.dumps(what)}\n".encode())

    try:
        if plant(ROOT / task.file, task.text, task.mutated, task.function):
            answer = judge(task, say)
        else:
            answer = Answer(planted=False, caught=False, by="", number=0)
        say(asdict(answer))
        code = 0
    finally:
        os._exit(code)


def main(kind: str) -> None:
    """Answer tasks until there are none."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    adopt_orphans()
    judge: Judge
    if kind == "functional":
        tests = json.loads((ROOT.parent / "reach.json").read_text())["tests"]
        files = sorted({test.partition("::")[0] for test in tests})
        pytest.main([*PYTEST, "-qq", "--collect-only", *files])
        judge = tests_on
    else:
        import_module("proof.mutants.simulate")
        judge = simulator_on
    answers.write("ready\n")
    for line in sys.stdin:
        task = Task(**json.loads(line))
        if "fresh" in sys.argv:
            # The file had the mutant in it when it was imported.
            task = replace(task, file=NO_FILE)
        limit = task.seconds * (8 if task.most == 1 else 2) + 120
        answers.write(json.dumps(asdict(judged(task, judge, limit=limit))) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
