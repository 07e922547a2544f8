"""Waiting for keys to change: a blocking query for each wait, or shared readings where there are many waits.

Rules
- An agent takes a limited number of connections from one address, and a blocking query occupies one. So up to
  ``MOST_QUERIES`` waits of a client have one each, and hear of a change in milliseconds. Those beyond share
  readings, as many keys as fit in a transaction, and hear of it within the time that these take in ticket: at
  ``KEYS_PER_SECOND``, a thousand waits are looked at once a second, a few of them ten times as often.
- What a wait brings is what the key was at some moment; who waited acts by naming an index, or looks again.
  So a wait may end for nothing, and readings need not be consistent.
- A reading that is refused ends the waits for its keys: who waited asks for himself then, and is told why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.errors import ConsulCoordError
from consul_coord.http.endpoints import kv
from consul_coord.http.failures import retryable
from consul_coord.http.retry import wait_once
from consul_coord.io import Signal
from consul_coord.models import ReadOptions, Result
from consul_coord.recipes.on_demand import OnDemand
from consul_coord.recipes.watch.batch import BATCH, read_together

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from consul_coord.io import IO
    from consul_coord.models import KVPair
    from consul_coord.recipes.client import ClientState

WAIT = 30.0
"""Seconds that one blocking query lasts at most: below the idle limits of usual load balancers."""
MOST_QUERIES = 32
KEYS_PER_SECOND = 1_000
SHORTEST = 0.1
"""Seconds between two readings of a key at least."""


class _Wait:
    """One wait that shares readings."""

    __slots__ = ("index", "key", "over", "seen")

    def __init__(self, key: str, index: int) -> None:
        self.key = key
        self.index = index
        self.over = Signal()
        self.seen: Result[KVPair | None] | None = None


class KeyWaits:
    """The waits of one client."""

    def __init__(self, core: ClientState) -> None:
        self._core = core
        self._mutex = core.host.mutex()
        self._queries = 0
        self._shared: dict[_Wait, None] = {}
        self._reader = OnDemand(core.host, self._read, has_work=lambda: self._shared, name="shared waits")

    async def change(
        self, io: IO, key: str, index: int, *, until: Signal | None, deadline: float
    ) -> Result[KVPair | None] | None:
        """Return the key once it is no longer at ``index``, or for nothing; it existed at ``index``.

        None when ``until`` was raised or ``deadline`` came first. Raises what a read raises.
        """
        if not self._take_query():
            return await self._share(io, _Wait(key, index), until, deadline)
        try:
            call = kv.get(key, options=ReadOptions(index=index, wait=WAIT))
            return await wait_once(io, call, until=until, deadline=deadline)
        finally:
            self._give_query_back()

    def _take_query(self) -> bool:
        with self._mutex:
            free = self._queries < MOST_QUERIES
            self._queries += free
        return free

    def _give_query_back(self) -> None:
        with self._mutex:
            self._queries -= 1

    async def _share(
        self, io: IO, wait: _Wait, until: Signal | None, deadline: float
    ) -> Result[KVPair | None] | None:
        unsubscribe = None if until is None else until.subscribe(wait.over.set)
        self._shared[wait] = None
        self._reader.start()
        try:
            await io.wait(wait.over, deadline=deadline)
        finally:
            self._shared.pop(wait, None)
            if unsubscribe is not None:
                unsubscribe()
        return wait.seen

    # -- in the background

    async def _read(self, io: IO) -> None:
        while self._shared:
            await io.sleep(max(SHORTEST, len(self._shared) / KEYS_PER_SECOND))
            waits: dict[str, list[_Wait]] = {}
            for wait in list(self._shared):
                waits.setdefault(wait.key, []).append(wait)
            keys = list(waits)
            for start in range(0, len(keys), BATCH):
                part = keys[start : start + BATCH]
                await self._look(io, part, [wait for key in part for wait in waits[key]])

    async def _look(self, io: IO, keys: Sequence[str], waits: Collection[_Wait]) -> None:
        try:
            found = await read_together(io, keys, timeout=self._core.timeout)
        except ConsulCoordError as error:
            if not retryable(error):
                for wait in waits:
                    self._end(wait)
            return
        for wait in waits:
            pair = found.get(wait.key)
            if pair is None or pair.modify_index != wait.index:
                wait.seen = Result(pair)
                self._end(wait)

    def _end(self, wait: _Wait) -> None:
        self._shared.pop(wait, None)
        wait.over.set()
