"""The page of complaints is made of the data, whole, with a link for each thread."""

from __future__ import annotations

from tests.architecture.troubles import TROUBLES
from tests.docs.blocks import ROOT
from tools.docs_complaints import MARK, linked, on_page_markdown, table


def test_every_complaint_is_a_line() -> None:
    _, _, *lines = table().splitlines()
    assert len(lines) == len(TROUBLES)
    for trouble, line in zip(TROUBLES, lines, strict=True):
        assert line.count(" | ") == 2
        assert f" | {trouble.lesson} | " in line
        assert line.count("](https://github.com/") == trouble.threads.count("#")
        assert all(f"`{test}`" in line for test in trouble.tests)


def test_threads_are_linked_by_their_repository() -> None:
    assert list(linked("a/b#1, #2; c/d#3")) == [
        "[a/b#1](https://github.com/a/b/issues/1)",
        "[a/b#2](https://github.com/a/b/issues/2)",
        "[c/d#3](https://github.com/c/d/issues/3)",
    ]


def test_the_page_has_the_table_and_other_pages_stay() -> None:
    page = (ROOT / "docs" / "explanation" / "complaints.md").read_text(encoding="utf-8")
    assert page.count(MARK) == 1
    assert table() in on_page_markdown(page)
    assert on_page_markdown("as it is") == "as it is"
