"""docs/examples.md shows every program of examples/."""

from __future__ import annotations

import re

from tests.docs.blocks import ROOT


def test_every_example_is_shown_once() -> None:
    text = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    shown = re.findall(r'^--8<-- "examples/(\w+\.py)"$', text, re.MULTILINE)
    assert sorted(shown) == sorted(path.name for path in (ROOT / "examples").glob("*.py"))
