"""``consul-coord lock``: run a command while holding a lock."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import click

from consul_coord import Client, ConsulCoordError, Lock, ReleaseOutcome, SessionSpec
from consul_coord.cli import options
from consul_coord.cli.acquire import Interrupted, acquire
from consul_coord.cli.child import CannotStart
from consul_coord.cli.codes import SIGNALLED, ExitCode, code_of
from consul_coord.cli.inbox import Inbox
from consul_coord.cli.output import Reporter
from consul_coord.cli.supervise import FORWARDED, grace_of, supervise
from consul_coord.models.session import effective_lock_delay

if TYPE_CHECKING:
    from consul_coord import Hold

EPILOG = """\b
Examples:
  consul-coord lock jobs/nightly -- ./nightly.sh
  consul-coord lock jobs/nightly --timeout 5 -- sh -c 'echo "fence $CONSUL_LOCK_FENCE"'
  consul-coord lock jobs/nightly --timeout 0 --not-acquired-code 0 -- ./nightly.sh

The command gets CONSUL_LOCK_HELD=true, CONSUL_LOCK_FENCE, CONSUL_LOCK_KEY and CONSUL_LOCK_SESSION. When
the lock is lost it gets TERM, then KILL before anybody else can have the lock, and the exit code is 76. It
does not outlive consul-coord.
"""


@click.command(epilog=EPILOG)
@click.argument("key")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option(
    "--timeout", type=options.SECONDS, metavar="S", help="Seconds to wait for the lock; 0 tries once."
)
@click.option("--fair", is_flag=True, help="Never pass others who wait for the lock.")
@click.option(
    "--value", metavar="V", help="What the key shows while it is held (default: this host and process)."
)
@click.option(
    "--ttl",
    type=float,
    default=15.0,
    show_default=True,
    metavar="S",
    help="Seconds until the lock of a dead holder begins to expire.",
)
@click.option(
    "--lock-delay",
    type=float,
    metavar="S",
    help="Seconds for which nobody gets the lock after a holder died (default: the server's, 15).",
)
@click.option(
    "--not-acquired-code",
    type=click.IntRange(0, 255),
    default=int(ExitCode.NOT_ACQUIRED),
    show_default=True,
    metavar="N",
    help="Exit code when the lock was not acquired in time.",
)
@click.option("-q", "--quiet", is_flag=True, help="Tell problems only.")
@options.connection
def lock(
    *,
    key: str,
    command: tuple[str, ...],
    timeout: float | None,
    fair: bool,
    value: str | None,
    ttl: float,
    lock_delay: float | None,
    not_acquired_code: int,
    quiet: bool,
    address: str | None,
    token_file: str | None,
    as_json: bool,
) -> int:
    """Run COMMAND while holding the lock KEY."""
    reporter = Reporter(as_json=as_json, quiet=quiet)
    inbox = Inbox()
    with inbox.signals(FORWARDED), reporter.logging():
        try:
            spec = SessionSpec(ttl=ttl, lock_delay=lock_delay, name=f"consul-coord lock {key}")
            with Client(address=address, token_file=token_file, session=spec, observer=reporter) as client:
                wanted = Lock(client, key, value=_this_process() if value is None else value, fair=fair)
                hold = acquire(wanted, timeout=timeout, inbox=inbox)
                return _run(command, client=client, hold=hold, spec=spec, inbox=inbox, reporter=reporter)
        except Interrupted as error:
            return reporter.fail(SIGNALLED + error.number, str(error))
        except ConsulCoordError as error:
            code = code_of(error)
            if code is ExitCode.BUG:
                raise
            return reporter.fail(not_acquired_code if code is ExitCode.NOT_ACQUIRED else code, str(error))


def _run(
    command: tuple[str, ...],
    *,
    client: Client,
    hold: Hold,
    spec: SessionSpec,
    inbox: Inbox,
    reporter: Reporter,
) -> int:
    """Run the command under the hold, release that, and return the exit code that both make."""
    try:
        ended = supervise(
            command,
            environ=os.environ | _told(hold),
            client=client,
            hold=hold,
            grace=grace_of(ttl=spec.ttl or 0.0, lock_delay=effective_lock_delay(spec)),
            inbox=inbox,
            reporter=reporter,
        )
    except CannotStart as error:
        return reporter.fail(error.code, str(error))
    finally:
        outcome = hold.release()
    if ended.stopped:
        return reporter.fail(ExitCode.LOST, "the hold ended before the command, which was stopped")
    if outcome is ReleaseOutcome.ALREADY_LOST:
        return reporter.fail(ExitCode.LOST, "the hold was lost while the command ran")
    if outcome is ReleaseOutcome.UNKNOWN:
        reporter.tell(
            "unreleased", "no answer to the release: the lock may stay taken until it expires", problem=True
        )
    reporter.tell("ended", f"the command ended with {ended.code}", code=ended.code)
    return ended.code


def _told(hold: Hold) -> dict[str, str]:
    """Return what the command is told by its environment."""
    return {
        "CONSUL_LOCK_HELD": "true",
        "CONSUL_LOCK_FENCE": str(hold.fence),
        "CONSUL_LOCK_KEY": hold.key,
        "CONSUL_LOCK_SESSION": hold.session,
    }


def _this_process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"
