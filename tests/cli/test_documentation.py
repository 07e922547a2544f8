"""``docs/cli.md`` says what the command line does: verbs, examples, options, exit codes; completion works."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

import consul_coord
from consul_coord.cli import app, main
from consul_coord.cli.codes import MEANINGS, SIGNALLED, ExitCode
from tests.cli.processes import PATIENCE, environ

TEXT = (Path(consul_coord.__file__).parent.parent / "docs" / "cli.md").read_text(encoding="utf-8")
COMMON = {
    *("--address", "--token-file", "--ca-cert", "--datacenter", "--namespace", "--partition"),
    *("--json", "--help"),
}
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def section(heading: str) -> str:
    return TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_the_table_of_exit_codes_is_the_programs_own() -> None:
    rows = [line.strip("|").split("|") for line in section("Exit codes").splitlines() if line.startswith("|")]
    assert tuple((code.strip(), meaning.strip()) for code, meaning in rows[2:]) == MEANINGS


def test_every_exit_code_is_in_the_table_and_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    told = {int(number) for code, _ in MEANINGS for number in re.findall(r"\d+", code)}
    assert told == {*map(int, ExitCode), SIGNALLED}
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"{code} " in shown for code, _ in MEANINGS)


def test_every_verb_has_a_section_and_every_section_a_verb() -> None:
    assert set(re.findall(r"^## (.*)$", TEXT, re.MULTILINE)) == {*app.VERBS, "Exit codes", "Completion"}


@pytest.mark.parametrize("verb", sorted(app.VERBS))
def test_a_verb_is_documented_as_its_help_has_it(verb: str) -> None:
    command = app.verb(verb)
    examples = [line.strip() for line in (command.epilog or "").splitlines() if line.startswith("  ")]
    documented = section(verb)
    assert examples
    assert [example for example in examples if example not in documented] == []
    options = {
        name
        for each in command.params
        if isinstance(each, click.Option)
        for name in each.opts
        if name[1] == "-"
    }
    assert options - COMMON - set(OPTION.findall(documented)) == set(), "not documented"
    ours = "\n".join(line for line in documented.splitlines() if " -- " not in line)
    assert set(OPTION.findall(ours)) - COMMON - options == set(), "no such option"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("consul-coord sem", "plain,semaphore"), ("consul-coord break k --how ", "plain,destroy")],
)
def test_a_shell_completes_verbs_and_options(typed: str, offered: str) -> None:
    words = typed.split(" ")
    done = subprocess.run(
        [sys.executable, "-m", "consul_coord"],
        env=environ(_CONSUL_COORD_COMPLETE="bash_complete", COMP_WORDS=typed, COMP_CWORD=str(len(words) - 1)),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert offered in done.stdout.splitlines()
