"""Comparing a blocking class with its async twin. Pure: two classes in, differences out."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SPECIAL: Final = {
    "__enter__": "__aenter__",
    "__exit__": "__aexit__",
    "__iter__": "__aiter__",
    "__next__": "__anext__",
    "__call__": "__call__",
    "__init__": "__init__",
}
PLAIN_SPECIAL: Final = frozenset({"__init__", "__iter__"})
"""Special methods that are no coroutines in either world."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Twins:
    """Two classes that must offer the same.

    ``plain`` names the methods that do no I/O and are no coroutines in either world. ``own_docs`` names the
    members, "" for the class itself, whose documentation rightly differs. ``own_parameters`` lists, by
    method, the parameters that only the blocking twin has.
    """

    blocking: type[Any]
    coroutine: type[Any]
    plain: frozenset[str] = frozenset()
    own_docs: frozenset[str] = frozenset()
    own_parameters: dict[str, frozenset[str]] = field(default_factory=dict)

    def differences(self) -> list[str]:
        """Return every difference between the twins, one line each."""
        return list(self._differences())

    def _differences(self) -> Iterator[str]:
        one, other = members(self.blocking), members(self.coroutine)
        expected = {SPECIAL.get(name, name) for name in one}
        for name in sorted(expected ^ set(other)):
            yield f"{name} is in one of them only"
        if "" not in self.own_docs and spoken(self.blocking) != spoken(self.coroutine):
            yield "the classes are documented differently"
        for name, member in one.items():
            twin = other.get(SPECIAL.get(name, name))
            if twin is None:
                continue
            if isinstance(member, property) is not isinstance(twin, property):
                yield f"{name} is a property in one of them only"
                continue
            if name not in self.own_docs and spoken(member) != spoken(twin):
                yield f"{name} is documented differently"
            if not isinstance(member, property):
                yield from self._calls_differ(name, member, twin)

    def _calls_differ(self, name: str, member: Callable[..., Any], twin: Callable[..., Any]) -> Iterator[str]:
        only_blocking = self.own_parameters.get(name, frozenset())
        if parameters(member, without=only_blocking) != parameters(twin):
            yield f"{name} takes other parameters"
        awaited = name not in self.plain | PLAIN_SPECIAL
        if inspect.iscoroutinefunction(twin) is not awaited:
            yield f"{name} of the async twin {'is not' if awaited else 'is'} a coroutine function"
        if inspect.iscoroutinefunction(member):
            yield f"{name} of the blocking twin is a coroutine function"


def members(cls: type[Any]) -> dict[str, Any]:
    """Return the public properties and methods of a class, inherited ones included."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__[:-1]):
        for name, value in vars(base).items():
            public = name[0] != "_" or name in SPECIAL or name in SPECIAL.values()
            if public and (inspect.isfunction(value) or isinstance(value, property)):
                found[name] = value
    return found


def parameters(
    function: Callable[..., Any], *, without: frozenset[str] = frozenset()
) -> list[tuple[str, inspect._ParameterKind, object]]:
    """Return name, kind and default of each parameter."""
    return [
        (each.name, each.kind, each.default)
        for each in inspect.signature(function).parameters.values()
        if each.name not in without
    ]


def spoken(thing: Any) -> str | None:
    """Return a docstring as both worlds would put it."""
    doc: str | None = thing.__doc__
    return (
        None
        if doc is None
        else " ".join(
            re.sub(
                r"\b(an ``)?Async(?=[A-Z])", lambda found: "a ``" if found[1] else "", inspect.cleandoc(doc)
            ).split()
        )
    )
