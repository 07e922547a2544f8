"""Jobs that run once: slots, their order, and the results of runs.

Rules
- Slots have one order for everybody: numbers in a name compare by value, the rest by its characters. So
  ``batch-9`` is before ``batch-10``, and a time in ISO form before any later one.
- The slots of periods are named in ``consul_coord.periods``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Generic, TypeVar

from consul_coord.errors import InvalidArgument
from consul_coord.models import _validate
from consul_coord.value import Value

T = TypeVar("T")

LONGEST_SLOT = 256
"""Characters of a slot's name, at most."""
_DIGITS = re.compile(r"([0-9]+)")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class OnceResult(Value, Generic[T]):
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
