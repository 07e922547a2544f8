"""``consul-coord once``: run a command once in each period, on whichever host comes first."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Unpack

import click

from consul_coord import ConsulCoordError, Once, OnceResult, OnceRun
from consul_coord.cli import holding, options
from consul_coord.cli.acquire import Needless
from consul_coord.cli.codes import ExitCode
from consul_coord.cli.told import shown_value

if TYPE_CHECKING:
    from consul_coord import Hold
    from consul_coord.cli.holding import Errand

EPILOG = """\b
Examples:
  consul-coord once jobs/report --period 1h -- ./report.sh
  consul-coord once jobs/report --slot "$(date +%F)" -- ./report.sh
  consul-coord once jobs/import --period 5m --timeout 0 --ran-elsewhere-code 3 -- ./import.sh

Start it on every host, from cron for example. When the command has run already in this period, it ends with
0 or --ran-elsewhere-code. While another host runs it, it waits for the end. A command that fails (any code
but 0) is run again by the next caller of the same period, unless --leave-failed. Periods begin with the
clock's hour or minute, a day at midnight UTC. The command gets what it gets from `lock`, and
CONSUL_ONCE_SLOT. TIME is 90, 500ms or 5m.
"""


@click.command(cls=options.Running, epilog=EPILOG)
@click.argument("key")
@click.option("--period", type=options.DURATION, metavar="TIME", help="Run once in each such period.")
@click.option("--slot", metavar="NAME", help="Run once for this name; later names must be greater.")
@click.option("--leave-failed", is_flag=True, help="Run a command that failed again in the next period only.")
@click.option(
    "--ran-elsewhere-code",
    type=options.EXIT_CODE,
    default=int(ExitCode.DONE),
    show_default=True,
    metavar="N",
    help="Exit code when the command has run already, or its turn has passed.",
)
@holding.command_options
@options.connection
def once(
    *,
    key: str,
    period: float | None,
    slot: str | None,
    leave_failed: bool,
    ran_elsewhere_code: int,
    value: str | None,
    ttl: float,
    lock_delay: float | None,
    **errand: Unpack[Errand],
) -> int:
    """Run COMMAND unless it has run already in this period, on any host."""
    if (period is None) == (slot is None):
        raise click.UsageError("give either --period TIME or --slot NAME")
    return holding.run(
        errand,
        session={"ttl": ttl, "lock_delay": lock_delay, "name": f"consul-coord once {key}"},
        wanted=lambda client: _Job(
            Once(client, key, value=shown_value(value), retry_failed=not leave_failed),
            slot=slot,
            period=period,
            ran_elsewhere=ran_elsewhere_code,
        ),
        ended=_record,
    )


class _Job:
    """A job to be taken like a lock."""

    def __init__(self, once: Once, *, slot: str | None, period: float | None, ran_elsewhere: int) -> None:
        self._once = once
        self._slot = slot
        self._period = period
        self._ran_elsewhere = ran_elsewhere

    def acquire(self, *, timeout: float | None, max_hold: float | None) -> Hold:
        """Get the right to run. Raises Needless when there is nothing to run."""
        begun = self._once.begin(slot=self._slot, period=self._period, timeout=timeout, max_hold=max_hold)
        if isinstance(begun, OnceResult):
            raise Needless(self._told(begun), code=self._ran_elsewhere)
        return begun

    def _told(self, last: OnceResult[object]) -> str:
        at = datetime.fromtimestamp(last.at, UTC).isoformat(sep=" ", timespec="seconds")
        did = "failed in" if last.failed else "ran for"
        return f"not run: {self._once.key} {did} slot {last.slot} by {last.by} at {at}"

    def cancel(self) -> None:
        """End the waiting."""
        self._once.cancel()


def _record(hold: Hold, code: int) -> None:
    """Record how the command ended. Raises what keeps a success from being recorded."""
    if not isinstance(hold, OnceRun):
        return
    if code == 0:
        hold.record()
        return
    with suppress(ConsulCoordError):
        hold.record(failed=True)
