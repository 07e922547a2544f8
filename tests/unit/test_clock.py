"""The clocks: the machine's that counts suspended time, and the one that a test moves."""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING

import pytest

from consul_coord import clock as clocks
from consul_coord.clock import WALL_AT_ZERO, VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(("platform", "shown"), [("linux", 7.0), ("darwin", 1.0), ("win32", 3.0)])
def test_the_lease_clock_counts_the_time_of_a_suspend_where_the_system_does(
    monkeypatch: pytest.MonkeyPatch, platform: str, shown: float
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(time, "CLOCK_BOOTTIME", 7, raising=False)
    monkeypatch.setattr(time, "CLOCK_MONOTONIC", 1, raising=False)
    monkeypatch.setattr(time, "clock_gettime", float, raising=False)
    monkeypatch.setattr(time, "monotonic", lambda: 3.0)
    assert clocks._suspend_aware_clock()() == shown


def test_each_alarm_goes_off_once_in_order_at_its_own_time() -> None:
    clock = VirtualClock(100.0)
    seen: list[tuple[str, float]] = []

    def note(name: str) -> Callable[[], None]:
        return lambda: seen.append((name, clock.now()))

    def first() -> None:
        note("first")()
        clock.alarm(103.0, note("set by the first"))
        clock.alarm(101.0, note("over already"))

    clock.alarm(104.0, note("second of its time"))
    clock.alarm(109.0, note("later"))
    clock.alarm(102.0, first)
    clock.alarm(104.0, note("third"))
    clock.advance(5.0)
    assert seen == [
        ("first", 102.0),
        ("over already", 102.0),
        ("set by the first", 103.0),
        ("second of its time", 104.0),
        ("third", 104.0),
    ]
    assert clock.now() == 105.0
    assert clock.wall() == WALL_AT_ZERO + 105.0
    clock.advance(4.0)
    assert seen[5:] == [("later", 109.0)]
    clock.advance(100.0)
    assert len(seen) == 6


def test_an_alarm_that_was_withdrawn_is_waited_for_by_nobody() -> None:
    clock = VirtualClock(100.0)
    seen: list[str] = []
    first, second = (clock.alarm(at, lambda: seen.append("it")) for at in (101.0, 102.0))
    assert clock.next_alarm() == 101.0
    first.cancel()
    first.cancel()
    assert clock.next_alarm() == 102.0
    second.cancel()
    assert clock.next_alarm() is None
    clock.advance(10.0)
    assert seen == []


def test_time_does_not_go_back() -> None:
    clock = VirtualClock()
    for endless in (math.inf, math.nan):
        with pytest.raises(ValueError, match="finite"):
            VirtualClock().advance(endless)
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance(-0.1)
    clock.alarm(clock.now() + 1.0, lambda: clock.advance(5.0))
    before = clock.now()
    clock.advance(2.0)
    assert clock.now() == before + 6.0, "an alarm has moved it further"


def test_a_virtual_clock_shows_its_time_in_a_failed_assertion() -> None:
    assert repr(VirtualClock(7.25)) == "VirtualClock(now=7.250)"
