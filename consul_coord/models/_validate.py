"""Checks of arguments, shared by the models and the endpoints: each returns it or raises InvalidArgument.

Callers without a type checker pass anything, so the types are checked too: parameters are ``object`` where
they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NoReturn, cast

from consul_coord.errors import InvalidArgument

UINT64_MAX = 2**64 - 1


def uint64(name: str, value: object) -> int:
    """Return an index or flags if Consul can hold it exactly."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= UINT64_MAX:
        message = f"{name} must be an integer from 0 to 2**64 - 1, not {value!r}"
        raise InvalidArgument(message)
    return value


def count(name: str, value: object) -> int:
    """Return a whole number of 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        message = f"{name} must be an integer of 0 or more, not {value!r}"
        raise InvalidArgument(message)
    return value


def number(name: str, value: object) -> float:
    """Return a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        message = f"{name} must be a finite number, not {value!r}"
        raise InvalidArgument(message)
    return float(value)


def seconds(name: str, value: object, *, minimum: float, maximum: float = math.inf) -> float:
    """Return a duration in seconds that lies within the range, which the error names."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not minimum <= value <= maximum
        or value == math.inf
    ):
        bounds = f"{minimum:.15g} to {maximum:.15g}" if maximum < math.inf else f"{minimum:.15g} or more"
        message = f"{name} must be {bounds} seconds, not {value!r}"
        raise InvalidArgument(message)
    return float(value)


def span(name: str, value: object, *, positive: bool = False, endless: bool = True, none: str = "") -> float:
    """Return how long something lasts, in seconds; ``none`` tells in the error what None would mean."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not value >= 0  # also true of nan
        or (positive and not value)
        or (value == math.inf and not endless)
    ):
        least = "more than 0" if positive else "0 or more"
        finite = "" if endless else " and finite"
        message = f"{name} must be a number of seconds, {least}{finite}{none}, not {value!r}"
        raise InvalidArgument(message)
    return float(value)


def patience(timeout: object) -> float:
    """Return how long a call may wait, in seconds; for ever if None."""
    return math.inf if timeout is None else span("timeout", timeout, none=", or None to wait for ever")


def choice(name: str, value: str, allowed: tuple[str, ...]) -> str:
    """Return a word if it is one of those allowed."""
    if value not in allowed:
        message = f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}"
        raise InvalidArgument(message)
    return value


def text(name: str, value: object) -> str:
    """Return a text that UTF-8 can carry."""
    if not isinstance(value, str):
        message = f"{name} must be a string, not {type(value).__name__}"
        raise InvalidArgument(message)
    try:
        value.encode()
    except UnicodeEncodeError:
        message = f"{name} holds a lone surrogate, which UTF-8 cannot carry: {value!r}"
        raise InvalidArgument(message) from None
    return value


def several(value: object) -> tuple[object, ...] | None:
    """Return the items of a collection; None for another value, or a text, which is no list of letters."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        return None
    return tuple(cast("Iterable[object]", value))


def texts(name: str, values: object) -> tuple[str, ...]:
    """Return texts as a tuple; a single string is refused, as it would be taken letter by letter."""
    if (found := several(values)) is None:
        one = f"one string: did you mean ({values!r},)?" if isinstance(values, str | bytes) else repr(values)
        message = f"{name} must be a sequence of strings, not {one}"
        raise InvalidArgument(message)
    return tuple(text(name, each) for each in found)


def as_bytes(value: object, name: str = "value") -> bytes:
    """Return a value as bytes; a string as UTF-8."""
    if isinstance(value, str):
        return text(name, value).encode()
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    message = f"{name} must be bytes or a string, not {type(value).__name__}"
    raise InvalidArgument(message)


def flag_set(name: str, values: object) -> frozenset[int]:
    """Return several flags."""
    if (found := several(values)) is None:
        refuse_kind(name, values, "a collection of flags")
    return frozenset(uint64(name, each) for each in found)


def functions(**given: object) -> None:
    """Refuse what can't be called; None stands for no function."""
    for name, function in given.items():
        if function is not None and not callable(function):
            refuse_kind(name, function, "a function, or None")


def has_method(name: str, value: object, method: str) -> None:
    """Refuse an object without a method; None stands for no object."""
    if value is not None and (isinstance(value, type) or not callable(getattr(value, method, None))):
        refuse_kind(name, value, f"an object with a method {method}(), or None")


def refuse_kind(name: str, value: object, what: str) -> NoReturn:
    """Raise InvalidArgument for a value that is not ``what`` an argument takes."""
    kind = f"the class {value.__name__}" if isinstance(value, type) else f"{type(value).__name__}"
    message = f"{name} must be {what}, not {kind}"
    raise InvalidArgument(message)


def bytes_or_none(value: object, name: str = "value") -> bytes | None:
    """Return a value as bytes; None as it is."""
    return None if value is None else as_bytes(value, name)
