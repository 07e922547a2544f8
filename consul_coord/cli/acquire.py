"""Waiting for a lock, or whatever can be held, in a way that signals can end.

Rules
- The waiting itself is done by another thread; the main thread stays free for signals.
- INT, TERM, HUP and QUIT end the wait. Others are for the command, which does not run yet: they are dropped.
- A hold that is granted in the same moment is given back.
"""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING, Protocol

from consul_coord import ConsulCoordError
from consul_coord.cli.inbox import Crashed, Granted, Inbox, Refused, Signalled
from consul_coord.sync.driver import start_thread

if TYPE_CHECKING:
    from consul_coord import Hold

ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
_AGAIN = 0.05
"""Seconds until a cancellation is repeated: it has no effect on a wait that is just about to begin."""


class Holdable(Protocol):
    """Anything that can be waited for: a lock, a semaphore."""

    def acquire(self, *, timeout: float | None, max_hold: float | None) -> Hold:
        """Wait for it up to ``timeout`` seconds (None: for ever), to hold it for ``max_hold`` at most."""
        ...

    def cancel(self) -> None:
        """End the waiting, in another thread."""
        ...


class Interrupted(Exception):
    """A signal ended the wait."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name} while waiting")
        self.number = number


class Needless(Exception):
    """There is nothing to be held for: the command need not run. ``code`` is what to end with."""

    def __init__(self, text: str, *, code: int) -> None:
        super().__init__(text)
        self.code = code


def acquire(wanted: Holdable, *, timeout: float | None, inbox: Inbox, max_hold: float | None) -> Hold:
    """Take what is wanted, waiting up to ``timeout`` seconds (None: for ever), for ``max_hold`` at most.

    Raises Interrupted, BackgroundFailed, and what its ``acquire`` raises, Needless among that.
    """
    start_thread(partial(_wait, wanted, timeout, max_hold, inbox), name="consul-coord-acquire")
    ended_by: int | None = None
    while True:
        match inbox.get(None if ended_by is None else _AGAIN):
            case Signalled(number) if number in ENDING:
                ended_by = ended_by or number
            case Granted(hold):
                if ended_by is None:
                    return hold
                hold.release()
                raise Interrupted(ended_by)
            case Refused(error) | Crashed(error):
                raise error if ended_by is None else Interrupted(ended_by)
            case _:
                pass
        if ended_by is not None:
            wanted.cancel()


def _wait(wanted: Holdable, timeout: float | None, max_hold: float | None, inbox: Inbox) -> None:
    try:
        inbox.put(Granted(wanted.acquire(timeout=timeout, max_hold=max_hold)))
    except ConsulCoordError as error:
        inbox.put(Refused(error))
    except Exception as error:  # noqa: BLE001 - raised in the main thread
        inbox.put(Crashed(error))
