"""A history's file while it is written: each record is in it before the next thing happens.

One write is one line, so that a process can be killed at any moment, and threads can share a journal.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from consul_coord.testing.history import load, merge, to_line

if TYPE_CHECKING:
    from pathlib import Path

    from consul_coord.testing.history import Record


class Journal:
    """The history of one process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def add(self, record: Record) -> None:
        """Write a record down."""
        os.write(self._file, to_line(record).encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_all(folder: Path) -> list[Record]:
    """Return the histories of all processes in a folder as one."""
    histories: list[list[Record]] = []
    for path in sorted(folder.glob("history-*.jsonl")):
        with path.open(encoding="utf-8") as file:
            histories.append(load(file, cut_off=True))
    return merge(*histories)
