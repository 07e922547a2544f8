"""Turns among processes that do the same thing: one does it first, and the others find it done."""

from __future__ import annotations

import fcntl
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


@contextmanager
def first_goes_ahead(file: Path) -> Generator[None]:
    """Let one of those that name the same file enter, and the others all together when it has left or died.

    A process that comes after all have left is a first one again.
    """
    with file.open() as turn:
        try:
            fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(turn, fcntl.LOCK_SH)
        yield
