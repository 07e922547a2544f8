"""docs/comparison.md: every cell is cited, and what can be looked up here is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.docs.blocks import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXT = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")


def rows() -> Iterator[tuple[str, int]]:
    """Yield each row with the number of columns that its table has."""
    columns = 0
    for line in TEXT.splitlines():
        if line.startswith("| |"):
            columns = len(cells(line))
        elif line.startswith("| "):
            yield line, columns


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split(" | ")]


DEFINED = dict(re.findall(r"^\[([\w-]+)\]: (\S+)$", TEXT, re.MULTILINE))
CELL = re.compile(r"\[[^\]]+\](?:\((?P<page>[\w/.#-]+)\)|\[(?P<source>[\w-]+)\])")


@pytest.mark.parametrize(("row", "columns"), list(rows()))
def test_every_cell_is_cited(row: str, columns: int) -> None:
    _, ours, *others = cells(row)
    assert len(cells(row)) == columns
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
