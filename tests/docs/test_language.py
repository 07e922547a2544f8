"""Plain English, as far as a machine can tell: pages, docstrings, messages, subjects of commits."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.docs.blocks import ROOT
from tests.docs.language import Sentence, docstrings, in_file, messages, page

if TYPE_CHECKING:
    from pathlib import Path

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = sorted((ROOT / "consul_coord").rglob("*.py"))
SINCE = "49740c7"
LONGEST_SUBJECT = 72
NO_COMMAND = re.compile(r"(?:A|An|The|It|This|That|There|We|I|New|More|Some|No|\w+(?:ed|ing|[^s]s)|\S*:)")
"""First words by which a subject is no command."""
COMMANDS = {
    "Alias",
    "Bring",
    "Embed",
    "Exceed",
    "Feed",
    "Focus",
    "Need",
    "Proceed",
    "Shed",
    "Speed",
    "String",
}
"""First words that are verbs all the same."""
EXCUSED = {"a2f48fa", "ad78524"}
"""Older commits, whose subjects can't be changed any more."""


@pytest.mark.parametrize("path", [*PAGES, *MODULES], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_texts_for_people(path: Path) -> None:
    assert in_file(path) == []


def test_subjects_of_commits() -> None:
    known = subprocess.run(["git", "-C", ROOT, "cat-file", "-e", SINCE], capture_output=True, check=False)
    if known.returncode:
        pytest.skip(f"no history here, or none as far back as {SINCE}")
    log = subprocess.run(
        ["git", "-C", ROOT, "log", "--no-merges", "--format=%h %s", f"{SINCE}..HEAD"],
        capture_output=True,
        text=True,
        check=True,
    )
    subjects = dict(line.split(" ", 1) for line in log.stdout.splitlines())
    assert [one for one in subjects.values() if len(one) > LONGEST_SUBJECT] == []
    first = {commit: one.split()[0] for commit, one in subjects.items() if commit[:7] not in EXCUSED}
    wrong = [one for one in first.values() if one not in COMMANDS and NO_COMMAND.fullmatch(one)]
    assert wrong == [], "begin with a command: what does the commit do?"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("Who gave up is forgotten.", "a person, a client, the caller"),
        ("What is protected lives elsewhere.", "the thing itself"),
        ("It is told of the loss.", "notify"),
        ("All but for one.", "except"),
        ("Errors are ridden out.", "retry"),
        ("One; two: three; four.", "semicolons"),
        ("word " * 40 + ".", "40 words"),
    ],
)
def test_a_bad_sentence_is_found(text: str, complaint: str) -> None:
    (sentence,) = page(text)
    assert any(complaint in one for one in sentence.complaints())


@pytest.mark.parametrize(
    "text",
    [
        "Who leads?",
        "The client retries until the deadline.",
        "`What is code` stays.",
        "| a | somebody else |",
    ],
)
def test_a_good_sentence_passes(text: str) -> None:
    assert [*(one for sentence in page(text) for one in sentence.complaints())] == []


def test_a_page_is_read_as_sentences() -> None:
    text = (
        "# A title\n\nOne, e.g. two. Three\nfour.\n\n```sh\nWho am I.\n```\n\n"
        "- five\n- [six](seven.md) eight\n"
    )
    assert list(page(text)) == [
        Sentence(3, "One, e.g. two."),
        Sentence(3, "Three four."),
        Sentence(10, "five"),
        Sentence(11, "six eight"),
    ]


def test_messages_are_read() -> None:
    module = '"""No message, as it is a docstring."""\nraise E(f"{who} is told of a loss")\nx = "a b"\n'
    (sentence,) = messages(module)
    assert sentence == Sentence(2, "X is told of a loss")
    assert [*sentence.avoided()] == ["'is told': say notify, report"]


def test_docstrings_are_read() -> None:
    module = '"""A module."""\n\nVALUE = 1\n"""Its field."""\n\ndef f():\n    """Do it."""\n'
    assert [re.sub(r"\.$", "", one.text) for one in docstrings(module)] == ["A module", "Its field", "Do it"]
