"""The mutation tool: what its operators make of code, that names last, and that results are kept."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord.testing import Simulation
from proof.mutants import catalogue, run, simulate
from proof.mutants.__main__ import main
from proof.mutants.nursery import Answer
from proof.mutants.operators import OPERATORS, OWN, places
from proof.mutants.plant import plant
from proof.mutants.report import judgements, report, share
from proof.mutants.run import Reached, Result, known

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from proof.mutants.catalogue import Mutant

SAMPLE = 4
CASES = {
    "compared": ("if a < b: go()", "(a <= b)"),
    "joined": ("x = a and b", "((a) or (b))"),
    "negated": ("x = not a", "(a)"),
    "counted": ("x = a - b", "(a + b)"),
    "bounded": ("x = min(a, b)", "max(a, b)"),
    "numbered": ("x = 3", "4"),
    "conditioned": ("if a: go()", "False"),
    "uncalled": ("await self.release()", "pass"),
    "unwoken": ("self.changed.set()", "pass"),
    "stale": ("self.index = index", "pass"),
    "left": ("raise error", "pass"),
    "received": ("lease.confirm(sent_at=sent_at)", "io.now()"),
    "unguarded": ("x = (TxnOp.check_index(key, index), TxnOp.lock(key))", "(TxnOp.lock(key),)"),
    "widened": ("x = pair.modify_index", "pair.create_index"),
    "unshielded": ("x = io.shield(BUDGET)", "io.shield(60.0)"),
    "late": ("x = ask(deadline=deadline)", "deadline=1000000000.0"),
    "inconsistent": ("x = read(options=CONSISTENT)", "options=None"),
    "silenced": ("try:\n    go()\nexcept Error:\n    wait()", "return"),
}


def module(body: str) -> str:
    return "async def function(self, io):\n" + textwrap.indent(body, "    ") + "\n"


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_makes_its_mistake(operator: str) -> None:
    body, becomes = CASES[operator]
    text = module(body)
    made = [place for place in places(text) if place.operator == operator]
    assert becomes in [place.becomes for place in made]
    for place in made:
        changed = text[: place.start] + place.becomes + text[place.end :]
        ast.parse(changed)
        assert changed != text
        assert place.function == "function"


@pytest.mark.parametrize(
    ("text", "clock"),
    [
        ("def f(io, sent_at): return sent_at", ["io.now()"]),
        ("def f(self):\n    sent_at = self.io.now()\n    return sent_at", ["self.io.now()"]),
        ("def f(sent_at): return sent_at", []),
    ],
)
def test_the_time_of_a_reply_is_asked_of_a_clock_that_is_there(text: str, clock: list[str]) -> None:
    assert [place.becomes for place in places(text) if place.operator == "received"] == clock


def test_texts_for_people_are_left_alone() -> None:
    text = 'def f(x: "int < 3") -> None:\n    """1 + 1."""\n    raise_(f"{1 + 1}")\n'
    assert {place.operator for place in places(text)} == {"uncalled"}


@pytest.mark.search
def test_there_are_many_and_each_has_a_name_of_its_own() -> None:
    found = catalogue.mutants()
    assert len(found) >= 400
    assert len({mutant.name for mutant in found}) == len(found)
    assert {mutant.place.operator for mutant in found} == set(OPERATORS)
    own = [mutant for mutant in found if mutant.place.operator in OWN]
    assert len(own) >= 100


def test_a_name_outlasts_what_is_put_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "ROOT", tmp_path)
    file = tmp_path / "some.py"

    def names(text: str) -> list[str]:
        file.write_text(text)
        return [mutant.name for mutant in catalogue.mutants([file])]

    before = names(module("return a < b"))
    assert before == names("import os\n\n\n" + module("return a < b"))
    assert before


@pytest.mark.search
def test_a_sample_has_all_operators_and_is_the_same_each_time() -> None:
    found = catalogue.mutants()
    chosen = catalogue.sample(found, 40, seed=3)
    assert len({mutant.name for mutant in chosen}) == 40
    assert {mutant.place.operator for mutant in chosen} == set(OPERATORS)
    assert chosen == catalogue.sample(found, 40, seed=3) != catalogue.sample(found, 40, seed=4)


def a_few() -> list[Mutant]:
    """Return the mutants of one file: those of all files take seconds to make."""
    return catalogue.mutants([catalogue.ROOT / run.RECIPES / "contend" / "tickets.py"])


def result_of(mutant: Mutant, who: run.Who, verdict: run.Verdict) -> Result:
    text = run.digest((catalogue.ROOT / mutant.file).read_text())
    return Result(mutant.name, str(mutant), mutant.place.operator, text, who, verdict, "", 1, 1.0)


class FakeBench:
    """Catches nothing, and counts what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, run.Who]] = []

    def judge(self, mutant: Mutant, who: run.Who) -> Result:
        self.asked.append((mutant.name, who))
        return result_of(mutant, who, "missed" if who == "functional" else "caught")


def test_a_run_that_ended_is_taken_up_where_it_was(tmp_path: Path) -> None:
    some = catalogue.sample(a_few(), 4, seed=0)
    results = tmp_path / "results.jsonl"

    def judge(mutants: Sequence[Mutant], *, again: bool = False) -> list[tuple[str, run.Who]]:
        bench = FakeBench()
        assert len(list(run.judged(bench, mutants, results, again=again))) == 2 * len(mutants)
        return bench.asked

    assert judge(some[:2]) == [(each.name, who) for who in run.JUDGES for each in some[:2]]
    assert judge(some) == [(each.name, who) for who in run.JUDGES for each in some[2:]]
    assert judge(some, again=True) == [(each.name, "functional") for each in some]
    assert set(known(results)) == {(each.name, who) for each in some for who in run.JUDGES}


def test_a_mutant_is_shown_what_reaches_its_line() -> None:
    mutant = a_few()[0]
    line = str(mutant.place.first)
    tests = ["a::slow", "a::other", "a::quick", "b::slowest", "a::agent"]
    seconds = [2.0, 0.1, 1.0, 3.0, 0.1]
    runs = ["drawn:0", "rwlocks:0"]
    reached = Reached(
        tests,
        seconds,
        [4],
        {mutant.file: {line: [0, 2, 3, 4]}},
        runs,
        {mutant.file: {line: [1], "none": [0]}},
    )
    assert reached.shown_to(mutant, "functional") == ["a::quick", "b::slowest", "a::slow", "a::agent"]
    assert reached.shown_to(mutant, "simulator") == ["rwlocks:0"]
    none = Reached(tests, seconds, [], {}, runs, {})
    assert none.shown_to(mutant, "functional") == none.shown_to(mutant, "simulator") == []


def test_every_other_run_is_one_that_reaches_what_few_do() -> None:
    mutant = a_few()[0]
    line, runs = str(mutant.place.first), [f"seed:{number}" for number in range(6)]
    lines = {line: [0, 1, 2, 3, 4], "rare": [3], "rare, too": [3, 5], "less rare": [2, 3], "others": [4]}
    reached = Reached([], [], [], {}, runs, {mutant.file: lines})
    shown = reached.shown_to(mutant, "simulator")
    assert shown[:5] == [f"seed:{number}" for number in (3, 0, 4, 1, 2)]
    assert shown[5:11] == [f"seed:{number}/1" for number in (3, 0, 4, 1, 2)] + ["seed:3/2"]
    assert len(shown) == len(set(shown)) == simulate.MOST_SHOWN


def test_a_repetition_is_another_run_of_the_same_plan() -> None:
    first, *others = (simulate.drawn(number).plan for number in ("7", "7/1", "7/2", "7/2"))
    assert first == Simulation(seed=7).plan
    assert [replace(each, seed=first.seed) for each in others] == [first] * 3
    assert len({first.seed, *(each.seed for each in others)}) == 3
    assert others[1] == others[2]


@pytest.mark.search
def test_what_no_test_reaches_is_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *_, last = a_few()
    monkeypatch.setattr(catalogue, "modules", lambda: [catalogue.ROOT / first.file])
    lines = {first.file: {str(first.place.first): [0]}}
    reach = {"tests": ["a"], "seconds": [0.1], "with_agent": [], "lines": lines}
    (tmp_path / "reach.json").write_text(json.dumps(reach))
    (tmp_path / "simulated.json").write_text(json.dumps({"runs": [], "lines": {}}))
    main(["unreached", "--folder", str(tmp_path), "--only", first.file])
    listed = [line.partition(" ")[0] for line in capsys.readouterr().out.splitlines()]
    assert last.name in listed
    assert first.name not in listed


def test_portions_that_were_measured_apart_are_one() -> None:
    first = {"tests": ["a", "b"], "seconds": [1.0, 2.0], "with_agent": [1], "lines": {"f": {"1": [0, 1]}}}
    second = {
        "tests": ["c"],
        "seconds": [3.0],
        "with_agent": [0],
        "lines": {"f": {"1": [0]}, "g": {"7": [0]}},
    }
    assert run.merged([first, second]) == {
        "tests": ["a", "b", "c"],
        "seconds": [1.0, 2.0, 3.0],
        "with_agent": [1, 2],
        "lines": {"f": {"1": [0, 1, 2]}, "g": {"7": [2]}},
    }


def printed_by(program: str) -> str:
    """Return the output of a program of its own."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=catalogue.ROOT, capture_output=True, text=True, check=True).stdout


LEAVES_ONE_BEHIND = """
import subprocess, sys
from proof.mutants.nursery import NO_FILE, Answer, Task, adopt_orphans, judged

def start(task, tell):
    # As an agent is: a session of its own, and a parent that ends without a word to it.
    started = subprocess.Popen(["sleep", "600"], start_new_session=True)
    return Answer(planted=True, caught=False, by=str(started.pid), number=1)

adopt_orphans()
print(judged(Task(NO_FILE, "f", "", "", [], 1.0), start, limit=60.0).by)
"""


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux hands orphans to another than the first process"
)
def test_no_process_of_a_mutant_outlives_it() -> None:
    with pytest.raises(ProcessLookupError):
        os.kill(int(printed_by(LEAVES_ONE_BEHIND)), 0)


TAKES_TOO_MUCH = """
from proof.mutants import nursery
from proof.mutants.nursery import NO_FILE, Answer, Task, adopt_orphans, judged

def fill(task, tell):
    try:
        bytearray(2 * nursery._MOST_MEMORY)
    except MemoryError:
        return Answer(planted=True, caught=True, by="no memory", number=1)
    return Answer(planted=True, caught=False, by="", number=1)

adopt_orphans()
print(judged(Task(NO_FILE, "f", "", "", [], 1.0), fill, limit=60.0).by)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count memory in another way")
def test_a_mutant_that_takes_all_memory_ends_its_fork_only() -> None:
    assert printed_by(TAKES_TOO_MUCH).strip() == "no memory"


HANGS_AFTER_FAILURES = """
import time
from proof.mutants.nursery import NO_FILE, Task, adopt_orphans, judged

def fail(task, tell):
    tell("a::one")
    tell("a::two")
    time.sleep(600)

adopt_orphans()
answer = judged(Task(NO_FILE, "f", "", "", [], 1.0), fail, limit=1.0)
print(answer.by, *answer.failed)
"""


def test_what_has_failed_before_a_fork_hangs_is_known() -> None:
    assert printed_by(HANGS_AFTER_FAILURES).strip() == "hangs a::one a::two"


MODULE = """
from contextlib import contextmanager

class Cell:
    def __init__(self):
        super().__init__()
        self.number = 1

    @property
    def twice(self):
        return 2 * self.number

@contextmanager
def lent():
    yield 7
"""


@pytest.mark.parametrize(
    ("function", "was", "becomes", "shown", "planted"),
    [
        ("Cell.__init__", "self.number = 1", "self.number = 5", (10, 7), True),
        ("Cell.twice", "2 *", "3 *", (3, 7), True),
        ("lent", "yield 7", "yield 8", (2, 8), True),
        ("Cell.__init__", "super().__init__()", "pass", (2, 7), False),
    ],
)
def test_a_mutant_is_planted_wherever_its_function_is_known(  # noqa: PLR0917 - a table
    tmp_path: Path, function: str, was: str, becomes: str, shown: tuple[int, int], planted: bool
) -> None:
    file = tmp_path / f"module_{shown[0]}_{shown[1]}.py"
    names: dict[str, Any] = {}
    exec(compile(MODULE, str(file), "exec"), names)
    cell, lent = names["Cell"], names["lent"]
    assert plant(file, MODULE, MODULE.replace(was, becomes), function) is planted
    with lent() as seven:
        assert (cell().twice, seven) == shown


def test_a_module_that_nobody_has_imported_is_left_to_its_file(tmp_path: Path) -> None:
    assert plant(tmp_path / "unknown.py", MODULE, MODULE.replace("2 *", "3 *"), "Cell.twice")


@pytest.mark.parametrize(
    ("by", "found"),
    [
        ("a::one", "a::one"),
        ("drawn:2: order: x", "drawn:2"),
        ("drawn:20: in time: x", "drawn:20"),
        ("hangs", ""),
    ],
)
def test_what_has_caught_a_mutant_is_known_so_that_it_can_be_tried_without_it(by: str, found: str) -> None:
    shown = ["a::one", "a::two", "drawn:1", "drawn:2", "drawn:20"]
    caught = Answer(planted=True, caught=True, by=by, number=3)
    assert run.caught_by(shown, caught) == ([found] if found else [])
    assert run.caught_by(shown, replace(caught, caught=False)) == []


@pytest.mark.parametrize(
    ("failing", "failing_anyway", "by"),
    [
        (["two", "three"], [], "two"),
        (["two", "three"], ["two"], "three"),
        (["two"], ["two"], ""),
        (["one", "two", "three"], ["one", "two", "three"], ""),
        ([], [], ""),
    ],
)
def test_a_test_that_fails_without_the_mutant_catches_none(
    failing: list[str], failing_anyway: list[str], by: str
) -> None:
    def show(tests: list[str], *, planted: bool = True) -> Answer:
        found = [each for each in tests if each in (failing if planted else failing_anyway)][:1]
        return Answer(planted=planted, caught=bool(found), by="".join(found), number=len(tests))

    answer = run.settled(["one", "two", "three"], show)
    assert answer.caught is bool(by)
    assert answer.by == by or not answer.caught


class Shown:
    """Has three tests of the recipes and one of something else, and notes what is shown to them."""

    def __init__(
        self, mutants: Sequence[Mutant], fails: dict[str, list[str]], reaching: Sequence[int] = (3, 3, 3)
    ) -> None:
        lines: dict[str, dict[str, list[int]]] = {"consul_coord/http/wire.py": {"1": [3]}}
        for mutant, number in zip(mutants, reaching, strict=False):
            lines.setdefault(mutant.file, {})[str(mutant.place.first)] = [0, 1, 2][:number]
        self.reached = Reached(["a", "b", "c", "other"], [0.1] * 4, [], lines, [], {})
        self.fails = fails
        self.shown: list[list[str]] = []

    def failing(self, mutant: Mutant, tests: list[str]) -> list[str]:
        self.shown.append(sorted(tests))
        return [each for each in self.fails[mutant.name] if each in tests]


def test_tests_of_the_recipes_that_fail_for_no_mutant_are_named(tmp_path: Path) -> None:
    first, second = a_few()[::20][:2]
    fails = {first.name: ["a"], second.name: ["a", "b"]}
    bench = Shown([first, second], fails)
    noted = tmp_path / "failed.txt"
    assert list(run.unfailing(bench, [first, second], noted)) == [["b", "c"], ["c"]]
    assert bench.shown == [["a", "b", "c"], ["b", "c"]]
    assert list(run.unfailing(bench, [first], noted)) == [["c"]]
    assert bench.shown[-1] == ["c"], "it is taken up where it was"


def test_the_mutant_that_most_of_many_tests_left_reach_is_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "FEW", 0)
    few, most, some = a_few()[::20][:3]
    fails = {few.name: ["a"], most.name: ["b", "c"], some.name: ["a", "b"]}
    bench = Shown([few, most, some], fails, reaching=(1, 3, 2))
    assert list(run.unfailing(bench, [few, most, some], tmp_path / "failed.txt")) == [["a"], []]
    assert bench.shown == [["a", "b", "c"], ["a"]]


def test_a_few_tests_are_shown_what_the_fewest_reach_and_are_named_after_some_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "TRIES", 2)
    few, most, some = a_few()[::20][:3]
    fails: dict[str, list[str]] = {few.name: [], most.name: ["b"], some.name: ["b"]}
    bench = Shown([few, most, some], fails, reaching=(1, 3, 2))
    assert list(run.unfailing(bench, [few, most, some], tmp_path / "failed.txt")) == [
        ["a", "b", "c"],
        ["a", "c"],
        ["a", "c"],
    ]
    assert bench.shown == [["a"], ["a", "b"], ["c"]]


def test_a_test_with_parameters_is_shown_with_the_quickest_that_need_no_agent() -> None:
    tests = ["t[agent]", "t[slow]", "t[quick]", "alone[agent]", "elsewhere"]
    lines = {
        "consul_coord/recipes/lock.py": {"1": [0, 1, 2], "2": [3]},
        "consul_coord/http/wire.py": {"1": [4]},
    }
    reached = Reached(tests, [0.1, 3.0, 1.0, 0.1, 0.1], [0, 3], lines, [], {})
    assert reached.without_failure([]) == ["t[quick]", "alone[agent]"]
    assert reached.without_failure(["t[slow]"]) == ["alone[agent]"]


def test_a_report_tells_shares_and_survivors() -> None:
    some = catalogue.sample(a_few(), 3, seed=0)
    results = [
        result_of(some[0], "functional", "caught"),
        result_of(some[0], "simulator", "caught"),
        result_of(some[1], "functional", "caught"),
        result_of(some[1], "simulator", "missed"),
        result_of(some[2], "functional", "missed"),
        result_of(some[2], "simulator", "not reached"),
    ]
    assert share(results, "functional") == (2, 3)
    assert share(results, "simulator") == (1, 2)
    text = report(results)
    assert "| functional | 2 | 3 | 67% |" in text
    assert "| either | 2 | 3 | 67% |" in text
    functional, _, simulator = text.partition("Survivors, functional")[2].partition("Survivors, simulator")
    assert str(some[2]) in functional
    assert str(some[1]) in simulator


TRACING = """
import sys
from consul_coord.recipes.partition.partitioning import names_of

def test_that_traces_lines_itself():
    sys.settrace(lambda *_: None)
    sys.settrace(None)

def test_after_it():
    assert names_of(["a", "b"]) == ("a", "b")
"""


def test_what_a_test_reaches_is_measured_also_after_one_that_traces_lines_itself(tmp_path: Path) -> None:
    pytest.importorskip("coverage", reason="needs coverage, of the group dev")
    tests, found = tmp_path / "test_tracing.py", tmp_path / "reach.json"
    tests.write_text(TRACING)
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "proof.mutants.reach", str(tests)],
        cwd=catalogue.ROOT,
        env={**os.environ, "MUTANTS_REACH": str(found)},
        check=True,
        capture_output=True,
        timeout=60,
    )
    reached = json.loads(found.read_text())
    after = next(n for n, name in enumerate(reached["tests"]) if name.endswith("test_after_it"))
    lines = reached["lines"]["consul_coord/recipes/partition/partitioning.py"]
    assert any(after in numbers for numbers in lines.values())


@pytest.mark.search
def test_what_is_judged_harmless_is_still_there() -> None:
    names = {mutant.name for mutant in catalogue.mutants()}
    assert set(judgements()) <= names


@pytest.mark.search
@pytest.mark.timeout(1_500)
def test_a_sample_of_mutants_is_caught(tmp_path: Path, search_seed: int) -> None:
    pytest.importorskip("coverage", reason="needs coverage, of the group dev")
    # Some units and some runs alone, for the sake of time: `python -m proof.mutants` asks all tests.
    run.measure(
        tmp_path, ("-m", "not slow and not search", "-k", "not waitqueue", "tests/unit/recipes"), scale=0.01
    )
    reached = Reached.load(tmp_path)
    seen = [each for each in catalogue.mutants() if reached.tests_of(each) and reached.runs_of(each)]
    chosen = [
        each for each in catalogue.sample(seen, 3 * SAMPLE, seed=search_seed) if each.name not in judgements()
    ]
    bench = run.Bench(tmp_path, seconds=12.0)
    try:
        results = list(run.judged(bench, chosen[:SAMPLE], tmp_path / "results.jsonl"))
    finally:
        bench.close()
    caught = {each.name for each in results if each.verdict == "caught"}
    assert len(caught) >= SAMPLE // 2, report(results)
