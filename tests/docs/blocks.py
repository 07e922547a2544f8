"""The Python blocks of the documentation, and what their authors say of them.

A block is run as it stands, as a program of its own, unless a comment in the line before its fence says more:

- ``<!-- block: skip, REASON -->``: not run.
- ``<!-- block: until TERM -->``: gets SIGTERM once it has printed a line, and has to end by that.
- ``<!-- block: needs PACKAGE -->``: run where that package is installed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(
    r"(?:^<!-- block: (?P<said>[^\n]*?) -->\n)?^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
_SAID = re.compile(r"(?P<verb>skip|until|needs)(?:,)? (?P<rest>.+)")


@dataclass(frozen=True, slots=True)
class Block:
    """One block."""

    place: str
    """File and line of its first line of code."""
    code: str
    skip: str | None = None
    needs: str | None = None
    until_term: bool = False


def blocks_of(name: str, text: str) -> list[Block]:
    """Return the Python blocks of one document. Raises ValueError for a comment that says nothing known."""
    found = []
    for match in _BLOCK.finditer(text):
        line = text[: match.start("code")].count("\n") + 1
        place, said = f"{name}:{line}", match["said"]
        if said is None:
            found.append(Block(place, match["code"]))
            continue
        known = _SAID.fullmatch(said)
        if known is None or (known["verb"] == "until" and known["rest"] != "TERM"):
            message = f"{place}: not understood: {said!r}"
            raise ValueError(message)
        verb, rest = known["verb"], known["rest"]
        found.append(
            Block(
                place,
                match["code"],
                skip=rest if verb == "skip" else None,
                needs=rest if verb == "needs" else None,
                until_term=verb == "until",
            )
        )
    return found


def documents() -> list[Path]:
    """Return the documents whose blocks are run."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
