"""A background program that exists only while it has something to do.

Rules
- ``start`` may be called from any thread, at any time, and by the garbage collector; at most one instance
  runs.
- Work that arrives while the program is about to end starts it again: none is overlooked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from consul_coord.io import IO, Host


class OnDemand:
    """Runs ``program`` in the background whenever ``has_work`` says so and it was told to start."""

    def __init__(
        self,
        host: Host,
        program: Callable[[IO], Awaitable[object]],
        *,
        has_work: Callable[[], object],
        name: str,
    ) -> None:
        self._host = host
        self._program = program
        self._has_work = has_work
        self._name = name
        self._running: dict[None, object] = {}

    def start(self) -> None:
        """Run the program unless it is running."""
        mine = object()
        if self._running.setdefault(None, mine) is mine:
            self._host.spawn(self._run, name=self._name)

    async def _run(self, io: IO) -> None:
        try:
            await self._program(io)
        finally:
            self._running.clear()
        if self._has_work():
            self.start()
