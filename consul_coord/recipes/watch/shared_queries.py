"""One blocking query for all callers of a client that wait for the same thing.

Rules
- A query occupies a connection. So a caller that waits for the same thing from the same index gets the answer
  to the query that is under way, if that is due in time.
- A consistent query serves a caller that needs no consistent answer, and not the other way round.
- If a query ends without an answer, for whatever reason, the others get none. They ask again, after finding
  out how long a query may last from then on, because a renewal may be due. They also get none from a query
  that is overdue: an interrupt may strike its caller at any line, and then nobody says that it is over.
- No query serves its own thread: a signal handler has interrupted it there, and would wait for itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from consul_coord.http.blocking import JITTER
from consul_coord.http.messages import Call, Request, Response
from consul_coord.http.retry import wait_once
from consul_coord.io import Signal

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from consul_coord.io import IO

T = TypeVar("T")

ABOUT_THEN = 0.1
"""Seconds by which an answer may be due later than the caller's own would be."""
LATE = 2.0
"""Seconds after an answer is due for which the others wait for it."""


class _Query:
    """A blocking query, under way or about to be sent."""

    __slots__ = ("consistent", "due", "name", "over", "owner", "response")

    def __init__(self, request: Request, owner: object, now: float) -> None:
        modes = {"wait", "consistent"}
        self.name = (request.path, *(param for param in request.params if param[0] not in modes))
        """The thing that it waits for, and from which index."""
        self.consistent = any(name == "consistent" for name, _ in request.params)
        self.due = now + request.hold_open * (1 + JITTER)
        """When the agent answers at the latest."""
        self.owner = owner
        self.over = Signal()
        self.response: Response | None = None

    @property
    def late(self) -> float:
        """When it is overdue, or its caller was interrupted and can't say that it is over."""
        return self.due + LATE

    def serves(self, other: _Query, now: float) -> bool:
        """Return whether its answer does for another one."""
        is_in_time = now < self.late and self.due <= other.due + ABOUT_THEN
        return is_in_time and self.consistent >= other.consistent and self.owner != other.owner


class SharedQueries:
    """The blocking queries of one client that are under way."""

    def __init__(self, mutex: AbstractContextManager[object]) -> None:
        self._mutex = mutex
        self._running: dict[tuple[Any, ...], _Query] = {}

    async def ask(
        self, io: IO, call: Call[T], *, until: Signal | None = None, deadline: float | None = None
    ) -> T | None:
        """Return the answer to a blocking query; None when ``until`` was raised or ``deadline`` came first.

        None, too, when another's query gave no answer. Raises what a query of its own raises.
        """
        query = _Query(call.request, io.owner(), io.now())

        def decode(response: Response) -> T:
            answer = call.decode(response)
            query.response = response
            return answer

        try:
            running = self._begin(query, io.now())
            if running is query:
                return await wait_once(io, Call(call.request, decode), until=until, deadline=deadline)
            response = await _answer(io, running, until, deadline)
            return None if response is None else call.decode(response)
        finally:
            self._end(query)

    def _begin(self, query: _Query, now: float) -> _Query:
        """Return the query that serves this one: one under way, or itself."""
        with self._mutex:
            running = self._running.get(query.name)
            if running is None or not running.serves(query, now):
                running = self._running[query.name] = query
        return running

    def _end(self, query: _Query) -> None:
        with self._mutex:
            if self._running.get(query.name) is query:
                del self._running[query.name]
        query.over.set()


async def _answer(io: IO, query: _Query, until: Signal | None, deadline: float | None) -> Response | None:
    """Wait for the answer to another caller's query; None if that gives no answer in time."""
    done = Signal()
    unsubscribe = [signal.subscribe(done.set) for signal in (query.over, until) if signal is not None]
    try:
        await io.wait(done, deadline=query.late if deadline is None else min(deadline, query.late))
    finally:
        for each in unsubscribe:
            each()
    return query.response if query.over.is_set() else None
