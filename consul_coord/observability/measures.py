"""The measures, and what each event adds to them: pure, and the same for each collector.

Rules
- ``MEASURES`` is the whole list. A *counter* only grows, a *level* goes up and down, a *histogram* gathers
  durations in seconds.
- Keys, sessions and fences are no labels, because there may be any number of them. You can have keys
  ``grouped``.
- An end may be reported before its beginning, where a thread is paused between having a lock and saying so.
  Such a hold is never counted as one at present. The latest ``MOST_ENDS`` ends are remembered for that.
- The duration of a hold is the time between its events, on the collector's clock. It is wrong by the delay of
  the events, some milliseconds as a rule.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from consul_coord import events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Grouping: TypeAlias = "Callable[[str], str]"
"""Gives the group that a key is counted in."""

GROUP = "group"
"""The label of the group."""

MOST_ENDS = 1000
"""So many ends without a beginning are remembered."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One thing that is measured."""

    name: str
    kind: Literal["counter", "level", "histogram"]
    text: str
    labels: tuple[str, ...] = ()
    of_key: bool = True
    """Whether it is about a key, so that it can be grouped."""


EVENTS = Measure("events", "counter", "Events of each kind.", ("event",), of_key=False)
WAIT = Measure("acquire.wait", "histogram", "Time from asking to having.")
WAITING = Measure(
    "acquire.waiting", "counter", "Waits begun or changed, by what stood in the way.", ("blocker",)
)
TIMEOUTS = Measure(
    "acquire.timeouts", "counter", "Acquires and tries given up, by what stood in the way.", ("blocker",)
)
HOLDS = Measure("holds", "level", "Holds at present.")
HELD = Measure("hold.duration", "histogram", "How long each ended hold lasted.", ("end",))
LOST = Measure("lost", "counter", "Holds that ended without being released, by reason.", ("reason",))
RELEASED = Measure("released", "counter", "Releases, by outcome.", ("outcome",))
LEADING = Measure("leading", "level", "Leaderships at present.")
RENEWALS = Measure("renewals", "counter", "Leases extended.", of_key=False)
RENEWAL_FAILURES = Measure("renewal.failures", "counter", "Renewals that failed.", of_key=False)
RETRIES = Measure("retries", "counter", "Requests sent again.", ("method",), of_key=False)

MEASURES = (
    *(EVENTS, WAIT, WAITING, TIMEOUTS, HOLDS, HELD, LOST, RELEASED, LEADING),
    *(RENEWALS, RENEWAL_FAILURES, RETRIES),
)

_Labels: TypeAlias = "Mapping[str, str]"
_Hold: TypeAlias = tuple[str, str, int]
"""Key, session and fence: what tells holds apart."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The amount that an event adds to a measure."""

    measure: Measure
    amount: float
    labels: _Labels
    key: str | None = None


class Book:
    """Keeps the holds that have not ended, and says what each event adds.

    Several threads may use it at once.
    """

    def __init__(self) -> None:
        self._held: dict[_Hold, float] = {}
        self._leading: set[_Hold] = set()
        self._ends: dict[_Hold, None] = {}
        """Those whose beginning may be yet to come."""

    def read(self, event: events.Event, now: float) -> Iterator[Reading]:
        """Yield what an event adds; ``now`` in seconds, on any clock that never goes back."""
        yield Reading(EVENTS, 1, {"event": type(event).__name__.lower()})
        match event:
            case events.Waiting(key, blocker):
                yield Reading(WAITING, 1, {"blocker": blocker.kind}, key)
            case events.Acquired(key, session, fence, waited):
                yield Reading(WAIT, waited, {}, key)
                if self._begins((key, session, fence), now):
                    yield Reading(HOLDS, 1, {}, key)
            case events.TimedOut(key, blocker):
                yield Reading(TIMEOUTS, 1, {"blocker": blocker.kind}, key)
            case events.Elected(key, session, term) if (key, session, term) not in self._ends:
                self._leading.add((key, session, term))
                yield Reading(LEADING, 1, {}, key)
            case events.Renewed():
                yield Reading(RENEWALS, 1, {})
            case events.Jeopardy():
                yield Reading(RENEWAL_FAILURES, 1, {})
            case events.Retried(method):
                yield Reading(RETRIES, 1, {"method": method})
            case _:
                yield from self._read_end(event, now)

    def _read_end(self, event: events.Event, now: float) -> Iterator[Reading]:
        match event:
            case events.Lost(key, session, fence, reason):
                yield Reading(LOST, 1, {"reason": reason.value}, key)
                yield from self._ended((key, session, fence), now, "lost")
            case events.Released(key, session, fence, outcome):
                yield Reading(RELEASED, 1, {"outcome": outcome.value}, key)
                yield from self._ended((key, session, fence), now, "released")
            case events.HandedOver(key, session, fence):
                yield from self._ended((key, session, fence), now, "handed over")
            case _:
                pass

    def holds(self, key: str, session: str, fence: int) -> bool:
        """Return whether a hold has begun and not ended."""
        return (key, session, fence) in self._held

    def _begins(self, hold: _Hold, now: float) -> bool:
        """Enter a hold; returns whether it is to be counted: not if its end came first."""
        self._held[hold] = now
        # Whoever tells the end meanwhile remembers it first: one of the two takes the hold out.
        return hold not in self._ends or self._held.pop(hold, None) is None

    def _ended(self, hold: _Hold, now: float, end: str) -> Iterator[Reading]:
        self._ends[hold] = None
        while len(self._ends) > MOST_ENDS:
            with suppress(RuntimeError):  # another thread has written between these two calls
                self._ends.pop(next(iter(self._ends)), None)
        since = self._held.pop(hold, None)
        if since is not None:  # else it was told before, or is yet to begin
            self._ends.pop(hold, None)
            yield Reading(HOLDS, -1, {}, hold[0])
            yield Reading(HELD, now - since, {"end": end}, hold[0])
        if hold in self._leading:
            self._leading.remove(hold)
            yield Reading(LEADING, -1, {}, hold[0])


def labels_of(measure: Measure, group: Grouping | None) -> tuple[str, ...]:
    """Return the names of a measure's labels."""
    return (*measure.labels, GROUP) if group is not None and measure.of_key else measure.labels


def labels_for(reading: Reading, group: Grouping | None) -> dict[str, str]:
    """Return the labels of a reading with their values."""
    if group is None or reading.key is None:
        return dict(reading.labels)
    return {**reading.labels, GROUP: group(reading.key)}
