"""``consul-coord top``: who holds and who waits below a prefix, as it changes.

Rules
- Looks are blocking queries. Nothing is asked while nothing changes, and a change is seen at once, at most
  ``PAUSE`` after the last look.
- ``view`` says what is on the screen; this module gets it there.
- It waits for an agent that does not answer, and says so: on the screen beside the last state, or on stderr.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

import click

from consul_coord import Client, ClientClosed, ConsulCoordError
from consul_coord.cli import holders, options, tables
from consul_coord.cli.acquire import ENDING
from consul_coord.cli.codes import SIGNALLED, ExitCode
from consul_coord.cli.inbox import Crashed, Inbox, Pressed, Refused, Seen, Signalled
from consul_coord.cli.keyboard import keys
from consul_coord.cli.output import Reporter
from consul_coord.cli.survey import survey
from consul_coord.cli.view import View
from consul_coord.events import Retried

if TYPE_CHECKING:
    from collections.abc import Generator

    from consul_coord import Session
    from consul_coord.cli.options import Agent
    from consul_coord.cli.survey import Place
    from consul_coord.events import Event

EPILOG = """\b
Examples:
  consul-coord top jobs/
  consul-coord top '' --json >changes.jsonl

On a terminal this is one screen that changes: the arrows, Page Up, Page Down, Home and End scroll, / filters,
q or Ctrl-C ends it. Elsewhere a table is printed at each change, with --json an object with "time" and
"places". HELD says for how long; with a + it was held before top started.
"""

PAUSE = 0.2
"""Seconds between two looks, at least."""
_TICK = 1.0
"""Seconds after which the screen is drawn again, for the times on it."""
_SILENCE = 20.0
"""Seconds for which a failed look is shown; the next one, if it fails too, comes sooner."""
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""Another screen without a cursor, and back to the one before."""
_HOME, _REST = "\x1b[H", "\x1b[K"
"""To the first line; empties the rest of a line."""


@click.command(epilog=EPILOG)
@click.argument("prefix")
@options.connection
def top(*, prefix: str, agent: Agent, as_json: bool) -> int:
    """Show who holds and who waits below PREFIX, as it changes."""
    reporter, inbox = Reporter(as_json=as_json), Inbox()
    trouble = _Trouble() if not (as_json or tables.is_dumb(sys.stdout)) else None

    def work() -> int:
        with agent.client(observer=trouble or reporter) as client:
            follower = threading.Thread(target=_follow, args=(client, prefix, inbox), daemon=True)
            follower.start()
            try:
                screen = None if trouble is None else _Screen(prefix, trouble)
                with keys(inbox), nullcontext() if screen is None else screen.shown():
                    return _run(inbox, screen or _Printer(as_json=as_json))
            finally:
                client.close()
                follower.join()

    # Suspended in the middle, it would leave a terminal behind that nobody can read.
    with inbox.signals(ENDING | {signal.SIGTSTP, signal.SIGWINCH}):
        return reporter.answer(work)


def _run(inbox: Inbox, display: _Screen | _Printer) -> int:
    """Show what comes, until a key or a signal ends it. Raises what refuses the looks."""
    while True:
        match inbox.get(_TICK):
            case Pressed(key):
                if not display.press(key):
                    return ExitCode.DONE
            case Signalled(number) if number in ENDING:
                return SIGNALLED + number
            case Refused(error) | Crashed(error):
                raise error
            case Seen(places):
                display.see(places)
            case _:
                pass  # a second has passed, or the terminal has another size
        display.draw()


def _follow(client: Client, prefix: str, inbox: Inbox) -> None:
    sessions: dict[str, Session] = {}
    try:
        for result in client.kv.watch_tree(prefix, min_interval=PAUSE):
            if not {pair.session for pair in result.value if pair.session} <= sessions.keys():
                with suppress(ConsulCoordError):  # names only, and there is a next time
                    sessions = {session.id: session for session in client.session.list().value}
            inbox.put(Seen(tuple(place for place in survey(result.value, sessions) if place.in_use)))
    except ClientClosed:
        pass
    except ConsulCoordError as error:
        inbox.put(Refused(error))
    except Exception as error:  # noqa: BLE001 - raised in the main thread
        inbox.put(Crashed(error))


class _Trouble:
    """Remembers, as an observer, the last look that failed."""

    def __init__(self) -> None:
        self._last: tuple[float, str] | None = None

    def on_event(self, event: Event) -> None:
        """Take notice of an event."""
        if isinstance(event, Retried):
            self._last = (time.monotonic(), event.error)

    def text(self) -> str:
        """Return why it failed; nothing when it is long ago."""
        if self._last is None:
            return ""
        at, error = self._last
        return error if time.monotonic() - at <= _SILENCE else ""


def _print_json(places: tuple[Place, ...]) -> None:
    shown = [holders.fields(place) for place in places]
    click.echo(json.dumps({"time": round(time.time(), 3), "places": shown}))


def _print_text(places: tuple[Place, ...]) -> None:
    names = [column.name for column in holders.COLUMNS]
    for line in (*tables.plain(names, holders.rows(places)), ""):
        click.echo(line)


class _Printer:
    """Prints the places at each change."""

    def __init__(self, *, as_json: bool) -> None:
        self._print = _print_json if as_json else _print_text

    def see(self, places: tuple[Place, ...]) -> None:
        """Print the places."""
        self._print(places)

    def press(self, key: str) -> bool:
        """Return False when this key ends it."""
        return key not in {"q", "Q"}

    def draw(self) -> None:
        """Do nothing: what was printed stays."""


class _Screen:
    """The whole terminal, for the time of the block."""

    def __init__(self, prefix: str, trouble: _Trouble) -> None:
        self._view = View(prefix)
        self._trouble = trouble

    def see(self, places: tuple[Place, ...]) -> None:
        """Show the places from now on."""
        self._view.see(places, time.monotonic())

    def press(self, key: str) -> bool:
        """Return False when this key ends it."""
        return self._view.press(key)

    def draw(self) -> None:
        """Draw the screen again."""
        title, problem, head, *lines = self._view.lines(
            tables.terminal_size(),
            now=time.monotonic(),
            clock=time.strftime("%H:%M:%S"),
            problem=self._trouble.text(),
        )
        styled = (
            tables.styled(title, sys.stdout, bold=True),
            tables.styled(problem, sys.stdout, colour="red"),
            tables.styled(head, sys.stdout, bold=True),
            *lines[:-1],
            tables.styled(lines[-1], sys.stdout, dim=True),
        )
        sys.stdout.write(_HOME + "\r\n".join(f"{line}{_REST}" for line in styled))
        sys.stdout.flush()

    @contextmanager
    def shown(self) -> Generator[None]:
        """Take the terminal meanwhile, and leave it as it was."""
        sys.stdout.write(_ENTER)
        try:
            self.draw()
            yield
        finally:
            with suppress(OSError, ValueError):  # the terminal has gone
                sys.stdout.write(_LEAVE)
                sys.stdout.flush()
