"""``simulate``: what it tells, by seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.cli import main
from tests.simulation.mutations import MUTATIONS

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


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


def test_a_seed_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate"]) == 2
    assert "--seed" in capsys.readouterr().err
