"""Name the slots of jobs that run once a period.

Rules
- A period's slot is the period's beginning, counted from 1970 in UTC. Every clock that is right gives the
  same name, whatever its time zone.
- It is no model, because it may read the clock.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from consul_coord.errors import InvalidArgument
from consul_coord.models import _validate

Period: TypeAlias = "float | timedelta"
"""Whole seconds."""
_FORM = "%Y-%m-%dT%H:%M:%SZ"


def check_period(period: Period) -> int:
    """Return a period in whole seconds. Raises InvalidArgument."""
    if isinstance(period, timedelta):
        given = period.total_seconds()
    else:
        given = _validate.span("period", period, positive=True, endless=False)
    if given < 1 or given != int(given):
        message = f"period must be a whole number of seconds, 1 or more, not {period!r}"
        raise InvalidArgument(message)
    return int(given)


def period_slot(period: float | timedelta, *, at: float | None = None) -> str:
    """Return the slot of the period that a time lies in, such as ``2026-11-22T10:00:00Z``.

    ``period``: whole seconds, or a timedelta. Periods are counted from 1970 in UTC: an hour begins with the
    clock's hour, a day at midnight UTC. ``at``: seconds since 1970; None for now, by this machine's clock.
    Raises InvalidArgument for what is no period or no time.
    """
    seconds = check_period(period)
    now = time.time() if at is None else _validate.number("at", at)
    try:
        return time_slot(now // seconds * seconds)
    except (ValueError, OverflowError, OSError):
        message = f"at must be seconds since 1970, in the years 1 to 9999, not {at!r}"
        raise InvalidArgument(message) from None


def time_slot(at: float) -> str:
    """Return a time, cut to its second, as the name of a slot."""
    return datetime.fromtimestamp(int(at // 1), UTC).strftime(_FORM)


def beginning_of(slot: str) -> float | None:
    """Return when a period's slot begins, in seconds since 1970; None when its name is no time."""
    try:
        return datetime.strptime(slot, _FORM).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
