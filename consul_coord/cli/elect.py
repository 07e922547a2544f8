"""``consul-coord elect``: run a command while leading, and again after each later election.

Rules
- The command's own end ends all: we resign, and exit with its code.
- When the leadership is lost the command is stopped as ``supervise`` says, and we are a candidate again;
  with ``--once`` we exit.
- INT, TERM, HUP and QUIT end us: while we wait at once, while the command runs with it.
- A leader that is asked to hand over, by a signal or by ``transfer``, ends the command, hands over, and
  stands again.
- A lasting refusal of the candidacy (a key used for something else, a missing permission) ends us too.
"""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING

import click

from consul_coord import Client, ConsulCoordError, LeaderElection, SessionSpec, TransportError
from consul_coord.cli import options
from consul_coord.cli.acquire import ENDING, Interrupted
from consul_coord.cli.child import CannotStart
from consul_coord.cli.codes import SIGNALLED, ExitCode
from consul_coord.cli.guard import Guard
from consul_coord.cli.handover import listening
from consul_coord.cli.inbox import Granted, Inbox, Refused, Signalled
from consul_coord.cli.output import Reporter
from consul_coord.cli.supervise import FORWARDED, Drain, Ended, Observer, grace_of, supervise
from consul_coord.cli.told import shown_value
from consul_coord.events import Failed

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord import Hold
    from consul_coord.cli.inbox import Fact
    from consul_coord.cli.options import Agent
    from consul_coord.events import Event

ASIDE = 5.0
"""Seconds for which a leader that has handed over is no candidate."""
_CANDIDACY = "candidacy of the election "
"""How the library's news of a refusal begins."""
EPILOG = """\b
Examples:
  consul-coord elect service/scheduler -- ./scheduler
  consul-coord elect service/web/leader --value "$HOSTNAME:80" -- ./web --primary
  consul-coord elect service/scheduler --once -- ./scheduler

The command gets CONSUL_LOCK_HELD=true, CONSUL_LOCK_FENCE (the term), CONSUL_LOCK_KEY and
CONSUL_LOCK_SESSION. When the leadership is lost it gets TERM, then KILL before anybody else can lead, and is
run again after the next election. It does not outlive consul-coord. With --drain-on a signal has the leader
end its command and hand over; then it stands again. "consul-coord transfer" asks for that by name.
"""


class _Mail(Inbox):
    """An inbox that remembers the signal by which we were asked to end."""

    def __init__(self, drain: Drain) -> None:
        super().__init__()
        self.drain = drain
        self.ended_by: int | None = None

    def put(self, fact: Fact) -> None:
        if isinstance(fact, Signalled) and self.ends(fact.number):
            self.ended_by = fact.number
        super().put(fact)

    def ends(self, number: int) -> bool:
        """Return whether a signal asks us to end."""
        return number in ENDING and number != self.drain.signal


class _Observer(Observer):
    """Tells the inbox of what refuses the candidacy as well."""

    election: LeaderElection | None = None

    def on_event(self, event: Event) -> None:
        """Take notice of an event."""
        super().on_event(event)
        if not isinstance(event, Failed):
            return
        problem = None if self.election is None else self.election.problem
        if isinstance(problem, ConsulCoordError) and not isinstance(problem, TransportError):
            self._inbox.put(Refused(problem))  # which we end with
        elif event.where.startswith(_CANDIDACY):
            self._reporter.tell("log", event.describe(), problem=True, level="error")


@click.command(cls=options.Running, epilog=EPILOG)
@click.argument("key")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option("--value", metavar="V", help="Text to advertise while leading (default: host:pid).")
@click.option("--once", is_flag=True, help="Exit with 76 when the leadership is lost.")
@click.option(
    "--priority-delay",
    type=options.DURATION,
    default=0.0,
    metavar="TIME",
    help="Stand only if there was no leader for this long.",
)
@click.option(
    "--ttl",
    type=options.DURATION,
    default=15.0,
    show_default=True,
    metavar="TIME",
    help="TTL of the session: Consul ends a dead leader's term within twice this time.",
)
@click.option(
    "--lock-delay",
    type=options.LOCK_DELAY,
    metavar="TIME",
    help="How long no candidate is elected after a leader died (default: the server's, 15 s). Give it "
    "together with --ttl: without contact to Consul a leadership lasts no longer than the shorter of both.",
)
@click.option(
    "--drain-on",
    type=click.Choice(["HUP", "USR1", "USR2"]),
    help="The signal that asks this leader to hand over to the next candidate.",
)
@click.option(
    "--drain-timeout",
    type=options.DURATION,
    default=30.0,
    show_default=True,
    metavar="TIME",
    help="How long the command may take to end when it hands over.",
)
@options.MAX_HOLD
@options.quiet
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
    drain_on: str | None,
    drain_timeout: float,
    max_hold: float | None,
    quiet: bool,
    agent: Agent,
    as_json: bool,
) -> int:
    """Run COMMAND while leading KEY, and again when elected again."""
    reporter = Reporter(as_json=as_json, quiet=quiet, own=_CANDIDACY)
    inbox = _Mail(Drain(None if drain_on is None else signal.Signals[f"SIG{drain_on}"], drain_timeout))
    observer = _Observer(reporter, inbox)

    def work(guard: Guard) -> int:
        spec = SessionSpec(ttl=ttl, lock_delay=lock_delay, name=f"consul-coord elect {key}")
        with agent.client(session=spec, observer=observer) as client:
            observer.election = LeaderElection(
                client,
                key,
                value=shown_value(value),
                priority_delay=priority_delay,
                max_hold=max_hold,
                on_elected=lambda leadership: inbox.put(Granted(leadership)),
            )
            with observer.election:
                run_under = partial(
                    supervise,
                    command,
                    client=client,
                    grace=grace_of(spec, max_hold=max_hold),
                    guard=guard,
                    inbox=inbox,
                    reporter=reporter,
                    drain=inbox.drain,
                )
                return _lead(
                    run_under,
                    election=observer.election,
                    client=client,
                    once=once,
                    inbox=inbox,
                    reporter=reporter,
                )

    with Guard() as guard, inbox.signals(FORWARDED):
        try:
            return reporter.answer(lambda: work(guard))
        except Interrupted as error:
            return reporter.fail(SIGNALLED + error.number, str(error))
        except CannotStart as error:
            return reporter.fail(error.code, str(error))


def _lead(
    run_under: Callable[[Hold], Ended],
    *,
    election: LeaderElection,
    client: Client,
    once: bool,
    inbox: _Mail,
    reporter: Reporter,
) -> int:
    """Run the command at each election, until it ends by itself; return the exit code."""
    while True:
        hold = _elected(inbox)
        try:
            with listening(client, hold.key, hold.session, inbox):
                ended = run_under(hold)
            if ended.drained:
                _hand_over(election, ended.heir, reporter=reporter)
        finally:
            hold.release()
        if not ended.stopped and not ended.drained:
            reporter.tell("ended", f"the command ended with {ended.code}", code=ended.code)
            return ended.code
        code = _after_leading(ended, once=once, inbox=inbox, reporter=reporter)
        if code is not None:
            return code


def _hand_over(election: LeaderElection, heir: str | None, *, reporter: Reporter) -> None:
    """Resign, in favour of the heir if there is one; then stand aside for a moment."""
    if heir is not None:
        try:
            election.transfer_to(heir)
        except ConsulCoordError as error:
            reporter.tell("untransferred", f"{heir} could not be made the leader: {error}", problem=True)
    election.resign(pause=ASIDE)


def _elected(inbox: _Mail) -> Hold:
    """Wait for an election. Raises Interrupted, and what refuses the candidacy."""
    while True:
        match inbox.get():
            case Granted(hold) if hold.is_held:
                return hold
            case Signalled(number) if inbox.ends(number):
                raise Interrupted(number)
            case Refused(error):
                raise error
            case _:
                pass  # news of a leadership that is over


def _after_leading(ended: Ended, *, once: bool, inbox: _Mail, reporter: Reporter) -> int | None:
    """Return the exit code, or None to stand again."""
    if ended.drained:
        reporter.tell("handed_over", "the leadership was handed over", code=ended.code)
        if inbox.ended_by is not None:
            return SIGNALLED + inbox.ended_by
        return int(ExitCode.DONE) if once else None
    text = "the leadership was lost, and the command was stopped"
    if inbox.ended_by is not None:
        return reporter.fail(SIGNALLED + inbox.ended_by, text)
    if once:
        return reporter.fail(ExitCode.LOST, text)
    reporter.tell("lost_leadership", f"{text}; standing again", problem=True, code=ended.code)
    return None
