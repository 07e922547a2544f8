"""Hearing of changes: blocking queries for a few things, shared readings for many.

Rules
- An agent takes a limited number of connections from one address, and a blocking query occupies one. One
  bound covers everything that a client watches: holds, waiting calls of every recipe, sessions and users'
  watches.
- Up to ``MOST`` things have a query each, and hear of a change in milliseconds. With more, ``FEW`` keep one:
  the first in their queues, on whom others wait, and the sessions of holds where these are few. All else
  shares readings, as many keys as fit in a transaction, and hears of a change within the time that these take
  in turn: at ``KEYS_PER_SECOND``, a thousand keys are read once a second. A user's watch reads once a
  second then. When half of ``MOST`` are left, each has its own query again.
- Callers that wait for the same thing share one query (``shared_queries``), such as a leader's hold and a
  watch of its election.
- A query lasts until the next renewal at most, with which it shares a connection. Whenever a hold's query has
  ended, the keys of the hold that have no query are looked at: so their loss is noticed within seconds.
- Where nothing has changed below a hold's directory for a while, one query for all of it replaces the query
  and these looks. A permit then costs no more requests than a lock. A key that such a reading lacks is a
  suspicion only, as a token may read one key and not another. Once anything changes there, or it can't be
  listed, the hold goes back to the first way, and stays with it longer each time.
- A query for a hold, or for the session of one, lasts no longer than that has been watched. Where the agent
  has no room for another connection, the release waits for the query's end: so it takes no more than twice
  as long as the hold.
- Where the agent refuses connections, one query goes on, and is a short one: whatever else has to be sent
  waits for its end. All else shares readings.
- A wait brings what the thing was at some moment; the caller acts by naming an index, or looks again. So a
  wait may end for nothing, and readings need not be consistent.
- A hold is watched for as long as it lasts, a failing query included: after a failure its present state is
  read consistently. A shared reading of a hold is a suspicion only.
- A change that the client itself has made ends the waits for it at once: its waiters hand over to each other
  without a pause, however seldom readings are shared.
- A reading that is refused ends the waits for its keys: the caller asks by itself then, and learns why.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from consul_coord.errors import ConsulCoordError, PermissionDenied, SessionNotFound
from consul_coord.http.endpoints import kv
from consul_coord.http.endpoints import session as session_endpoint
from consul_coord.http.failures import retryable
from consul_coord.http.retry import send_once
from consul_coord.io import OnDemand, Signal
from consul_coord.models import Result
from consul_coord.models.reply import CONSISTENT
from consul_coord.recipes.watch.batch import BATCH, read_together
from consul_coord.recipes.watch.follow import POLL, Follower, wait_of
from consul_coord.recipes.watch.shared_queries import SharedQueries

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine, Sequence

    from consul_coord.http.messages import Call
    from consul_coord.io import IO, Host
    from consul_coord.models import KVPair, Session
    from consul_coord.recipes.session.keeping import KeptSession, Sessions
    from consul_coord.recipes.watch.places import Watched
    from consul_coord.recipes.watch.together import Together

T = TypeVar("T")

MOST = 32
"""So many things have a query each."""
FEW = 4
"""So many keep one when there are more."""
SESSIONS = 2
"""So many sessions whose holds share readings have a query each."""
SHORTEST_HELD = 0.5
"""Seconds that the first query for a hold may last; the next ones last as long as it is watched by then."""
LONGEST_HELD = 7.0
"""Seconds that a query for a hold may last: the keys that have none are looked at after it."""
LONGEST_APART = 120.0
"""Seconds after a change for which the keys of a hold are looked at one by one, at most."""
MOST_BELOW = 32
"""Keys below a hold's directory, at most, that one query may bring each time."""
KEYS_PER_SECOND = 1_000
CROWDED = 30.0
"""Seconds for which a refused connection is remembered."""
LONGEST_WHEN_CROWDED = 2.0
"""Seconds that a query may last then: the next request waits for it."""
SHORTEST = 0.1
"""Seconds between two readings of a key at least."""
SHORTEST_WHEN_CROWDED = 1.0
POLLED = 2 * POLL
"""Seconds for which a user's watch that has read once counts as one that reads now and then."""


class _Wait(ABC, Generic[T]):
    """One call that waits for a change, with a query of its own or by shared readings."""

    __slots__ = ("index", "over", "seen")

    over: Signal
    """Ends it; another one each time that it begins."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.seen: Result[T] | None = None

    @abstractmethod
    def ask(self, seconds: float) -> Call[Result[T]]:
        """Return the blocking query, to last so long at most."""

    @abstractmethod
    def is_for(self, key: str) -> bool:
        """Return whether it is for this key, among others."""

    def end(self, seen: Result[T] | None) -> None:
        self.seen = seen
        self.over.set()


class _KeyWait(_Wait["KVPair | None"]):
    """One for a key."""

    __slots__ = ("key", "to_the_end")

    def __init__(self, index: int, key: str, *, to_the_end: bool) -> None:
        super().__init__(index)
        self.key = key
        self.to_the_end = to_the_end

    def ask(self, seconds: float) -> Call[Result[KVPair | None]]:
        watch = kv.watch_to_the_end if self.to_the_end else kv.watch
        return watch(self.key, index=self.index, wait=seconds)

    def is_for(self, key: str) -> bool:
        return key == self.key

    def read(self, pair: KVPair | None) -> None:
        """Take note of a reading."""
        if pair is None or pair.modify_index != self.index:
            self.end(Result(pair))


class _TreeWait(_Wait["tuple[KVPair, ...]"]):
    """One for all keys with a prefix."""

    __slots__ = ("prefix",)

    def __init__(self, index: int, prefix: str) -> None:
        super().__init__(index)
        self.prefix = prefix

    def ask(self, seconds: float) -> Call[Result[tuple[KVPair, ...]]]:
        return kv.watch_tree(self.prefix, index=max(self.index, 1), wait=seconds)

    def is_for(self, key: str) -> bool:
        return key.startswith(self.prefix)

    def read(self, seen: Result[tuple[KVPair, ...]]) -> None:
        """Take note of a reading."""
        if seen.index != self.index:
            self.end(seen)


class Watches:
    """The watches of one client."""

    def __init__(self, host: Host, sessions: Sessions, *, timeout: float) -> None:
        self._host = host
        self._sessions = sessions
        self._timeout = timeout
        self._mutex = host.mutex()
        self.ask = SharedQueries(self._mutex).ask
        self._queries: dict[Signal, bool] = {}
        """The signal that ends each blocking query, and whether it may go on when there are many."""
        self.waits: dict[_Wait[Any], None] = {}
        """Those that share readings."""
        self._held: dict[Watched, float] = {}
        """The keys of holds that share readings, and since when."""
        self._watched_sessions: set[str] = set()
        self._together: Together | None = None
        self._polling: dict[int, float] = {}
        """The users' watches without a query, by their ids, and when each asked for one last."""
        self._made_few_at = -math.inf
        self._crowded_until = -math.inf
        self._reader = OnDemand(host, self._read, has_work=self._has_readings, name="shared readings")

    # -- waiting calls

    def change(
        self,
        io: IO,
        key: str,
        index: int,
        *,
        until: Signal | None,
        deadline: float,
        first: bool = False,
        to_the_end: bool = False,
    ) -> Coroutine[Any, Any, Result[KVPair | None] | None]:
        """Return the key once it is no longer at ``index``, or for nothing; it existed at ``index``.

        ``first``: others wait on the caller. ``to_the_end``: the result of a deleted key has the deletion's
        index, unless readings are shared. None when ``until`` was raised or ``deadline`` came first. Raises
        what a read raises.
        """
        wait = _KeyWait(index, key, to_the_end=to_the_end)
        return self._next(io, wait, until=until, deadline=deadline, first=first)

    def change_below(
        self, io: IO, prefix: str, index: int, *, until: Signal | None, deadline: float
    ) -> Coroutine[Any, Any, Result[tuple[KVPair, ...]] | None]:
        """Return all keys with a prefix once one has changed since ``index``; see ``change``."""
        return self._next(io, _TreeWait(index, prefix), until=until, deadline=deadline, first=True)

    async def _next(
        self, io: IO, wait: _Wait[T], *, until: Signal | None, deadline: float, first: bool
    ) -> Result[T] | None:
        while until is None or not until.is_set():
            over = wait.over = Signal()
            unsubscribe = None if until is None else until.subscribe(over.set)
            try:
                if not self._begin_query(over, first=first):
                    self.waits[wait] = None
                    self._reader.start()
                    await io.wait(over, deadline=deadline)
                    return wait.seen
                seconds = wait_of(await self.longest(io, until=over, deadline=deadline))
                if over.is_set() and (until is None or not until.is_set()):
                    continue  # to make room, before it began
                seen = await self.ask(io, wait.ask(seconds), until=over, deadline=deadline)
            finally:
                self._queries.pop(over, None)
                self.waits.pop(wait, None)
                if unsubscribe is not None:
                    unsubscribe()
            if seen is not None or io.now() >= deadline:
                return seen
        return None

    def changed_here(self, key: str) -> None:
        """End the waits for a key that share readings: this client has changed it itself. From any thread."""
        for wait in [one for one in list(self.waits) if one.is_for(key)]:
            wait.end(None)

    # -- groups

    @property
    def together(self) -> Together:
        """The watches of groups, which have one query for all."""
        if self._together is None:
            from consul_coord.recipes.watch.together import Together  # many clients have no groups

            with self._mutex:
                if self._together is None:
                    self._together = Together(self._host, self.longest, timeout=self._timeout)
        return self._together

    # -- users' watches

    async def longest(self, io: IO, *, until: Signal | None, deadline: float = math.inf) -> float:
        """Return how many seconds a query that begins now may last: to the next renewal.

        Waits for a renewal that is due, until ``until`` is raised or ``deadline`` comes.
        """
        longest = await self._sessions.give_way(io, until=until, deadline=deadline)
        return min(longest, LONGEST_WHEN_CROWDED, self._sessions.patience) if self._is_crowded else longest

    def query(self, whose: object) -> Signal | None:
        """Count a blocking query that begins; returns what ends it, or None when there are too many.

        Give it back with ``end_query``. A watch that gets None reads once, and asks again after ``POLL``.
        """
        stop, now = Signal(), self._host.now()
        with self._mutex:
            self._polling = {who: at for who, at in self._polling.items() if now < at + POLLED}
            begins = not self._are_many(now) and self._begin_query(stop, first=False)
            if begins:
                self._polling.pop(id(whose), None)
            else:
                self._polling[id(whose)] = now
        return stop if begins else None

    def end_query(self, stop: Signal) -> None:
        """Take note that a query has ended."""
        self._queries.pop(stop, None)

    # -- the bound

    def _begin_query(self, stop: Signal, *, first: bool) -> bool:
        """Count a query that ``stop`` ends; returns False when there are too many."""
        most, few = self._bounds
        with self._mutex:
            shared = len(self.waits) + len(self._held)
            if len(self._queries) >= most or (shared and not first):
                self._make_few()
                return False
            if shared and len(self._queries) >= few:
                return False
            self._queries[stop] = first
        return True

    def _are_many(self, now: float) -> bool:
        """Return whether watches that have no query go on without: else each would end those of others."""
        things = len(self._queries) + len(self.waits) + len(self._held) + len(self._polling)
        return now < self._made_few_at + POLLED or (bool(self._polling) and things > self._few_enough)

    @property
    def _is_crowded(self) -> bool:
        """Whether the agent has refused a connection lately."""
        return self._host.now() < self._crowded_until

    @property
    def _bounds(self) -> tuple[int, int]:
        """How many queries there may be, while nothing shares readings and otherwise."""
        return (1, 1) if self._is_crowded else (MOST, FEW)

    @property
    def _few_enough(self) -> int:
        """With so many things left, each has its own query again."""
        return 1 if self._is_crowded else MOST // 2

    def is_new_trouble(self) -> bool:
        """Take note that the agent has refused a connection; return whether it is the first time lately."""
        now = self._host.now()
        before, self._crowded_until = self._crowded_until, now + CROWDED
        return now >= before

    def _make_few(self) -> None:
        """End the queries that are not to go on when there are many: these things share readings then."""
        self._made_few_at = self._host.now()
        ended = [stop for stop, first in self._queries.copy().items() if not first]
        for stop in ended:
            stop.set()

    def _has_readings(self) -> bool:
        return bool(self.waits or self._held)

    # -- holds

    def watch(self, io: IO, watched: Watched) -> None:
        """Watch a key of a hold until that is over."""
        if watched.is_member:
            self.together.watch(watched)
            return
        stop = Signal()
        if self._begin_query(stop, first=False):
            io.spawn(partial(self._follow, watched, stop), name=f"watch {watched.key}")
            return
        self._held[watched] = io.now()
        self._reader.start()
        if watched.kept.id not in self._watched_sessions and len(self._watched_sessions) < SESSIONS:
            self._watched_sessions.add(watched.kept.id)
            io.spawn(partial(self._follow_session, watched.kept), name=f"watch session {watched.kept.id}")

    async def _follow(self, watched: Watched, stop: Signal, io: IO) -> None:
        unsubscribe = watched.over.subscribe(stop.set)
        follower: Follower[KVPair | None] = Follower(
            partial(kv.watch, watched.key, options=CONSISTENT), index=watched.index, wait=LONGEST_HELD
        )
        follower.longest, follower.ask = partial(self._longest_for_hold, io.now()), self.ask
        apart, apart_until = LONGEST_HELD, io.now() + LONGEST_HELD
        try:
            while not stop.is_set():
                try:
                    seen = await follower.next(io, until=stop)
                    if seen is not None:
                        await watched.seen(io, seen, consistent=True)
                    await self._look_along(io, watched)
                    if watched.directory is None or io.now() < apart_until:
                        continue
                    began = io.now()
                    try:
                        await self._follow_below(io, watched, watched.directory, stop)
                    finally:  # also where it may not be listed
                        quiet = io.now() - began
                        apart = LONGEST_HELD if quiet > LONGEST_APART else min(2 * apart, LONGEST_APART)
                        apart_until = io.now() + apart
                except ConsulCoordError:
                    # Also without permission: a token may get its rights again.
                    await follower.pause(io, until=stop)
        finally:
            unsubscribe()
            self._queries.pop(stop, None)
        if not watched.over.is_set():
            self.watch(io, watched)

    async def _follow_below(self, io: IO, watched: Watched, directory: str, stop: Signal) -> None:
        """Watch a hold with one query for its whole directory, until anything changes there."""
        follower: Follower[tuple[KVPair, ...]] = Follower(
            partial(kv.watch_tree, directory, options=CONSISTENT), wait=LONGEST_HELD
        )
        follower.longest = self.longest
        index: int | None = None
        while (found := await follower.next(io, until=stop)) is not None:
            below = {pair.key: pair for pair in found.value}
            for one in (watched, *watched.along):
                await one.seen(io, Result(below.get(one.key), found.index), consistent=False)
            if index not in {None, found.index} or len(below) > MOST_BELOW:
                return
            index = found.index

    async def _longest_for_hold(self, began: float, io: IO, *, until: Signal | None) -> float:
        longest = await self.longest(io, until=until)
        return min(longest, max(SHORTEST_HELD, io.now() - began))

    async def _longest_for_session(self, kept: KeptSession, io: IO, *, until: Signal | None) -> float:
        youngest = max(
            (since for one, since in self._held.copy().items() if one.kept is kept), default=io.now()
        )
        return await self._longest_for_hold(youngest, io, until=until)

    async def _look_along(self, io: IO, watched: Watched) -> None:
        for other in watched.along:
            if not other.over.is_set():
                call = kv.get(other.key, options=CONSISTENT)
                seen = await send_once(io, call, deadline=io.now() + self._timeout)
                await other.seen(io, seen, consistent=True)

    async def _follow_session(self, kept: KeptSession, io: IO) -> None:
        """Notice the end of a session whose holds share readings."""
        stop = Signal()
        self._queries[stop] = True
        unsubscribe = kept.over.subscribe(stop.set)
        follower: Follower[Session | None] = Follower(
            partial(session_endpoint.watch, kept.id, options=CONSISTENT)
        )
        follower.longest = partial(self._longest_for_session, kept)
        try:
            while any(watched.kept is kept for watched in self._held):
                try:
                    seen = await follower.next(io, until=stop)
                    if seen is None:
                        return
                    if seen.value is None:
                        # Gone, or not to be read with this token: a renewal tells.
                        await self._sessions.confirm(io, kept, deadline=io.now() + self._timeout)
                        return
                except (PermissionDenied, SessionNotFound):
                    return
                except ConsulCoordError:
                    await follower.pause(io, until=stop)
        finally:
            unsubscribe()
            self._queries.pop(stop, None)
            self._watched_sessions.discard(kept.id)

    # -- shared readings

    async def _read(self, io: IO) -> None:
        while self._has_readings():
            shortest = SHORTEST_WHEN_CROWDED if self._is_crowded else SHORTEST
            await io.sleep(max(shortest, (len(self.waits) + len(self._held)) / KEYS_PER_SECOND))
            for wait in [one for one in list(self.waits) if one.over.is_set()]:
                self.waits.pop(wait, None)
            for watched in [one for one in self._held if one.over.is_set()]:
                del self._held[watched]
            if len(self.waits) + len(self._held) + len(self._queries) <= self._few_enough:
                self._part(io)
                return
            await self._read_all(io)

    def _part(self, io: IO) -> None:
        """Give everything its own query again."""
        held, self._held = self._held, {}
        for wait in list(self.waits):
            self.waits.pop(wait, None)  # now, not when its caller wakes: no hold shares readings with it
            wait.end(None)
        for watched in held:
            self.watch(io, watched)

    async def _read_all(self, io: IO) -> None:
        by_key: dict[str, list[_KeyWait | Watched]] = {}
        below: dict[str, list[_TreeWait]] = {}
        for wait in list(self.waits):
            if isinstance(wait, _KeyWait):
                by_key.setdefault(wait.key, []).append(wait)
            elif isinstance(wait, _TreeWait):
                below.setdefault(wait.prefix, []).append(wait)
        for watched in self._held:
            for one in (watched, *watched.along):
                by_key.setdefault(one.key, []).append(one)
        for prefix, waits_below in below.items():
            await self._try(waits_below, self._list(io, prefix, waits_below))
        keys = list(by_key)
        for start in range(0, len(keys), BATCH):
            part = keys[start : start + BATCH]
            ones = [one for key in part for one in by_key[key]]
            waits = [one for one in ones if isinstance(one, _KeyWait)]
            await self._try(waits, self._look(io, part, ones))

    async def _try(self, waits: Sequence[_Wait[Any]], reading: Awaitable[None]) -> None:
        """Take a reading; one that is refused ends the waits for it."""
        try:
            await reading
        except ConsulCoordError as error:
            if not retryable(error):
                for wait in waits:
                    wait.end(None)

    async def _list(self, io: IO, prefix: str, waits: Sequence[_TreeWait]) -> None:
        seen = await send_once(io, kv.list_pairs(prefix), deadline=io.now() + self._timeout)
        for wait in waits:
            wait.read(seen)

    async def _look(self, io: IO, keys: Sequence[str], ones: Sequence[_KeyWait | Watched]) -> None:
        found = await read_together(io, keys, deadline=io.now() + self._timeout)
        for one in ones:
            pair = found.get(one.key)
            if isinstance(one, _KeyWait):
                one.read(pair)
                continue
            # What can't be made sure of now can be at the next reading.
            with suppress(ConsulCoordError):
                await one.seen(io, Result(pair), consistent=False)
