"""What a candidate process believed, and when: written so that it survives its being killed.

Rules
- Times are of the machine's clock, which all processes share, in nanoseconds.
- A look's time is taken before the look, so whoever is stopped in between does not seem to have believed
  longer than it did.
- A record is the first and the last look at which one term was believed in. It lives in a memory-mapped file.
"""

from __future__ import annotations

import itertools
import mmap
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_RECORD = struct.Struct("<QQQ")
MOST_RECORDS = 4096


def now() -> int:
    """Return the shared time."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Belief:
    """One term that one process believed to be its own, from the first to the last look."""

    term: int
    first: int
    last: int


class Ledger:
    """The beliefs of one process."""

    def __init__(self, path: Path) -> None:
        with path.open("w+b") as file:
            file.truncate(_RECORD.size * MOST_RECORDS)
            self._map = mmap.mmap(file.fileno(), 0)
        self._next = 0
        self._term = 0
        self._first = 0

    def believe(self, term: int, at: int) -> None:
        """Note that the term was believed in at a look."""
        if term != self._term:
            self._term, self._first = term, at
            self._next += 1
        _RECORD.pack_into(self._map, _RECORD.size * (self._next - 1), term, self._first, at)


def read(path: Path) -> list[Belief]:
    """Return a process's beliefs so far, in order."""
    if not path.exists():
        return []
    beliefs = itertools.starmap(Belief, _RECORD.iter_unpack(path.read_bytes()))
    return list(itertools.takewhile(lambda belief: belief.term, beliefs))
