"""The waiting calls of one object, so that its ``cancel``, or an event of a user's, can end them.

Rules
- An event of a user's is of a kind that need not tell anybody, and may be set by a signal handler: so it is
  looked at again and again, in the background, while a call waits.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol

from consul_coord.errors import AcquireCancelled
from consul_coord.io import Interrupt, Signal

if TYPE_CHECKING:
    from collections.abc import Generator

    from consul_coord.io import IO, Host

LOOK = 0.05
"""Seconds between two looks at a user's event."""


class Flag(Protocol):
    """What can be set: an event of ``threading``, ``multiprocessing``, ``asyncio`` or ``anyio``, say."""

    def is_set(self) -> bool:
        """Return whether it is set."""
        ...


class WaitingCalls:
    """Which calls wait for ``name``."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: dict[Interrupt, None] = {}

    @contextmanager
    def waiting(self, host: Host | None = None, flag: Flag | None = None) -> Generator[Interrupt]:
        """Give what ends a call that is about to wait: ``cancel`` does, and the flag when it is set.

        Raises AcquireCancelled when it is set before.
        """
        interrupt, over = Interrupt(), Signal()
        if flag is not None and flag.is_set():
            raise self._cancelled()
        self._waiting[interrupt] = None
        try:
            if host is not None and flag is not None:
                host.spawn(partial(self._heed, flag, interrupt, over), name=f"heed an event for {self._name}")
            yield interrupt
        finally:
            over.set()
            self._waiting.pop(interrupt, None)

    async def _heed(self, flag: Flag, interrupt: Interrupt, over: Signal, io: IO) -> None:
        while not await io.wait(over, deadline=io.now() + LOOK):
            if flag.is_set():
                interrupt.fire(self._cancelled)
                return

    def cancel(self) -> None:
        """End the waiting calls with AcquireCancelled."""
        for interrupt in list(self._waiting):
            interrupt.fire(self._cancelled)

    def _cancelled(self) -> AcquireCancelled:
        return AcquireCancelled(f"waiting for {self._name!r} was cancelled", key=self._name)
