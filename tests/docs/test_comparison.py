"""docs/comparison.md: every cell is cited, and what can be looked up here is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

TEXT = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
ROWS = [
    row
    for row in TEXT.splitlines()
    if row.startswith("| ") and not row.startswith(("| |", "| | consul_coord"))
]
DEFINED = dict(re.findall(r"^\[([\w-]+)\]: (\S+)$", TEXT, re.MULTILINE))
CELL = re.compile(r"\[[^\]]+\](?:\((?P<page>[\w/.#-]+)\)|\[(?P<source>[\w-]+)\])")


@pytest.mark.parametrize("row", ROWS)
def test_every_cell_is_cited(row: str) -> None:
    _, ours, *others = [cell.strip() for cell in row.strip("|").split(" | ")]
    assert len(others) == 4
    cited = CELL.fullmatch(ours)
    assert cited
    assert cited["page"]
    for cell in others:
        assert CELL.fullmatch(cell), cell


def test_every_source_is_defined_and_used() -> None:
    used = {found["source"] for found in CELL.finditer(TEXT) if found["source"]}
    assert used == set(DEFINED)
    assert all(address.startswith("https://") for address in DEFINED.values())


def test_py_consul_has_endpoints_and_no_recipes() -> None:
    consul = pytest.importorskip("consul")
    folder = Path(consul.__file__).parent
    source = "\n".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.py"))
    assert re.findall(r"^\s*class \w*(?:Lock|Semaphore|Election)\b", source, re.MULTILINE) == []
    assert "def renew(" in source
    assert not (folder / "py.typed").exists()
