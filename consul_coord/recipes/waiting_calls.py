"""The waiting calls of one object, so that its ``cancel`` can end them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.errors import AcquireCancelled

if TYPE_CHECKING:
    from consul_coord.io import Interrupt


class WaitingCalls:
    """Which calls wait for ``name``."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: dict[Interrupt, None] = {}

    def enter(self, interrupt: Interrupt) -> None:
        """Let ``cancel`` end a call that is about to wait."""
        self._waiting[interrupt] = None

    def leave(self, interrupt: Interrupt) -> None:
        """Forget a call that has ended."""
        self._waiting.pop(interrupt, None)

    def cancel(self) -> None:
        """End the waiting calls with AcquireCancelled."""
        for interrupt in list(self._waiting):
            interrupt.fire(self._cancelled)

    def _cancelled(self) -> AcquireCancelled:
        return AcquireCancelled(f"waiting for {self._name!r} was cancelled", key=self._name)
