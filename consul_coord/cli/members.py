"""``consul-coord members``: show who is in a group, once or at each change."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import click

from consul_coord import Group
from consul_coord.cli import options, tables
from consul_coord.cli.codes import ExitCode
from consul_coord.cli.output import Reporter
from consul_coord.cli.tables import Column
from consul_coord.http.failures import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consul_coord import Member, Members
    from consul_coord.cli.options import Agent

EPILOG = """\b
Examples:
  consul-coord members service/web
  consul-coord members service/web --watch
  consul-coord members service/web --watch --json

The longest member comes first. With --watch each change is a line: "+" for a member that joined, "-" for one
that left, "*" for one with another value. JSON has a member in each line, with --watch an object for each
change with "all", "joined", "left" and "changed". The exit code is 1 when nobody is there.
"""

COLUMNS = (
    Column("ID", cut="middle"),
    Column("VALUE", cut="end"),
    Column("SESSION", is_id=True, drop=2),
    Column("SINCE", drop=1),
)


@click.command(epilog=EPILOG)
@click.argument("prefix")
@click.option("--watch", is_flag=True, help="Go on, and print each change.")
@options.connection
def members(*, prefix: str, watch: bool, agent: Agent, as_json: bool) -> int:
    """Show who is in the group at PREFIX."""
    reporter = Reporter(as_json=as_json)

    def show() -> int:
        with agent.client(observer=reporter if watch else None) as client:
            group = Group(client, prefix)
            if not watch:
                return once(group.members())
            for seen in group.watch():
                for line in _as_json(seen.value) if as_json else _as_text(seen.value):
                    click.echo(line)
        return ExitCode.DONE

    def once(found: tuple[Member, ...]) -> int:
        if as_json:
            for member in found:
                click.echo(json.dumps(tables.fields_of(member)))
        elif found:
            tables.show(COLUMNS, [_row(member) for member in found])
        return ExitCode.DONE if found else reporter.fail(ExitCode.NO, f"nobody is in {prefix!r}")

    return reporter.answer(show)


def _row(member: Member) -> tuple[str, ...]:
    return member.id, tables.text_of(member.value), member.session, str(member.since_index)


def _as_text(seen: Members) -> Iterable[str]:
    for mark, some in (("-", seen.left), ("+", seen.joined), ("*", seen.changed)):
        for member in some:
            yield printable(f"{mark} {member.id} {tables.text_of(member.value)}".rstrip())


def _as_json(seen: Members) -> Iterable[str]:
    states = {field.name: getattr(seen, field.name) for field in dataclasses.fields(seen)}
    yield json.dumps({name: [tables.fields_of(member) for member in some] for name, some in states.items()})
