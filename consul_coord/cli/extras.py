"""Optional dependencies: a missing one is told by the extra that brings it, not by a traceback.

Imports nothing that is optional itself.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from consul_coord.cli.codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Generator


class MissingExtra(Exception):
    """A module that an extra brings is not installed."""

    def __init__(self, extra: str, module: str) -> None:
        super().__init__(f"{module} is not installed: pip install 'consul-coord[{extra}]'")

    def report(self) -> int:
        """Say so on stderr, and return the exit code."""
        print(f"consul-coord: {self}", file=sys.stderr)
        return ExitCode.CONFIG


@contextmanager
def needs(extra: str) -> Generator[None]:
    """Turn a failed import of a module that is not this package's into MissingExtra."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in {"", "consul_coord"}:
            raise
        raise MissingExtra(extra, missing) from error
