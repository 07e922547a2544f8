"""The base of frozen dataclasses: what ``dataclass`` would have generated."""

from __future__ import annotations

import dataclasses
import sys
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import pytest

import consul_coord
from consul_coord.value import Value

LAYERS = ("models", "http", "recipes", "sync", "aio", "config", "events")


@dataclasses.dataclass(frozen=True)
class Generated:
    key: str
    note: str = dataclasses.field(default="", compare=False)
    secret: str = dataclasses.field(default="", repr=False)
    meta: dict[str, str] = dataclasses.field(default_factory=dict[str, str], hash=False)


@dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=False)
class Inherited(Value):
    key: str
    note: str = dataclasses.field(default="", compare=False)
    secret: str = dataclasses.field(default="", repr=False)
    meta: dict[str, str] = dataclasses.field(default_factory=dict[str, str], hash=False)


@dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=False)
class Other(Value):
    key: str


CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"key": "b"},
    {"note": "n"},
    {"secret": "s"},
    {"meta": {"a": "b"}},
)


@pytest.mark.parametrize("one", CHANGES)
@pytest.mark.parametrize("two", CHANGES)
def test_it_compares_hashes_and_shows_itself_as_a_generated_one(
    one: dict[str, Any], two: dict[str, Any]
) -> None:
    generated = [dataclasses.replace(Generated("a"), **each) for each in (one, two)]
    inherited = [dataclasses.replace(Inherited("a"), **each) for each in (one, two)]
    assert (inherited[0] == inherited[1]) is (generated[0] == generated[1])
    assert list(map(hash, inherited)) == list(map(hash, generated))
    assert [repr(each).replace("Inherited", "Generated") for each in inherited] == list(map(repr, generated))


def test_another_kind_is_something_else() -> None:
    assert Inherited("a") != Other("a")
    assert Other("a") != ("a",)


def test_it_has_no_dictionary() -> None:
    assert not hasattr(Other("a"), "__dict__")


def test_all_frozen_dataclasses_that_a_start_may_load_inherit_from_it() -> None:
    for found in walk_packages(consul_coord.__path__, "consul_coord."):
        if found.name.split(".")[1] in LAYERS:
            import_module(found.name)
    generated = {
        f"{module}.{each.__name__}"
        for module, names in list(sys.modules.items())
        if module.startswith(tuple(f"consul_coord.{layer}" for layer in LAYERS))
        for each in vars(names).values()
        if isinstance(each, type) and dataclasses.is_dataclass(each) and each.__module__ == module
        if each.__dataclass_params__.frozen and each.__eq__ is not Value.__eq__  # type: ignore[attr-defined]
    }
    assert generated == set()
