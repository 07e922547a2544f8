"""``consul-coord semaphore``: run a command while holding one of a number of slots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import click

from consul_coord import Semaphore
from consul_coord.cli import holding, options
from consul_coord.cli.told import shown_value

if TYPE_CHECKING:
    from consul_coord.cli.holding import Errand

EPILOG = """\b
Examples:
  consul-coord semaphore backups/slots --limit 2 -- ./backup.sh
  consul-coord semaphore backups/slots --limit 2 --timeout 60 -- ./backup.sh

All that use a prefix have to give the same limit (exit code 65 otherwise). The command gets
CONSUL_LOCK_HELD=true, CONSUL_LOCK_FENCE, CONSUL_LOCK_KEY (its own key below the prefix) and
CONSUL_LOCK_SESSION. When the slot is lost it gets TERM, then KILL, before others can have the slot, and the
exit code is 76. Only an operator who deletes the record or the holder's own key lets others in at once, and
a consul lock -n or Go client that takes the slot of a session that has ended. The command does not outlive
consul-coord.
"""


@click.command(cls=options.Running, epilog=EPILOG)
@click.argument("prefix")
@click.option(
    "--limit",
    type=options.Whole(1),
    required=True,
    metavar="N",
    help="How many slots there are.",
)
@holding.command_options
@holding.fair
@options.connection
def semaphore(
    *,
    prefix: str,
    limit: int,
    fair: bool,
    value: str | None,
    ttl: float,
    lock_delay: float | None,
    **errand: Unpack[Errand],
) -> int:
    """Run COMMAND while holding one of the N slots of PREFIX."""
    return holding.run(
        errand,
        session={"ttl": ttl, "lock_delay": lock_delay, "name": f"consul-coord semaphore {prefix}"},
        wanted=lambda client: Semaphore(client, prefix, limit, value=shown_value(value), fair=fair),
    )
