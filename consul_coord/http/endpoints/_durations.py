"""Durations as Consul writes and reads them: numbers with units, such as ``15s`` or ``1m30s``."""

from __future__ import annotations

import re
from functools import lru_cache

NANOSECONDS = 10**9
_LONGEST_NANOSECONDS = 2**63 - 1
_LONGEST_TEXT = 64

# Consul takes both the micro sign and the Greek letter.
_UNITS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": NANOSECONDS,
    "m": 60 * NANOSECONDS,
    "h": 3600 * NANOSECONDS,
}
_WRITTEN = ("s", "ms", "us", "ns")
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")


def to_text(seconds: float) -> str:
    """Return a duration in the largest unit that holds it exactly, rounded to nanoseconds."""
    nanoseconds = round(seconds * NANOSECONDS)
    unit = next(unit for unit in _WRITTEN if nanoseconds % _UNITS[unit] == 0)
    return f"{nanoseconds // _UNITS[unit]}{unit}"


@lru_cache(maxsize=64)
def to_seconds(text: str) -> float:
    """Return a written duration in seconds; raise ValueError when it is invalid.

    Valid ones are remembered, because each renewal's reply has the same two.
    """
    digits = text[1:_LONGEST_TEXT] if text.startswith(("-", "+")) else text[:_LONGEST_TEXT]
    parts = _PART.findall(digits)
    if digits == "0" and len(text) <= _LONGEST_TEXT:
        return 0.0
    if len(text) > _LONGEST_TEXT or not parts or "".join(number + unit for number, unit in parts) != digits:
        raise ValueError(f"not a duration: {text[:_LONGEST_TEXT]!r}")
    # Exact, in whole numbers: each is an integer over this power of ten.
    scale: int = 10 ** max(len(number.partition(".")[2]) for number, _ in parts)
    nanoseconds = sum(_scaled(number, scale) * _UNITS[unit] for number, unit in parts)
    if nanoseconds > _LONGEST_NANOSECONDS * scale:
        raise ValueError(f"a duration too long: {text!r}")
    return nanoseconds / (scale * NANOSECONDS) * (-1 if text.startswith("-") else 1)


def _scaled(number: str, scale: int) -> int:
    """Return a decimal number times a power of ten that makes it an integer."""
    whole, _, part = number.partition(".")
    divisor: int = 10 ** len(part)
    return int(whole + part) * scale // divisor
