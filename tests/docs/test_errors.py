"""docs/errors.md has an entry for every public error: what causes it, and what to do about it."""

from __future__ import annotations

import re

import pytest

import consul_coord
from consul_coord import errors
from tests.docs.blocks import ROOT

TEXT = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
ENTRIES = dict(re.findall(r"^### `(\w+)`\n\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL))
KINDS = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.ConsulCoordError)
}


def bases_only() -> set[str]:
    """Return the errors that group others, and are raised as themselves rarely or never."""
    return {"ConsulCoordError", "CoordinationError", "ResponseError", "TransportError"}


def test_every_error_has_an_entry_and_every_entry_is_an_error() -> None:
    assert set(ENTRIES) == set(KINDS)
    assert set(KINDS) <= set(consul_coord.__all__)


@pytest.mark.parametrize("name", sorted(set(KINDS) - bases_only()))
def test_an_entry_has_cause_and_cure(name: str) -> None:
    assert re.search(r"^\*\*Cause\.\*\* \S", ENTRIES[name], re.MULTILINE)
    assert re.search(r"^\*\*Cure\.\*\* \S", ENTRIES[name], re.MULTILINE)


def tree(kind: type[BaseException], indent: str = "") -> list[str]:
    """Return the tree below an error, as the page draws it."""
    children = [each for each in KINDS.values() if kind in each.__bases__]
    lines = []
    for child in children:
        last = child is children[-1]
        lines += [f"{indent}{'└── ' if last else '├── '}{told(child)}"]
        lines += tree(child, indent + ("    " if last else "│   "))
    return lines


def told(kind: type[BaseException]) -> str:
    builtins = [
        each.__name__ for each in kind.__bases__ if each.__module__ == "builtins" and each is not Exception
    ]
    return f"{kind.__name__} ({', '.join(builtins)})" if builtins else kind.__name__


def test_the_tree_is_the_tree() -> None:
    drawn = re.search(r"```text\nConsulCoordError\n(.*?)```", TEXT, re.DOTALL)
    assert drawn is not None
    assert drawn[1].splitlines() == tree(errors.ConsulCoordError)
