"""Filters: Consul's expression language, by which ``?filter=`` selects rows.

Rules
- An expression is parsed first (``peg.py``), then checked against the fields of the rows (``fields.py``). The
  check refuses a selector that no row can have, an operator that does not suit its field, and a value of the
  wrong kind.
- Refusals have Consul's words, down to the list of what was expected at the farthest place reached.
- A selector that passes through a list is true if it is true of one item, also when it is negated.
- A key that a map does not have equals nothing and is in nothing; it is empty, and matches every pattern as
  well as none.
- Regular expressions are Python's. Go's have no look-around and no references back.

Source: https://developer.hashicorp.com/consul/api-docs/features/filtering
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from consul_coord.server import regexps
from consul_coord.server.failures import StateError
from consul_coord.server.gotext import GoParseError, parse_bool, parse_int, quote
from consul_coord.server.peg import Both, Not, parse

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Container, Mapping

    from consul_coord.server.fields import Field
    from consul_coord.server.peg import Match, Tree

    Predicate = Callable[[object], bool]

FAILED: Final = "Failed to create boolean expression evaluator: "

_NOT: Final = {"Not Equal": "Equal", "Not In": "In", "Is Not Empty": "Is Empty", "Not Matches": "Matches"}
_FALSE_OF_THE_ABSENT: Final = frozenset({"Equal", "In", "Is Not Empty"})


def compiled(expression: str, fields: Mapping[str, Field]) -> Predicate:
    """Return the result of an expression for a row; raise ``StateError`` in Consul's words for a bad one."""
    try:
        return _checked(parse(expression), fields)
    except GoParseError as error:
        message = f"{FAILED}{error}"
        raise StateError(message) from None


# What an expression may ask of its fields


def _checked(tree: Tree, fields: Mapping[str, Field]) -> Predicate:
    if isinstance(tree, Not):
        operand = _checked(tree.operand, fields)
        return lambda row: not operand(row)
    if isinstance(tree, Both):
        operands = [_checked(operand, fields) for operand in tree.operands]
        combined = all if tree.conjunction else any
        return lambda row: combined(operand(row) for operand in operands)
    return _checked_match(tree, fields)


def _checked_match(match: Match, fields: Mapping[str, Field]) -> Predicate:
    field = _field(match.selector, fields)
    shown = quote(".".join(match.selector))
    if match.operator not in field.operators:
        message = f'Invalid match operator "{match.operator}" for selector {shown}'
        raise GoParseError(message)
    value = _coerced(match, field, shown)
    operator = _NOT.get(match.operator, match.operator)
    negated = operator != match.operator
    test = _TESTS[operator]
    absent = match.operator not in _FALSE_OF_THE_ABSENT

    def holds(found: object) -> bool:
        return test(found, value) != negated

    return lambda row: _walk(row, fields, match.selector, holds, absent=absent)


def _field(selector: tuple[str, ...], fields: Mapping[str, Field]) -> Field:
    """Return the field that a selector leads to."""
    for place, name in enumerate(selector, 1):
        field = fields.get(name) or fields.get("*")
        if field is None:
            message = f"Selector {quote('.'.join(selector[:place]))} is not valid"
            raise GoParseError(message)
        if place == len(selector):
            return field
        fields = field.inside
    raise GoParseError("Invalid selector: []")


def _coerced(match: Match, field: Field, shown: str) -> object:
    if match.value is None:
        return None
    if match.operator.endswith("Matches"):
        return _regexp(match.value)
    try:
        return _COERCIONS.get(field.kind, str)(match.value)
    except GoParseError as error:
        message = f"Failed to coerce value {quote(match.value)} for selector {shown}: {error}"
        raise GoParseError(message) from None


def _regexp(text: str) -> re.Pattern[str]:
    try:
        return regexps.compiled(text)
    except GoParseError as error:
        message = f"Failed to compile regular expression {quote(text)}: {error}"
        raise GoParseError(message) from None


_COERCIONS: Final[dict[str, Callable[[str], object]]] = {"int": parse_int, "bool": parse_bool}


def _is_in(found: object, value: object) -> bool:
    return found is not None and value in cast("Container[object]", found)


_TESTS: Final[dict[str, Callable[[object, object], bool]]] = {
    "Equal": lambda found, value: found == value,
    "In": _is_in,
    "Is Empty": lambda found, _: not found,
    "Matches": lambda found, pattern: cast("re.Pattern[str]", pattern).search(str(found)) is not None,
}


def _walk(
    value: object, fields: Mapping[str, Field], path: tuple[str, ...], holds: Predicate, *, absent: bool
) -> bool:
    """Tell whether the condition holds of what the path leads to; ``absent`` answers for a missing key."""
    if not path:
        return holds(value)
    if isinstance(value, list):
        items = cast("list[object]", value)
        return any(_walk(item, fields, path, holds, absent=absent) for item in items)
    members = cast("dict[str, object]", value or {})
    name, rest = path[0], path[1:]
    field = fields.get(name)
    if field is not None:
        return _walk(members.get(name, field.zero), field.inside, rest, holds, absent=absent)
    if name not in members:
        return absent
    return _walk(members[name], fields["*"].inside, rest, holds, absent=absent)
