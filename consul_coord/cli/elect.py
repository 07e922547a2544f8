"""``consul-coord elect``: run a command while leading, and again after each later election.

Rules
- The command's own end ends all: we resign, and exit with its code.
- When the leadership is lost the command is stopped as ``supervise`` says, and we are a candidate again;
  with ``--once`` we exit.
- INT, TERM, HUP and QUIT end us: while we wait at once, while the command runs with it.
- What refuses the candidacy for good (a key used for something else, a missing permission) ends us too.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from consul_coord import Client, ConsulCoordError, LeaderElection, SessionSpec
from consul_coord.cli import options
from consul_coord.cli.acquire import ENDING, Interrupted
from consul_coord.cli.child import CannotStart
from consul_coord.cli.codes import SIGNALLED, ExitCode
from consul_coord.cli.guard import Guard
from consul_coord.cli.inbox import Granted, Inbox, Refused, Signalled
from consul_coord.cli.output import Reporter
from consul_coord.cli.supervise import FORWARDED, Ended, Observer, grace_of, supervise
from consul_coord.cli.told import environ_of, shown_value
from consul_coord.events import Failed
from consul_coord.models.session import effective_lock_delay

if TYPE_CHECKING:
    from consul_coord import Hold
    from consul_coord.cli.inbox import Fact
    from consul_coord.cli.options import Agent
    from consul_coord.events import Event

EPILOG = """\b
Examples:
  consul-coord elect service/scheduler -- ./scheduler
  consul-coord elect service/web/leader --value "$HOSTNAME:80" -- ./web --primary
  consul-coord elect service/scheduler --once -- ./scheduler

The command gets CONSUL_LOCK_HELD=true, CONSUL_LOCK_FENCE (the term), CONSUL_LOCK_KEY and
CONSUL_LOCK_SESSION. When the leadership is lost it gets TERM, then KILL before anybody else can lead, and is
run again after the next election. It does not outlive consul-coord.
"""


class _Mail(Inbox):
    """An inbox that remembers the signal by which we were asked to end."""

    ended_by: int | None = None

    def put(self, fact: Fact) -> None:
        if isinstance(fact, Signalled) and fact.number in ENDING:
            self.ended_by = fact.number
        super().put(fact)


class _Observer(Observer):
    """Tells the inbox of what refuses the candidacy as well."""

    election: LeaderElection | None = None

    def on_event(self, event: Event) -> None:
        """Take notice of an event."""
        super().on_event(event)
        problem = None if self.election is None else self.election.problem
        if isinstance(event, Failed) and isinstance(problem, ConsulCoordError):
            self._inbox.put(Refused(problem))


@click.command(epilog=EPILOG)
@click.argument("key")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option(
    "--value", metavar="V", help="What is advertised while leading (default: this host and process)."
)
@click.option("--once", is_flag=True, help="Exit with 76 when the leadership is lost.")
@click.option(
    "--priority-delay",
    type=options.DURATION,
    default=0.0,
    metavar="TIME",
    help="Stand only when nobody has led for S seconds.",
)
@click.option(
    "--ttl",
    type=options.DURATION,
    default=15.0,
    show_default=True,
    metavar="TIME",
    help="Seconds until the leadership of a dead leader begins to expire.",
)
@click.option(
    "--lock-delay",
    type=options.DURATION,
    metavar="TIME",
    help="Seconds for which nobody is elected after a leader died (default: the server's, 15). Give it "
    "together with --ttl: without contact to Consul a leadership lasts no longer than the shorter of both.",
)
@click.option("-q", "--quiet", is_flag=True, help="Tell problems only.")
@options.connection
def elect(
    *,
    key: str,
    command: tuple[str, ...],
    value: str | None,
    once: bool,
    priority_delay: float,
    ttl: float,
    lock_delay: float | None,
    quiet: bool,
    agent: Agent,
    as_json: bool,
) -> int:
    """Run COMMAND while leading KEY, again after each election."""
    reporter = Reporter(as_json=as_json, quiet=quiet)
    inbox = _Mail()
    observer = _Observer(reporter, inbox)

    def work(guard: Guard) -> int:
        spec = SessionSpec(ttl=ttl, lock_delay=lock_delay, name=f"consul-coord elect {key}")
        with agent.client(session=spec, observer=observer) as client:
            observer.election = LeaderElection(
                client,
                key,
                value=shown_value(value),
                priority_delay=priority_delay,
                on_elected=lambda leadership: inbox.put(Granted(leadership)),
            )
            with observer.election:
                return _lead(
                    command,
                    client=client,
                    spec=spec,
                    once=once,
                    guard=guard,
                    inbox=inbox,
                    reporter=reporter,
                )

    with Guard() as guard, inbox.signals(FORWARDED), reporter.logging():
        try:
            return reporter.answer(lambda: work(guard))
        except Interrupted as error:
            return reporter.fail(SIGNALLED + error.number, str(error))
        except CannotStart as error:
            return reporter.fail(error.code, str(error))


def _lead(
    command: tuple[str, ...],
    *,
    client: Client,
    spec: SessionSpec,
    once: bool,
    guard: Guard,
    inbox: _Mail,
    reporter: Reporter,
) -> int:
    """Run the command at each election, until it ends by itself; return the exit code."""
    while True:
        hold = _elected(inbox)
        try:
            ended = supervise(
                command,
                environ=os.environ | environ_of(hold),
                client=client,
                hold=hold,
                grace=grace_of(spec, keeps_out=effective_lock_delay(spec)),
                guard=guard,
                inbox=inbox,
                reporter=reporter,
            )
        finally:
            hold.release()
        if not ended.stopped:
            reporter.tell("ended", f"the command ended with {ended.code}", code=ended.code)
            return ended.code
        code = _after_loss(ended, once=once, inbox=inbox, reporter=reporter)
        if code is not None:
            return code


def _elected(inbox: Inbox) -> Hold:
    """Wait for an election. Raises Interrupted, and what refuses the candidacy."""
    while True:
        match inbox.get():
            case Granted(hold) if hold.is_held:
                return hold
            case Signalled(number) if number in ENDING:
                raise Interrupted(number)
            case Refused(error):
                raise error
            case _:
                pass  # news of a leadership that is over


def _after_loss(ended: Ended, *, once: bool, inbox: _Mail, reporter: Reporter) -> int | None:
    """Return the exit code, or None to stand again."""
    text = "the leadership was lost, and the command was stopped"
    if inbox.ended_by is not None:
        return reporter.fail(SIGNALLED + inbox.ended_by, text)
    if once:
        return reporter.fail(ExitCode.LOST, text)
    reporter.tell("lost_leadership", f"{text}; standing again", problem=True, code=ended.code)
    return None
