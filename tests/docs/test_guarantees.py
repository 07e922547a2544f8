"""docs/guarantees.md: each line of its tables names tests that show it, and those exist."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.docs.blocks import ROOT

TEXT = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
ROWS = [line for line in TEXT.splitlines() if re.match(r"\| (?!\|)", line) and "Shown by" not in line]
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", TEXT)))


@cache
def functions_of(file: str) -> frozenset[str]:
    """Return the names of all functions of a test module, without importing it."""
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    return frozenset(
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_a_test_that_is_named_exists(file: str, test: str) -> None:
    assert test in functions_of(file)


@pytest.mark.parametrize("row", ROWS)
def test_every_line_is_shown_by_something(row: str) -> None:
    assert re.search(r"`[\w/]+\.py::test_\w+`[^|]*\|$", row)


def test_there_are_lines() -> None:
    assert len(ROWS) > 40
