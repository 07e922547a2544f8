"""``consul-coord holders``: who holds and who waits below a prefix."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import click

from consul_coord.cli import options, tables
from consul_coord.cli.codes import ExitCode
from consul_coord.cli.output import Reporter
from consul_coord.cli.survey import survey
from consul_coord.cli.tables import Column
from consul_coord.models.reply import CONSISTENT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consul_coord.cli.options import Agent
    from consul_coord.cli.survey import Held, Place, Waits

EPILOG = """\b
Examples:
  consul-coord holders jobs/
  consul-coord holders jobs/nightly --json
  consul-coord holders '' --all

PREFIX is a prefix of the key's text, as everywhere in Consul: jobs/a is a prefix of jobs/ab. PLACE says who
holds it, and the place in the queue of each waiter, from 1. On a narrow terminal sessions are cut and columns
left out; --json has everything. Anything that the token may not read is missing without warning; "-" stands
for what it may not know. The exit code is 1 when nothing is held.
"""

COLUMNS = (
    Column("KIND"),
    Column("KEY", cut="middle"),
    Column("PLACE"),
    Column("WHO", cut="end"),
    Column("SESSION", is_id=True, drop=3),
    Column("NODE", drop=1),
    Column("FENCE", drop=2),
)


@click.command(epilog=EPILOG)
@click.argument("prefix")
@click.option("-a", "--all", "show_all", is_flag=True, help="Show what is free as well.")
@options.connection
def holders(*, prefix: str, show_all: bool, agent: Agent, as_json: bool) -> int:
    """Show who holds and who waits below PREFIX."""
    reporter = Reporter(as_json=as_json)

    def work() -> int:
        with agent.client() as client:
            pairs = client.kv.list(prefix, options=CONSISTENT).value
            sessions = {session.id: session for session in client.session.list().value}
        places = [place for place in survey(pairs, sessions) if show_all or place.in_use]
        if as_json:
            for place in places:
                click.echo(json.dumps(fields(place)))
        elif places:
            tables.show(COLUMNS, rows(places))
        if not places:
            return reporter.fail(
                ExitCode.NO, f"nothing is held below {prefix!r}" if prefix else "nothing is held"
            )
        return ExitCode.DONE

    return reporter.answer(work)


def rows(places: Iterable[Place]) -> list[tuple[str, ...]]:
    """Return a line for each holder and each waiter, and one for a place that has neither."""
    return [row for place in places for row in _rows(place)]


def fields(place: Place) -> dict[str, object]:
    """Return a place for JSON."""
    members = dataclasses.asdict(place)
    members["holders"] = [tables.fields_of(held) for held in place.holders]
    members["waiters"] = [tables.fields_of(waits) for waits in place.waiters]
    return members


def _rows(place: Place) -> list[tuple[str, ...]]:
    kind = f"semaphore {len(place.holders)}/{place.limit}" if place.kind == "semaphore" else place.kind
    holds = "leads" if place.kind == "election" else "holds"
    lines: list[tuple[str, ...]] = [
        (kind, place.key, holds, *_who(held), held.node or "", str(held.fence)) for held in place.holders
    ]
    if not lines:
        lines = [(kind, place.key, "", place.problem or "(free)", "", "", "")]
    lines += [
        (kind, place.key, str(waits.position), *_who(waits), waits.node or "", "") for waits in place.waiters
    ]
    return lines


def _who(each: Held | Waits) -> tuple[str, str]:
    """Return what names a holder or waiter best, and its session."""
    return tables.text_of(each.value) or each.session_name or "", each.session
