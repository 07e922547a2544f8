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
FOUND = re.compile(r"(\w+)\.py:(\d+)(?::\d+)?(?: -|:) error", re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("checker", CHECKERS)
def test_what_names_return_is_known_exactly_and_mistakes_are_found(checker: str, tmp_path: Path) -> None:
    """One run for both files: a checker reads the whole package first."""
    shutil.copy(FOLDER / "application.py", tmp_path)
    shutil.copy(FOLDER / "mistakes.txt", tmp_path / "mistakes.py")
    lines = (FOLDER / "mistakes.txt").read_text(encoding="utf-8").splitlines()
    expected = {("mistakes", number) for number, line in enumerate(lines, 1) if line.endswith("# error")}
    said = check(checker, tmp_path)
    assert {(name, int(number)) for name, number in FOUND.findall(said)} == expected, said


def check(checker: str, folder: Path) -> str:
    """Check a folder's files, where else only what is installed is found; return the output."""
    files = sorted(file.name for file in folder.iterdir())
    done = subprocess.run(
        [sys.executable, "-m", *CHECKERS[checker], *files],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout
