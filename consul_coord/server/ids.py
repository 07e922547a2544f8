"""UUIDs as Consul reads them: case does not matter, the length does; errors say why in its words."""

from __future__ import annotations

import re

from consul_coord.server.failures import StateError
from consul_coord.server.gotext import quote_rune

_WELL_FORMED = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_LENGTH = 36
_MOST_HYPHENS = 4
_HEX = frozenset("0123456789abcdefABCDEF")


def lookup_key(text: str) -> str:
    """Return the form under which a UUID is stored; raise ``StateError`` when it is malformed."""
    if _WELL_FORMED.fullmatch(text):
        return text
    if problem := _problem(text):
        message = f"index error: {problem}"
        raise StateError(message)
    digits = text.replace("-", "").lower()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def is_uuid(text: str) -> bool:
    """Tell whether a text has the form of a UUID."""
    return _WELL_FORMED.fullmatch(text.lower()) is not None


def _problem(text: str) -> str | None:
    if len(text.encode("utf-8", "surrogateescape")) != _LENGTH:
        return "UUID must be 36 characters"
    hyphens = text.count("-")
    if hyphens > _MOST_HYPHENS:
        return f'UUID should have maximum of 4 "-"; got {hyphens}'
    digits = text.replace("-", "")
    if len(digits) % 2:
        return "Input (without hyphens) must be even length"
    wrong = next((char for char in digits if char not in _HEX), None)
    return f"Invalid UUID: encoding/hex: invalid byte: {quote_rune(wrong)}" if wrong else None
