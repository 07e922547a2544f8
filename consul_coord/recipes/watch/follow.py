"""Following something on the server by blocking queries: the one engine behind every watch.

Rules
- The index rules are those of ``http.blocking``; this adds time: a pace, so that a server which answers at
  once is not asked in a tight loop, and a growing, jittered pause after failures.
- After a failure the present state is asked for, without waiting: what changed meanwhile is seen then.
- One query lasts ``WAIT`` seconds at most, below the idle limits of usual load balancers, and no longer than
  to the next renewal, with which it shares a connection; its end is routine.

Source: https://developer.hashicorp.com/consul/api-docs/features/blocking
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from consul_coord.errors import ConsulCoordError
from consul_coord.events import Retried
from consul_coord.http.backoff import LONGEST_PAUSE, delay
from consul_coord.http.blocking import JITTER, IndexTracker, Pace
from consul_coord.http.failures import retryable
from consul_coord.http.retry import wait_once
from consul_coord.io import Signal
from consul_coord.models import _validate

if TYPE_CHECKING:
    from consul_coord.http.messages import Call
    from consul_coord.io import IO
    from consul_coord.models import Result
    from consul_coord.recipes.watch.places import Sharing

T = TypeVar("T")

WAIT = 30.0
SHORTEST_WAIT = 0.02
"""Seconds. A wait of 0 would be the agent's default."""
WAY_BACK = 0.02
"""Seconds for a query's answer to come back."""
POLL = 1.0
"""Seconds between two readings where there are too many blocking queries for one more."""


def wait_of(longest: float, *, most: float = WAIT) -> float:
    """Return the ``wait`` of a query that is answered within ``longest`` seconds."""
    return max(SHORTEST_WAIT, min(most, (longest - WAY_BACK) / (1 + JITTER)))


class Query(Protocol[T]):
    """A blocking query, except its index and its time."""

    def __call__(self, *, index: int, wait: float) -> Call[Result[T]]:
        """Return the call that waits for something newer than ``index``; that answers at once for 0."""
        ...


class Longest(Protocol):
    """Says how many seconds a query that begins now may last."""

    async def __call__(self, io: IO, /, *, until: Signal | None) -> float:
        """Return it; ``until`` ends waiting for the answer."""
        ...


class Ask(Protocol):
    """Sends blocking queries."""

    async def __call__(self, io: IO, call: Call[T], /, *, until: Signal | None) -> T | None:
        """Return a query's answer; None when ``until`` was raised before, or for nothing.

        Raises what comes of it.
        """
        ...


class Bound(Protocol):
    """The bound on a client's blocking queries."""

    @property
    def ask(self) -> Ask:
        """Sends a query, or waits for the answer to one for the same thing."""
        ...

    @property
    def together(self) -> Sharing:
        """The watches of groups, which have one query for all."""
        ...

    async def longest(self, io: IO, /, *, until: Signal | None) -> float:
        """Return how many seconds a query that begins now may last; ``until`` ends waiting for the answer."""
        ...

    def query(self, whose: object, /) -> Signal | None:
        """Count a query that begins for a watch; returns what ends it, or None when there are too many."""
        ...

    def end_query(self, stop: Signal, /) -> None:
        """Take note that a query has ended."""
        ...


class Follower(Generic[T]):
    """Reads one thing again and again, each time when it may have changed."""

    bound: Bound | None = None
    """The counter of its queries; None for one that is counted elsewhere."""
    longest: Longest | None = None
    """How long a query may last, where its bound does not say it."""
    ask: Ask | None = None
    """Sends its queries, where its bound does not."""

    def __init__(
        self,
        query: Query[T],
        *,
        index: int = 0,
        wait: float = WAIT,
        min_interval: float = 0.0,
    ) -> None:
        query(index=index, wait=wait)  # refuses what can't be asked for now, not at the first look
        self._query = query
        self._wait = wait
        interval = _validate.span("min_interval", min_interval)
        self._pace = Pace(interval=interval, burst=1) if interval else Pace()
        self._tracker: IndexTracker[T] = IndexTracker(index)
        self._failures = 0

    async def next(self, io: IO, *, until: Signal | None = None) -> Result[T] | None:
        """Return the next answer, changed or not.

        None when ``until`` was raised. Raises what goes wrong; then ``pause``.
        """
        answer = await self._ask(io, until)
        if answer is not None:
            self._tracker, _ = self._tracker.advance(answer)
        return answer

    async def change(self, io: IO, *, until: Signal | None = None) -> Result[T] | None:
        """Return the present state at the first call, then each change once; None when ``until`` was raised.

        Failures to serve are retried. Raises the server's refusals.
        """
        while True:
            try:
                answer = await self._ask(io, until)
            except ConsulCoordError as error:
                if not retryable(error):
                    raise
                path = self._query(index=0, wait=self._wait).request.path
                io.emit(Retried("GET", path, f"{type(error).__name__}: {error}"))
                await self.pause(io, until=until)
                continue
            if answer is None:
                return None
            self._tracker, news = self._tracker.advance(answer)
            if news:
                return answer

    async def pause(self, io: IO, *, until: Signal | None = None) -> None:
        """Wait after a failure, longer each time, and start from the present state."""
        self._failures += 1
        self._tracker = self._tracker.restart()
        seconds = delay(self._failures, io.random(), most=LONGEST_PAUSE)
        if until is None:
            await io.sleep(seconds)
        else:
            await io.wait(until, deadline=io.now() + seconds)

    async def _ask(self, io: IO, until: Signal | None) -> Result[T] | None:
        self._pace, pause = self._pace.take(io.now(), io.random())
        if pause:
            await io.sleep(pause)
        if until is not None and until.is_set():
            return None
        answer = await self._read(io, until)
        if answer is not None:
            self._failures = 0
        return answer

    async def _read(self, io: IO, until: Signal | None) -> Result[T] | None:
        index, bound = self._tracker.index, self.bound
        if not index:
            return await self._look(io, until)
        if bound is None:
            return await self._query_until(io, index, until, self.longest, self.ask or wait_once)
        stop = bound.query(self)
        if stop is None:
            await io.wait(Signal() if until is None else until, deadline=io.now() + POLL)
            return await self._look(io, until)
        unsubscribe = None if until is None else until.subscribe(stop.set)
        try:
            answer = await self._query_until(io, index, stop, bound.longest, bound.ask)
        finally:
            if unsubscribe is not None:
                unsubscribe()
            bound.end_query(stop)
        if answer is None and (until is None or not until.is_set()):
            # Told to make room, or another's query gave no answer: the present state will do.
            answer = await self._look(io, until)
        return answer

    async def _look(self, io: IO, until: Signal | None) -> Result[T] | None:
        return await wait_once(io, self._query(index=0, wait=self._wait), until=until)

    async def _query_until(
        self, io: IO, index: int, until: Signal | None, longest: Longest | None, ask: Ask
    ) -> Result[T] | None:
        wait = self._wait
        if longest is not None:
            wait = wait_of(await longest(io, until=until), most=wait)
            if until is not None and until.is_set():
                return None
        return await ask(io, self._query(index=index, wait=wait), until=until)
