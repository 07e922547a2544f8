"""Every complaint that applies here has a test, which exists."""

from __future__ import annotations

import ast
import fnmatch
from pathlib import Path

import pytest

from tests.architecture.troubles import TROUBLES, Trouble

TESTS = Path(__file__).parent.parent


def names_in(path: Path) -> list[str]:
    """Return the names of a file's tests."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return [function.name for function in functions if function.name.startswith("test_")]


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.lesson)
def test_its_tests_exist(trouble: Trouble) -> None:
    assert trouble.tests
    for test in trouble.tests:
        path, _, name = test.partition("::")
        assert fnmatch.filter(names_in(TESTS / path), name), test


def test_each_lesson_is_told_once() -> None:
    lessons = [trouble.lesson for trouble in TROUBLES]
    assert len(set(lessons)) == len(lessons)
