"""Commands are taken from the README only when there is exactly one block that says what it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.readme_command import CommandNotFoundError, command

SCRIPT = Path(__file__).parents[2] / "tools" / "readme_command.py"

BLOCK = """\
Some words.

<!-- command: test -->
```sh
python3 -m venv .venv &&
    .venv/bin/python -m pytest
```

<!-- command: demo -->
```
consul-coord demo
```
"""


def test_a_command_is_given_as_it_stands() -> None:
    assert command("test", BLOCK) == "python3 -m venv .venv &&\n    .venv/bin/python -m pytest"
    assert command("demo", BLOCK) == "consul-coord demo"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param(BLOCK.replace("command: test", "command: tests"), id="another name"),
        pytest.param(BLOCK.replace("test -->\n", "test -->\n\n"), id="not directly below"),
        pytest.param(BLOCK + BLOCK, id="twice"),
        pytest.param("<!-- command: test -->\n```\npytest\n", id="never closed"),
        pytest.param("<!-- command: test -->\n```\n\n```\n", id="empty"),
    ],
)
def test_anything_but_one_block_is_refused(text: str) -> None:
    with pytest.raises(CommandNotFoundError, match="command: test"):
        command("test", text)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=110, check=False
    )


def test_the_program_prints_the_command(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(BLOCK, encoding="utf-8")
    done = run("demo", str(readme))
    assert (done.returncode, done.stdout, done.stderr) == (0, "consul-coord demo\n", "")


@pytest.mark.parametrize("content", [None, "no command here"])
def test_the_program_fails_loudly(content: str | None, tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    if content is not None:
        readme.write_text(content, encoding="utf-8")
    done = run("test", str(readme))
    assert (done.returncode, done.stdout) == (1, "")
    assert str(readme) in done.stderr
