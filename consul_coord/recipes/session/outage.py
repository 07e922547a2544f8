"""The outages of one client: each has one beginning and one end, however many sessions and keys it concerns.

Rules
- An outage begins with the first renewal that fails.
- It ends with a renewal or a create that succeeds, once no other session waits for its next success. A
  session that has ended waits for none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class Outages:
    """Whether an outage is under way; every thread of the client may call it."""

    def __init__(self, mutex: AbstractContextManager[object]) -> None:
        self._mutex = mutex
        self._failing: set[str] = set()
        """The sessions whose last renewal failed."""
        self._began: float | None = None

    def failed(self, session: str, *, since: float) -> bool:
        """Note a failed renewal; return whether an outage begins with it, which has lasted ``since`` then."""
        with self._mutex:
            begins = self._began is None
            if begins:
                self._began = since
            self._failing.add(session)
            return begins

    def succeeded(self, session: str) -> float | None:
        """Note a success; return since when the outage lasted that ends with it, or None."""
        with self._mutex:
            self._failing.discard(session)
            if self._failing:
                return None
            began, self._began = self._began, None
            return began

    def forget(self, session: str) -> None:
        """Note that a session has ended."""
        with self._mutex:
            self._failing.discard(session)
