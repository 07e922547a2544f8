"""The resource that the workers write to: a file that refuses fences lower than the last one it took.

Rules
- A line is a fence and the name of a write. Whoever writes has the file's lock, from before the look at the
  last line until the line is written; so the file's order is the order of the writes.
- Nobody waits for the file's lock: a worker that is stopped while it has it must not stop all others.
- A write is acknowledged when its line is in the file.
"""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING, Final

from proof.judge import Entry

if TYPE_CHECKING:
    from pathlib import Path

_LAST: Final = 200
"""Bytes in which the last line is found."""


class Register:
    """One fenced file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def of(cls, folder: Path, key: str) -> Register:
        """Return the register that a key's holders write to."""
        return cls(folder / f"register-{key.replace('/', '-')}.log")

    def write(self, fence: int, name: str) -> bool | None:
        """Write under a fence; returns whether it was taken, or None when the file was busy."""
        file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            if fence < _last_fence(file):
                return False
            os.write(file, f"{fence} {name}\n".encode())
            return True
        finally:
            os.close(file)

    def log(self) -> list[Entry]:
        """Return everything that was taken, in order."""
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        return [Entry(int(fence), name) for fence, name in (line.split(" ", 1) for line in lines)]


def _last_fence(file: int) -> int:
    size = os.fstat(file).st_size
    end = os.pread(file, _LAST, max(0, size - _LAST)).splitlines()
    return int(end[-1].split()[0]) if end else 0
