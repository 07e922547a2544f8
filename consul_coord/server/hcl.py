"""HCL, as far as policies are written in it: blocks, values, comments; JSON is read as HCL with colons.

Rules
- Reading is as lenient as Consul's: commas are optional, keys may be quoted or not, and a JSON object may
  lack its end.
- An error begins with its place, line and column, and says what Consul says of the usual mistakes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from consul_coord.server.gotext import GoParseError, unquote

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeAlias

    Value: TypeAlias = "str | bool | list[Value] | tuple[Item, ...]"

_TOKEN: Final = re.compile(
    r"(?P<space>\s+|\#[^\n]*|//[^\n]*|/\*.*?\*/)"
    r"|<<-?(?P<mark>\w+)\n(?P<here>.*?)^[ \t]*(?P=mark)$"
    r'|(?P<text>"(?:[^"\\\n]|\\.)*")'
    r"|(?P<number>-?\d[\w.]*)"
    r"|(?P<name>[^\W\d][\w.-]*)"
    r"|(?P<sign>[{}\[\],=:])",
    re.DOTALL | re.MULTILINE,
)
_SIGNS: Final = {
    "{": "LBRACE",
    "}": "RBRACE",
    "[": "LBRACK",
    "]": "RBRACK",
    ",": "COMMA",
    "=": "ASSIGN",
    ":": "ASSIGN",
    "": "EOF",
}
_ASSIGN: Final = ("=", ":")
_KEYS: Final = ("name", "text")
_AST: Final = {"bool": "LiteralType", "list": "ListType"}
_BOOLEANS: Final = {"true": True, "false": False}


class MalformedError(Exception):
    """A text that is no HCL; it says where and why."""


@dataclass(frozen=True, slots=True)
class Item:
    """Keys with a value: a text, a bool, a list, or the items of an object as a tuple."""

    keys: tuple[str, ...]
    value: Value
    place: str

    def without(self, keys: int) -> Item:
        """Return it without its first keys."""
        return Item(self.keys[keys:], self.value, self.place)

    def text(self, path: str) -> str:
        """Return the value, which must be a text; ``path`` is its place in an error."""
        if isinstance(self.value, str):
            return self.value
        kind = _AST.get(type(self.value).__name__, "ObjectList")
        raise MalformedError(f"At {self.place}: {path}: unknown type for string *ast.{kind}")

    def members(self) -> tuple[Item, ...]:
        """Return the items of the value, which must be an object or a list of objects."""
        found = self.value if isinstance(self.value, list) else [self.value]
        objects = [each for each in found if isinstance(each, tuple)]
        if len(objects) < len(found):
            raise MalformedError(f"At {self.place}: unknown slice type: *ast.LiteralType")
        return tuple(item for each in objects for item in each)


def read(text: str) -> tuple[Item, ...]:
    """Return the items of a text; raise ``MalformedError``."""
    return _Reader(text).document()


@dataclass(frozen=True, slots=True)
class _Word:
    """A token: ``kind`` is ``text``, ``name``, ``number`` or a sign, which is empty at the end."""

    kind: str
    value: str
    place: str


class _Reader:
    """Reads the words of a text one after the other."""

    def __init__(self, text: str) -> None:
        self._words = list(_words(text))
        self._next = 0

    def document(self) -> tuple[Item, ...]:
        """Read everything; the braces around JSON may lack their end."""
        braced = self._word.kind == "{"
        self._next += braced
        return self._items("}" if braced else "")

    @property
    def _word(self) -> _Word:
        return self._words[self._next]

    def _take(self) -> _Word:
        word = self._word
        self._next += self._next + 1 < len(self._words)
        return word

    def _items(self, end: str) -> tuple[Item, ...]:
        found = list[Item]()
        while self._word.kind not in (end, ""):
            found.append(self._item())
            self._next += self._word.kind == ","
        return tuple(found)

    def _item(self) -> Item:
        first = self._word
        keys = list[str]()
        while self._word.kind in _KEYS:
            keys.append(self._take().value)
        if not keys and first.kind in _ASSIGN:
            _fail(first, "no object keys found!")
        if not keys:
            _fail(
                first, f"expected: IDENT | STRING | ASSIGN | LBRACE got: {_SIGNS.get(first.kind, 'NUMBER')}"
            )
        word = self._word
        if word.kind in _ASSIGN:
            if len(keys) > 1:
                _fail(word, f"nested object expected: LBRACE got: {_SIGNS[word.kind]}")
            self._take()
        elif word.kind != "{":
            shown = " ".join([keys[0], *(f'"{key}"' for key in keys[1:])])
            _fail(word, f"key '{shown}' expected start of object ('{{') or assignment ('=')")
        place = self._word.place
        return Item(tuple(keys), self._value(), place)

    def _value(self) -> Value:
        word = self._take()
        if word.kind == "{":
            found = self._items("}")
            self._close("}", "object expected closing RBRACE got: ")
            return found
        if word.kind == "[":
            return self._list()
        if word.kind in ("text", "number"):
            return word.value
        if word.value in _BOOLEANS:
            return _BOOLEANS[word.value]
        return _fail(word, f"Unknown token: {word.place} {_SIGNS.get(word.kind, 'IDENT')} {word.value}")

    def _list(self) -> list[Value]:
        found: list[Value] = []
        while self._word.kind not in ("]", ""):
            found.append(self._value())
            self._next += self._word.kind == ","
        self._close("]", "error parsing list, expected comma or list end, got: ")
        return found

    def _close(self, sign: str, why: str) -> None:
        word = self._take()
        if word.kind != sign:
            _fail(word if word.kind else self._word, f"{why}{_SIGNS.get(word.kind, word.kind.upper())}")


def _fail(word: _Word, why: str) -> NoReturn:
    raise MalformedError(f"At {word.place}: {why}")


def _words(text: str) -> Iterator[_Word]:
    at, line, start = 0, 1, 0
    while at < len(text):
        place = f"{line}:{at - start + 1}"
        found = _TOKEN.match(text, at)
        if found is None:
            why = {'"': "literal not terminated", "/": "comment not terminated"}.get(text[at], "illegal char")
            place = place if why == "illegal char" else f"{line}:{len(text) - start + 1}"
            raise MalformedError(f"At {place}: {why}")
        if (kind := found.lastgroup or "") == "here":
            yield _Word("text", found["here"], place)
        elif kind == "sign":
            yield _Word(found[0], found[0], place)
        elif kind != "space":
            yield _Word(kind, _unquoted(found[0], place) if kind == "text" else found[0], place)
        line += found[0].count("\n")
        if "\n" in found[0]:
            start = at + found[0].rindex("\n") + 1
        at = found.end()
    for end in (1, 2):  # whoever reads on behind the end is told of a place further on
        yield _Word("", "", f"{line}:{at - start + end}")


def _unquoted(text: str, place: str) -> str:
    try:
        return unquote(text)
    except GoParseError:
        raise MalformedError(f"At {place}: illegal char escape") from None
