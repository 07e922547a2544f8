"""What may import what, as data, and how source is held to it. Pure: sources in, violations out.

Rules
- A package's sources are a mapping from dotted module name to text, so that a test can plant a violation.
- An import counts wherever it stands, also inside a function or under TYPE_CHECKING: types have a direction
  too. ``TYPES_ONLY`` lists the few that are allowed there and nowhere else.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

PACKAGE: Final = "consul_coord"

_BASE: Final = frozenset(
    {"errors", "models", "clock", "events", "config", "periods", "value", "weak", "_version"}
)
_PROGRAMS: Final = _BASE | {"io", "http", "recipes"}
_WORLDS: Final = _PROGRAMS | {"threads", "host", "base_client", "sync", "aio"}
_TOP: Final = _WORLDS | {"server", "cli", "testing", "protocols", "extras", "lazy", "(facade)"}

MAY_IMPORT: Final[Mapping[str, frozenset[str]]] = {
    "_version": frozenset(),
    "lazy": frozenset(),
    "value": frozenset(),
    "weak": frozenset(),
    "errors": frozenset(),
    "models": frozenset({"errors", "lazy", "value"}),
    "clock": frozenset({"threads"}),
    "config": frozenset({"errors", "value"}),
    "extras": frozenset(),
    "events": frozenset({"models", "value"}),
    "periods": frozenset({"errors", "models"}),
    "protocols": frozenset({"models"}),
    "io": frozenset({"errors", "models"}),
    "threads": frozenset(),
    "http": _BASE | {"io", "threads"},
    "recipes": _PROGRAMS,
    "host": frozenset({"clock", "errors", "events", "io", "threads"}),
    "base_client": _PROGRAMS,
    "aio": _PROGRAMS | {"host", "base_client"},
    "sync": _WORLDS - {"sync"},
    "server": frozenset({"models", "errors", "clock", "extras", "lazy"}),
    "cli": _TOP,  # one of its commands runs the simulator
    "testing": _TOP - {"cli"},
    "integrations": frozenset({"(facade)", "extras"}),
    "observability": frozenset({"errors", "events", "models", "extras", "lazy", "_version"}),
    "__main__": frozenset({"cli"}),
    "(facade)": (_WORLDS | {"lazy"}) - {"http", "recipes", "host", "base_client"},
}
"""By layer: a folder or module right below the package. A layer may always import itself."""

TYPES_ONLY: Final[frozenset[tuple[str, str]]] = frozenset(
    {
        ("errors", "models"),  # the fields of an error
        ("io", "http"),  # requests and replies pass through the protocol as values
        ("io", "events"),
        ("sync", "aio"),
    }
)

BANNED_IN_RECIPES: Final = frozenset(
    {
        *("anyio", "asyncio", "concurrent", "datetime", "http", "httpcore", "httpx", "logging", "os"),
        *("queue", "random", "secrets", "select", "selectors", "signal", "socket", "ssl", "subprocess"),
        *("tenacity", "threading", "time", "trio", "uuid"),
    }
)
"""What a recipe gets through its IO, or not at all."""


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name, fully dotted, and where that is done."""

    importer: str
    line: int
    target: str
    types_only: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.target}"


def sources_of(folder: Path) -> dict[str, str]:
    """Return the text of every module below a package's folder, by dotted name."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text(encoding="utf-8")
    return found


@cache
def imports_of(module: str, text: str) -> tuple[Import, ...]:
    """Return every import of a module."""
    tree = ast.parse(text)
    types_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    return tuple(
        Import(module, node.lineno, target, id(node) in types_only)
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for target in _targets(node)
    )


def _targets(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    origin = "." * node.level + (node.module or "")
    return [f"{origin}.{alias.name}" for alias in node.names]


def layer_of(module: str, modules: frozenset[str]) -> str:
    """Return the layer that a module, or a name imported from one, belongs to."""
    parts = module.split(".")
    below = ".".join(parts[:2])
    return parts[1] if len(parts) > 1 and below in modules else "(facade)"


def wrong_directions(sources: Mapping[str, str]) -> list[str]:
    """Return the imports that point the wrong way between layers, and layers without a rule."""
    modules = frozenset(sources)
    found = []
    for module, text in sources.items():
        layer = layer_of(module, modules)
        if layer not in MAY_IMPORT:
            found.append(f"{module}: there is no rule for {layer}")
            continue
        for each in imports_of(module, text):
            if each.target.startswith("."):
                found.append(f"{each}: write the whole name")
            if each.target.split(".")[0] != PACKAGE:
                continue
            target = layer_of(each.target, modules)
            allowed = target == layer or target in MAY_IMPORT[layer]
            if not allowed and not (each.types_only and (layer, target) in TYPES_ONLY):
                found.append(f"{each}: {layer} may not import {target}")
    return found


def impure_recipes(sources: Mapping[str, str]) -> list[str]:
    """Return the imports of clocks, randomness, threads and I/O under ``recipes``."""
    return [
        str(each)
        for module, text in sources.items()
        if module.startswith(f"{PACKAGE}.recipes")
        for each in imports_of(module, text)
        if each.target.split(".")[0] in BANNED_IN_RECIPES
    ]


def cut_copies(sources: Mapping[str, str]) -> list[str]:
    """Return where the items of a dict are listed that another thread may change meanwhile.

    Each item is a new tuple, at which the garbage collector may run, and let another thread go on.
    """
    listed = re.compile(r"\blist\(self\.[\w.]+\.items\(\)\)|\[\*self\.[\w.]+\.items\(\)\]")
    return [name for name, source in sources.items() if listed.search(source)]


def finalizers(sources: Mapping[str, str]) -> list[str]:
    """Return where recipes have the garbage collector call something."""
    wrong = re.compile(r"weakref\.finalize|weakref\.ref\([^()]*,|__del__")
    return [name for name, text in sources.items() if ".recipes." in name and wrong.search(text)]


def importers_of(sources: Mapping[str, str], library: str) -> set[str]:
    """Return the modules that import a library when they run, rather than for its types."""
    return {
        module
        for module, text in sources.items()
        for each in imports_of(module, text)
        if each.target.split(".")[0] == library and not each.types_only
    }


def undocumented(sources: Mapping[str, str]) -> list[str]:
    """Return public modules, classes and functions without a docstring, or whose first line is no sentence.

    A public name is one without a leading underscore whose enclosing names are public too.
    """
    found = []
    for module, text in sources.items():
        if any(part.startswith("_") and part != "__main__" for part in module.split(".")):
            continue
        for name, node in _public_nodes(module, ast.parse(text)):
            first = (ast.get_docstring(node) or "").partition("\n\n")[0]
            if not first.strip().endswith((".", ":")):
                found.append(name)
    return found


_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _public_nodes(name: str, node: _Documented) -> Iterator[tuple[str, _Documented]]:
    yield name, node
    for inner in node.body:
        if (
            isinstance(inner, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and not inner.name.startswith("_")
            and not _is_overload(inner)
        ):
            if isinstance(inner, ast.ClassDef):
                yield from _public_nodes(f"{name}.{inner.name}", inner)
            else:
                yield f"{name}.{inner.name}", inner


def _is_overload(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "overload" for each in node.decorator_list)


# -- the rooms of the recipes

ROOMS: Final[Mapping[str, frozenset[str]]] = {
    "session": frozenset(),
    "hold": frozenset({"session"}),
    "watch": frozenset({"session"}),
    "cleanup": frozenset({"session"}),
    "contend": frozenset({"hold", "watch", "cleanup", "session"}),
    "lock": frozenset({"contend", "hold", "watch", "cleanup", "session"}),
    "rwlock": frozenset({"contend", "hold", "watch", "cleanup", "session"}),
    "group": frozenset({"lock", "contend", "hold", "watch", "cleanup", "session"}),
    "partition": frozenset({"group", "lock", "contend", "hold", "watch", "cleanup", "session"}),
    "semaphore": frozenset({"contend", "hold", "watch", "cleanup", "session"}),
    "election": frozenset({"lock", "contend", "hold", "watch", "cleanup", "session"}),
    "once": frozenset({"lock", "contend", "hold"}),
    "client": frozenset({"contend", "hold", "watch", "cleanup", "session"}),
}
"""By room: the rooms that it may import, types included. ``client`` wires them for one client."""
_RECIPES: Final = f"{PACKAGE}.recipes."


def room_of(module: str) -> str | None:
    """Return the room that a module of the recipes stands in."""
    return module.removeprefix(_RECIPES).partition(".")[0] if module.startswith(_RECIPES) else None


def wrong_ways(sources: Mapping[str, str]) -> list[str]:
    """Return the imports from one room into another that it may not import."""
    return [
        str(each)
        for module, text in sources.items()
        if (room := room_of(module)) is not None
        for each in imports_of(module, text)
        if (other := room_of(each.target)) is not None
        if other != room and other not in ROOMS.get(room, frozenset())
    ]


def circles(sources: Mapping[str, str]) -> list[str]:
    """Return the modules of the recipes that import themselves by way of others, types included."""
    edges = {
        module: {_module_of(each.target, sources) for each in imports_of(module, text)}
        for module, text in sources.items()
        if room_of(module) is not None
    }
    return sorted(module for module in edges if module in _reached(module, edges))


def _module_of(target: str, sources: Mapping[str, str]) -> str:
    return target if target in sources else target.rpartition(".")[0]


def _reached(start: str, edges: Mapping[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    todo = [*edges[start]]
    while todo:
        module = todo.pop()
        if module not in seen:
            seen.add(module)
            todo.extend(edges.get(module, ()))
    return seen
