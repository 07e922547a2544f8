"""Optional dependencies: an error names the extra that brings a missing one.

Imports nothing that is optional itself, and nothing of this package.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator


class MissingExtra(ModuleNotFoundError):
    """A module that an extra brings is not installed."""


@contextmanager
def needs(extra: str) -> Generator[None]:
    """Turn a failed import of a module that is not this package's into MissingExtra, naming the extra."""
    try:
        yield
    except MissingExtra:
        raise
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in {"", "consul_coord"}:
            raise
        message = f"{missing} is not installed: pip install 'consul-coord[{extra}]'"
        raise MissingExtra(message, name=missing) from error
