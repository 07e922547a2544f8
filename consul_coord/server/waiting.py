"""Requests that wait: found by the marks they watch, and by their deadlines.

A waiter watches marks. For keys there are two kinds, the key itself and a prefix that it is under; the news
of one key therefore reaches the watchers of every prefix of it. Only prefixes as long as one that is watched
are tried, so that a very long key costs no more than others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from consul_coord.server.endpoints.kv import ABSENT, UNDER
from consul_coord.server.store import KV
from consul_coord.server.timers import TimerQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from consul_coord.server.tables import Mark
    from consul_coord.server.wire import Reply


@dataclass(frozen=True, slots=True)
class Waiter:
    """One waiting request: ``again`` answers it or says how it waits on, ``give_up`` answers at ``until``."""

    again: Callable[[float], Reply | Waiter]
    give_up: Callable[[float], Reply]
    marks: tuple[Mark, ...]
    until: float


class WaitingRoom:
    """All waiting requests, by ticket."""

    def __init__(self, *, spurious: bool) -> None:
        self._spurious = spurious
        self._waiters: dict[int, Waiter] = {}
        self._by_mark: defaultdict[Mark, dict[int, None]] = defaultdict(dict)
        self._lengths: Counter[int] = Counter()
        """How many prefixes of each length are watched."""
        self._deadlines: TimerQueue[int] = TimerQueue()

    def __len__(self) -> int:
        return len(self._waiters)

    def add(self, ticket: int, waiter: Waiter) -> None:
        """Let a request wait for its marks, until its deadline at the latest."""
        self._waiters[ticket] = waiter
        if self._deadlines.deadline(ticket) != waiter.until:
            self._deadlines.set(ticket, waiter.until)
        for mark in waiter.marks:
            if mark not in self._by_mark and mark[0] == UNDER:
                self._lengths[len(mark[1])] += 1
            self._by_mark[mark][ticket] = None

    def drop(self, ticket: int) -> None:
        """Forget a request; harmless when it does not wait."""
        waiter = self._waiters.pop(ticket, None)
        if waiter is not None:
            self._deadlines.drop(ticket)
            self._unwatch(ticket, waiter)

    def earliest(self) -> float | None:
        """Return the earliest deadline."""
        return self._deadlines.earliest()

    def tell(self, news: Iterable[Mark], now: float) -> list[tuple[int, Reply]]:
        """Look again at everybody whom the news concerns; return those now answered, first come first."""
        concerned: dict[int, None] = {}
        for mark in news:
            for watched in self._reached(mark):
                concerned.update(self._by_mark.get(watched, {}))
        answered: list[tuple[int, Reply]] = []
        for ticket in sorted(concerned):
            waiter = self._waiters[ticket]
            outcome = waiter.again(now)
            if isinstance(outcome, Waiter):
                self._unwatch(ticket, waiter)
                self.add(ticket, outcome)
            else:
                self.drop(ticket)
                answered.append((ticket, outcome))
        return answered

    def expire(self, now: float) -> tuple[int, Reply] | None:
        """Answer the request whose deadline is the earliest and has come; None when there is none."""
        due = self._deadlines.pop(now)
        if due is None:
            return None
        when, ticket = due
        return ticket, self._finish(ticket, when)

    def dismiss(self, now: float) -> list[tuple[int, Reply]]:
        """Answer everybody with what there is."""
        return [(ticket, self._finish(ticket, now)) for ticket in list(self._waiters)]

    def _finish(self, ticket: int, now: float) -> Reply:
        waiter = self._waiters[ticket]
        self.drop(ticket)
        return waiter.give_up(now)

    def _reached(self, mark: Mark) -> Iterable[Mark]:
        yield mark
        if mark[0] == KV:
            key = mark[1]
            for length in self._lengths:
                if length <= len(key):
                    yield (UNDER, key[:length])
            if self._spurious:
                yield (ABSENT,)

    def _unwatch(self, ticket: int, waiter: Waiter) -> None:
        for mark in waiter.marks:
            watchers = self._by_mark[mark]
            watchers.pop(ticket, None)
            if not watchers:
                del self._by_mark[mark]
                if mark[0] == UNDER:
                    self._forget_length(len(mark[1]))

    def _forget_length(self, length: int) -> None:
        self._lengths[length] -= 1
        if not self._lengths[length]:
            del self._lengths[length]
