"""The body of a ``with``: it is left with the truth about a loss, and interrupted at one where it is to be.

Rules
- Released first, then the errors: a loss outranks what the body raised, which becomes its cause; but never a
  KeyboardInterrupt or a SystemExit.
- A block may be left in another thread than entered it, as a release may be done in any.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from consul_coord.models import LossReason
from consul_coord.recipes.election.leadership import leadership_lost, resigned, told_as_leadership
from consul_coord.recipes.hold.grant import lost_error
from consul_coord.recipes.hold.view import error_at_exit, grant_of, host_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from consul_coord.errors import LockLost
    from consul_coord.sync.hold import Hold
    from consul_coord.sync.interrupting import Interruption


class Body:
    """One pass through a ``with`` block."""

    _interruption: Interruption | None = None

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        self.owner = threading.current_thread()
        """The thread that entered."""

    def interrupt_at_loss(self, entered: Callable[[Body], bool]) -> None:
        """Have the body interrupted at its loss, once ``entered`` says that it is entered."""
        from consul_coord.sync.interrupting import Interruption

        self._entered = entered
        self._interruption = Interruption(self, grant_of(self._hold).over, host_of(self._hold))

    def is_inside(self) -> bool:
        """Return whether the body runs: it was entered, and is not being left."""
        return self._entered(self)

    def loss(self) -> LockLost | None:
        """Return the error of the hold's loss, if it is lost; None in a forked child, which has no holds."""
        hold = grant_of(self._hold)
        reason = hold.reason
        return None if reason is None or reason is LossReason.FORKED else lost_error(hold, reason)

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
        if self._interruption is not None:
            self._interruption.end()
        self._hold.release()
        lost = error_at_exit(self._hold, error)
        if lost is not None:
            try:
                raise lost from error
            finally:
                del lost, error  # the traceback keeps this frame, which would keep them: a circle


class LeaderBody(Body):
    """A block that raises LeadershipLost; interrupted also when its leadership is given up."""

    def __init__(self, hold: Hold) -> None:
        grant_of(hold).entered = True
        super().__init__(hold)

    def loss(self) -> LockLost | None:
        """Return the error of the leadership's end, if it has ended."""
        lost = super().loss()
        if lost is not None:
            return leadership_lost(lost)
        hold = grant_of(self._hold)
        return resigned(hold) if hold.released else None

    def leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Resign, then raise LeadershipLost if that is due."""
        with told_as_leadership(grant_of(self._hold)):
            super().leave(kind, error, trace)


def require_interruptible() -> None:
    """Return if a block of this thread can be interrupted. Raises InvalidArgument."""
    from consul_coord.sync.interrupting import require_main_thread

    require_main_thread()


def misused(key: str) -> RuntimeError:
    """Return the error for a block that was left in another thread, when nobody knows which one."""
    return RuntimeError(
        f"a 'with' block on {key!r} was left in another thread than it was entered in, while several threads "
        "are in one, so nobody knows which of them ends. "
        "Use 'hold = lock.acquire()' and 'hold.release()' instead"
    )
