"""Reading JSON from anybody.

Every accessor returns the type that it promises, or raises ShapeError, which names the field. A field that is
null counts as missing. Integers are exact and within 64 bits; ``true`` is no integer. A body has to be UTF-8,
and so has a string in it: half of a surrogate pair, escaped, is refused.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from functools import partial
from typing import TYPE_CHECKING, NoReturn, TypeVar, cast

from consul_coord.http.endpoints import _durations
from consul_coord.models._validate import UINT64_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")
_REQUIRED = object()
_INT64_MAX = 2**63 - 1
_LONGEST_NAME = 40
_SURROGATE = re.compile("[\ud800-\udfff]")
_KINDS: dict[type[object], str] = {
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "a boolean",
    type(None): "null",
}


class ShapeError(ValueError):
    """A reply does not have the expected shape; the message says where."""


def _refuse_constant(name: str) -> NoReturn:
    raise ShapeError(f"the reply is not JSON: {name}")


# Made once: the module's functions would make a new one for each call that has options.
decode = json.JSONDecoder(parse_constant=_refuse_constant).decode
encode = json.JSONEncoder(separators=(",", ":")).encode


def parse(body: bytes) -> object:
    """Return a body's JSON value."""
    try:
        return cast("object", decode(body.decode()))
    except ShapeError:
        raise
    except (ValueError, RecursionError) as error:
        raise ShapeError(f"the reply is not JSON ({type(error).__name__})") from error


def dump(value: object) -> bytes:
    """Return a value as compact JSON in ASCII."""
    return encode(value).encode()


def members_set(members: Mapping[str, object]) -> dict[str, object]:
    """Return those members that are set, which is all but None."""
    return {name: value for name, value in members.items() if value is not None}


def dump_set(members: Mapping[str, object]) -> bytes:
    """Return those members of an object that are set as compact JSON."""
    return dump(members_set(members))


def _wrong(what: str, wanted: str, value: object) -> ShapeError:
    return ShapeError(f"{what} should be {wanted}, not {_kind(value)}")


def _kind(value: object) -> str:
    """Name a JSON value's type, without showing what may be long or private."""
    return _KINDS.get(type(value), "a number")


def text(what: str, value: object) -> str:
    """Return a string."""
    if isinstance(value, str):
        if not value.isascii() and _SURROGATE.search(value):
            raise ShapeError(f"{what} is not UTF-8")
        return value
    raise _wrong(what, "a string", value)


def boolean(what: str, value: object) -> bool:
    """Return a boolean."""
    if isinstance(value, bool):
        return value
    raise _wrong(what, "true or false", value)


def integer(what: str, value: object, *, minimum: int = 0, maximum: int = UINT64_MAX) -> int:
    """Return an integer within its range; an unsigned 64-bit one by default."""
    if isinstance(value, int) and not isinstance(value, bool):
        if minimum <= value <= maximum:
            return value
        raise ShapeError(f"{what} is out of range")
    raise _wrong(what, "an integer", value)


def nanoseconds(what: str, value: object) -> float:
    """Return seconds from an integer of nanoseconds."""
    return integer(what, value, minimum=-_INT64_MAX, maximum=_INT64_MAX) / _durations.NANOSECONDS


def duration(what: str, value: object) -> float:
    """Return seconds from a written duration; an empty one is 0."""
    written = text(what, value)
    try:
        return _durations.to_seconds(written) if written else 0.0
    except ValueError as error:
        raise ShapeError(f"{what} is {error}") from None


def base64_bytes(what: str, value: object) -> bytes:
    """Return the bytes of a base64 string."""
    try:
        return base64.b64decode(text(what, value), validate=True)
    except (binascii.Error, ValueError) as error:
        if isinstance(error, ShapeError):
            raise
        raise ShapeError(f"{what} is not base64") from None


def array(what: str, value: object) -> list[object]:
    """Return a list; null is an empty one."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise _wrong(what, "a list", value)
    return cast("list[object]", value)


def items(what: str, value: object, read: Callable[[str, object], T]) -> tuple[T, ...]:
    """Return a list's items, each read by ``read``; null is an empty list."""
    return tuple([read(f"{what}[{at}]", item) for at, item in enumerate(array(what, value))])


def list_of(read: Callable[[str, object], T]) -> Callable[[str, object], tuple[T, ...]]:
    """Return what reads a list whose items ``read`` reads; null is an empty list."""
    return partial(items, read=read)


def mapping(what: str, value: object, read: Callable[[str, object], T]) -> dict[str, T]:
    """Return an object's members, each read by ``read``; null is an empty object."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _wrong(what, "an object", value)
    return {
        name: read(f"{what}.{_shown(name)}", item) for name, item in cast("dict[str, object]", value).items()
    }


def _shown(name: str) -> str:
    """Return a name that is up to others, short and printable."""
    return ascii(name[:_LONGEST_NAME])[1:-1]


texts = list_of(text)
"""Returns a list of strings; null is an empty list."""


def text_map(what: str, value: object) -> dict[str, str]:
    """Return an object of strings; null is an empty object."""
    return mapping(what, value, text)


class Fields:
    """An object's fields, read one by one; ``what`` says which object it is."""

    __slots__ = ("members", "what")

    def __init__(self, what: str, value: object) -> None:
        """Wrap an object."""
        if not isinstance(value, dict):
            raise _wrong(what, "an object", value)
        self.what = what
        self.members = cast("dict[str, object]", value)

    def get(self, name: str, read: Callable[[str, object], T], default: object = _REQUIRED) -> T:
        """Return a field read by ``read``; ``default`` when it is missing, or ShapeError without one."""
        value = self.members.get(name)
        if value is not None:
            return read(f"{self.what}.{name}", value)
        if default is _REQUIRED:
            raise ShapeError(f"{self.what}.{name} is missing")
        return cast("T", default)


def new_id(what: str, value: object) -> str:
    """Return the id of something just made."""
    if new := Fields(what, value).get("ID", text):
        return new
    raise ShapeError(f"{what}.ID is empty")
