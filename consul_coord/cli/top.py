"""``consul-coord top``: who holds and who waits below a prefix, as it changes.

Rules
- Looks are blocking queries: nothing is asked while nothing changes, and a change is seen at once, but for
  ``PAUSE`` between two looks.
- Consul tells no times. How long something has been held is counted from when it was first seen here; what
  was there at the first look has been held for longer, which is marked.
- An agent that does not answer is waited for, which is told: on the screen, beside what was seen last, or on
  stderr.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from contextlib import AbstractContextManager, nullcontext, suppress
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
from consul_coord.events import Retried
from consul_coord.extras import needs

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from consul_coord import Session
    from consul_coord.cli.options import Agent
    from consul_coord.cli.survey import Place
    from consul_coord.events import Event

EPILOG = """\b
Examples:
  consul-coord top jobs/
  consul-coord top '' --json >changes.jsonl

The key q ends it, as Ctrl-C does. On a terminal it is one screen that changes; elsewhere a table is printed
at each change, with --json an object with "time" and "places". HELD tells for how long; with a + it was
held before top started.
"""

PAUSE = 0.2
"""Seconds between two looks, at least."""
_TICK = 1.0
"""Seconds after which the screen is drawn again, for the times on it."""
_SILENCE = 20.0
"""Seconds for which a failed look is told of; the next one, if it fails too, comes sooner."""
COLUMNS = (*holders.COLUMNS, "HELD")


@click.command(epilog=EPILOG)
@click.argument("prefix")
@options.connection
def top(*, prefix: str, agent: Agent, as_json: bool) -> int:
    """Watch locks, elections and semaphores below PREFIX."""
    reporter, inbox = Reporter(as_json=as_json), Inbox()
    trouble = _Trouble() if not as_json and _can_draw() else None

    def work() -> int:
        with agent.client(observer=trouble or reporter) as client:
            follower = threading.Thread(target=_follow, args=(client, prefix, inbox), daemon=True)
            follower.start()
            try:
                with keys(inbox), _display(prefix, trouble, as_json=as_json) as show:
                    return _run(inbox, show)
            finally:
                client.close()
                follower.join()

    # Suspended in the middle, it would leave a terminal behind that nobody can read.
    with inbox.signals(ENDING | {signal.SIGTSTP}), reporter.logging():
        return reporter.answer(work)


def _run(inbox: Inbox, show: Callable[[tuple[Place, ...] | None], object]) -> int:
    """Show what comes, until a key or a signal ends it. Raises what refuses the looks."""
    while True:
        fact = inbox.get(_TICK)
        match fact:
            case Pressed("q" | "Q"):
                return ExitCode.DONE
            case Signalled(number) if number in ENDING:
                return SIGNALLED + number
            case Refused(error) | Crashed(error):
                raise error
            case Seen(places):
                show(places)
            case _:
                show(None)


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
        """Return what to say about it; nothing when it is long ago."""
        if self._last is None or time.monotonic() - self._last[0] > _SILENCE:
            return ""
        return f"no answer, this may be old: {self._last[1]}"


class _Ages:
    """For how long each hold has been seen."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str, str], tuple[float, str]] = {}
        self._mark = "+"

    def see(self, rows: list[tuple[str, ...]]) -> None:
        """Take notice of the holds that there are now."""
        now = time.monotonic()
        self._since = {key: self._since.get(key, (now, self._mark)) for key in map(self._key, rows)}
        self._mark = ""

    def of(self, row: tuple[str, ...]) -> str:
        """Return the age to be shown for a row; nothing for one without a holder."""
        since, mark = self._since[self._key(row)]
        return f"{time.monotonic() - since:.0f} s{mark}" if row[3] else ""

    @staticmethod
    def _key(row: tuple[str, ...]) -> tuple[str, str, str]:
        return row[1], row[3], row[5]  # key, session, fence


def _display(
    prefix: str, trouble: _Trouble | None, *, as_json: bool
) -> AbstractContextManager[Callable[[tuple[Place, ...] | None], object]]:
    """Return how places are shown, on a screen if its trouble is given; None for those shown last."""
    if trouble is not None:
        return _Screen(prefix, trouble)
    return nullcontext(_print_json if as_json else _print_text)


def _can_draw() -> bool:
    with needs("cli"):
        from rich.console import Console
    console = Console()
    return console.is_terminal and not console.is_dumb_terminal


def _print_json(places: tuple[Place, ...] | None) -> None:
    if places is not None:
        shown = [holders.fields(place) for place in places]
        click.echo(json.dumps({"time": round(time.time(), 3), "places": shown}))


def _print_text(places: tuple[Place, ...] | None) -> None:
    if places is not None:
        for line in (*tables.plain(holders.COLUMNS, holders.rows(places)), ""):
            click.echo(line)


class _Screen:
    """The whole terminal, for the time of the block."""

    def __init__(self, prefix: str, trouble: _Trouble) -> None:
        with needs("cli"):
            from rich.live import Live
        self._prefix = prefix
        self._trouble = trouble
        self._places: tuple[Place, ...] | None = None
        self._ages = _Ages()
        self._live = Live(screen=True, auto_refresh=False)

    def __enter__(self) -> Callable[[tuple[Place, ...] | None], object]:
        self._live.start()
        self._show(None)
        return self._show

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _show(self, places: tuple[Place, ...] | None) -> None:
        if places is not None:
            self._places = places
            self._ages.see(holders.rows(places))
        self._live.update(self._drawn(), refresh=True)

    def _drawn(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        places = self._places or ()
        held = sum(len(place.holders) for place in places)
        waiting = sum(place.waiters for place in places)
        counts = "looking" if self._places is None else f"{held} held, {waiting} waiting"
        title = f"{self._prefix or '(everything)'}: {counts}   {time.strftime('%H:%M:%S')}   q quits"
        rows = [(*row, self._ages.of(row)) for row in holders.rows(places)]
        return Group(
            Text(title, style="bold"), Text(self._trouble.text(), style="red"), tables.drawn(COLUMNS, rows)
        )
