"""Portions of a suite: each test is in one of them, whatever other tests there are."""

from __future__ import annotations

import re
from zlib import crc32

_FORM = re.compile(r"(\d+)/(\d+)")


def parse(given: str) -> tuple[int, int]:
    """Return which portion is meant, from 0, and of how many: ``17/12`` is portion 5 of 12.

    So a number that only rises, as that of commits, goes through all of them.
    """
    match = _FORM.fullmatch(given)
    if match is None or int(match[2]) == 0:
        message = f"a portion is K/N, such as 3/12, not {given!r}"
        raise ValueError(message)
    return int(match[1]) % int(match[2]), int(match[2])


def is_in(name: str, portion: tuple[int, int]) -> bool:
    """Return whether a test is in a portion, by its name."""
    number, count = portion
    return crc32(name.encode()) % count == number
