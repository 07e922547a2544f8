"""The mutation tool: what its operators make of code, that names last, and that results are kept."""

from __future__ import annotations

import ast
import textwrap
from typing import TYPE_CHECKING

import pytest

from proof.mutants import catalogue, run
from proof.mutants.operators import OPERATORS, OWN, places
from proof.mutants.report import judgements, report, share
from proof.mutants.run import Reached, Result, known

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from proof.mutants.catalogue import Mutant

SAMPLE = 6
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
    "inconsistent": ("x = read(options=_CONSISTENT)", "options=None"),
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


def test_texts_for_people_are_left_alone() -> None:
    text = 'def f(x: "int < 3") -> None:\n    """1 + 1."""\n    raise_(f"{1 + 1}")\n'
    assert {place.operator for place in places(text)} == {"uncalled"}


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


def test_a_sample_has_all_operators_and_is_the_same_each_time() -> None:
    found = catalogue.mutants()
    chosen = catalogue.sample(found, 40, seed=3)
    assert len({mutant.name for mutant in chosen}) == 40
    assert {mutant.place.operator for mutant in chosen} == set(OPERATORS)
    assert chosen == catalogue.sample(found, 40, seed=3) != catalogue.sample(found, 40, seed=4)


def result_of(mutant: Mutant, functional: run.Verdict, simulator: run.Verdict) -> Result:
    text = run.digest((catalogue.ROOT / mutant.file).read_text())
    return Result(mutant.name, str(mutant), mutant.place.operator, text, functional, "", simulator, "", 1.0)


class FakeBench:
    """Catches nothing, and counts what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def judge(self, mutant: Mutant) -> Result:
        self.asked.append(mutant.name)
        return result_of(mutant, "missed", "not reached")


def test_a_run_that_ended_is_taken_up_where_it_was(tmp_path: Path) -> None:
    some = catalogue.sample(catalogue.mutants(), 4, seed=0)
    results = tmp_path / "results.jsonl"

    def judge(mutants: Iterable[Mutant]) -> list[str]:
        bench = FakeBench()
        assert len(list(run.judged(bench, mutants, results))) == len(list(mutants))
        return bench.asked

    assert judge(some[:2]) == [each.name for each in some[:2]]
    assert judge(some) == [each.name for each in some[2:]]
    assert set(known(results)) == {each.name for each in some}


def test_the_tests_of_a_mutant_are_those_that_reach_it_the_quickest_first() -> None:
    mutant = catalogue.mutants()[0]
    line = str(mutant.place.first)
    reached = Reached(["slow", "other", "quick"], [2.0, 0.1, 1.0], {mutant.file: {line: [0, 2]}}, {})
    assert reached.tests_of(mutant) == ["quick", "slow"]
    assert not reached.is_simulated(mutant)


def test_a_report_tells_shares_and_survivors() -> None:
    some = catalogue.sample(catalogue.mutants(), 3, seed=0)
    results = [
        result_of(some[0], "caught", "caught"),
        result_of(some[1], "caught", "missed"),
        result_of(some[2], "missed", "not reached"),
    ]
    assert share(results, "functional") == (2, 3)
    assert share(results, "simulator") == (1, 2)
    text = report(results)
    assert "| functional | 2 | 3 | 67% |" in text
    assert str(some[2]) in text.partition("Survivors")[2].partition("Caught by")[0]


def test_what_is_judged_harmless_is_still_there() -> None:
    names = {mutant.name for mutant in catalogue.mutants()}
    assert set(judgements()) <= names


@pytest.mark.search
@pytest.mark.timeout(1_500)
def test_a_sample_of_mutants_is_caught(tmp_path: Path, search_seed: int) -> None:
    pytest.importorskip("coverage", reason="needs coverage, of the group dev")
    # Units and the simulator alone, for the sake of time: `python -m proof.mutants` asks all tests.
    run.measure(tmp_path, ("-m", "not search and not long", "tests/unit/recipes"), seeds=30)
    bench = run.Bench(tmp_path, seeds=150)
    reached = Reached.load(tmp_path)
    seen = [each for each in catalogue.mutants() if reached.is_simulated(each) or reached.tests_of(each)]
    chosen = [
        each for each in catalogue.sample(seen, 3 * SAMPLE, seed=search_seed) if each.name not in judgements()
    ]
    results = list(run.judged(bench, chosen[:SAMPLE], tmp_path / "results.jsonl"))
    assert sum(each.caught for each in results) >= SAMPLE // 2, report(results)
