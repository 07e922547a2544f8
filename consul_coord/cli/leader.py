"""``consul-coord leader``: show who leads, once or at each change."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from consul_coord import leader as who_leads
from consul_coord import observe
from consul_coord.cli import options, tables
from consul_coord.cli.codes import ExitCode
from consul_coord.cli.output import Reporter
from consul_coord.http.failures import printable

if TYPE_CHECKING:
    from consul_coord import LeaderInfo
    from consul_coord.cli.options import Agent

EPILOG = """\b
Examples:
  consul-coord leader service/web/leader
  consul-coord leader service/web/leader --watch --json

The exit code is 1 if nobody leads. JSON has the value as text in "value" or, if it is not text, in
"value_base64"; "leader" is null when nobody leads.
"""


@click.command(epilog=EPILOG)
@click.argument("key")
@click.option("--watch", is_flag=True, help="Go on, and print each change.")
@options.connection
def leader(*, key: str, watch: bool, agent: Agent, as_json: bool) -> int:
    """Show who leads KEY."""
    reporter = Reporter(as_json=as_json)
    line = _as_json if as_json else _as_text

    def show() -> int:
        with agent.client(observer=reporter if watch else None) as client:
            if not watch:
                found = who_leads(client, key)
                click.echo(line(key, found))
                return ExitCode.NO if found is None else ExitCode.DONE
            for seen in observe(client, key):
                click.echo(line(key, seen.value))
        return ExitCode.DONE

    return reporter.answer(show)


def _as_text(key: str, info: LeaderInfo | None) -> str:
    if info is None:
        return f"{key}: nobody leads"
    value = info.value.decode(errors="backslashreplace")
    return printable(
        f"{key}: {value} (term {info.term}, node {info.node or 'unknown'}, session {info.session})"
    )


def _as_json(key: str, info: LeaderInfo | None) -> str:
    return json.dumps({"key": key, "leader": None if info is None else tables.fields_of(info)})
