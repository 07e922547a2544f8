"""Go's text forms, as far as they show in Consul's replies: durations, unsigned integers, quoted strings.

Durations are nanoseconds here, because Go's are and because rounding shows in echoes and errors.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

SECOND = 1_000_000_000

_UNITS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # the micro sign
    "μs": 1_000,  # the Greek letter
    "ms": 1_000_000,
    "s": SECOND,
    "m": 60 * SECOND,
    "h": 3_600 * SECOND,
}
_TERM = re.compile(r"(\d*)(?:(\.)(\d*))?([^\d.]*)", re.ASCII)
_MAX_DURATION = 2**63 - 1
_MAX_UINT64 = 2**64 - 1
_MOST_DIGITS = 20
_BAD_BYTES = range(0xDC80, 0xDD00)  # undecodable bytes, kept as lone surrogates
_CONTROLS = frozenset((*range(0x20), 0x7F))
_WIDE = 0x10000
_ESCAPES = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    "\\": "\\\\",
    '"': '\\"',
}
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_BOOLEANS = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}
_ESCAPED = r'\\(?:[abfnrtv\\"]|x[\da-fA-F]{2}|u[\da-fA-F]{4}|U[\da-fA-F]{8}|[0-7]{3})'
_QUOTED_ESCAPE = re.compile(_ESCAPED, re.ASCII)
_QUOTED = re.compile(rf'(?:[^\\"]|{_ESCAPED})*', re.ASCII)
_NAMED_ESCAPES = {escape[1]: char for char, escape in _ESCAPES.items()}
_HEX = 16
_LAST_RUNE = 0x10FFFF
_LAST_BYTE = 0xFF
_SURROGATES = range(0xD800, 0xE000)


class GoParseError(ValueError):
    """A text that Go would not parse; the message is Go's."""


@lru_cache(maxsize=256)
def parse_duration(text: str) -> int:
    """Return a duration such as ``1m30s`` or ``1.5h`` in nanoseconds."""
    sign, rest = (-1, text[1:]) if text[:1] == "-" else (1, text.removeprefix("+"))
    if rest == "0":
        return 0
    if not rest:
        raise _invalid_duration(text)
    total = Fraction(0)
    while rest:
        term = _TERM.match(rest)
        whole, point, part, unit = term.groups(default="") if term else ("", "", "", "")
        if term is None or (not whole and not (point and part)):
            raise _invalid_duration(text)
        if not unit:
            message = f"time: missing unit in duration {quote(text)}"
            raise GoParseError(message)
        if unit not in _UNITS:
            message = f"time: unknown unit {quote(unit)} in duration {quote(text)}"
            raise GoParseError(message)
        if len(whole := whole.lstrip("0")) > _MOST_DIGITS:
            raise _invalid_duration(text)
        total += Fraction(f"{whole or '0'}.{part[:_MOST_DIGITS] or '0'}") * _UNITS[unit]
        rest = rest[term.end() :]
    if total > _MAX_DURATION:
        raise _invalid_duration(text)
    return sign * int(total)


def _invalid_duration(text: str) -> GoParseError:
    return GoParseError(f"time: invalid duration {quote(text)}")


def format_duration(nanoseconds: int) -> str:
    """Return a duration as Go prints it, such as ``24h0m0s`` or ``200ms``."""
    if nanoseconds == 0:
        return "0s"
    sign, left = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    if left < SECOND:
        unit = next(unit for unit in ("ms", "µs", "ns") if left >= _UNITS[unit])
        return f"{sign}{_decimal(left, _UNITS[unit])}{unit}"
    minutes, rest = divmod(left, 60 * SECOND)
    hours, minutes = divmod(minutes, 60)
    text = f"{_decimal(rest, SECOND)}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    if hours:
        text = f"{hours}h{text}"
    return sign + text


def _decimal(value: int, unit: int) -> str:
    whole, part = divmod(value, unit)
    digits = str(part).rjust(len(str(unit)) - 1, "0").rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)


def parse_uint(text: str) -> int:
    """Return an unsigned 64-bit decimal."""
    if not (text.isascii() and text.isdigit()):
        message = f"strconv.ParseUint: parsing {quote(text)}: invalid syntax"
        raise GoParseError(message)
    if (
        value := int(text[-_MOST_DIGITS:]) if not text[:-_MOST_DIGITS].strip("0") else _MAX_UINT64 + 1
    ) > _MAX_UINT64:
        message = f"strconv.ParseUint: parsing {quote(text)}: value out of range"
        raise GoParseError(message)
    return value


def parse_int(text: str) -> int:
    """Return a signed 64-bit integer."""
    if not _INTEGER.fullmatch(text):
        message = f"strconv.ParseInt: parsing {quote(text)}: invalid syntax"
        raise GoParseError(message)
    digits = text.lstrip("+-").lstrip("0") or "0"
    value = int(digits) * (-1 if text[0] == "-" else 1) if len(digits) <= _MOST_DIGITS else _MAX_UINT64
    if not -_MAX_DURATION - 1 <= value <= _MAX_DURATION:
        message = f"strconv.ParseInt: parsing {quote(text)}: value out of range"
        raise GoParseError(message)
    return value


def parse_bool(text: str) -> bool:
    """Return a truth value."""
    if text not in _BOOLEANS:
        message = f"strconv.ParseBool: parsing {quote(text)}: invalid syntax"
        raise GoParseError(message)
    return _BOOLEANS[text]


def unquote(text: str) -> str:
    """Return what a quoted string says, in backticks or double quotes."""
    inside = text[1:-1]
    if text[0] == "`":
        return inside.replace("\r", "")
    if "\n" in inside or not _QUOTED.fullmatch(inside):
        raise GoParseError("invalid syntax")
    return _QUOTED_ESCAPE.sub(_unescaped, inside)


def _unescaped(escape: re.Match[str]) -> str:
    named = escape[0][1]
    if named in _NAMED_ESCAPES:
        return _NAMED_ESCAPES[named]
    code = int(escape[0][1:], 8) if named.isdigit() else int(escape[0][2:], _HEX)
    if (
        code > _LAST_RUNE
        or (named in "uU" and code in _SURROGATES)
        or (named.isdigit() and code > _LAST_BYTE)
    ):
        raise GoParseError("invalid syntax")
    return chr(code)


def quote(text: str) -> str:
    """Return a string in double quotes, escaped as Go does."""
    return '"' + "".join(_escape(char) for char in text) + '"'


def quote_rune(char: str) -> str:
    """Return one character as ``U+0067 'g'``."""
    code = ord(char)
    return f"U+{code:04X} '{char}'" if char.isprintable() else f"U+{code:04X}"


def _escape(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable():
        return char
    code = ord(char)
    if code in _BAD_BYTES:
        return f"\\x{code & 0xFF:02x}"
    if code in _CONTROLS:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < _WIDE else f"\\U{code:08x}"
