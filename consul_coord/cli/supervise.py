"""Running a command while a hold lasts, and not longer.

Rules
- Signals for us are passed on to the command's process group; what they do is the command's business.
- The command gets TERM as soon as the hold is lost, or is about to be: when renewals fail and little of the
  lease is left. It gets KILL before the lease ends, so that it never runs beside the next holder.
- The guard gets the same deadline, at each renewal, and ends the command a moment later than this process
  would: so it does so when this process is stopped, stalled or killed.
- Its time after TERM depends on what keeps others out: the rest of the lease, and after an ended session the
  lock-delay as well. If nothing does, it gets a moment only.
- A hold with a ``max_hold`` ends by that as by its lease: the command gets TERM, then KILL, before.
- A leader that is asked to hand over has its command end with TERM, and with KILL after some time. The lease
  goes on meanwhile.
- A command that is suspended at the terminal suspends us as well, and with us the renewals. It goes on only
  if the hold has outlasted that.
"""

from __future__ import annotations

import math
import os
import signal
from typing import TYPE_CHECKING, NamedTuple

from consul_coord import HoldState, LossReason, events
from consul_coord.cli.acquire import ENDING
from consul_coord.cli.child import Child, heeding_children
from consul_coord.cli.codes import ExitCode
from consul_coord.cli.guard import Limits
from consul_coord.cli.inbox import ChildEnded, ChildStopped, Handover, Lost, Renewed, Signalled
from consul_coord.cli.terminal import Terminal, suspend
from consul_coord.cli.told import environ_of
from consul_coord.models.session import effective_lock_delay

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consul_coord import Client, Hold, SessionSpec
    from consul_coord.cli.guard import Guard
    from consul_coord.cli.inbox import Fact, Inbox
    from consul_coord.cli.output import Reporter
    from consul_coord.events import Event

FORWARDED = ENDING | {signal.SIGUSR1, signal.SIGUSR2}
LONGEST_GRACE = 5.0
"""Seconds between TERM and KILL, at most."""
GRACE_SHARE = 0.25
"""The part of the lease that may be used for the grace."""
MOMENT = 0.2
"""Seconds between TERM and KILL when nothing keeps others out."""
MARGIN = 0.25
"""Seconds before the end of the lease at which KILL is sent."""
GUARD_SHARE = 0.4
"""The part of the grace that is left when the guard sends TERM; this process has done so at a half."""
_WANTS_TERMINAL = frozenset({signal.SIGTTIN, signal.SIGTTOU})
_SUSPENDS = _WANTS_TERMINAL | {signal.SIGTSTP}


class Ended(NamedTuple):
    """How a supervised command ended.

    ``stopped``: it was ended because of the hold. ``drained``: it was asked to end, so that another process
    can take over; ``heir`` is that one's session, if somebody named one.
    """

    code: int
    stopped: bool
    drained: bool = False
    heir: str | None = None


class Drain(NamedTuple):
    """How a command is ended so that another process can take over."""

    signal: int | None
    """By which signal we are asked to; None for none."""
    timeout: float
    """Seconds from TERM to KILL."""


class Grace(NamedTuple):
    """Seconds from TERM to KILL."""

    lease: float
    """Before the end of a lease that can't be renewed."""
    session_gone: float
    """After the session has ended."""


def grace_of(spec: SessionSpec, *, max_hold: float | None) -> Grace:
    """Return what the hold can spare and, once the session has ended, the lock-delay."""
    longest = min(spec.lease_horizon or 0.0, math.inf if max_hold is None else max_hold)
    lease = min(LONGEST_GRACE, GRACE_SHARE * longest)
    return Grace(lease, session_gone=min(lease, max(effective_lock_delay(spec), MOMENT)))


class Observer:
    """Tells of events, and the inbox of each renewal."""

    def __init__(self, reporter: Reporter, inbox: Inbox) -> None:
        self._reporter = reporter
        self._inbox = inbox

    def on_event(self, event: Event) -> None:
        """Take notice of an event."""
        self._reporter.on_event(event)
        if isinstance(event, events.Renewed):
            self._inbox.put(Renewed())


def supervise(
    command: Sequence[str],
    hold: Hold,
    *,
    client: Client,
    grace: Grace,
    guard: Guard,
    inbox: Inbox,
    reporter: Reporter,
    drain: Drain | None = None,
) -> Ended:
    """Run a command under a hold, to its end. Raises CannotStart. The hold is the caller's to release.

    A hold that is over, because this process was stopped for long, starts no command.
    """
    if not hold.is_held:
        return Ended(ExitCode.LOST, stopped=True)
    hold.on_lost(lambda reason: inbox.put(Lost(reason)))
    terminal = Terminal()
    try:
        with inbox.signals({signal.SIGTSTP}), heeding_children():
            child = Child(
                command,
                environ=os.environ | environ_of(hold),
                guard=guard,
                limits=_limits(hold, grace),
                inbox=inbox,
                terminal=terminal,
            )
            return _Supervision(
                child,
                terminal,
                client=client,
                hold=hold,
                grace=grace,
                inbox=inbox,
                reporter=reporter,
                drain=drain or Drain(None, 0.0),
            ).run(command[0])
    finally:
        terminal.close()


def _limits(hold: Hold, grace: Grace) -> Limits:
    """Return when the guard is to step in: when this process should have done so before."""
    deadline = hold.deadline()
    kill_at = deadline - min(MARGIN, grace.lease) / 2
    return Limits(min(deadline - GUARD_SHARE * grace.lease, kill_at), kill_at)


class _Supervision:
    def __init__(
        self,
        child: Child,
        terminal: Terminal,
        *,
        client: Client,
        hold: Hold,
        grace: Grace,
        inbox: Inbox,
        reporter: Reporter,
        drain: Drain,
    ) -> None:
        self._child = child
        self._terminal = terminal
        self._client = client
        self._hold = hold
        self._grace = grace
        self._inbox = inbox
        self._reporter = reporter
        self._kill_at: float | None = None
        """When KILL is due, on the client's clock; None as long as the hold is well."""
        self._killed = False
        self._drain = drain
        self._drained_at: float | None = None
        """When the command was asked to end so that another process can take over, on the client's clock."""
        self._heir: str | None = None

    def run(self, name: str) -> Ended:
        pid = self._child.group
        try:
            self._reporter.tell("started", f"running {name} (pid {pid})", pid=pid)
            if not self._child.is_guarded:
                text = "the guard process is gone: if consul-coord is killed, the command goes on"
                self._reporter.tell("unguarded", text, problem=True)
            while not isinstance(fact := self._inbox.get(self._patience()), ChildEnded):
                self._handle(fact)
        finally:
            code, stepped_in = self._child.finish()
            self._terminal.take_back(self._child.group)
        stopped = stepped_in or self._kill_at is not None
        return Ended(code, stopped, drained=self._drained_at is not None and not stopped, heir=self._heir)

    def _handle(self, fact: Fact | None) -> None:
        match fact:
            case Signalled(number) if number == self._drain.signal:
                self._begin_drain("by a signal")
            case Handover(heir):
                self._heir = heir
                self._begin_drain(f"to {heir}")
            case Signalled(number):
                self._child.send(number)
            case Lost(reason):
                self._stop(self._after(reason))
            case Renewed():
                if self._kill_at is None:
                    self._child.limit(_limits(self._hold, self._grace))
            case ChildStopped(number):
                self._child.is_stopped = True
                if number in _SUSPENDS:
                    self._suspended(number)
            case _:
                self._time_is_up()

    def _begin_drain(self, why: str) -> None:
        """Ask the command to end, so that another process can take over; the hold goes on meanwhile."""
        if self._drained_at is not None or self._kill_at is not None:
            return
        self._drained_at = self._client.now()
        text = f"asked to hand over {why}: ending the command, for {self._drain.timeout:g} s at most"
        self._reporter.tell("draining", text, problem=True, heir=self._heir)
        self._child.send(signal.SIGTERM)
        if self._child.is_stopped:
            self._child.resume()

    def _after(self, reason: LossReason) -> float:
        """Return the seconds between TERM and KILL after a loss."""
        if reason is LossReason.EXPIRED:
            return 0.0  # this process was stalled: another client may hold the key already
        return self._grace.session_gone if reason is LossReason.SESSION_GONE else MOMENT

    # -- the lease -----------------------------------------------------------------------

    def _patience(self) -> float | None:
        """Return the seconds until there is something to decide about the lease; None when KILL was sent."""
        if self._killed:
            return None
        now = self._client.now()
        if self._kill_at is not None:
            return max(0.0, self._kill_at - now)
        left = self._hold.remaining()
        grace = self._grace.lease
        patience = left - next((limit for limit in (grace, grace / 2) if left > limit), left)
        if self._drained_at is None:
            return patience
        return min(patience, max(0.0, self._drained_at + self._drain.timeout - now))

    def _time_is_up(self) -> None:
        drained = math.inf if self._drained_at is None else self._drained_at + self._drain.timeout
        if self._kill_at is not None or self._client.now() >= drained:
            self._kill()
            return
        left = self._hold.remaining()
        # A renewal that is merely late may still come; one that fails gives the command its full time to end.
        grace = self._grace.lease
        enough = grace if self._hold.state is HoldState.JEOPARDY else grace / 2
        if left <= enough:
            text = f"the hold ends in {left:.1f} s: stopping the command"
            self._reporter.tell("stopping", text, problem=True, remaining=left)
            self._stop(grace)

    def _stop(self, grace: float) -> None:
        """Send TERM now and set the time for KILL; what was set before stays if it is earlier."""
        now = self._client.now()
        kill_at = max(now + min(MOMENT, grace), min(now + grace, self._hold.deadline() - MARGIN))
        if self._kill_at is not None:
            kill_at = min(self._kill_at, kill_at)
        first = self._kill_at is None
        self._kill_at = kill_at
        self._child.limit(Limits(math.inf, kill_at + MARGIN / 2))
        if not first:
            return
        if self._child.is_stopped:
            self._kill()  # it would get TERM only by being continued
        elif not self._child.send(signal.SIGTERM):
            self._reporter.tell("stopping", "not permitted to stop the command", problem=True)

    def _kill(self) -> None:
        self._killed = True
        self._child.send(signal.SIGKILL)

    # -- the terminal --------------------------------------------------------------------

    def _suspended(self, number: int) -> None:
        wants = number in _WANTS_TERMINAL and self._terminal.lend(self._child.group)
        # Ctrl-Z may have come in between, while it was stopped already.
        if wants and not self._child.is_pending(signal.SIGTSTP):
            self._child.resume()
            return
        lent = self._terminal.take_back(self._child.group)
        suspend()
        if lent:
            self._terminal.lend(self._child.group)
        if self._hold.is_held and self._kill_at is None:
            self._child.resume()
        else:
            self._stop(MOMENT)
