"""How threads wait in a fake, and hold one."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING

from consul_coord.clock import SystemClock
from consul_coord.recipes.contend.changes import Changes
from consul_coord.sync.driver import wait_for_any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from consul_coord.testing.fakes.holding import BaseHold

current_owner = threading.current_thread
"""Returns what identifies the running thread."""


class News:
    """Wakes all threads that wait when something has changed."""

    def __init__(self) -> None:
        self._changes = Changes()
        self.tell = self._changes.tell
        """Wakes them."""

    def wait_for(self, look: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until ``look()`` is true, at most ``timeout`` seconds; return whether it is."""
        clock = SystemClock()
        ends = math.inf if timeout is None else clock.now() + timeout
        while True:
            with self._changes.watching() as changed:
                if look():
                    return True
                wait_for_any([changed], ends, clock)
            if clock.now() >= ends:
                return look()


class Block:
    """The body of a ``with``."""

    def __init__(self, hold: BaseHold) -> None:
        self._hold = hold

    def leave(
        self,
        kind: type[BaseException] | None,  # noqa: ARG002 - as the one of an event loop
        error: BaseException | None,
        trace: TracebackType | None,  # noqa: ARG002 - as above
    ) -> bool:
        """Release, then raise LockLost if that is due; returns False: the body's exception goes on."""
        self._hold.give_up()
        lost = self._hold.error_at_exit(error)
        if lost is not None:
            raise lost from error
        return False
