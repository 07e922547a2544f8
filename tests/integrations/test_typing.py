"""The package as a typed application sees it: mypy and pyright, from outside of the project."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "typed"
CHECKERS = {
    "mypy": ["mypy", "--strict", "--config-file=", "--no-error-summary", "--no-incremental"],
    "pyright": ["pyright", "--pythonpath", sys.executable],
}
FOUND = re.compile(r"\.py:(\d+)(?::\d+)?(?: -|:) error", re.MULTILINE)


def check(checker: str, name: str, folder: Path) -> str:
    """Check one of the files in an empty folder, where only what is installed is found; return the output."""
    shutil.copy(FOLDER / name, folder / "program.py")
    done = subprocess.run(
        [sys.executable, "-m", *CHECKERS[checker], "program.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.mark.parametrize("checker", CHECKERS)
def test_what_names_return_is_known_exactly(checker: str, tmp_path: Path) -> None:
    said = check(checker, "application.py", tmp_path)
    assert FOUND.findall(said) == [], said


@pytest.mark.parametrize("checker", CHECKERS)
def test_mistakes_are_found(checker: str, tmp_path: Path) -> None:
    lines = (FOLDER / "mistakes.txt").read_text(encoding="utf-8").splitlines()
    expected = {number for number, line in enumerate(lines, 1) if line.endswith("# error")}
    said = check(checker, "mistakes.txt", tmp_path)
    assert {int(number) for number in FOUND.findall(said)} == expected, said
