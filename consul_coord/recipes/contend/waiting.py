"""The waiting calls of one object, so that its ``cancel`` can end them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from consul_coord.errors import AcquireCancelled
from consul_coord.io import Interrupt

if TYPE_CHECKING:
    from collections.abc import Generator


class WaitingCalls:
    """Which calls wait for ``name``."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: dict[Interrupt, None] = {}

    @contextmanager
    def waiting(self) -> Generator[Interrupt]:
        """Give what ends a call that is about to wait: ``cancel`` does."""
        interrupt = Interrupt()
        self._waiting[interrupt] = None
        try:
            yield interrupt
        finally:
            self._waiting.pop(interrupt, None)

    def cancel(self) -> None:
        """End the waiting calls with AcquireCancelled."""
        for interrupt in list(self._waiting):
            interrupt.fire(self._cancelled)

    def _cancelled(self) -> AcquireCancelled:
        return AcquireCancelled(f"waiting for {self._name!r} was cancelled", key=self._name)
