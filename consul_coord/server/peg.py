"""The grammar of filter expressions, read as Consul's generated parser reads it.

Rules
- Choices are ordered, and the first that fits is taken. The error names the choices that failed at the
  farthest place: ``1:6 (5): no match found, expected: "==" or [a-zA-Z]`` (line, column, offset in bytes).
- Some mistakes have a message of their own. Such a message counts even if another choice then fits.
- The parser reads each place once and remembers the result, because several choices begin with the same
  brackets. Consul reads again for each choice, and needs several times as long for each level of brackets. A
  second reading adds nothing to the errors: it fails at the same places.
- Brackets and ``not`` nest up to a bound, beyond which Consul takes for ever. Chains have no bound.

Source: the grammar at https://github.com/hashicorp/go-bexpr, in the version that Consul 1.8 and later use.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from consul_coord.server.gotext import GoParseError, quote, unquote

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Match:
    """``selector operator value``; the value is None where the operator takes none."""

    selector: tuple[str, ...]
    operator: str
    value: str | None = None


@dataclass(frozen=True, slots=True)
class Not:
    """The contrary of a condition."""

    operand: Tree


@dataclass(frozen=True, slots=True)
class Both:
    """Two conditions or more, of which all must hold (a conjunction), or one."""

    conjunction: bool
    operands: tuple[Tree, ...]


Tree = Match | Not | Both

_DEEPEST: Final = 64
_SPACE: Final = "[ \\t\\r\\n]"
_WITH_VALUE: Final = (
    ("==", "Equal"),
    ("!=", "Not Equal"),
    (("contains",), "In"),
    (("not", "contains"), "Not In"),
    (("matches",), "Matches"),
    (("not", "matches"), "Not Matches"),
)
_WITHOUT: Final = ((("is", "empty"), "Is Empty"), (("is", "not", "empty"), "Is Not Empty"))
_BEFORE_SELECTOR: Final = ((("in",), "In"), (("not", "in"), "Not In"))


def parse(text: str) -> Tree:
    """Return what an expression says; raise ``GoParseError`` in the words of Consul's parser."""
    return _Parser(text).parse()


class _NoMatchError(Exception):
    """This choice does not fit; the next is tried."""


class _Parser:
    """One expression, and how far its reading has come."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._deep = 0
        self._farthest = 0
        self._expected: set[str] = set()
        self._mistakes: dict[str, None] = {}
        self._read: dict[int, tuple[Tree | None, int]] = {}
        """By place: the tree that begins there, or None, and its end."""

    def parse(self) -> Tree:
        try:
            tree = self._first(self._enclosed_input, self._input)
        except _NoMatchError:
            tree = None
        if self._mistakes:
            raise GoParseError("\n".join(self._mistakes))
        if tree is None:
            raise GoParseError(f"{self._place(self._farthest)}: no match found, expected: {self._wanted()}")
        return tree

    def _wanted(self) -> str:
        named = sorted(self._expected - {"EOF"})
        named += ["EOF"] * ("EOF" in self._expected)
        return " or ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)

    def _place(self, at: int) -> str:
        before = self._text[:at]
        lines, column = before.count("\n") + 1, len(before.rpartition("\n")[2]) + 1
        if self._text[at : at + 1] == "\n":  # at which Consul's parser has begun the next line already
            lines, column = lines + 1, 0
        return f"{lines}:{column} ({len(before.encode('utf-8', 'replace'))})"

    def _mistake(self, rule: str, what: str, at: int) -> _NoMatchError:
        self._mistakes[f'{self._place(at)}: rule "{rule}": {what}'] = None
        return _NoMatchError()

    # What every rule is made of

    def _first(self, *choices: Callable[[], Tree]) -> Tree:
        start = self._at
        for choice in choices:
            self._at = start
            try:
                return choice()
            except _NoMatchError:
                continue
        self._at = start
        raise _NoMatchError

    def _fail(self, expected: str) -> _NoMatchError:
        if self._at > self._farthest:
            self._farthest = self._at
            self._expected.clear()
        if self._at == self._farthest:
            self._expected.add(expected)
        return _NoMatchError()

    def _literal(self, text: str) -> None:
        if not self._text.startswith(text, self._at):
            raise self._fail(quote(text))
        self._at += len(text)

    def _takes(self, text: str) -> bool:
        """Take a literal, if it is there."""
        try:
            self._literal(text)
        except _NoMatchError:
            return False
        return True

    def _chars(self, of: str, *, at_least: int) -> str:
        """Take as many characters of a class as there are."""
        start = self._at
        fits = re.compile(of)
        while self._at < len(self._text) and fits.match(self._text[self._at]):
            self._at += 1
        if self._at - start < at_least:
            self._at, failed = start, self._fail(of)
            raise failed
        self._fail(of)
        return self._text[start : self._at]

    def _space(self) -> None:
        self._chars(_SPACE, at_least=1)

    def _any_space(self) -> None:
        self._chars(_SPACE, at_least=0)

    def _end(self) -> None:
        if self._at < len(self._text):
            raise self._fail("EOF")

    # Conditions

    def _enclosed_input(self) -> Tree:
        self._any_space()
        tree = self._parentheses()
        self._any_space()
        self._end()
        return tree

    def _input(self) -> Tree:
        self._any_space()
        tree = self._or()
        self._any_space()
        self._end()
        return tree

    def _or(self) -> Tree:
        start = self._at
        if start not in self._read:
            try:
                self._read[start] = self._chain("or", self._and), self._at
            except _NoMatchError:
                self._read[start] = None, start
        tree, self._at = self._read[start]
        if tree is None:
            raise _NoMatchError
        return tree

    def _and(self) -> Tree:
        return self._chain("and", self._not)

    def _chain(self, word: str, operand: Callable[[], Tree]) -> Tree:
        operands = [operand()]
        while True:
            after = self._at
            try:
                self._space()
                self._literal(word)
                self._space()
                operands.append(operand())
            except _NoMatchError:
                self._at = after
                return Both(word == "and", tuple(operands)) if len(operands) > 1 else operands[0]

    def _not(self) -> Tree:
        self._deep += 1
        if self._deep > _DEEPEST:
            raise GoParseError("max number of expressions parsed")
        try:
            return self._first(self._negated, self._parentheses, self._match, self._unmatched)
        finally:
            self._deep -= 1

    def _negated(self) -> Tree:
        self._literal("not")
        self._space()
        operand = self._not()
        return operand.operand if isinstance(operand, Not) else Not(operand)

    def _parentheses(self) -> Tree:
        self._literal("(")
        self._any_space()
        tree = self._or()
        self._any_space()
        self._literal(")")
        return tree

    def _unmatched(self) -> Tree:
        self._literal("(")
        self._any_space()
        self._or()
        self._any_space()
        if self._takes(")"):
            raise _NoMatchError
        raise self._mistake("grouping", "Unmatched parentheses", self._at)

    # Comparisons

    def _match(self) -> Tree:
        return self._first(self._compared, self._emptiness, self._membership, self._no_selector)

    def _compared(self) -> Tree:
        selector = self._selector()
        operator = self._operator(_WITH_VALUE)
        return Match(selector, operator, self._value())

    def _emptiness(self) -> Tree:
        selector = self._selector()
        return Match(selector, self._operator(_WITHOUT))

    def _membership(self) -> Tree:
        value = self._value()
        operator = self._operator(_BEFORE_SELECTOR)
        return Match(self._selector(), operator, value)

    def _no_selector(self) -> Tree:
        self._value()
        self._operator(_BEFORE_SELECTOR)
        at = self._at
        try:
            self._selector()
        except _NoMatchError:
            raise self._mistake("match", "Invalid selector", at) from None
        raise _NoMatchError

    def _operator(self, known: tuple[tuple[str | tuple[str, ...], str], ...]) -> str:
        start = self._at
        for written, name in known:
            self._at = start
            try:
                self._written(written)
            except _NoMatchError:
                continue
            return name
        self._at = start
        raise _NoMatchError

    def _written(self, operator: str | tuple[str, ...]) -> None:
        if isinstance(operator, str):
            self._any_space()
            self._literal(operator)
            self._any_space()
            return
        for word in operator:
            self._space()
            self._literal(word)
        if operator[-1] != "empty":
            self._space()

    # Selectors and values

    def _selector(self) -> tuple[str, ...]:
        names = [self._identifier()]
        while (name := self._further()) is not None:
            names.append(name)
        return tuple(names)

    def _identifier(self) -> str:
        start = self._at
        if not re.compile("[a-zA-Z]").match(self._text, start):
            raise self._fail("[a-zA-Z]")
        self._at += 1
        self._chars("[a-zA-Z0-9_]", at_least=0)
        return self._text[start : self._at]

    def _further(self) -> str | None:
        start = self._at
        try:
            if self._takes("."):
                return self._identifier()
            return self._index()
        except _NoMatchError:
            self._at = start
            return None

    def _index(self) -> str:
        self._literal("[")
        self._any_space()
        at = self._at
        try:
            key = self._string()
        except _NoMatchError:
            raise self._mistake("index", "Invalid index", at) from None
        self._any_space()
        if not self._takes("]"):
            raise self._mistake("index", "Unclosed index expression", self._at)
        return key

    def _value(self) -> str:
        start = self._at
        try:
            return ".".join(self._selector())
        except _NoMatchError:
            self._at = start
        try:
            return self._number()
        except _NoMatchError:
            self._at = start
        return self._string()

    def _number(self) -> str:
        start = self._at
        self._takes("-")
        if not self._takes("0"):
            if not re.compile("[1-9]").match(self._text, self._at):
                raise self._fail("[1-9]")
            self._at += 1
            self._chars("[0-9]", at_least=0)
        whole = self._at
        if self._takes("."):
            try:
                self._chars("[0-9]", at_least=1)
            except _NoMatchError:
                self._at = whole
        text = self._text[start : self._at]
        following = self._text[self._at : self._at + 1]
        if following and following not in " \t\r\n)":
            raise self._mistake("number", "Invalid number literal", self._at)
        if following == ")":
            self._fail("EOF")  # which would have done as well
        return text

    def _string(self) -> str:
        start = self._at
        for mark in "`", '"':
            if self._takes(mark):
                end = self._text.find(mark, self._at)
                if end < 0:
                    self._at = len(self._text)
                    raise self._mistake("string", "Unterminated string literal", self._at)
                self._at = end + 1
                try:
                    return unquote(self._text[start : self._at])
                except GoParseError as error:
                    self._mistakes[f'{self._place(start)}: rule "string": {error}'] = None
                    return ""
        raise _NoMatchError
