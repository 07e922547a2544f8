"""What happened in a run, line by line: the same for the same seed, readable by a person."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

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
        self._entries: list[tuple[float, str, str]] = []

    def add(self, when: float, who: str, what: str) -> None:
        """Note a happening."""
        self._entries.append((when, who, what))

    def __len__(self) -> int:
        return len(self._entries)

    def lines(self, *, last: int | None = None) -> list[Line]:
        """Return the happenings, or the last ones."""
        entries = self._entries if last is None else self._entries[-last:]
        return [Line(*entry) for entry in entries]

    def text(self, *, last: int | None = None) -> str:
        """Return the happenings as text, one a line."""
        return "\n".join(map(str, self.lines(last=last)))

    def digest(self) -> str:
        """Return what tells whether two runs were the same, to the last digit of each time."""
        return digest_of(repr(entry) for entry in self._entries)


def digest_of(parts: Iterable[str]) -> str:
    """Return a hash of several texts."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part.encode())
    return whole.hexdigest()


def short(session: str) -> str:
    """Return enough of a session's id to know it by: simulated ones are numbered."""
    return f"s{int(session[:8], 16)}" if len(session) == _ID else session or "nobody"
