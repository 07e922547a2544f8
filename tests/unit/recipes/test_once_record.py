"""What a job's record means for a caller: pure rules, without a server."""

from __future__ import annotations

import json
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from consul_coord.errors import DecodeError, InvalidArgument, KeyConflict
from consul_coord.models import KVPair
from consul_coord.models.once import LONGEST_SLOT, check_slot, rank
from consul_coord.periods import beginning_of, period_slot, time_slot
from consul_coord.recipes.once.record import ONCE_FLAGS, Ask, Record, judge, read, seconds_ahead

NOON = 1_800_014_400.0  # 2027-01-15, 12:00 in UTC
HOUR = 3600


def record(slot: str = "5", *, failed: bool = False, at: float = NOON) -> Record:
    return Record(slot, failed, "host:1", at, 17)


def ask(slot: str | None = "5", *, now: float = NOON, period: int | None = None, retry: bool = True) -> Ask:
    return Ask(job="job", slot=slot, now=now, period=period, retry_failed=retry)


# -- slots


@pytest.mark.parametrize("part", [0.0, 0.4, 0.5, 0.6, 0.999])
def test_a_slot_of_a_time_is_named_by_the_second_that_has_begun(part: float) -> None:
    assert time_slot(NOON + 7 + part) == "2027-01-15T12:00:07Z"
    assert beginning_of(time_slot(NOON + 7 + part)) == NOON + 7


def test_slots_have_one_order() -> None:
    rising = ["", "1", "2", "10", "-", "batch", "batch-9", "batch-10", "batch-10-a", "v1.9", "v1.10", "w"]
    days = ["2026-09-30", "2026-10-01", "2026-10-01T00:00:00Z", "2026-10-01T01:00:00Z", "2027-01-01"]
    for slots in (rising, days):
        for before, after in pairwise(slots):
            assert rank(before) < rank(after), (before, after)
    assert rank("01") != rank("1")


@pytest.mark.parametrize(
    ("period", "slot"),
    [
        (HOUR, "2027-01-15T12:00:00Z"),
        (60, "2027-01-15T12:34:00Z"),
        (1, "2027-01-15T12:34:56Z"),
        (timedelta(days=1), "2027-01-15T00:00:00Z"),
        (90.0, "2027-01-15T12:34:30Z"),
    ],
)
def test_a_periods_slot_is_its_beginning_in_utc(period: float | timedelta, slot: str) -> None:
    assert period_slot(period, at=NOON + 34 * 60 + 56.9) == slot


def test_the_slots_of_shorter_periods_stay_in_order() -> None:
    assert (
        rank(period_slot(HOUR, at=NOON))
        <= rank(period_slot(60, at=NOON))
        < rank(period_slot(60, at=NOON + 60))
    )


def test_a_slots_beginning_is_known_where_its_name_is_a_time() -> None:
    assert beginning_of(period_slot(HOUR, at=NOON)) == NOON
    assert beginning_of("batch-7") is None


@pytest.mark.parametrize("period", [0, -1, 0.5, 1.5, float("nan"), float("inf"), "1h", True, timedelta(0)])
def test_what_is_no_period_is_refused(period: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"period must be .* seconds"):
        period_slot(period)


@pytest.mark.parametrize("slot", ["", "x" * (LONGEST_SLOT + 1), 7, "\udc80"])
def test_what_is_no_slot_is_refused(slot: Any) -> None:
    with pytest.raises(InvalidArgument, match="slot"):
        check_slot(slot)


# -- the judgement


@pytest.mark.parametrize(
    ("asked", "found", "runs"),
    [
        (ask("5"), None, True),
        (ask("5"), record("4"), True),
        (ask("10"), record("9"), True),
        (ask("5"), record("5"), False),
        (ask("4"), record("5"), False),
        (ask("9"), record("10"), False),
        (ask("5"), record("5", failed=True), True),
        (ask("5", retry=False), record("5", failed=True), False),
        (ask("6", retry=False), record("5", failed=True), True),
        # Its turn has passed: what failed in an earlier slot is not made up for by an old caller.
        (ask("4"), record("5", failed=True), False),
    ],
)
def test_a_slot_runs_when_it_is_above_the_recorded_one_or_that_failed(
    asked: Ask, found: Record | None, *, runs: bool
) -> None:
    assert judge(asked, found) == (asked.slot if runs else found)


@pytest.mark.parametrize("behind", [0, 1, 59 * 60, HOUR, 7 * HOUR])
def test_a_clock_that_is_behind_never_runs_an_old_period_again(behind: float) -> None:
    ran = record(period_slot(HOUR, at=NOON))
    late = ask(period_slot(HOUR, at=NOON - behind), now=NOON - behind, period=HOUR)
    assert judge(late, ran) is ran


def test_a_clock_that_is_ahead_runs_each_period_early_and_nobody_runs_it_again() -> None:
    last: Record | None = None
    runs: list[str] = []
    for minute in range(10 * 60):
        for skew in (300, 0, -300):
            now = NOON + minute * 60 + skew
            verdict = judge(ask(period_slot(HOUR, at=now), now=now, period=HOUR), last)
            if isinstance(verdict, str):
                runs.append(verdict)
                last = record(verdict, at=now)
    assert len(runs) == len(set(runs))
    assert runs == sorted(runs)


@pytest.mark.parametrize(
    ("now", "failed", "retry", "runs"),
    [
        (NOON, False, True, False),
        (NOON + HOUR - 1, False, True, False),
        (NOON + HOUR, False, True, True),
        (NOON - 300, False, True, False),
        (NOON + 1, True, True, True),
        (NOON + 1, True, False, False),
        (NOON + HOUR, True, False, True),
    ],
)
def test_a_period_that_is_not_aligned_begins_with_the_last_run(
    now: float, *, failed: bool, retry: bool, runs: bool
) -> None:
    last = record(period_slot(1, at=NOON - 5), failed=failed, at=NOON)
    verdict = judge(ask(None, now=now, period=HOUR, retry=retry), last)
    assert (verdict == period_slot(1, at=now)) if runs else (verdict is last)


def test_the_slot_of_a_period_that_is_not_aligned_never_falls_back() -> None:
    last = record(period_slot(1, at=NOON), failed=True)
    assert judge(ask(None, now=NOON - 300, period=HOUR), last) == last.slot


def test_a_slot_of_the_future_runs_once_though_its_end_was_recorded_by_a_clock_set_back_meanwhile() -> None:
    last = record(period_slot(1, at=NOON + HOUR), at=NOON)
    assert judge(ask(None, now=NOON + 60, period=60), last) is last
    assert judge(ask(None, now=NOON + HOUR + 1, period=60), last) == period_slot(1, at=NOON + HOUR + 1)


@pytest.mark.parametrize("named", ["v10", "nightly-2027-01-15", "20270115"])
@pytest.mark.parametrize("slot", [None, period_slot(HOUR, at=NOON)], ids=["since the last run", "aligned"])
@pytest.mark.parametrize("failed", [False, True])
def test_a_period_that_would_never_run_after_a_named_slot_is_refused(
    slot: str | None, named: str, *, failed: bool
) -> None:
    with pytest.raises(KeyConflict, match=rf"'job'.*'{named}'.*delete the key 'job/.once'"):
        judge(ask(slot, period=HOUR), record(named, failed=failed))


@pytest.mark.parametrize("named", ["7", "2027-01-14", "2027-01-15"])
def test_a_period_runs_after_a_named_slot_that_is_below_it(named: str) -> None:
    due = period_slot(HOUR, at=NOON)
    assert judge(ask(due, period=HOUR), record(named)) == due


@pytest.mark.parametrize(
    ("slot", "period", "ahead"),
    [
        (period_slot(HOUR, at=NOON), HOUR, 0),
        (period_slot(HOUR, at=NOON + HOUR), HOUR, 0),
        (period_slot(HOUR, at=NOON + 3 * HOUR), HOUR, 3 * HOUR),
        (period_slot(HOUR, at=NOON + 3 * HOUR), None, 0),
        ("batch-7", HOUR, 0),
    ],
)
def test_a_recorded_period_far_in_the_future_is_told(slot: str, period: int | None, ahead: float) -> None:
    assert seconds_ahead(ask("x", period=period), record(slot), waited=0.0) == ahead


def test_whoever_has_waited_into_the_recorded_period_is_not_told_that_it_is_in_the_future() -> None:
    ran = record(period_slot(HOUR, at=NOON + 3 * HOUR))
    assert seconds_ahead(ask("x", period=HOUR), ran, waited=2.5 * HOUR) == 0


# -- the record


def pair(value: object, *, flags: int = ONCE_FLAGS) -> KVPair:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return KVPair("jobs/a/.once", data, flags)


WHOLE = {"slot": "5", "outcome": "done", "by": "host:1", "at": 1.5, "fence": 17}


def test_a_record_is_read_as_it_was_written() -> None:
    written = Record("Münster-5", failed=True, by="häuptling:1", at=1.5, fence=17)
    assert read(pair(written.encode())) == written
    assert read(pair(WHOLE | {"of a later version": 1})) == Record(
        "5", failed=False, by="host:1", at=1.5, fence=17
    )
    assert read(None) is None


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        [],
        "5",
        {},
        *({name: value for name, value in WHOLE.items() if name != missing} for missing in WHOLE),
        WHOLE | {"slot": 5},
        WHOLE | {"outcome": "perhaps"},
        WHOLE | {"outcome": ["done"]},
        WHOLE | {"by": None},
        WHOLE | {"at": "1"},
        WHOLE | {"at": True},
        WHOLE | {"at": float("nan")},
        WHOLE | {"at": -1},
        WHOLE | {"at": 253_402_300_800},
        WHOLE | {"at": 1e300},
        WHOLE | {"at": 10**400},
        WHOLE | {"slot": ""},
        WHOLE | {"slot": "9" * 5000},
        WHOLE | {"fence": 1.5},
    ],
    ids=lambda value: repr(value)[:80],
)
def test_a_record_that_cannot_be_read_stops_the_job(value: object) -> None:
    with pytest.raises(DecodeError, match=r"'jobs/a/\.once' can't be read, and the job does not run"):
        read(pair(value))


def test_a_key_with_other_flags_is_no_record() -> None:
    with pytest.raises(KeyConflict, match="is no record of a job"):
        read(pair(WHOLE, flags=0))
