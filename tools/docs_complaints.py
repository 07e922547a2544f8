"""A hook of mkdocs: ``<!-- complaints -->`` becomes the table of ``tests/architecture/troubles.py``.

Rules
- The data stay beside the test that holds them; the page is made of them, so it can't be out of date.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parents[1]
MARK = "<!-- complaints -->"
_THREAD = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)?#(?P<number>\d+)")


def on_page_markdown(markdown: str, **_: Any) -> str:  # noqa: ANN401 - mkdocs is not typed
    """Put the table where the page wants it."""
    return markdown.replace(MARK, table(), 1) if MARK in markdown else markdown


def table() -> str:
    """Return the table of all complaints."""
    troubles = runpy.run_path(str(ROOT / "tests" / "architecture" / "troubles.py"))["TROUBLES"]
    return "\n".join(("| Complaint | Here | Shown by |", "|---|---|---|", *map(row, troubles)))


def row(trouble: Any) -> str:  # noqa: ANN401 - of a module that is run, not imported
    """Return the line of one complaint."""
    tests = ", ".join(f"`{test}`" for test in trouble.tests)
    return f"| {', '.join(linked(trouble.threads))} | {trouble.lesson} | {tests} |"


def linked(threads: str) -> Iterable[str]:
    """Return a link for each thread; one without a repository is of the repository before it."""
    repository = ""
    for found in _THREAD.finditer(threads):
        repository = found["repository"] or repository
        yield f"[{repository}#{found['number']}](https://github.com/{repository}/issues/{found['number']})"
