"""Answers in columns: fitted to a terminal, plain elsewhere, and what others wrote made safe to show.

Rules
- Characters of Consul's values that do not print are replaced, so that they steer no terminal.
- A row is one line, and nothing in it is folded. On a narrow terminal ids are cut to 8 characters first. Then
  columns are left out, and last of all long texts are cut where the column says so.
- Off a terminal the columns are aligned by spaces, with one line for each row, cut nowhere.
- Colours need a terminal that has some, and no ``NO_COLOR``.
"""

from __future__ import annotations

import base64
import dataclasses
import os
import shutil
import sys
import unicodedata
from typing import TYPE_CHECKING, NamedTuple

import click

from consul_coord.http.failures import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import IO

    from _typeshed import DataclassInstance

SHORT_ID = 8
"""Characters of an id on a narrow terminal."""
_GAP = "  "
_LEAST = 8
"""Cells that a cut text keeps at least."""


class Column(NamedTuple):
    """A column, and how it gives way on a narrow terminal."""

    name: str
    is_id: bool = False
    """Whether ``SHORT_ID`` characters do."""
    drop: int = 0
    """When it is left out: 1 for the first one; 0 for never."""
    cut: str = ""
    """Where its texts may be cut: "middle", "end", or nowhere."""


def text_of(value: bytes) -> str:
    """Return a key's value in a form that may be shown in one line."""
    return printable(value.decode(errors="replace"))


def fields_of(found: DataclassInstance) -> dict[str, object]:
    """Return something that has a key's value, for JSON."""
    members = dataclasses.asdict(found)
    return {**_field_of(members.pop("value")), **members}


def _field_of(value: bytes) -> dict[str, str]:
    """Return a key's value: as text in ``value`` or, if it is not text, in ``value_base64``."""
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(value).decode()}


def show(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on stdout."""
    if not sys.stdout.isatty():
        for line in plain([column.name for column in columns], rows):
            click.echo(line)
        return
    head, *lines = fitted(columns, rows, terminal_size()[0])
    for line in (styled(head, sys.stdout, bold=True), *lines):
        click.echo(line)


def terminal_size() -> tuple[int, int]:
    """Return the columns and lines of the terminal that stdout goes to."""
    columns, lines = shutil.get_terminal_size()
    return max(columns, 1), max(lines, 1)


def is_dumb(stream: IO[str]) -> bool:
    """Return whether a stream can do no more than print: it is no terminal, or one without control codes."""
    return not stream.isatty() or os.environ.get("TERM", "dumb") in {"", "dumb", "unknown"}


def styled(text: str, stream: IO[str], *, bold: bool = False, dim: bool = False, colour: str = "") -> str:
    """Return a text with the codes for its style, if the stream shows them."""
    if is_dumb(stream):
        return text
    wanted = colour if not os.environ.get("NO_COLOR") else ""
    return click.style(text, fg=wanted or None, bold=bold or None, dim=dim or None)


def fitted(columns: Sequence[Column], rows: Iterable[Sequence[str]], width: int) -> list[str]:
    """Return a table's lines, none of them wider than ``width`` cells."""
    lines = [[column.name for column in columns], *([printable(cell) for cell in row] for row in rows)]
    widths = _widths(columns, [max(map(cells, texts)) for texts in zip(*lines, strict=True)], width)
    return [
        cut(_GAP.join(_cell(line[place], columns[place], room) for place, room in widths.items()), width)
        for line in lines
    ]


def _widths(columns: Sequence[Column], wanted: Sequence[int], width: int) -> dict[int, int]:
    """Return the cells of each column that is shown, by its place."""
    widths = dict(enumerate(wanted))

    def excess() -> int:
        return sum(widths.values()) + len(_GAP) * (len(widths) - 1) - width

    if excess() > 0:
        for place, column in enumerate(columns):
            if column.is_id:
                widths[place] = min(widths[place], max(SHORT_ID, cells(column.name)))
    order = sorted((column.drop, place) for place, column in enumerate(columns) if column.drop)
    for _, place in order:
        if excess() > 0:
            del widths[place]
    flexible = [place for place in widths if columns[place].cut]
    while excess() > 0 and flexible:
        place = max(flexible, key=lambda place: widths[place])
        if widths[place] <= _LEAST:
            break
        widths[place] -= 1
    return widths


def _cell(text: str, column: Column, room: int) -> str:
    if column.is_id and cells(text) > room:
        text = text[:SHORT_ID]
    text = cut(text, room, middle=column.cut == "middle")
    return text + " " * (room - cells(text))


def cells(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(each) else 1 + _is_wide(each) for each in text)


def _is_wide(character: str) -> bool:
    return unicodedata.east_asian_width(character) in "WF"


def cut(text: str, width: int, *, middle: bool = False) -> str:
    """Return a text that takes ``width`` cells at most; an ellipsis stands for what is left out."""
    if cells(text) <= width:
        return text
    tail = ""
    if middle:
        for character in reversed(text):
            if cells(character + tail) > (width - 1) // 2:
                break
            tail = character + tail
    head = ""
    for character in text:
        if cells(head + character) + 1 + cells(tail) > width:
            break
        head += character
    return f"{head}…{tail}"


def plain(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table's lines."""
    lines = [list(columns), *([printable(cell) or "-" for cell in row] for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    return [
        _GAP.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
