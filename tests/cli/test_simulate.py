"""``simulate``: what it tells, by seed."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest

from consul_coord.cli import main
from consul_coord.testing.history import load
from tests.simulation.mutations import MUTATIONS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
def test_the_same_seeds_tell_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stories, told = [], []
    for name in ("one", "two"):
        assert main(["simulate", "--seed", "5", "--count", "2", "--trace", str(tmp_path / name)]) == 0
        stories.append((tmp_path / name).read_text())
        told.append(capsys.readouterr().out)
    assert stories[0] == stories[1]
    assert told[0] == told[1]
    assert told[0].startswith("2 runs, ")
    assert stories[0].startswith("seed 6: ")
    assert stories[0].endswith("no rule was broken\n")


def test_a_broken_rule_is_told_and_the_answer_is_no(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (planted,) = (mutation for mutation in MUTATIONS if mutation.name == "threads do not queue")
    with planted.planted():
        assert main(["simulate", "--seed", "0", "--count", "100", "--trace", str(tmp_path / "story")]) == 1
    assert "exclusion" in capsys.readouterr().out
    assert "exclusion" in (tmp_path / "story").read_text().splitlines()[-1]


@pytest.mark.slow
def test_files_hold_what_their_names_say(tmp_path: Path) -> None:
    names = {name: tmp_path / name for name in ("run.json", "run.jsonl", "run.svg", "run.html")}
    assert main(["simulate", "--seed", "6", "--trace", str(names["run.json"])]) == 0
    lines, picture = str(names["run.jsonl"]), str(names["run.svg"])
    assert main(["simulate", "--seed", "6", "--trace", lines, "--timeline", picture]) == 0
    assert main(["simulate", "--seed", "6", "--timeline", str(names["run.html"])]) == 0
    document = json.loads(names["run.json"].read_text())
    assert (document["seed"], document["violation"]) == (6, None)
    fields = {"at", "process", "actor", "kind", "key", "session", "fence", "until", "detail"}
    assert document["records"][0].keys() == fields
    with names["run.jsonl"].open() as file:
        assert [asdict(record) for record in load(file)] == document["records"]
    assert names["run.svg"].read_text().startswith("<svg")
    assert "<svg" in names["run.html"].read_text()


@pytest.mark.parametrize("name", ["run.png", "run", "run.SVG"])
def test_a_picture_of_an_unknown_kind_is_refused_before_the_run(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "--seed", "6", "--timeline", str(tmp_path / name)]) == 2
    told = capsys.readouterr()
    assert "--timeline" in told.err
    assert f"{name!r} does not end in .svg or .html" in told.err
    assert not told.out, "it did not run"
    assert not (tmp_path / name).exists()


def test_a_report_adds_up_all_runs(tmp_path: Path) -> None:
    report = tmp_path / "runs.json"
    assert main(["simulate", "--seed", "3", "--count", "3", "--report", str(report)]) == 0
    told = json.loads(report.read_text())
    assert (told["seed"], told["runs"]) == (3, 3)
    assert told["events"] >= 3 * 200
    assert told["hours"] > 0
    assert told["counts"]["released: released"] >= 3
    assert told["missing"]


def test_a_seed_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate"]) == 2
    assert "--seed" in capsys.readouterr().err
