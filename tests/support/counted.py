"""A signal that counts those that listen to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.io import Signal

if TYPE_CHECKING:
    from collections.abc import Callable


class Counted(Signal):
    """See the module."""

    def __init__(self) -> None:
        self.listening = 0

    def subscribe(self, callback: Callable[[], object]) -> Callable[[], object]:
        self.listening += 1
        unsubscribe = super().subscribe(callback)

        def stop() -> None:
            self.listening -= 1
            unsubscribe()

        return stop
