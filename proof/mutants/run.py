"""Plant mutants one by one, in a copy of the project, and note who catches them.

Rules
- Results are lines of JSON, one for each mutant, written as soon as it is judged: a run that ends is taken up
  again where it was. A line counts as long as its module's text is the same.
- The functional tests of a mutant are those that reach its lines, the quickest first, up to ``MOST_TESTS``
  and ``MOST_SECONDS``. None reaching it is a result of its own.
- Tests that hang are a catch, too: a mutant that waits for ever is noticed by whoever waits.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from proof.mutants.catalogue import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from proof.mutants.catalogue import Mutant

MOST_TESTS = 150
MOST_SECONDS = 60.0
"""Of functional tests, by what they took without a mutant; the quickest come first."""
PATIENCE = 6.0
"""How many times as long as without a mutant they may take, and a run of the simulator in seconds."""
SEEDS = 400
"""Runs of the simulator until it is taken to have missed a mutant."""
_TESTS_FAILED = 1
_COPIED = ("consul_coord", "proof", "tests", "examples", "bench", "tools", "docs")
_FILES = ("pyproject.toml", "pytest_consul_coord.py", "noxfile.py", "README.md", "CHANGELOG.md", "mkdocs.yml")

Verdict = Literal["caught", "missed", "not reached", "not asked"]


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one mutant."""

    name: str
    shown: str
    operator: str
    text: str
    """A digest of the module it was made of."""
    functional: Verdict
    by: str
    """The first test that caught it."""
    simulator: Verdict
    seen: str
    """What the simulator saw."""
    seconds: float

    @property
    def caught(self) -> bool:
        """Whether anybody has caught it."""
        return "caught" in {self.functional, self.simulator}


@dataclass(slots=True)
class Reached:
    """What reaches the core."""

    tests: list[str]
    seconds: list[float]
    lines: dict[str, dict[str, list[int]]]
    simulated: dict[str, list[int]]

    @classmethod
    def load(cls, folder: Path) -> Reached:
        """Read what ``measure`` wrote."""
        found = json.loads((folder / "reach.json").read_text())
        simulated = json.loads((folder / "simulated.json").read_text())
        return cls(found["tests"], found["seconds"], found["lines"], simulated)

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests that reach a mutant, the quickest first, within the limits."""
        lines = self.lines.get(mutant.file, {})
        place = mutant.place
        numbers = {each for line in range(place.first, place.last + 1) for each in lines.get(str(line), ())}
        chosen: list[str] = []
        total = 0.0
        for number in sorted(numbers, key=lambda each: self.seconds[each]):
            total += self.seconds[number]
            if chosen and (len(chosen) >= MOST_TESTS or total > MOST_SECONDS):
                break
            chosen.append(self.tests[number])
        return chosen

    def is_simulated(self, mutant: Mutant) -> bool:
        """Return whether the simulator reaches a mutant."""
        lines = self.simulated.get(mutant.file, [])
        return any(mutant.place.first <= line <= mutant.place.last for line in lines)


def copy(folder: Path) -> Path:
    """Make a copy of the project, to plant in."""
    target = folder / "project"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name in _COPIED:
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in _FILES:
        shutil.copy(ROOT / name, target / name)
    return target


def measure(folder: Path, tests: Iterable[str], *, seeds: int) -> None:
    """Find out what reaches what; writes to the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    project = copy(folder)
    for command, file in (
        ([*_PYTEST, "-p", "proof.mutants.reach", *tests], folder / "reach.json"),
        (["-m", "proof.mutants.simulate", str(seeds)], folder / "simulated.json"),
    ):
        env = _environment(project) | {"MUTANTS_REACH": str(file.resolve())}
        subprocess.run([sys.executable, *command], cwd=project, env=env, check=False)  # noqa: S603 - ours


_PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header")


def _environment(project: Path) -> dict[str, str]:
    return dict(os.environ) | {"PYTHONPATH": str(project), "PYTHONDONTWRITEBYTECODE": "1"}


class Bench:
    """Judges mutants in one copy of the project."""

    def __init__(self, folder: Path, *, seeds: int) -> None:
        self._folder = folder
        self._project = copy(folder)
        self._reached = Reached.load(folder)
        self._seeds = seeds

    def judge(self, mutant: Mutant) -> Result:
        """Plant one mutant, run what reaches it, and take it out again."""
        file = self._project / mutant.file
        text = file.read_text()
        began = time.monotonic()
        file.write_text(mutant.apply(text))
        try:
            functional, by = self._functional(mutant)
            simulator, seen = self._simulator(mutant)
        finally:
            file.write_text(text)
        return Result(
            mutant.name,
            str(mutant),
            mutant.place.operator,
            digest(text),
            functional,
            by,
            simulator,
            seen,
            round(time.monotonic() - began, 1),
        )

    def _functional(self, mutant: Mutant) -> tuple[Verdict, str]:
        tests = self._reached.tests_of(mutant)
        if not tests:
            return "not reached", ""
        code, output = self._run(
            [*_PYTEST, "--timeout=20", *tests], limit=10 * PATIENCE + PATIENCE * MOST_SECONDS
        )
        if code == 0:
            return "missed", ""
        failed = next((line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))), "hangs")
        return "caught", failed.removeprefix("FAILED ")[:160]

    def _simulator(self, mutant: Mutant) -> tuple[Verdict, str]:
        if not self._reached.is_simulated(mutant):
            return "not reached", ""
        code, output = self._run(
            ["-m", "proof.mutants.simulate", str(self._seeds)], limit=self._seeds * PATIENCE
        )
        return ("missed", "") if code == 0 else ("caught", (output.splitlines() or ["hangs"])[-1][:200])

    def _run(self, command: list[str], *, limit: float) -> tuple[int, str]:
        """Run a program of the copy; one that takes too long has failed."""
        try:
            done = subprocess.run(  # noqa: S603 - a program of the project's own
                [sys.executable, *command],
                cwd=self._project,
                env=_environment(self._project),
                capture_output=True,
                text=True,
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return _TESTS_FAILED, ""
        return done.returncode, done.stdout


def digest(text: str) -> str:
    """Return what tells a module's text from any other."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def known(file: Path) -> dict[str, Result]:
    """Return the results so far, the latest of each mutant."""
    if not file.exists():
        return {}
    found = (Result(**json.loads(line)) for line in file.read_text().splitlines())
    return {result.name: result for result in found}


class Judge(Protocol):
    """Whoever judges mutants."""

    def judge(self, mutant: Mutant) -> Result:
        """Judge one."""
        ...


def judged(bench: Judge, mutants: Iterable[Mutant], results: Path) -> Iterator[Result]:
    """Judge those that have no result for their module's text yet, and yield all."""
    before = known(results)
    mutants = list(mutants)
    texts = {each.file: digest((ROOT / each.file).read_text()) for each in mutants}
    for mutant in mutants:
        result = before.get(mutant.name)
        if result is None or result.text != texts[mutant.file]:
            result = bench.judge(mutant)
            with results.open("a") as lines:
                lines.write(json.dumps(asdict(result)) + "\n")
        yield result
