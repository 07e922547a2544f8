"""``consul-coord lock``: run a command while holding a lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import click

from consul_coord import Lock
from consul_coord.cli import holding, options
from consul_coord.cli.told import shown_value

if TYPE_CHECKING:
    from consul_coord.cli.holding import Errand

EPILOG = """\b
Examples:
  consul-coord lock jobs/nightly -- ./nightly.sh
  consul-coord lock jobs/nightly --timeout 5 -- sh -c 'echo "fence $CONSUL_LOCK_FENCE"'
  consul-coord lock jobs/nightly --timeout 0 --not-acquired-code 0 -- ./nightly.sh

The command gets CONSUL_LOCK_HELD=true, CONSUL_LOCK_FENCE, CONSUL_LOCK_KEY and CONSUL_LOCK_SESSION. When
the lock is lost, the command gets TERM, then KILL before another client can get the lock, and the exit code
is 76. A guard does the same when consul-coord is stopped, hangs or is killed. TIME is 90, 500ms or 5m.
"""


@click.command(cls=options.Running, epilog=EPILOG)
@click.argument("key")
@holding.command_options
@holding.fair
@options.connection
def lock(
    *,
    key: str,
    fair: bool,
    value: str | None,
    ttl: float,
    lock_delay: float | None,
    **errand: Unpack[Errand],
) -> int:
    """Run COMMAND while holding the lock KEY."""
    return holding.run(
        errand,
        session={"ttl": ttl, "lock_delay": lock_delay, "name": f"consul-coord lock {key}"},
        wanted=lambda client: Lock(client, key, value=shown_value(value), fair=fair),
    )
