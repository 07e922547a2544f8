"""JSON as Go's decoder takes it and its encoder writes it.

Rules
- Decoding reads the first value and ignores what follows; field names are matched without regard to case, the
  last of several wins. Unknown fields are ignored, or refused where an endpoint is strict.
- ``null`` leaves a field at its default. A value of the wrong type is refused with Go's words.
- Numbers keep their text, because 64-bit integers and rounding matter. Encoding escapes ``<``, ``>`` and
  ``&``.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, cast

from consul_coord.server.gotext import GoParseError, parse_duration, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Reader = Callable[[object, str], Any]

_SPACE = " \t\r\n"
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_TO_ESCAPE = re.compile("[<>&\u2028\u2029\udc80-\udcff]")
_BAD_BYTE = "\\ufffd"


class Number(str):
    """A JSON number, as its text."""

    __slots__ = ()


def _refuse_constant(name: str) -> NoReturn:
    message = f"invalid character {_rune(name[0])} looking for beginning of value"
    raise GoParseError(message)


_DECODER = json.JSONDecoder(parse_int=Number, parse_float=Number, parse_constant=_refuse_constant)

_PROBLEMS = {
    "Expecting value": "looking for beginning of value",
    "Expecting property name enclosed in double quotes": "looking for beginning of object key string",
    "Illegal trailing comma before end of object": "looking for beginning of object key string",
    "Illegal trailing comma before end of array": "looking for beginning of value",
    "Expecting ':' delimiter": "after object key",
    "Invalid control character at": "in string literal",
    "Invalid \\escape": "in string escape code",
}


_IN_STRING = frozenset({"Invalid control character at", "Invalid \\escape"})
_ONE_BEFORE = frozenset(
    {
        "Invalid \\escape",
        "Illegal trailing comma before end of object",
        "Illegal trailing comma before end of array",
    }
)
"""The errors that Python reports one character before the one that Go names; of commas, from 3.13 on."""


def decode(body: bytes) -> object:
    """Return the first JSON value of a body; raise ``GoParseError`` in Go's words."""
    text = body.decode("utf-8", "replace").lstrip(_SPACE)
    if not text:
        raise GoParseError("EOF")
    try:
        value: object = _DECODER.raw_decode(text)[0]
    except json.JSONDecodeError as error:
        raise GoParseError(_explain(text, error)) from None
    except RecursionError:
        raise GoParseError("exceeded max depth") from None
    return value


def _explain(text: str, error: json.JSONDecodeError) -> str:
    position = error.pos + (error.msg in _ONE_BEFORE)
    while error.msg not in _IN_STRING and position < len(text) and text[position] in _SPACE:
        position += 1
    rest = text[position:]
    cut_short = any(word.startswith(rest) for word in ("null", "true", "false"))
    if position >= len(text) or cut_short or error.msg.startswith("Unterminated string"):
        return "unexpected EOF"
    if error.msg == "Expecting ',' delimiter":
        inside = "object key:value pair" if _in_object(text[:position]) else "array element"
        return f"invalid character {_rune(text[position])} after {inside}"
    why = _PROBLEMS.get(error.msg, "looking for beginning of value")
    return f"invalid character {_rune(text[position])} {why}"


def _in_object(before: str) -> bool:
    depth = 0
    for char in reversed(before):
        if char in "]}":
            depth += 1
        elif char in "[{":
            if depth == 0:
                return char == "{"
            depth -= 1
    return False


def _rune(char: str) -> str:
    return {"'": "'\\''", '"': "'\"'", "\n": "'\\n'", "\t": "'\\t'"}.get(char, f"'{char}'")


def kind_of(value: object) -> str:
    """Return Go's name for the kind of a decoded value."""
    for kind, name in (
        (Number, "number"),
        (str, "string"),
        (bool, "bool"),
        (list, "array"),
        (dict, "object"),
    ):
        if isinstance(value, kind):
            return name
    return "null"


def wrong(value: object, where: str, wanted: str) -> GoParseError:
    """Return the error for a value of the wrong type."""
    return GoParseError(f"json: cannot unmarshal {kind_of(value)} into Go {where} of type {wanted}")


def read_object(
    value: object,
    fields: Mapping[str, Reader],
    *,
    struct: str,
    type_name: str,
    where: str = "value",
    strict: bool = False,
    flat: bool = False,
    spelled: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the given fields of an object, by the names in ``fields``; absent and null ones are left out.

    ``struct`` and ``type_name`` are the Go type's names in errors, ``where`` the place of the object itself,
    which becomes part of its fields' places unless they are ``flat``; ``strict`` refuses fields that are not
    listed. ``spelled`` has other spellings of the fields' names.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong(value, where, type_name)
    given = cast("dict[str, object]", value)
    by_name = {name.lower(): (name, name) for name in fields}
    by_name |= {other.lower(): (name, other) for other, name in (spelled or {}).items()}
    path = where.partition(".")[2]
    found: dict[str, Any] = {}
    for name, member in given.items():
        known, shown = by_name.get(name.lower(), (None, ""))
        if known is not None and member is not None:
            place = path if flat else f"{path}.{shown}" if path else shown
            found[known] = fields[known](member, where if flat else f"struct field {struct}.{place}")
        elif known is None and strict:
            message = f"json: unknown field {quote(name)}"
            raise GoParseError(message)
    return found


def nulls(value: object, *names: str) -> frozenset[str]:
    """Return which of the named fields an object sets to null."""
    given = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    sent = {name.lower(): member for name, member in given.items()}
    return frozenset(name for name in names if name.lower() in sent and sent[name.lower()] is None)


@dataclass(frozen=True, slots=True)
class ObjectReader:
    """A reader of an object with these fields, strict unless said otherwise."""

    fields: Mapping[str, Reader]
    struct: str
    type_name: str
    strict: bool = True
    flat: bool = False
    spelled: Mapping[str, str] | None = None

    def __call__(self, value: object, where: str) -> dict[str, Any]:
        """Read a value that stands at a place."""
        return read_object(
            value,
            self.fields,
            struct=self.struct,
            type_name=self.type_name,
            where=where,
            strict=self.strict,
            flat=self.flat,
            spelled=self.spelled,
        )


@dataclass(frozen=True, slots=True)
class ListReader:
    """A reader of a list whose items are read by another reader."""

    item: Reader
    type_name: str

    def __call__(self, value: object, where: str) -> list[Any]:
        """Read a value that stands at a place."""
        return [self.item(each, where) for each in items(value, where, self.type_name)]


def object_of(fields: Mapping[str, Reader], *, struct: str, type_name: str) -> ObjectReader:
    """Return a strict reader of an object with these fields."""
    return ObjectReader(fields, struct, type_name)


def list_of(read: Reader, type_name: str) -> ListReader:
    """Return a reader of a list whose items are read by another reader."""
    return ListReader(read, type_name)


def items(value: object, where: str, type_name: str) -> list[object]:
    """Return a list's items."""
    if not isinstance(value, list):
        raise wrong(value, where, type_name)
    return cast("list[object]", value)


@dataclass(frozen=True, slots=True)
class NamedReader:
    """A reader that calls its type by another name in errors."""

    type_name: str
    read: Reader

    def __call__(self, value: object, where: str) -> Any:  # noqa: ANN401 - whatever the other reader gives
        """Read a value that stands at a place."""
        try:
            return self.read(value, where)
        except GoParseError:
            raise wrong(value, where, self.type_name) from None


def named(type_name: str, read: Reader) -> NamedReader:
    """Return a reader that calls its type by another name in errors."""
    return NamedReader(type_name, read)


def members(value: object, where: str, type_name: str) -> dict[str, object]:
    """Return an object's members."""
    if not isinstance(value, dict):
        raise wrong(value, where, type_name)
    return cast("dict[str, object]", value)


def text(value: object, where: str) -> str:
    """Read a string field."""
    if not isinstance(value, str) or isinstance(value, Number):
        raise wrong(value, where, "string")
    return value


def boolean(value: object, where: str) -> bool:
    """Read a boolean field."""
    if not isinstance(value, bool):
        raise wrong(value, where, "bool")
    return value


def texts(value: object, where: str) -> tuple[str, ...]:
    """Read a list of strings."""
    return tuple("" if item is None else text(item, where) for item in items(value, where, "[]string"))


def text_map(value: object, where: str) -> tuple[tuple[str, str], ...]:
    """Read an object of strings, in order of the keys."""
    given = members(value, where, "map[string]string")
    return tuple(sorted((key, "" if item is None else text(item, where)) for key, item in given.items()))


@dataclass(frozen=True, slots=True)
class IntegerReader:
    """A reader of an integer within bounds, which errors call ``type_name``."""

    low: int
    high: int
    type_name: str

    def __call__(self, value: object, where: str) -> int:
        """Read a value that stands at a place."""
        if not isinstance(value, Number):
            raise wrong(value, where, self.type_name)
        if not re.fullmatch(r"-?\d{1,20}", value) or not self.low <= int(value) <= self.high:
            message = f"json: cannot unmarshal number {value} into Go {where} of type {self.type_name}"
            raise GoParseError(message)
        return int(value)


def duration(value: object, where: str) -> int:
    """Read a duration: a text, or a number of nanoseconds; what is neither counts as none."""
    if isinstance(value, Number):
        return truncated(value, where)
    return parse_duration(value) if isinstance(value, str) else 0


def lists_of_texts(value: object, where: str) -> dict[str, tuple[str, ...] | None]:
    """Read an object of lists of strings, in order of the keys."""
    given = members(value, where, "map[string][]string")
    return {key: None if given[key] is None else texts(given[key], where) for key in sorted(given)}


def plain(value: object, _where: str) -> Any:  # noqa: ANN401 - any JSON value
    """Read any value as it is, with numbers that are numbers again."""
    if isinstance(value, Number):
        return float(value) if any(mark in value for mark in ".eE") else int(value)
    if isinstance(value, dict):
        given = cast("dict[str, object]", value)
        return {key: plain(given[key], "") for key in sorted(given)}
    return [plain(item, "") for item in cast("list[object]", value)] if isinstance(value, list) else value


def truncated(value: Number, where: str) -> int:
    """Read a number of any kind as Go makes an int64 of a float64; where that has no place, its least one."""
    number = float(value)
    if math.isinf(number):
        message = f"json: cannot unmarshal number {value} into Go {where} of type float64"
        raise GoParseError(message)
    return int(number) if int_.low <= number <= int_.high else int_.low


def anything(value: object, _where: str) -> object:
    """Read a field that is accepted and not used."""
    return value


uint64 = IntegerReader(0, 2**64 - 1, "uint64")
int_ = IntegerReader(-(2**63), 2**63 - 1, "int")


def base64_bytes(value: object, where: str) -> bytes:
    """Read a byte string, in standard base64."""
    if not isinstance(value, str) or isinstance(value, Number):
        raise wrong(value, where, "[]uint8")
    compact = value.replace("\r", "").replace("\n", "")
    try:
        return base64.b64decode(compact, validate=True)
    except (binascii.Error, ValueError):
        message = f"illegal base64 data at input byte {_first_bad(compact)}"
        raise GoParseError(message) from None


def _first_bad(encoded: str) -> int:
    match = re.match(r"(?:[A-Za-z0-9+/]{4})*[A-Za-z0-9+/]*", encoded)
    end = match.end() if match else 0
    return end if end < len(encoded) else len(encoded) // 4 * 4


def encode(value: object, *, pretty: bool = False) -> bytes:
    """Return a value as Go would write it: compact, or indented by four spaces and with a final newline."""
    if pretty:
        out = json.dumps(value, ensure_ascii=False, indent=4) + "\n"
    else:
        out = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _TO_ESCAPE.sub(lambda match: _ESCAPES.get(match[0], _BAD_BYTE), out).encode("utf-8")
