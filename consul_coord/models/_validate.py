"""Checks of arguments, shared by the models and the endpoints: each returns it or raises InvalidArgument.

Callers without a type checker pass anything, so the types are checked too: parameters are ``object`` where
they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from types import MethodType
from typing import Any, NoReturn, TypeVar, cast

from consul_coord.errors import InvalidArgument

T = TypeVar("T")
UINT64_MAX = 2**64 - 1
_LONG = 64
"""Digits, more or less, of an integer that an error shows."""


def _shown(value: object) -> str:
    """Return a value for an error: Python writes out no integer of thousands of digits."""
    if isinstance(value, int) and value.bit_length() > _LONG * 3:
        return f"an integer of {value.bit_length()} bits"
    return repr(value)


def _float(value: object) -> float | None:
    """Return a number as it is computed with; None for another value, or one above all floats."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def uint64(name: str, value: object) -> int:
    """Return an index or flags if Consul can hold it exactly."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= UINT64_MAX:
        message = f"{name} must be an integer from 0 to 2**64 - 1, not {_shown(value)}"
        raise InvalidArgument(message)
    return value


def count(name: str, value: object) -> int:
    """Return a whole number of 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        message = f"{name} must be an integer of 0 or more, not {_shown(value)}"
        raise InvalidArgument(message)
    return value


def number(name: str, value: object) -> float:
    """Return a finite number."""
    given = _float(value)
    if given is None or not math.isfinite(given):
        message = f"{name} must be a finite number, not {_shown(value)}"
        raise InvalidArgument(message)
    return given


def seconds(name: str, value: object, *, minimum: float, maximum: float = math.inf) -> float:
    """Return a duration in seconds that lies within the range, which the error names."""
    given = _float(value)
    if given is None or not minimum <= given <= maximum or given == math.inf:
        least = f"{minimum:.6f}".rstrip("0").rstrip(".")
        bounds = f"{least} to {maximum:.15g}" if maximum < math.inf else f"{least} or more"
        message = f"{name} must be a number of seconds, {bounds}, not {_shown(value)}"
        raise InvalidArgument(message)
    return given


def span(name: str, value: object, *, positive: bool = False, endless: bool = True, none: str = "") -> float:
    """Return how long something lasts, in seconds; ``none`` tells in the error what None would mean."""
    given = _float(value)
    if (
        given is None
        or not given >= 0  # also true of nan
        or (positive and not given)
        or (given == math.inf and not endless)
    ):
        least = "more than 0" if positive else "0 or more"
        finite = "" if endless else " and finite"
        message = f"{name} must be a number of seconds, {least}{finite}{none}, not {_shown(value)}"
        raise InvalidArgument(message)
    return given


def patience(timeout: object) -> float:
    """Return how long a call may wait, in seconds; for ever if None."""
    return math.inf if timeout is None else span("timeout", timeout, none=", or None to wait for ever")


def choice(name: str, value: object, allowed: tuple[str, ...]) -> str:
    """Return a word if it is one of those allowed."""
    if not isinstance(value, str) or value not in allowed:
        message = f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}"
        raise InvalidArgument(message)
    return value


def breaking(expected_session: object, how: object) -> None:
    """Refuse a session or a ``how`` that ``break_lock`` can't use: a free key has the session None."""
    if not isinstance(expected_session, str):  # empty in a lock-delay, as holder() has it: nobody's
        refuse_kind("expected_session", expected_session, "the id of a session, such as holder().session")
    choice("how", how, ("release", "destroy"))


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


def all_texts(**given: object) -> None:
    """Refuse what is no text."""
    for name, value in given.items():
        text(name, value)


def texts_or_none(**given: object) -> None:
    """Refuse what is no text; None stands for no text."""
    for name, value in given.items():
        if value is not None:
            text(name, value)


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


def text_map(name: str, value: object) -> dict[str, str]:
    """Return a mapping of texts to texts."""
    if not isinstance(value, Mapping):
        refuse_kind(name, value, "a mapping of strings to strings")
    items = cast("Mapping[object, object]", value).items()
    return {text(f"a name in {name}", key): text(f"{name}[{key!r}]", each) for key, each in items}


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


def plain(way_out: str = "", /, **given: object) -> None:
    """Refuse coroutine functions, too: nothing would await them. ``way_out`` ends the error."""
    functions(**given)
    for name, function in given.items():
        if is_awaited(function):
            kind = _kind_of(function)
            message = f"{name} is {kind}, and nothing awaits it here: give a plain function{way_out}"
            raise InvalidArgument(message)


def work(name: str, function: object) -> None:
    """Refuse, as work to be done under a lock, what can't be called, or has its body run after the call."""
    if not callable(function):
        refuse_kind(name, function, "a function")
    if (kind := _kind_of(function)) in _LATER:
        message = f"{name} is {kind}, whose body would run after the release: enter a block within it instead"
        raise InvalidArgument(message)


def done(name: str, result: object) -> None:
    """Refuse what still has to be awaited, as the result of a function that was called in blocking code."""
    if hasattr(type(result), "__await__"):
        close = getattr(result, "close", None)
        if callable(close):
            close()  # else Python warns that it was never awaited
        kind = type(result).__name__
        message = f"{name} returned {kind}, and nothing awaits it here: give a plain function{BLOCKING}"
        raise InvalidArgument(message)


BLOCKING = ", or use AsyncClient with AsyncLock, AsyncOnce and so on"
"""The other way out of an error, for blocking code."""
_AWAITED = ("a coroutine function", "an async generator function")
_LATER = ("a generator function", "an async generator function")
_COROUTINE, _GENERATOR, _ASYNC_GENERATOR, _OLD_COROUTINE = 0x80, 0x20, 0x200, 0x100
"""Flags of code objects, as ``inspect`` has them, which takes long to import."""


def _kind_of(function: Any) -> str:  # noqa: ANN401 - whatever a user gives
    """Return what a function is if calling it runs nothing of it yet, else an empty text."""
    while isinstance(function, partial | MethodType):
        function = function.__func__ if isinstance(function, MethodType) else function.func
    if not hasattr(function, "__code__") and not isinstance(function, type):
        kind = cast("type[object]", type(function))
        function = getattr(kind, "__call__", None)  # noqa: B004 - its code is looked at
    flags = getattr(getattr(function, "__code__", None), "co_flags", 0)
    if not isinstance(flags, int):
        return ""
    if flags & (_COROUTINE | _OLD_COROUTINE):
        return "a coroutine function"
    if flags & _ASYNC_GENERATOR:
        return "an async generator function"
    return "a generator function" if flags & _GENERATOR else ""


def is_awaited(function: object) -> bool:
    """Return whether the result of a function has to be awaited."""
    return _kind_of(function) in _AWAITED


def has_method(name: str, value: object, method: str) -> None:
    """Refuse an object without a method; None stands for no object."""
    if value is not None and (isinstance(value, type) or not callable(getattr(value, method, None))):
        refuse_kind(name, value, f"an object with a method {method}(), or None")


def instance(name: str, value: object, kind: type) -> None:
    """Refuse what is no object of a class of this package."""
    if not isinstance(value, kind):
        refuse_kind(name, value, f"of the class {kind.__name__}")


def instances(name: str, values: object, kind: type[T]) -> tuple[T, ...]:
    """Return objects of a class of this package as a tuple."""
    if (found := several(values)) is None:
        refuse_kind(name, values, f"a collection of {kind.__name__}")
    for place, each in enumerate(found):
        instance(f"{name}[{place}]", each, kind)
    return cast("tuple[T, ...]", found)


def refuse_kind(name: str, value: object, what: str) -> NoReturn:
    """Raise InvalidArgument for a value that is not ``what`` an argument takes."""
    kind = f"the class {value.__name__}" if isinstance(value, type) else f"{type(value).__name__}"
    message = f"{name} must be {what}, not {kind}"
    raise InvalidArgument(message)


def bytes_or_none(value: object, name: str = "value") -> bytes | None:
    """Return a value as bytes; None as it is."""
    return None if value is None else as_bytes(value, name)
