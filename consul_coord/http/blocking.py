"""The rules of blocking queries, as values: which index to ask with, what is news, and how fast to ask again.

Rules
- The data decides what is a change; the index only says where to wait. An answer may come early, late or
  twice, and an index may grow without any change.
- An index of 0 counts as 1: asking with 0 would not wait. An index that went backwards (a restored snapshot,
  another server, collected tombstones) is not waited on: the next request starts from 0 and gets the present
  state at once.
- A server adds up to a sixteenth of the wait, so that not all wake at once: the read's own timeout has to
  allow for it.
- Asking again costs a turn. Turns come back at a steady pace up to a small stock, so that single wake-ups are
  answered at once and a server that answers everything at once is not asked in a tight loop.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from consul_coord.value import Value

if TYPE_CHECKING:
    from consul_coord.models import Result

T = TypeVar("T")

JITTER = 1 / 16
"""The agent adds up to this part of a wait."""
READ_SLACK = 5.0
"""Seconds for the way there and back, on top of what the server may wait."""


def next_index(asked: int, answered: int) -> int:
    """Return the index to ask with next, after an answer; 0 starts again, without waiting."""
    answered = max(answered, 1)
    return answered if answered >= asked else 0


def read_timeout(wait: float, *, slack: float = READ_SLACK) -> float:
    """Return the seconds to wait for a blocking query's reply, jitter of the server included."""
    return wait * (1 + JITTER) + slack


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class IndexTracker(Value, Generic[T]):
    """The knowledge of a watch: nothing at first, then the last answer's value and the index to wait from."""

    index: int = 0
    """To ask with next."""
    last: tuple[T] | None = None
    """The value of the last answer, or None before the first."""

    def advance(self, answer: Result[T]) -> tuple[IndexTracker[T], bool]:
        """Return what is known after an answer, and whether it is news: the first one, or another value."""
        after = IndexTracker(next_index(self.index, answer.index), (answer.value,))
        return after, self.last != after.last

    def restart(self) -> IndexTracker[T]:
        """Ask for the present state next, without waiting; a value already seen stays no news."""
        return replace(self, index=0)


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Pace(Value):
    """How fast requests may follow each other: a stock of turns that fills up steadily. Times in seconds."""

    interval: float = 0.1
    """One turn comes back after this."""
    burst: int = 10
    """The most turns in stock; 1 keeps every two requests ``interval`` apart."""
    jitter: float = 0.25
    """The largest part added at random to a wait, so that clients do not fall into step."""
    full_at: float = float("-inf")
    """When the stock is full again, on the caller's clock."""

    def take(self, now: float, random: float) -> tuple[Pace, float]:
        """Take a turn; return the pace after it, and how long to wait before using it.

        ``random`` is a number from 0 to 1.
        """
        full_at = max(self.full_at, now) + self.interval
        wait = max(0.0, full_at - now - self.interval * self.burst)
        return replace(self, full_at=full_at), wait * (1 + self.jitter * random)
