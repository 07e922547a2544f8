"""The navigation mentions every page, by hand or by tools/docs_nav.py, and no page twice."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from tests.docs.blocks import ROOT
from tools.docs_nav import complete, mentioned

PAGES = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md"))


def test_what_is_missing_goes_to_the_section_of_its_folder() -> None:
    nav: list[dict[str, Any]] = [
        {"Home": "index.md"},
        {"How to": [{"Test": "testing.md"}]},
        {"Explanation": ["why.md"]},
    ]
    complete(
        nav, ["howto/a.md", "howto/b.md", "howto/index.md", "index.md", "new.md", "testing.md", "why.md"]
    )
    assert nav == [
        {"Home": "index.md"},
        {"How to": ["howto/index.md", {"Test": "testing.md"}, "howto/a.md", "howto/b.md"]},
        {"Explanation": ["why.md", "new.md"]},
    ]


def test_a_section_that_is_missing_is_told() -> None:
    with pytest.raises(LookupError, match="Explanation"):
        complete([{"Home": "index.md"}], ["index.md", "new.md"])


def test_every_page_is_mentioned_once() -> None:
    yaml = pytest.importorskip("yaml")
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = yaml.safe_load(text)["nav"]
    complete(nav, PAGES)
    assert Counter(mentioned(nav)) == Counter(PAGES)


def test_no_two_pages_of_how_to_act_on_one_key() -> None:
    # A page may leave a key with flags that another page's lock refuses.
    users: dict[str, set[str]] = {}
    for page in sorted((ROOT / "docs" / "howto").glob("*.md")):
        for block in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
            for key in re.findall(
                r"(?:Lock|LeaderElection|Semaphore|Once|Group)\(\s*[\w.]+,\s*\"([^\"]+)\"", block
            ):
                users.setdefault(key, set()).add(page.stem)
    assert len(users) > 20
    assert {key: pages for key, pages in users.items() if len(pages) > 1} == {}
