"""Tables of immutable rows with a journal, to undo a failed transaction and to tell watchers what changed.

Rules
- Every change goes through ``put`` or ``remove`` and is written to the journal as (table, key, old row, new
  row).
- Undoing replays the journal backwards through the same two doors, so derived indexes follow by themselves.
- A table's ``marks`` name the things that a change of one row is news about; watchers wait for marks.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Row = TypeVar("Row")
Mark = tuple[str, ...]
Change = tuple["Table[Any]", str, Any, Any]

_LAST = "\U0010ffff"


class Table(Generic[Row]):
    """Rows by key."""

    def __init__(self, journal: list[Change], marks: Callable[[str, Row], Iterable[Mark]]) -> None:
        self.rows: dict[str, Row] = {}
        self.marks = marks
        self._journal = journal

    def get(self, key: str) -> Row | None:
        """Return the row at ``key``, or None."""
        return self.rows.get(key)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows.values())

    def sorted(self) -> list[Row]:
        """Return the rows in order of their keys."""
        return [self.rows[key] for key in sorted(self.rows)]

    def put(self, key: str, row: Row) -> None:
        """Set the row at ``key``."""
        old = self.rows.get(key)
        self._journal.append((self, key, old, row))
        self.apply(key, old, row)

    def remove(self, key: str) -> None:
        """Remove the row at ``key``, which must be there."""
        old = self.rows[key]
        self._journal.append((self, key, old, None))
        self.apply(key, old, None)

    def apply(self, key: str, old: Row | None, new: Row | None) -> None:  # noqa: ARG002 - for derived indexes
        """Make the change without writing it to the journal."""
        if new is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = new


class SortedTable(Table[Row]):
    """A table whose keys are kept in order, for prefix scans."""

    def __init__(self, journal: list[Change], marks: Callable[[str, Row], Iterable[Mark]]) -> None:
        super().__init__(journal, marks)
        self._keys: list[str] = []

    def apply(self, key: str, old: Row | None, new: Row | None) -> None:
        """Make the change, keeping the keys in order."""
        super().apply(key, old, new)
        if old is None and new is not None:
            insort(self._keys, key)
        elif old is not None and new is None:
            del self._keys[bisect_left(self._keys, key)]

    def sorted(self) -> list[Row]:
        """Return the rows in order of their keys."""
        return [self.rows[key] for key in self._keys]

    def keys_under(self, prefix: str) -> list[str]:
        """Return the keys that begin with ``prefix``, in order."""
        if not prefix:
            return list(self._keys)
        start = bisect_left(self._keys, prefix)
        end = bisect_left(self._keys, prefix + _LAST, start)
        while end < len(self._keys) and self._keys[end].startswith(prefix):
            end += 1
        return self._keys[start:end]

    def under(self, prefix: str) -> list[Row]:
        """Return the rows whose keys begin with ``prefix``, in order of the keys."""
        return [self.rows[key] for key in self.keys_under(prefix)]
