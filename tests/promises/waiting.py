"""Waiting for a server to come to rest."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

SETTLING: Final = 0.1
"""Seconds after which a hold is watched, and more."""


def settled(value: Callable[[], int]) -> int:
    """Return a number once it has been the same for a while, and is not nothing."""
    since, last = time.monotonic(), value()
    while not last or time.monotonic() < since + 4 * SETTLING:
        time.sleep(SETTLING / 10)
        if (now := value()) != last:
            since, last = time.monotonic(), now
    return last
