"""``consul-coord sessions``: which sessions there are, and ending them."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import TYPE_CHECKING

import click

from consul_coord.cli import options, tables
from consul_coord.cli.codes import ExitCode
from consul_coord.cli.output import Reporter
from consul_coord.cli.tables import Column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consul_coord import Session
    from consul_coord.cli.options import Agent

EPILOG = """\b
Examples:
  consul-coord sessions
  consul-coord sessions --name 'consul-coord lock *' --json
  consul-coord sessions --name 'consul-coord lock jobs/nightly' --destroy

Destroying a session ends all its holds; their keys stay locked for its lock-delay. At a terminal it asks for
confirmation, unless there is --yes. Without permission to read sessions the list is empty.
"""

_COLUMNS = (
    Column("SESSION"),
    Column("NAME", cut="end"),
    Column("NODE", drop=5),
    Column("TTL", drop=4),
    Column("LOCK-DELAY", drop=3),
    Column("BEHAVIOR", drop=2),
    Column("CHECKS", drop=1),
)


@click.command(epilog=EPILOG)
@click.option("--name", metavar="N", help="Only sessions of this name; * and ? stand for other characters.")
@click.option("--destroy", is_flag=True, help="Destroy these sessions; needs --name.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@options.connection
def sessions(
    *,
    name: str | None,
    destroy: bool,
    yes: bool,
    agent: Agent,
    as_json: bool,
) -> int:
    """Show sessions, or destroy some.

    Exits with 1 when there are none, or when you said no.
    """
    if destroy and name is None:
        raise click.UsageError("--destroy needs a --name: sessions of other programs are in the list too")
    reporter = Reporter(as_json=as_json)

    def work() -> int:
        with agent.client() as client:
            found = client.session.list().value if name is None else client.session.named(name)
            _show(found, as_json=as_json)
            if not found:
                which = "session" if name is None else f"session of the name {name!r}"
                return reporter.fail(ExitCode.NO, f"there is no {which}")
            if not destroy:
                return ExitCode.DONE
            if not yes and sys.stdin.isatty() and not click.confirm(f"Destroy {len(found)}?", err=True):
                return reporter.fail(ExitCode.NO, "left as they are")
            for session in found:
                client.session.destroy(session.id)
            reporter.tell("destroyed", f"destroyed {len(found)}", sessions=[each.id for each in found])
            return ExitCode.DONE

    return reporter.answer(work)


def _show(found: Sequence[Session], *, as_json: bool) -> None:
    if as_json:
        for session in found:
            click.echo(json.dumps(dataclasses.asdict(session)))
    elif found:
        tables.show(_COLUMNS, [_row(session) for session in found])


def _row(session: Session) -> tuple[str, ...]:
    return (
        session.id,
        session.name,
        session.node,
        "" if session.ttl is None else f"{session.ttl:g} s",
        f"{session.lock_delay:g} s",
        session.behavior,
        ", ".join((*session.node_checks, *session.service_checks)),
    )
