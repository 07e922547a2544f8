"""The record of a job's last run, as it stands in Consul, and what it means for a caller: pure rules.

The record of the job ``K`` is the value of ``K/.once``. It names the slot, whether the run succeeded, who ran
it, when, and under which fence of the lock ``K``.

Rules
- Slots only rise. A slot that is not above the recorded one has had its turn: it ran, or was passed over. So
  one record per job is enough, and a clock that is behind never runs an old slot again.
- A recorded success is final. A recorded failure is retried within its own slot, or left, as its caller asks.
- A run without a record did not happen: its process crashed, or lost the lock. The next holder runs.
- A period that is not aligned begins with the last recorded run: nothing runs before it is over.
- A record that can't be read stops the job with an error. To take it for none would run a slot twice. So does
  a named slot that is above all times: a caller with a period would never run, and not know it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from consul_coord.errors import DecodeError, InvalidArgument, KeyConflict
from consul_coord.models.once import LONGEST_SLOT, OnceResult, check_slot, rank
from consul_coord.periods import beginning_of, check_period, period_slot, time_slot
from consul_coord.value import Value

if TYPE_CHECKING:
    from consul_coord.models import KVPair
    from consul_coord.periods import Period

T = TypeVar("T")

ONCE_FLAGS = 0x6F6E63652D6A6F62
"""The flags of a record, so that nothing else is taken for one."""
_YEAR_10000 = 253_402_300_800
"""Seconds from 1970 to the first time that Python can't write as a date."""
LATEST = _YEAR_10000 - 0.001
"""The latest time in a record, which is the longest, too."""
_DONE, _FAILED = "done", "failed"


def key_of(job: str) -> str:
    """Return the key of a job's record."""
    return f"{job}/.once"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Record(Value):
    """How the last recorded run of a job ended."""

    slot: str
    failed: bool
    by: str
    at: float
    fence: int

    def encode(self) -> bytes:
        """Return it as it is kept in Consul."""
        outcome = _FAILED if self.failed else _DONE
        fields = {
            "slot": self.slot,
            "outcome": outcome,
            "by": self.by,
            "at": self.at,
            "fence": self.fence,
        }
        return json.dumps(fields, ensure_ascii=False).encode()

    def result(self, *, ran: bool = False, value: T | None = None) -> OnceResult[T]:
        """Return the result for a caller."""
        return OnceResult(ran, self.slot, self.by, self.at, self.fence, failed=self.failed, value=value)


def read(pair: KVPair | None) -> Record | None:
    """Return the record in a key; None without one. Raises KeyConflict and DecodeError."""
    if pair is None:
        return None
    if pair.flags != ONCE_FLAGS:
        message = (
            f"{pair.key!r} is no record of a job: its flags are {pair.flags:#x}, not {ONCE_FLAGS:#x}. "
            "Give the job another key"
        )
        raise KeyConflict(message, key=pair.key, flags=pair.flags)
    record = _decode(pair.value)
    if record is None:
        message = (
            f"the record in {pair.key!r} can't be read, and the job does not run: it may have run in this "
            "slot. Delete the key to let it run"
        )
        raise DecodeError(message, path=pair.key, body=pair.value.decode(errors="replace"))
    return record


def _decode(value: bytes) -> Record | None:
    try:
        found: Any = json.loads(value)
        slot, outcome, by, at, fence = (found[name] for name in ("slot", "outcome", "by", "at", "fence"))
        f"{slot}{by}".encode()  # JSON may have text that can't be written again
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    right = (
        isinstance(slot, str)
        and 1 <= len(slot) <= LONGEST_SLOT
        and isinstance(outcome, str)
        and outcome in {_DONE, _FAILED}
        and isinstance(by, str)
        and type(at) in {int, float}
        and 0 <= at < _YEAR_10000
        and type(fence) is int
    )
    return Record(slot, outcome == _FAILED, by, float(at), fence) if right else None


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Ask(Value):
    """The wish of a caller to run something now."""

    job: str
    slot: str | None
    """The slot; None for a period that begins with the last run."""
    now: float
    """The caller's wall clock, in seconds since 1970."""
    period: int | None = None
    """Seconds; None where the caller has named the slot."""
    retry_failed: bool = True


def asked(
    job: str, *, slot: str | None, period: Period | None, align: bool, now: float, retry_failed: bool
) -> Ask:
    """Return what a caller wants to run at the wall clock's ``now``. Raises InvalidArgument."""
    if (slot is None) == (period is None):
        message = "give either a slot or a period: slot='2026-11-22', or period=3600"
        raise InvalidArgument(message)
    if period is None:
        return Ask(job=job, slot=check_slot(slot), now=now, retry_failed=retry_failed)
    present = period_slot(period, at=now) if align else None
    return Ask(job=job, slot=present, now=now, period=check_period(period), retry_failed=retry_failed)


def judge(ask: Ask, record: Record | None) -> str | Record:
    """Return the slot that the caller is to run now, or the record that says that it is not to.

    Raises KeyConflict for a caller with a period where the record names a slot that no time will be above.
    """
    slot = ask.slot or time_slot(ask.now)
    if record is None:
        return slot
    if ask.period is not None and rank(record.slot) > rank(time_slot(LATEST)):
        key = key_of(ask.job)
        message = (
            f"the job {ask.job!r} has run for the slot {record.slot!r}, which is above those of all periods: "
            f"no period would ever run. Name slots everywhere, or delete the key {key!r}"
        )
        raise KeyConflict(message, key=key, flags=ONCE_FLAGS)
    again = record.failed and ask.retry_failed
    if ask.slot is None and again:
        return max(slot, record.slot, key=rank)
    is_due = ask.slot is not None or ask.now >= record.at + (ask.period or 0)
    if (is_due and rank(slot) > rank(record.slot)) or (again and slot == record.slot):
        return slot
    return record


def seconds_ahead(ask: Ask, record: Record, *, waited: float) -> float:
    """Return by how much the recorded period begins in the caller's future; 0 when that is as it may be.

    More than a period says that a clock is wrong: the caller's, or that of whoever ran. ``waited``: seconds
    that have passed since the caller looked at its clock.
    """
    begins, now = beginning_of(record.slot), ask.now + waited
    if ask.period is None or begins is None or begins <= now + ask.period:
        return 0.0
    return begins - now
