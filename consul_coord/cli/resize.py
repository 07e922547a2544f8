"""``consul-coord resize``: change the limit of a semaphore."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from consul_coord import Semaphore
from consul_coord.cli import options
from consul_coord.cli.codes import ExitCode
from consul_coord.cli.output import Reporter
from consul_coord.recipes.semaphore.slots import record_key

if TYPE_CHECKING:
    from consul_coord.cli.options import Agent

EPILOG = """\b
Examples:
  consul-coord resize backups/slots 4

A higher limit lets waiters in at once. A lower one takes no slot away: no waiter gets a slot until enough
holders have released theirs. Start new processes with the new limit; a process that gives the old one ends
with exit code 65.
"""


@click.command(epilog=EPILOG)
@click.argument("prefix")
@click.argument("limit", type=options.Whole(1), metavar="N")
@options.connection
def resize(*, prefix: str, limit: int, agent: Agent, as_json: bool) -> int:
    """Change the number of slots of the semaphore PREFIX to N.

    Exits with 1 when there is no semaphore at PREFIX.
    """
    reporter = Reporter(as_json=as_json)

    def work() -> int:
        with agent.client() as client:
            semaphore = Semaphore(client, prefix, limit)
            if client.kv.get(record_key(semaphore.prefix)).value is None:
                return reporter.fail(ExitCode.NO, f"there is no semaphore at {prefix}")
            semaphore.resize(limit)
            held = len(semaphore.holders())
        reporter.tell("resized", f"{prefix} has {limit} slots, {held} are held", limit=limit, held=held)
        return ExitCode.DONE

    return reporter.answer(work)
