"""``consul-coord break``: take a lock from its holder."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Literal

import click

from consul_coord import Lock
from consul_coord.cli import options, tables
from consul_coord.cli.codes import ExitCode
from consul_coord.cli.output import Reporter
from consul_coord.http.failures import printable

if TYPE_CHECKING:
    from consul_coord import Holder
    from consul_coord.cli.options import Agent

How = Literal["release", "destroy"]

EPILOG = """\b
Examples:
  consul-coord break jobs/nightly
  consul-coord break jobs/nightly --session 3f0c8c8e-6cd6-4e70-8d0b-0d0b7d8f0001
  consul-coord break jobs/nightly --how destroy --yes

Shows the holder and asks for confirmation, unless --session names it (8 characters do) or there is --yes.
"release" frees this key at once; its holder is notified, but may still be at work. "destroy" ends the
holder's session and all its holds; their keys stay locked for the lock-delay. To free a slot of a semaphore,
give the holder's own key (PREFIX/SESSION, see "holders --json").
"""


class _Found(Lock):
    """A lock that is there, whatever name it was given once."""

    _any_key = True


@click.command("break", epilog=EPILOG)
@click.argument("key")
@click.option("--session", metavar="ID", help="Break it only if this session holds it; asks nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--how",
    type=click.Choice(["release", "destroy"]),
    default="release",
    show_default=True,
    help="Release the key, or destroy the holder's session.",
)
@options.connection
def break_(
    *,
    key: str,
    session: str | None,
    yes: bool,
    how: How,
    agent: Agent,
    as_json: bool,
) -> int:
    """Take the lock KEY from its holder.

    Exits with 1 when it was not taken: nobody holds it, another session does, or you said no.
    """
    reporter = Reporter(as_json=as_json)

    def work() -> int:
        with agent.client() as client:
            lock = _Found(client, key)
            holder = lock.holder()
            if holder is None:
                return reporter.fail(ExitCode.NO, f"nobody holds {key}")
            if holder.lock_delay_active:
                return reporter.fail(ExitCode.NO, f"nobody holds {key}: its lock-delay is in force")
            click.echo(json.dumps({"key": key} | tables.fields_of(holder)) if as_json else _text(key, holder))
            if session is not None and not is_id(session, holder.session):
                return reporter.fail(ExitCode.NO, f"{key} is not held by session {session}")
            if session is None and not yes and not _confirmed(how):
                return reporter.fail(ExitCode.NO, "left as it is")
            if not lock.break_lock(holder.session, how=how):
                return reporter.fail(ExitCode.NO, f"{key} has changed hands meanwhile")
            reporter.tell("broken", f"taken from session {holder.session}", session=holder.session, how=how)
            return ExitCode.DONE

    return reporter.answer(work)


def is_id(given: str, session: str) -> bool:
    """Return whether a session was meant: its whole id was given, or its beginning, as tables show it."""
    return session == given or (len(given) >= tables.SHORT_ID and session.startswith(given))


def _confirmed(how: How) -> bool:
    if not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask at: give --session ID, or --yes")
    question = {
        "release": "Release it, although its holder may be at work?",
        "destroy": "Destroy this session, and with it all its holds?",
    }
    return click.confirm(question[how], err=True)


def _text(key: str, holder: Holder) -> str:
    value = tables.text_of(holder.value) or "(no value)"
    return printable(
        f"{key}: {value}, session {holder.session}, node {holder.node or 'unknown'}, "
        f"index {holder.since_index}"
    )
