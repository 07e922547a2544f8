"""How a ``with`` block on a lock or a semaphore ends, and which hold is whose block's.

Rules
- Released first, then the errors: a loss outranks what the body raised, which becomes its cause; but never a
  KeyboardInterrupt or a SystemExit.
- The blocks of one thread nest: the latest ends first.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

from consul_coord.recipes.hold.grant import error_at_exit

if TYPE_CHECKING:
    from consul_coord.sync.client import Client
    from consul_coord.sync.hold import Hold

H = TypeVar("H", bound="Hold")


class Blocks(Generic[H]):
    """The blocks of one object that have been entered, by thread."""

    def __init__(self) -> None:
        self._entered: dict[object, list[H]] = {}

    def enter(self, hold: H) -> H:
        """Take note of the calling thread's block; returns its hold."""
        self._entered.setdefault(threading.current_thread(), []).append(hold)
        return hold

    def leave(self, client: Client, error: BaseException | None) -> None:
        """End the calling thread's latest block."""
        thread = threading.current_thread()
        entered = self._entered[thread]
        hold = entered.pop()
        if not entered:
            del self._entered[thread]
        leave(client, hold, error)


def leave(client: Client, hold: Hold, error: BaseException | None) -> None:
    """Release at the end of a block, then raise LockLost if that is due."""
    hold.release()
    lost = error_at_exit(hold.core, client.now(), error)
    if lost is not None:
        raise lost from error
