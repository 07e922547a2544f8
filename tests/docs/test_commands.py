"""Every ``consul-coord`` command in a shell block of the documentation is one: its verb and options exist.

They are parsed as the command line parses them, and not run.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import click
import pytest

from consul_coord.cli import app
from tests.docs.blocks import ROOT, documents

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BLOCK = re.compile(r"^ *```(?:sh|bash|shell|console)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_ENDS = frozenset({";", ";;", "&", "&&", "|", "||", ">", ">>", "<", "(", ")"})


def commands_of(text: str) -> Iterator[list[str]]:
    """Return the arguments of each ``consul-coord`` in a document's shell blocks."""
    for block in _BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            shell = shlex.shlex(line, posix=True, punctuation_chars=True)
            shell.whitespace_split = True
            words = list(shell)
            for at, word in enumerate(words):
                if word.rpartition("/")[2] == "consul-coord":
                    rest = words[at + 1 :]
                    end = next((n for n, each in enumerate(rest) if each in _ENDS), len(rest))
                    if end:  # else it is the bare program, which helps
                        yield rest[:end]


COMMANDS = [
    (path.relative_to(ROOT).as_posix(), arguments)
    for path in documents()
    for arguments in commands_of(path.read_text(encoding="utf-8"))
]


def parse(arguments: list[str]) -> None:
    """Parse a command line. Raises click.ClickException for one that the program would refuse."""
    verb, *rest = arguments
    command = app.verb(verb) if verb in app.VERBS else None
    if command is None:
        raise click.UsageError(f"no such verb: {verb}")
    command.make_context(verb, rest)


@pytest.mark.parametrize(("page", "arguments"), COMMANDS)
def test_a_command_is_understood(
    page: str, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "server.json").write_text("{}", encoding="utf-8")
    parse(arguments)


def test_commands_are_found_wherever_they_stand() -> None:
    text = (
        "```sh\nx | .venv/bin/consul-coord lock a -- sh -c 'b; c' &\nA=1; consul-coord doctor  # looks\n```"
    )
    assert list(commands_of(text)) == [["lock", "a", "--", "sh", "-c", "b; c"], ["doctor"]]
    assert {"README.md", "docs/cli.md", "docs/tutorial.md"} <= {page for page, _ in COMMANDS}


@pytest.mark.parametrize("line", ["nonsense a", "lock", "lock a --nonsense -- b", "doctor --kind nonsense"])
def test_a_command_that_is_none_is_caught(line: str) -> None:
    with pytest.raises(click.ClickException):
        parse(shlex.split(line))
