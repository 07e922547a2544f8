"""``consul-coord holders``: who holds and who waits below a prefix."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import click

from consul_coord import ReadOptions
from consul_coord.cli import options, tables
from consul_coord.cli.codes import ExitCode
from consul_coord.cli.output import Reporter
from consul_coord.cli.survey import Held, survey

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consul_coord.cli.options import Agent
    from consul_coord.cli.survey import Place

EPILOG = """\b
Examples:
  consul-coord holders jobs/
  consul-coord holders jobs/nightly --json
  consul-coord holders '' --all

PREFIX is one of the key's text, as everywhere in Consul: jobs/a is a prefix of jobs/ab. Elections are locks,
and called so unless their leader has left a note. What the token may not read is missing without a word;
"-" stands for what it may not know. The exit code is 1 when nothing is held.
"""

COLUMNS = ("KIND", "KEY", "HOLDER", "SESSION", "NODE", "FENCE", "WAITING")
_CONSISTENT = ReadOptions(consistency="consistent")


@click.command(epilog=EPILOG)
@click.argument("prefix")
@click.option("-a", "--all", "show_all", is_flag=True, help="Show what is free as well.")
@options.connection
def holders(*, prefix: str, show_all: bool, agent: Agent, as_json: bool) -> int:
    """Show locks, elections and semaphores below PREFIX: who holds them, who waits."""
    reporter = Reporter(as_json=as_json)

    def work() -> int:
        with agent.client() as client:
            pairs = client.kv.list(prefix, options=_CONSISTENT).value
            sessions = {session.id: session for session in client.session.list().value}
        places = [place for place in survey(pairs, sessions) if show_all or place.in_use]
        if as_json:
            for place in places:
                click.echo(json.dumps(fields(place)))
        elif places:
            tables.show(COLUMNS, rows(places))
        if not places:
            return reporter.fail(ExitCode.NO, f"nothing is held below {prefix!r}")
        return ExitCode.DONE

    with reporter.logging():
        return reporter.answer(work)


def rows(places: Iterable[Place]) -> list[tuple[str, ...]]:
    """Return a line for each holder, or for each place without one."""
    return [row for place in places for row in _rows(place)]


def fields(place: Place) -> dict[str, object]:
    """Return a place for JSON."""
    members = dataclasses.asdict(place)
    members["holders"] = [_held_fields(held) for held in place.holders]
    return members


def _rows(place: Place) -> list[tuple[str, ...]]:
    kind = f"semaphore {len(place.holders)}/{place.limit}" if place.kind == "semaphore" else place.kind
    if not place.holders:
        return [(kind, place.key, place.problem or "(free)", "", "", "", str(place.waiters))]
    return [
        (
            kind,
            place.key,
            tables.text_of(held.value),
            held.session,
            held.node or "",
            str(held.fence),
            str(place.waiters),
        )
        for held in place.holders
    ]


def _held_fields(held: Held) -> dict[str, object]:
    members = dataclasses.asdict(held)
    return {**tables.fields_of(members.pop("value")), **members}
