"""Every how-to page is listed; what does not run where it stands runs in the test it names."""

from __future__ import annotations

import re

import pytest

from tests.integrations import pages

PAGES = sorted(path.stem for path in pages.HOWTO.glob("*.md") if path.stem != "index")
NOT_RUN = re.compile(r"^<!-- block: skip, (?P<test>tests/\S+\.py) .*-->$", re.MULTILINE)


def test_every_page_is_listed() -> None:
    listed = re.findall(r"\[(.*)\]\(([\w-]+)\.md\)", pages.text_of("index"))
    assert sorted(name for _, name in listed) == PAGES
    for title, name in listed:
        assert pages.text_of(name).startswith(f"# {title}\n")


@pytest.mark.parametrize("page", PAGES)
def test_what_is_skipped_is_run_by_the_test_that_is_named(page: str) -> None:
    text = pages.text_of(page)
    named = NOT_RUN.findall(text)
    assert len(named) == text.count("<!-- block: skip")
    for test in named:
        source = (pages.ROOT / test).read_text(encoding="utf-8")
        assert f'"{page}"' in source, f"{test} does not read {page}.md"


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_short(page: str) -> None:
    assert len(pages.text_of(page).splitlines()) <= 180


@pytest.mark.parametrize("page", [*PAGES, "index"])
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", pages.text_of(page)):
        assert (pages.HOWTO / target).resolve().exists(), target
