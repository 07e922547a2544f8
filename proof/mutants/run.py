"""Plant mutants one by one, in a copy of the project, and note who catches them.

Rules
- Results are lines of JSON, one for each mutant and judge, written as soon as it is judged: a run that ends
  is taken up again where it was. A line counts as long as its module's text is the same.
- There are two judges: the functional tests, and the simulator. Each is shown what reaches the mutant's line,
  and stops at its first failure.
- The tests are the quickest that reach the line, up to ``MOST_TESTS`` and ``MOST_SECONDS``. They run in turn
  from the files that have some: a test of another file is more likely to see something else. Those without an
  agent of Consul come first; then those with one, within the same limits. None reaching the line is a result
  of its own.
- Tests that hang are a catch, too: a mutant that waits for ever is noticed by whoever waits.
- A catch counts only if what has caught the mutant passes without it: a test that a busy machine fails, or a
  run of a broken simulator, would catch any. The others are then shown the mutant without that one.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate, chain, zip_longest
from typing import IO, TYPE_CHECKING, Any, Literal, Protocol, cast

from proof.mutants.catalogue import ROOT
from proof.mutants.nursery import FEW, NO_FILE, PYTEST, Answer, Task
from proof.mutants.simulate import with_repetitions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from proof.mutants.catalogue import Mutant

MOST_TESTS = 1_000
MOST_SECONDS = 90.0
"""Of functional tests, by what they took without a mutant."""
ENOUGH = 300
"""So many failing tests of one mutant are noted at a time."""
TRIES = 40
"""So many mutants are shown to each of the last ``FEW`` tests without a failure."""
SECONDS = 60.0
"""Of the processor, for runs of the simulator until it is taken to have missed a mutant."""
MOST_TELLING = 100
"""So many runs are chosen by what else they reach."""
_COPIED = ("consul_coord", "proof", "tests", "examples", "bench", "tools", "docs")
_FILES = ("pyproject.toml", "pytest_consul_coord.py", "noxfile.py", "README.md", "CHANGELOG.md", "mkdocs.yml")

Verdict = Literal["caught", "missed", "not reached"]
Who = Literal["functional", "simulator"]
RECIPES = "consul_coord/recipes/"
JUDGES: tuple[Who, ...] = ("functional", "simulator")


@dataclass(frozen=True, slots=True)
class Result:
    """What one judge found of one mutant."""

    name: str
    shown: str
    operator: str
    text: str
    """A digest of the module it was made of."""
    who: Who
    verdict: Verdict
    by: str
    """The first test that caught it, or the rule that was broken."""
    number: int
    """How many tests or runs there were."""
    seconds: float


@dataclass(slots=True)
class Reached:
    """What reaches the core."""

    tests: list[str]
    seconds: list[float]
    with_agent: list[int]
    """The numbers of the tests that need an agent of Consul."""
    lines: Mapping[str, Mapping[str, list[int]]]
    """By file and line, the numbers of the tests."""
    runs: list[str]
    """Those of the simulator."""
    simulated: Mapping[str, Mapping[str, list[int]]]

    @classmethod
    def load(cls, folder: Path) -> Reached:
        """Read what ``measure`` wrote."""
        found = json.loads((folder / "reach.json").read_text())
        simulated = json.loads((folder / "simulated.json").read_text())
        return cls(
            found["tests"],
            found["seconds"],
            found["with_agent"],
            found["lines"],
            simulated["runs"],
            simulated["lines"],
        )

    def tests_of(self, mutant: Mutant, among: Collection[str] | None = None) -> list[str]:
        """Return the tests that reach a mutant, those without an agent first, each kind within the limits."""
        numbers, with_agent = _numbers(mutant, self.lines), set(self.with_agent)
        if among is not None:
            numbers = {number for number in numbers if self.tests[number] in among}
        return [*self._in_turn(numbers - with_agent), *self._in_turn(numbers & with_agent)]

    def _in_turn(self, numbers: set[int]) -> list[str]:
        """Return the quickest tests within the limits, those of each file in turn."""
        quickest = sorted(numbers, key=self.seconds.__getitem__)[:MOST_TESTS]
        totals = accumulate(self.seconds[number] for number in quickest)
        by_file: dict[str, list[str]] = defaultdict(list)
        for number, total in zip(quickest, totals, strict=True):
            if total <= MOST_SECONDS or number == quickest[0]:
                by_file[self.tests[number].partition("::")[0]].append(self.tests[number])
        in_turn = chain.from_iterable(zip_longest(*by_file.values()))
        return [each for each in in_turn if each is not None]

    def without_failure(self, failed: Collection[str]) -> list[str]:
        """Return the tests that reach the recipes, and have failed for no mutant so far.

        Of a test with parameters it is the quickest of those without an agent, if there are any.
        """
        lines = (found for file, found in self.lines.items() if file.startswith(RECIPES))
        numbers = {number for found in lines for each in found.values() for number in each}
        with_agent, found_failing = set(self.with_agent), {_function_of(each) for each in failed}
        quickest: dict[str, str] = {}
        for number in sorted(numbers, key=lambda each: (each in with_agent, self.seconds[each])):
            quickest.setdefault(_function_of(self.tests[number]), self.tests[number])
        left = {test for function, test in quickest.items() if function not in found_failing}
        return [each for each in self.tests if each in left]

    def runs_of(self, mutant: Mutant) -> list[str]:
        """Return the simulator's runs that reach a mutant, every other one the most telling of those left.

        Their repetitions follow.
        """
        numbers = _numbers(mutant, self.simulated)
        telling = _most_telling(numbers, self.simulated.get(mutant.file, {}).values())
        in_turn = chain.from_iterable(zip_longest(telling, sorted(numbers)))
        return with_repetitions(
            [self.runs[number] for number in dict.fromkeys(in_turn) if number is not None]
        )

    def shown_to(self, mutant: Mutant, who: Who) -> list[str]:
        """Return what a judge is to run."""
        return self.tests_of(mutant) if who == "functional" else self.runs_of(mutant)


def _numbers(mutant: Mutant, reached: Mapping[str, Mapping[str, list[int]]]) -> set[int]:
    lines, place = reached.get(mutant.file, {}), mutant.place
    return {each for line in range(place.first, place.last + 1) for each in lines.get(str(line), ())}


def _most_telling(numbers: set[int], lines: Iterable[Collection[int]]) -> list[int]:
    """Return the runs that reach the rarest lines of a module, each mostly others than the runs before."""
    # What is rare goes together: a line that most runs reach matters in few of them.
    lines_of: dict[int, list[int]] = {number: [] for number in numbers}
    weights: list[float] = []
    for place, reached in enumerate(lines):
        weights.append(1 / max(1, len(reached)))
        for number in numbers.intersection(reached):
            lines_of[number].append(place)
    telling: list[int] = []
    while lines_of and len(telling) < MOST_TELLING:
        best = max(lines_of, key=lambda number: sum(weights[place] for place in lines_of[number]))
        telling.append(best)
        for place in lines_of.pop(best):
            weights[place] /= 2
    return telling


def _function_of(test: str) -> str:
    return test.partition("[")[0]


def copy(folder: Path) -> Path:
    """Make a copy of the project, to plant in."""
    target = folder.resolve() / "project"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name in _COPIED:
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in _FILES:
        shutil.copy(ROOT / name, target / name)
    return target


def measure(
    folder: Path, tests: Iterable[str], *, who: Sequence[Who] = JUDGES, scale: float = 1.0, portions: int = 1
) -> None:
    """Find out what reaches what; writes to the folder.

    ``scale``: of the number of the simulator's runs. ``portions``: of the tests, at the same time; most of
    them wait, and an agent of Consul for each portion bears them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    project = copy(folder)
    pytest = ["-m", "pytest", *PYTEST, "-p", "proof.mutants.reach", *tests]
    parts = [folder / f"reach.{number}.json" for number in range(1, portions + 1)]
    if "functional" in who:
        _at_once(
            project, {part: [*pytest, f"--portion={n}/{portions}"] for n, part in enumerate(parts, 1)}, scale
        )
        (folder / "reach.json").write_text(
            json.dumps(merged([json.loads(part.read_text()) for part in parts]))
        )
    if "simulator" in who:
        _at_once(project, {folder / "simulated.json": ["-m", "proof.mutants.simulate"]}, scale)


def _at_once(project: Path, commands: Mapping[Path, list[str]], scale: float) -> None:
    """Run programs that write a file each, at the same time."""
    running = [
        subprocess.Popen(  # noqa: S603 - a program of the project's own
            [sys.executable, *command],
            cwd=project,
            env=_environment(project) | {"MUTANTS_REACH": str(file.resolve()), "MUTANTS_SCALE": str(scale)},
        )
        for file, command in commands.items()
    ]
    for each in running:
        each.wait()


def merged(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what several portions of the tests reach, as one."""
    lines: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    whole: dict[str, Any] = {"tests": [], "seconds": [], "with_agent": [], "lines": lines}
    for part in parts:
        first = len(whole["tests"])
        whole["tests"] += part["tests"]
        whole["seconds"] += part["seconds"]
        whole["with_agent"] += [first + number for number in part["with_agent"]]
        for file, numbers in part["lines"].items():
            for line, reached in numbers.items():
                lines[file][line] += [first + number for number in reached]
    return whole


def _environment(project: Path) -> dict[str, str]:
    return dict(os.environ) | {"PYTHONPATH": str(project), "PYTHONDONTWRITEBYTECODE": "1"}


class Nursery:
    """A program that judges mutants in forks of itself."""

    def __init__(self, project: Path, who: Who, *options: str) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - a program of the project's own
            [sys.executable, "-m", "proof.mutants.nursery", who, *options],
            cwd=project,
            env=_environment(project),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._input, self._output = (
            cast("IO[str]", self._process.stdin),
            cast("IO[str]", self._process.stdout),
        )
        self._read()  # it has imported everything

    def judge(self, task: Task) -> Answer:
        """Have one mutant judged."""
        self._input.write(json.dumps(asdict(task)) + "\n")
        self._input.flush()
        return Answer(**json.loads(self._read()))

    def _read(self) -> str:
        line = self._output.readline()
        if not line:
            message = "a nursery has ended: run `python -m proof.mutants.nursery` to see why"
            raise RuntimeError(message)
        return line

    def close(self) -> None:
        """Let it end."""
        self._input.close()
        self._process.wait()
        self._output.close()


class Bench:
    """Judges mutants in one copy of the project."""

    def __init__(self, folder: Path, *, seconds: float = SECONDS) -> None:
        self._project = copy(folder)
        self.reached = Reached.load(folder)
        self._seconds: dict[Who, float] = {"functional": MOST_SECONDS, "simulator": seconds}
        self._nurseries: dict[Who, Nursery] = {}

    def judge(self, mutant: Mutant, who: Who) -> Result:
        """Plant one mutant, run what reaches it, and take it out again."""
        began = time.monotonic()
        shown_to = self.reached.shown_to(mutant, who)
        answer = settled(shown_to, partial(self._show, mutant, who))
        verdict: Verdict = "caught" if answer.caught else "missed" if shown_to else "not reached"
        return Result(
            mutant.name,
            str(mutant),
            mutant.place.operator,
            digest((self._project / mutant.file).read_text()),
            who,
            verdict,
            answer.by[:300],
            answer.number,
            round(time.monotonic() - began, 1),
        )

    def failing(self, mutant: Mutant, tests: list[str]) -> list[str]:
        """Return which tests fail with a mutant and pass without it, up to ``ENOUGH`` of them."""
        failed = self._show(mutant, "functional", tests, most=ENOUGH).failed
        if failed:
            again = self._show(mutant, "functional", failed, most=ENOUGH, planted=False).failed
            failed = [each for each in failed if each not in again]
        return failed

    def _show(
        self, mutant: Mutant, who: Who, shown_to: list[str], *, most: int = 1, planted: bool = True
    ) -> Answer:
        """Run tests, or the simulator, with a mutant planted or without it."""
        file = self._project / mutant.file
        text = file.read_text()
        # The nursery imports before there is anything to import.
        nursery = self._nurseries.get(who) or self._nurseries.setdefault(who, Nursery(self._project, who))
        function, mutated = mutant.place.function, mutant.apply(text)
        task = Task(mutant.file, function, text, mutated, shown_to, self._seconds[who], most)
        if not planted:
            return nursery.judge(replace(task, file=NO_FILE))
        file.write_text(mutated)
        try:
            answer = nursery.judge(task)
            return answer if answer.planted else self._afresh(task, who)
        finally:
            file.write_text(text)

    def _afresh(self, task: Task, who: Who) -> Answer:
        """Have a mutant judged by a program that imports it from its file."""
        nursery = Nursery(self._project, who, "fresh")
        try:
            return nursery.judge(task)
        finally:
            nursery.close()

    def close(self) -> None:
        """End the programs."""
        for nursery in self._nurseries.values():
            nursery.close()


def settled(shown_to: Sequence[str], show: Callable[..., Answer]) -> Answer:
    """Show a mutant to tests or runs, but those that fail without it; return the last answer."""
    left, unsound = list(shown_to), ""
    while left:
        answer = show(left)
        suspects = caught_by(left, answer)
        if not suspects or not show(suspects, planted=False).caught:
            return answer
        unsound = f"fails without it: {answer.by}"
        left = [each for each in left if each not in suspects]
    return Answer(planted=True, caught=False, by=unsound, number=0)


def caught_by(shown_to: Sequence[str], answer: Answer) -> list[str]:
    """Return the test, or the run, that has caught a mutant; none for a hang, of which nobody says where."""
    found = [each for each in shown_to if answer.by == each or answer.by.startswith(f"{each}: ")]
    return found if answer.caught else []


def digest(text: str) -> str:
    """Return what tells a module's text from any other."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def known(file: Path) -> dict[tuple[str, Who], Result]:
    """Return the results so far, the latest of each mutant and judge."""
    if not file.exists():
        return {}
    found = (Result(**json.loads(line)) for line in file.read_text().splitlines())
    return {(result.name, result.who): result for result in found}


class Judge(Protocol):
    """Whoever judges mutants."""

    def judge(self, mutant: Mutant, who: Who) -> Result:
        """Judge one."""
        ...


def judged(
    bench: Judge,
    mutants: Iterable[Mutant],
    results: Path,
    *,
    who: Sequence[Who] = JUDGES,
    again: bool = False,
) -> Iterator[Result]:
    """Judge those that have no result for their module's text yet, and yield all.

    ``again``: those that were missed, too.
    """
    before = known(results)
    mutants = list(mutants)
    texts = {each.file: digest((ROOT / each.file).read_text()) for each in mutants}
    for judge in who:
        for mutant in mutants:
            result = before.get((mutant.name, judge))
            if result is None or result.text != texts[mutant.file] or (again and result.verdict != "caught"):
                result = bench.judge(mutant, judge)
                with results.open("a") as lines:
                    lines.write(json.dumps(asdict(result)) + "\n")
            yield result


class Shows(Protocol):
    """A bench that shows mutants to tests."""

    @property
    def reached(self) -> Reached:
        """The tests and the runs that reach each line of the core."""
        ...

    def failing(self, mutant: Mutant, tests: list[str]) -> list[str]:
        """Return which tests fail with a mutant and pass without it."""
        ...


def unfailing(bench: Shows, mutants: Iterable[Mutant], noted: Path) -> Iterator[list[str]]:
    """Show each mutant to the tests that have not failed so far; yields those that are left, after each.

    A test that fails for no mutant may be one that can't fail. One with parameters is shown with some of them
    only. ``noted``: where failures are kept.
    """
    failed = noted.read_text().splitlines() if noted.exists() else []
    left = set(bench.reached.without_failure(failed))
    for mutant, tests in _chosen(bench.reached, list(mutants), left):
        found = bench.failing(mutant, tests)
        left.difference_update(found)
        with noted.open("a") as lines:
            lines.writelines(f"{each}\n" for each in found)
        yield [each for each in bench.reached.tests if each in left]


def _chosen(
    reached: Reached, mutants: Sequence[Mutant], left: Collection[str]
) -> Iterator[tuple[Mutant, list[str]]]:
    """Yield mutants, and the tests in ``left`` that each is shown to.

    Many tests are shown what most of them reach. A few are shown what the fewest of all tests reach, which is
    nearest to what they are about, up to ``TRIES`` each.
    """
    for mutant in _widest_first(reached, mutants, left):
        if len(left) <= FEW:
            break
        yield mutant, reached.tests_of(mutant, left)
    numbers = {mutant: _numbers(mutant, reached.lines) for mutant in mutants}
    tries: Counter[str] = Counter()
    for mutant in sorted(mutants, key=lambda each: len(numbers[each])):
        here = {reached.tests[number] for number in numbers[mutant]}
        tests = [each for each in sorted(left) if each in here and tries[each] < TRIES]
        if tests:
            tries.update(tests)
            yield mutant, tests


def _widest_first(reached: Reached, mutants: Iterable[Mutant], left: Collection[str]) -> Iterator[Mutant]:
    """Yield the mutants that tests in ``left`` reach: next the one that most of them do by then."""
    many = len(reached.tests)
    heap = [(-many, order, mutant) for order, mutant in enumerate(mutants)]
    while heap:
        _, order, mutant = heapq.heappop(heap)
        number = sum(reached.tests[each] in left for each in _numbers(mutant, reached.lines))
        # The others' numbers are of earlier, and can only have fallen.
        if heap and (-number, order) > heap[0][:2]:
            heapq.heappush(heap, (-number, order, mutant))
        elif number:
            yield mutant
