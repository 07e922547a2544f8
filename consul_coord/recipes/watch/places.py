"""Places to be watched: the keys of holds, and the folders that somebody follows."""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consul_coord.io import IO, Signal
    from consul_coord.models import KVPair, Result
    from consul_coord.recipes.session.keeping import KeptSession

LINGER: Final = 5.0
"""Seconds for which a folder is kept whose follower does not wait."""
REMEMBERED: Final = 600.0
"""Seconds for which Consul remembers deletions for certain."""


class Watched(Protocol):
    """A key that a hold depends on."""

    key: str
    index: int
    """To watch from."""
    over: Signal
    """Raised when it need not be watched any more."""
    kept: KeptSession
    directory: str | None
    """The prefix of all keys of the hold, where it has more than this one."""
    is_member: bool
    """Whether it is watched together with all of the client's groups."""

    @property
    def along(self) -> Sequence[Watched]:
        """Other keys of the hold, which are looked at whenever a query for this one ends."""
        ...

    async def seen(self, io: IO, result: Result[KVPair | None], /, *, consistent: bool) -> None:
        """Take note of a reading. Raises what stands in the way of making sure."""
        ...


class Folder:
    """A folder that a follower reads when something in it has changed."""

    def __init__(self, path: str) -> None:
        self.path = path
        """Its name, without the slash at its end."""
        self.at = 0
        """The index of its latest change; 0 while it is empty."""
        self.known = 0
        """Its index when the follower read it last; set by the follower."""
        self.told = 0
        """The index that the follower's own look has had last, as ``hear`` takes it."""
        self.reports = 0
        """How often its index was heard."""
        self.is_doubtful = False
        """Whether its index says nothing; taken back by the follower before it reads all."""
        self._heard = -math.inf
        self._waiting: weakref.ref[Signal] | None = None
        self._left_at: float | None = None

    @property
    def is_new(self) -> bool:
        """Whether the follower has something to read."""
        return self.is_doubtful or self.at > self.known or (not self.at and bool(self.known))

    def hear(self, index: int, now: float) -> None:
        """Take note of the index of its latest change, 0 if it is empty."""
        if 0 < index < self.at or now - self._heard > REMEMBERED:
            self.is_doubtful = True
        self.at, self._heard, self.reports = index, now, self.reports + 1
        waiting = None if self._waiting is None else self._waiting()
        if waiting is not None and self.is_new:
            waiting.set()

    @property
    def is_waited_for(self) -> bool:
        """Whether a call waits for a change; one that was interrupted is gone with its signal."""
        waiting = None if self._waiting is None else self._waiting()
        return waiting is not None and not waiting.is_set()

    def await_with(self, signal: Signal) -> None:
        """Have the signal raised at the next change."""
        self._waiting, self._left_at = weakref.ref(signal), None

    def leave(self) -> None:
        """Take note that the follower does not come back."""
        self._waiting, self._left_at = None, -math.inf

    def is_left(self, now: float) -> bool:
        """Return whether its follower has been away for too long."""
        if self.is_waited_for:
            return False
        left_at = self._left_at  # another thread may come back just now
        if left_at is None:
            left_at = self._left_at = now
        return now - left_at >= LINGER


class Sharing(Protocol):
    """The folders that share a query."""

    async def change(self, io: IO, folder: Folder, *, until: Signal | None) -> bool:
        """Wait until there is something to read in a folder; returns False when ``until`` was raised."""
        ...
