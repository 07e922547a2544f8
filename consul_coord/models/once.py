"""Jobs that run once: slots, their order, and the results of runs.

Rules
- Slots have one order for everybody: numbers in a name compare by value, the rest by its characters. So
  ``batch-9`` is before ``batch-10``, and a time in ISO form before any later one.
- A period's slot is the period's beginning, counted from 1970 in UTC. Every clock that is right gives the
  same name, whatever its time zone.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Generic, TypeAlias, TypeVar

from consul_coord.errors import InvalidArgument
from consul_coord.models import _validate

T = TypeVar("T")
Period: TypeAlias = "float | timedelta"
"""Whole seconds."""

LONGEST_SLOT = 256
"""Characters of a slot's name, at most."""
_DIGITS = re.compile(r"([0-9]+)")
_FORM = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True)
class OnceResult(Generic[T]):
    """The result of a call that runs something once."""

    ran: bool
    """Whether this call ran it, with success."""
    slot: str
    """The slot of the recorded run. When this call did not run, it is the one asked for, or a later one."""
    by: str
    """The value of the client that ran it."""
    at: float
    """When its end was recorded: seconds since 1970, by the clock of whoever ran it."""
    fence: int
    """The fence under which it ran."""
    failed: bool = False
    """Whether the recorded run failed. It is then left alone, as ``retry_failed=False`` asked for."""
    value: T | None = None
    """The value that the function returned, if this call ran it."""


def check_slot(slot: object) -> str:
    """Return the name of a slot. Raises InvalidArgument."""
    name = _validate.text("slot", slot)
    if not 1 <= len(name) <= LONGEST_SLOT:
        message = f"slot must have 1 to {LONGEST_SLOT} characters, not {len(name)}"
        raise InvalidArgument(message)
    return name


def rank(slot: str) -> tuple[list[str | int], str]:
    """Return what slots are ordered by."""
    parts = _DIGITS.split(slot)
    return [int(part) if at % 2 else part for at, part in enumerate(parts)], slot


def check_period(period: Period) -> int:
    """Return a period in whole seconds. Raises InvalidArgument."""
    given = period.total_seconds() if isinstance(period, timedelta) else _validate.number("period", period)
    if given < 1 or given != int(given):
        message = f"period must be a whole number of seconds, 1 or more, not {period!r}"
        raise InvalidArgument(message)
    return int(given)


def period_slot(period: float | timedelta, *, at: float | None = None) -> str:
    """Return the slot of the period that a time lies in, such as ``2026-11-22T10:00:00Z``.

    ``period``: whole seconds, or a timedelta. Periods are counted from 1970 in UTC: an hour begins with the
    clock's hour, a day at midnight UTC. ``at``: seconds since 1970; None for now, by this machine's clock.
    Raises InvalidArgument for what is no period.
    """
    seconds = check_period(period)
    now = time.time() if at is None else at
    return time_slot(now // seconds * seconds)


def time_slot(at: float) -> str:
    """Return a time, cut to its second, as the name of a slot."""
    return datetime.fromtimestamp(int(at // 1), UTC).strftime(_FORM)


def beginning_of(slot: str) -> float | None:
    """Return when a period's slot begins, in seconds since 1970; None when its name is no time."""
    try:
        return datetime.strptime(slot, _FORM).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
