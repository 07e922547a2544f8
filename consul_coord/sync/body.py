"""The body of a ``with``: nothing interrupts it at a loss, and it is left with the truth about that.

Rules
- Released first, then the errors: a loss outranks what the body raised, which becomes its cause; but never a
  KeyboardInterrupt or a SystemExit.
- A block may be left in another thread than entered it, as a release may be done in any.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from consul_coord.recipes.election.leadership import told_as_leadership
from consul_coord.recipes.hold.view import error_at_exit, grant_of

if TYPE_CHECKING:
    from types import TracebackType

    from consul_coord.sync.hold import Hold


class Body:
    """One pass through a ``with`` block."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        self.owner = threading.current_thread()
        """The thread that entered."""

    def is_mine(self) -> bool:
        """Return whether the running thread entered."""
        return self.owner is threading.current_thread()

    def is_orphan(self) -> bool:
        """Return whether the thread that entered has ended."""
        return not self.owner.is_alive()

    def leave(
        self,
        kind: type[BaseException] | None,  # noqa: ARG002 - as its async twin
        error: BaseException | None,
        trace: TracebackType | None,  # noqa: ARG002 - as its async twin
    ) -> None:
        """Release, then raise LockLost if that is due."""
        self._hold.release()
        lost = error_at_exit(self._hold, error)
        if lost is not None:
            raise lost from error


class LeaderBody(Body):
    """A block that raises LeadershipLost."""

    def leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Resign, then raise LeadershipLost if that is due."""
        with told_as_leadership(grant_of(self._hold)):
            super().leave(kind, error, trace)


def misused(key: str) -> RuntimeError:
    """Return the error for a block that was left in another thread, when it can't be told which one."""
    return RuntimeError(
        f"a 'with' block on {key!r} was left in another thread than it was entered in, while several threads "
        "are in one: it can't be told which of them ends. "
        "Use 'hold = lock.acquire()' and 'hold.release()' instead"
    )
