"""Whether something that may fail, at a price, is worth a try: decided by how the last tries went.

After a failure 1 chance is left out, after the next one in a row 2, then 4, up to 16; a success starts
again.
"""

from __future__ import annotations

MOST_SKIPPED = 16


class AdaptiveBackoff:
    """The record of one kind of try."""

    def __init__(self) -> None:
        self._to_skip = 0
        self._penalty = 1

    def worth_a_try(self) -> bool:
        """Return whether to try this time; a no is counted."""
        if not self._to_skip:
            return True
        self._to_skip -= 1
        return False

    def succeeded(self) -> None:
        """Take note of a success."""
        self._penalty = 1

    def failed(self) -> None:
        """Take note of a failure."""
        self._to_skip = self._penalty
        self._penalty = min(2 * self._penalty, MOST_SKIPPED)
