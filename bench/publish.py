"""A report into the documentation: its JSON, its tables between two marks of a page, and its plots.

Rules
- ``docs/performance.json`` is the whole report; everything else shown is made from it.
- Of a page only what lies between the marks is replaced, so that a person's text around it stays.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bench.markdown import render_aims, render_outcomes
from bench.plots import draw

if TYPE_CHECKING:
    from bench.results import Report

DOCS = Path(__file__).parent.parent / "docs"
JSON = "performance.json"
PICTURES = "pictures"
CAPACITY = "capacity"
"""The measure that has a page of its own."""
BEGIN = "<!-- figures: begin (written by `python -m bench --publish`) -->"
END = "<!-- figures: end -->"


def publish(report: Report, docs: Path = DOCS) -> None:
    """Write a report into the pages. Raises ValueError for a page without marks."""
    (docs / JSON).write_text(report.to_json(), encoding="utf-8")
    (docs / PICTURES).mkdir(exist_ok=True)
    draw(report, docs / PICTURES)
    capacity = [outcome for outcome in report.outcomes if outcome.measure == CAPACITY]
    others = [outcome for outcome in report.outcomes if outcome.measure != CAPACITY]
    _replace(docs / "performance.md", f"{render_aims(report)}\n{render_outcomes(others)}")
    _replace(docs / "capacity.md", render_outcomes(capacity))


def _replace(page: Path, figures: str) -> None:
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        message = f"{page} has no place for the figures: it needs the lines {BEGIN!r} and {END!r}"
        raise ValueError(message)
    page.write_text(f"{before}{begin}\n\n{figures.strip()}\n\n{end}{after}", encoding="utf-8")
