"""Replies that no agent sends: one value of a reply's JSON becomes one of a wrong kind, or the text is cut.

A client has to refuse such a reply, or does not need what was replaced. So no replacement is a right value of
its place, such as null, which stands for one that is missing.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from consul_coord.testing.simulation.dice import Dice

_WRONG: dict[type[object], tuple[Any, ...]] = {
    str: (7, True, ["x"], {"x": "x"}, "\ud800", "\ud800"),
    int: ("7", True, 1.5, 2**64, [7], {}),
    bool: ("true", 1, [True], {}),
    list: ("x", 7, {"x": 1}),
    dict: ("x", 7, ["x"]),
}
_TEXTS = (b"", b"{", b"<html>nginx</html>", b"NaN", b"\xff", b'"\\ud800"')


def garbled(body: bytes, dice: Dice) -> bytes:
    """Return a reply with a flaw."""
    try:
        document: Any = json.loads(body)
    except ValueError:
        return body  # the bytes of a value may be any
    if dice.chance(0.2):
        return dice.choice((body[: len(body) // 2] or b"[", *_TEXTS))
    places = list(_places(document))
    if not places:
        return json.dumps(_wrong(document, dice)).encode()
    holder, at = dice.choice(places)
    holder[at] = _wrong(holder[at], dice)
    return json.dumps(document).encode()


def _wrong(value: object, dice: Dice) -> Any:  # noqa: ANN401 - a JSON value
    return dice.choice(_WRONG.get(type(value), ("x",)))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401 - a JSON value
    """Return where there is a value to be replaced."""
    members: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        members = [*cast("dict[str, Any]", value).items()]
    elif isinstance(value, list):
        members = [*enumerate(cast("Sequence[Any]", value))]
    for at, member in members:
        if member is not None:
            yield value, at
        yield from _places(member)
