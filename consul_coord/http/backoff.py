"""How long to wait after failures: pure arithmetic.

Exponential with a cap, and jitter over the upper half of each step, so that clients which failed together do
not return together, yet none returns at once.
"""

from __future__ import annotations

FIRST = 0.05
MOST = 1.0
"""Between two tries of a call that somebody waits for, at most."""
LONGEST_PAUSE = 15.0
"""Between two tries in the background, at most."""


def delay(failures: int, random: float, *, first: float = FIRST, most: float = MOST) -> float:
    """Return the seconds to wait after the ``failures``-th failure in a row (1 or more).

    ``random`` is in [0, 1).
    """
    step = min(most, first * 2.0 ** min(failures - 1, 30))
    return step * (0.5 + 0.5 * random)
