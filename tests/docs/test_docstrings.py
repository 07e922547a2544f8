"""The docstrings that the API pages are made of: the first line is a sentence, of a method what it does."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import itertools
import re
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord import SessionSpec
from tests.docs.test_reference import SHOWN

if TYPE_CHECKING:
    from collections.abc import Iterator

THIRD_PERSON = re.compile(r"(?!Does|Is|Has|Its|Pass|Less)[A-Z]\w*s ")


def resolved(name: str) -> object:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def methods_of(kind: type[Any]) -> Iterator[tuple[str, object]]:
    """Return the public methods and properties of a class that are this package's own."""
    for name, member in inspect.getmembers(kind):
        code = (
            member.fget
            if isinstance(member, property)
            else inspect.unwrap(member)
            if callable(member)
            else None
        )
        if not name.startswith("_") and (getattr(code, "__module__", None) or "").startswith("consul_coord"):
            yield name, member


KINDS = {name: kind for name in SHOWN if inspect.isclass(kind := resolved(name))}
METHODS = {f"{name}.{method}": member for name, kind in KINDS.items() for method, member in methods_of(kind)}


def flaw(doc: str | None, *, acts: bool) -> str | None:
    """Return what is wrong with a docstring's first line."""
    first = (doc or "").strip().partition("\n")[0]
    if not first.endswith((".", ":")):
        return f"no sentence in one line: {first!r}"
    if acts and THIRD_PERSON.match(first):
        return f"not imperative: {first!r}"
    return None


def test_a_class_says_what_it_is() -> None:
    assert {name: flaw(kind.__doc__, acts=False) for name, kind in KINDS.items()} == dict.fromkeys(KINDS)


def test_a_method_says_what_it_does() -> None:
    found = {
        name: flaw(inspect.getdoc(member), acts=not isinstance(member, property))
        for name, member in METHODS.items()
    }
    assert found == dict.fromkeys(METHODS)


DESCRIBED = [
    *("Client", "Lock", "ReentrantLock", "Semaphore", "ReadWriteLock", "LeaderElection"),
    *("AsyncClient", "AsyncLock", "AsyncReentrantLock", "AsyncSemaphore", "AsyncReadWriteLock"),
    *("AsyncLeaderElection", "Group", "Once", "AsyncGroup", "AsyncOnce"),
]


@pytest.mark.parametrize("name", DESCRIBED)
def test_each_parameter_is_described(name: str) -> None:
    init = resolved(f"consul_coord.{name}").__init__  # type: ignore[misc]
    parameters = set(inspect.signature(init).parameters) - {"self", "client", "key", "prefix", "limit"}
    doc = inspect.getdoc(init) or ""
    assert [one for one in sorted(parameters) if f"``{one}``" not in doc] == []


def test_each_setting_of_a_session_is_described() -> None:
    tree = ast.parse(inspect.getsource(SessionSpec)).body[0]
    assert isinstance(tree, ast.ClassDef)
    described = [
        field.target.id
        for field, text in itertools.pairwise(tree.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    ]
    assert described == [field.name for field in dataclasses.fields(SessionSpec)]


@pytest.mark.parametrize("doc", [None, "", "It goes on\nin the next line.", "Returns it.", "Makes a thing."])
def test_a_flaw_is_found(doc: str | None) -> None:
    assert flaw(doc, acts=True) is not None


def test_much_is_looked_at() -> None:
    assert len(METHODS) > 300
