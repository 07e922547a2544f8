"""Go's text forms: durations both ways, unsigned integers, quoting."""

from __future__ import annotations

import pytest

from consul_coord.server.gotext import (
    GoParseError,
    format_duration,
    parse_duration,
    parse_uint,
    quote,
    quote_rune,
)

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("0", 0),
        ("+0", 0),
        ("1ns", 1),
        ("1.9ns", 1),
        ("1us", 1_000),
        ("1µs", 1_000),
        ("1μs", 1_000),
        ("2ms", 2_000_000),
        ("1m30s", 90 * SECOND),
        ("1.5h", 5400 * SECOND),
        (".5s", SECOND // 2),
        ("1.s", SECOND),
        ("-1h2m3.004s", -3_723_004_000_000),
        ("0" * 5_000 + "1s", SECOND),
        ("0." + "3" * 5_000 + "s", 333_333_333),
    ],
)
def test_durations_that_go_reads(text: str, nanoseconds: int) -> None:
    assert parse_duration(text) == nanoseconds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", 'time: invalid duration ""'),
        ("-", 'time: invalid duration "-"'),
        ("s", 'time: invalid duration "s"'),
        (".s", 'time: invalid duration ".s"'),
        ("10", 'time: missing unit in duration "10"'),
        ("1s5", 'time: missing unit in duration "1s5"'),
        ("1d", 'time: unknown unit "d" in duration "1d"'),
        ("1h 2m", 'time: unknown unit "h " in duration "1h 2m"'),
        ("9999999h", 'time: invalid duration "9999999h"'),
        ("9" * 5_000 + "s", f'time: invalid duration "{"9" * 5_000}s"'),
    ],
)
def test_durations_that_go_refuses(text: str, message: str) -> None:
    with pytest.raises(GoParseError) as caught:
        parse_duration(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1_500, "1.5µs"),
        (200_000_000, "200ms"),
        (1_500_000_000, "1.5s"),
        (90 * SECOND, "1m30s"),
        (86_400 * SECOND, "24h0m0s"),
        (-2 * SECOND, "-2s"),
    ],
)
def test_durations_as_go_prints_them(nanoseconds: int, text: str) -> None:
    assert format_duration(nanoseconds) == text
    assert parse_duration(text) == nanoseconds


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("007", 7), (str(2**64 - 1), 2**64 - 1)])
def test_unsigned_integers(text: str, value: int) -> None:
    assert parse_uint(text) == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "invalid syntax"),
        ("-1", "invalid syntax"),
        ("+1", "invalid syntax"),
        ("1_0", "invalid syntax"),
        ("²", "invalid syntax"),
        (str(2**64), "value out of range"),
        ("9" * 5_000, "value out of range"),
    ],
)
def test_no_unsigned_integers(text: str, why: str) -> None:
    with pytest.raises(GoParseError, match=f": {why}$"):
        parse_uint(text)


def test_quoting() -> None:
    assert quote('a"\\\n\x00é\udcff\u200b') == '"a\\"\\\\\\n\\x00é\\xff\\u200b"'
    assert quote_rune("g") == "U+0067 'g'"
