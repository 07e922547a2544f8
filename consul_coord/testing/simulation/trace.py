"""The story of a run: line by line for a person, and as records for programs; the same for the same seed.

Rules
- A line is kept as its parts, which must not change, and put together when it is read: most never are.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from consul_coord.testing.history import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_ID = 36


@dataclass(frozen=True, slots=True)
class Line:
    """One happening: when (seconds since the run began), to whom, and what."""

    when: float
    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.when:11.4f}  {self.who:<6} {self.what}"


class Trace:
    """Everything that happened so far, in order."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, str, tuple[object, ...]]] = []
        self._records: list[tuple[float, str, str, Mapping[str, Any]]] = []

    def add(self, when: float, who: str, what: tuple[object, ...]) -> None:
        """Note a happening for a person."""
        self._entries.append((when, who, what))

    def record(self, when: float, process: str, kind: str, fields: Mapping[str, Any]) -> None:
        """Note a happening for programs; ``fields`` are further ones of a ``Record``."""
        self._records.append((when, process, kind, fields))

    def __len__(self) -> int:
        return len(self._entries)

    def records(self) -> list[Record]:
        """Return the happenings as a history: of waits, holds, writes and faults."""
        return [
            Record(at=when, process=process, kind=kind, **fields)
            for when, process, kind, fields in self._records
        ]

    def lines(self, *, last: int | None = None) -> list[Line]:
        """Return the happenings, or the last ones."""
        entries = self._entries if last is None else self._entries[-last:]
        return [Line(when, who, "".join(map(str, what))) for when, who, what in entries]

    def text(self, *, last: int | None = None) -> str:
        """Return the happenings as text, one a line."""
        return "\n".join(map(str, self.lines(last=last)))

    def digest(self) -> str:
        """Return what tells whether two runs were the same, to the last digit of each time."""
        return digest_of(repr((line.when, line.who, line.what)) for line in self.lines())


def digest_of(parts: Iterable[str]) -> str:
    """Return a hash of several texts."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part.encode())
    return whole.hexdigest()


def short(session: str) -> str:
    """Return enough of a session's id to know it by: simulated ones are numbered."""
    return f"s{int(session[:8], 16)}" if len(session) == _ID else session or "nobody"
