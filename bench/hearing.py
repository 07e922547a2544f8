"""Knowing when contenders wait, and no sooner: from the events that their clients report."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from consul_coord.events import Waiting

if TYPE_CHECKING:
    from consul_coord import Event

_TIMEOUT = 120.0


class Waiters:
    """Who waits in one event loop; each is counted once."""

    def __init__(self) -> None:
        self._waiting: set[str] = set()
        self._changed = asyncio.Event()

    def observer(self, name: str = "") -> Ear:
        """Return an observer for a client: what waits is the client, if it has a name, else each key."""
        return Ear(self, name)

    def hear(self, name: str) -> None:
        """Take note of one who waits."""
        self._waiting.add(name)
        self._changed.set()

    def forget(self) -> None:
        """Begin anew."""
        self._waiting.clear()

    async def all(self, count: int) -> None:
        """Wait until so many wait. Raises TimeoutError."""
        async with asyncio.timeout(_TIMEOUT):
            while len(self._waiting) < count:
                self._changed.clear()
                await self._changed.wait()


@dataclass(frozen=True, slots=True)
class Ear:
    """One client's observer."""

    waiters: Waiters
    name: str

    def on_event(self, event: Event) -> None:
        """Pass on that somebody waits."""
        if isinstance(event, Waiting):
            self.waiters.hear(self.name or event.key)
