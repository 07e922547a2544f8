"""What a timeout means: from now on, for how long."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from consul_coord.errors import InvalidArgument

if TYPE_CHECKING:
    from consul_coord.io import IO


def deadline_of(io: IO, timeout: float | None) -> float:
    """Return when ``timeout`` seconds will have passed.

    Never for None. Raises InvalidArgument for what is no time.
    """
    if timeout is None:
        return math.inf
    if not timeout >= 0:  # also true of nan
        message = f"timeout must be 0 or more seconds, or None to wait for ever, not {timeout!r}"
        raise InvalidArgument(message)
    return io.now() + timeout
