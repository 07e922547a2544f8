"""The pure half stays pure: no I/O, no clock, no randomness."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import consul_coord.models

PACKAGE = Path(consul_coord.models.__file__).parents[1]
PURE = [
    *PACKAGE.glob("models/*.py"),
    *PACKAGE.glob("http/endpoints/*.py"),
    PACKAGE / "http/failures.py",
    PACKAGE / "http/blocking.py",
    PACKAGE / "sync/endpoints.py",
    PACKAGE / "aio/endpoints.py",
]
IMPURE = {
    "anyio",
    "asyncio",
    "datetime",
    "httpx",
    "os",
    "random",
    "secrets",
    "socket",
    "threading",
    "time",
    "uuid",
}


def imported(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}


@pytest.mark.parametrize("path", PURE, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_impure_is_imported(path: Path) -> None:
    names = {name.split(".")[0] for name in imported(path)}
    assert "__future__" in names
    assert not names & IMPURE
