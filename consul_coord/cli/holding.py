"""Run a command under anything that can be held: the common part of ``lock``, ``semaphore`` and others."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import click

from consul_coord import Client, ReleaseOutcome, SessionSpec
from consul_coord.cli import options
from consul_coord.cli.acquire import Interrupted, Needless, acquire
from consul_coord.cli.child import CannotStart
from consul_coord.cli.codes import SIGNALLED, ExitCode
from consul_coord.cli.guard import Guard
from consul_coord.cli.inbox import Inbox
from consul_coord.cli.output import Reporter
from consul_coord.cli.supervise import FORWARDED, Observer, grace_of, supervise
from consul_coord.sync import driver

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord import Hold, SessionSettings
    from consul_coord.cli.acquire import Holdable
    from consul_coord.cli.options import Agent
    from consul_coord.cli.supervise import Ended

F = TypeVar("F", bound="Callable[..., Any]")

LOOP_DELAY = 0.1
"""Seconds until renewals and watches begin: a command that has ended by then pays for no event loop."""
SHORT = 0.5
"""Seconds for closing when the release has waited for an answer already, in vain."""

_OPTIONS = (
    click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND..."),
    click.option("--timeout", type=options.DURATION, metavar="TIME", help="How long to wait; 0 tries once."),
    options.MAX_HOLD,
    click.option("--value", metavar="V", help="Text that others see while it is held (default: host:pid)."),
    click.option(
        "--ttl",
        type=options.DURATION,
        default=15.0,
        show_default=True,
        metavar="TIME",
        help="TTL of the session: Consul ends a dead process's hold within twice this time.",
    ),
    click.option(
        "--lock-delay",
        type=options.LOCK_DELAY,
        metavar="TIME",
        help="How long no client gets it after a holder died (default: the server's, 15 s). Give it "
        "together with --ttl: a hold without contact to Consul lasts no longer than the shorter of both.",
    ),
    click.option(
        "--not-acquired-code",
        type=options.EXIT_CODE,
        default=int(ExitCode.NOT_ACQUIRED),
        show_default=True,
        metavar="N",
        help="Exit code when it was not acquired in time.",
    ),
    options.quiet,
)


fair = click.option("--fair", is_flag=True, help="Never pass waiters.")


def command_options(function: F) -> F:
    """Add the options of every verb that runs a command, except those of the connection."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


class Errand(TypedDict):
    """A command to be run under a hold, and what its user said about that, as the options give it."""

    command: tuple[str, ...]
    timeout: float | None
    max_hold: float | None
    not_acquired_code: int
    quiet: bool
    agent: Agent
    as_json: bool


def run(
    errand: Errand,
    *,
    session: SessionSettings,
    wanted: Callable[[Client], Holdable],
    ended: Callable[[Hold, int], object] = lambda _hold, _code: None,
) -> int:
    """Acquire what ``wanted`` makes, run the command under it, and return the exit code.

    ``ended`` is called when the command has ended by itself, before the release. In any case
    the hold is released, and a problem is reported. Raises bugs only.
    """
    waits = errand["timeout"] != 0
    reporter = Reporter(as_json=errand["as_json"], quiet=errand["quiet"], waits=waits)
    inbox = Inbox()

    def work(guard: Guard) -> int:
        spec = SessionSpec(**session)
        with errand["agent"].client(session=spec, observer=Observer(reporter, inbox)) as client:
            run_under = partial(
                supervise,
                errand["command"],
                client=client,
                grace=grace_of(spec, max_hold=errand["max_hold"]),
                guard=guard,
                inbox=inbox,
                reporter=reporter,
            )
            hold = acquire(
                wanted(client), timeout=errand["timeout"], max_hold=errand["max_hold"], inbox=inbox
            )
            return _run(run_under, hold, client=client, reporter=reporter, when_ended=ended)

    driver.start_delay = LOOP_DELAY
    with Guard() as guard, inbox.signals(FORWARDED):
        try:
            return reporter.answer(lambda: work(guard), not_acquired=errand["not_acquired_code"])
        except Needless as error:
            reporter.tell("skipped", str(error))
            return error.code
        except Interrupted as error:
            return reporter.fail(SIGNALLED + error.number, str(error))


def _run(
    run_under: Callable[[Hold], Ended],
    hold: Hold,
    *,
    client: Client,
    reporter: Reporter,
    when_ended: Callable[[Hold, int], object],
) -> int:
    """Run the command under the hold, release that, and return the exit code that both make."""
    try:
        ended = run_under(hold)
        if not ended.stopped:
            when_ended(hold, ended.code)
    except CannotStart as error:
        return reporter.fail(error.code, str(error))
    finally:
        outcome = hold.release()
        if outcome is ReleaseOutcome.UNKNOWN:
            client.close(timeout=SHORT)
    if ended.stopped:
        return reporter.fail(ExitCode.LOST, "the hold ended before the command, which was stopped")
    if outcome is ReleaseOutcome.ALREADY_LOST:
        return reporter.fail(ExitCode.LOST, "the hold was lost while the command ran")
    if outcome is ReleaseOutcome.UNKNOWN:
        reporter.tell(
            "unreleased", "no answer to the release: it may stay taken until it expires", problem=True
        )
    reporter.tell("ended", f"the command ended with {ended.code}", code=ended.code)
    return ended.code
