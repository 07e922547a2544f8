"""All mutants of the core, and which of them a run looks at."""

from __future__ import annotations

import ast
import hashlib
import random
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from proof.mutants.operators import places

if TYPE_CHECKING:
    from collections.abc import Iterable

    from proof.mutants.operators import Place

ROOT = Path(__file__).resolve().parents[2]
CORE = ("consul_coord/recipes", "consul_coord/http")
"""What decides who holds what, and until when, and what asks the servers."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault."""

    file: str
    """Relative to the project."""
    place: Place

    @property
    def name(self) -> str:
        """What it is called: the same wherever it is in its module, and the room that has the module."""
        place = self.place
        parts = (
            *Path(self.file).parts[-2:],
            place.function,
            place.operator,
            place.was,
            place.becomes,
            place.number,
        )
        mark = hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest()[:10]
        return f"{place.function}:{place.operator}:{mark}"

    def apply(self, text: str) -> str:
        """Return the module's text with the fault in it."""
        return text[: self.place.start] + self.place.becomes + text[self.place.end :]

    def __str__(self) -> str:
        was, becomes = (" ".join(each.split()) for each in (self.place.was, self.place.becomes))
        return f"{self.file}, {self.place.function}: `{was[:90]}` becomes `{becomes[:90]}`"


def modules(core: Iterable[str] = CORE) -> list[Path]:
    """Return the files of the core."""
    found = [ROOT / each for each in core]
    return sorted(file for each in found for file in ([each] if each.is_file() else each.rglob("*.py")))


def mutants(files: Iterable[Path] | None = None) -> list[Mutant]:
    """Return every mutant that is a program and another one than the original."""
    found = (_of(file, file.read_text()) for file in (modules() if files is None else files))
    return [mutant for each in found for mutant in each]


@cache
def _of(file: Path, text: str) -> tuple[Mutant, ...]:
    found = (Mutant(str(file.relative_to(ROOT)), place) for place in places(text))
    return tuple(mutant for mutant in found if _differs(mutant.place, text))


def _differs(place: Place, text: str) -> bool:
    """Return whether a function is another one with a fault in it; it is read apart from its module."""
    start, end = place.scope
    changed = text[start : place.start] + place.becomes + text[place.end : end]
    try:
        return _read(changed) != _read(text[start:end])
    except SyntaxError:
        return False


@lru_cache(maxsize=64)
def _read(function: str) -> str:
    """Return a function's tree, indented or not."""
    return ast.dump(ast.parse(f"if True:\n{function}" if function[:1].isspace() else function))


def sample(found: list[Mutant], count: int, *, seed: int) -> list[Mutant]:
    """Choose some: as many of each operator as of any other, as far as there are, from all functions."""
    rng = random.Random(seed)  # noqa: S311 - which ones is no secret
    by_operator: dict[str, list[Mutant]] = {}
    for mutant in found:
        by_operator.setdefault(mutant.place.operator, []).append(mutant)
    for each in by_operator.values():
        rng.shuffle(each)
    chosen: list[Mutant] = []
    while len(chosen) < min(count, len(found)):
        for name in sorted(by_operator):
            if by_operator[name] and len(chosen) < count:
                chosen.append(by_operator[name].pop())
    return chosen
