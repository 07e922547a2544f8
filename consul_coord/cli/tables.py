"""Answers in columns: drawn on a terminal, plain elsewhere, and what others wrote made safe to show.

Rules
- What comes from Consul may hold anything: what does not print is replaced, so that it steers no terminal.
- Off a terminal the columns are aligned by spaces, with one line for each row, cut nowhere.
"""

from __future__ import annotations

import base64
import sys
from typing import TYPE_CHECKING

import click

from consul_coord.extras import needs
from consul_coord.http.failures import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.table import Table


def text_of(value: bytes) -> str:
    """Return a key's value in a form that may be shown in one line."""
    return printable(value.decode(errors="replace"))


def fields_of(value: bytes) -> dict[str, str]:
    """Return a key's value for JSON: as text in ``value`` or, when it is none, in ``value_base64``."""
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(value).decode()}


def show(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table on stdout."""
    if sys.stdout.isatty():
        with needs("cli"):
            from rich.console import Console
        Console(highlight=False).print(drawn(columns, rows))
    else:
        for line in plain(columns, rows):
            click.echo(line)


def drawn(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table for a terminal; its cells wrap."""
    with needs("cli"):
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


def plain(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table's lines."""
    lines = [list(columns), *([printable(cell) or "-" for cell in row] for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
