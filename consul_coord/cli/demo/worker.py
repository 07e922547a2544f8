"""One process of the demo: takes the lock, keeps it until told to go on, gives it back.

Rules
- It writes to the log after it has got the lock, and again before it gives the lock back: one whole line
  each, appended. The log is what the demo is judged by.
- It reports what happens on stdout, one JSON object per line, with the time on the machine's monotonic clock;
  the release before it is made, so that no other worker can report its hold first.
- A line on stdin ends its work. The end of stdin means that the demo is gone, and ends the process.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
import threading
import time

from consul_coord import Client, Event, Lock, SessionSpec
from consul_coord.events import Waiting

GIVE_UP = 120.0
"""Seconds that a worker waits for the lock at most."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The orders of a worker, passed as JSON in its only argument."""

    address: str
    key: str
    name: str
    log: str
    ttl: float
    lock_delay: float

    def perform(self) -> None:
        """Take the lock once, and keep it until told."""
        go_on = threading.Event()
        threading.Thread(target=_listen, args=(go_on,), daemon=True).start()
        # What the package logs is reported below, and would stand in the middle of the demo's own lines.
        logging.getLogger("consul_coord").addHandler(logging.NullHandler())
        _tell("started")
        spec = SessionSpec(ttl=self.ttl, lock_delay=self.lock_delay, name=self.name)
        with Client(address=self.address, session=spec, observer=_Teller()) as client:
            lock = Lock(client, self.key, value=self.name)
            with lock.hold(timeout=GIVE_UP) as hold:
                self._note(hold.fence, "start")
                _tell("acquired", fence=hold.fence, session=hold.session)
                while not go_on.wait(0.05):
                    hold.check()
                hold.check()
                self._note(hold.fence, "end")
                _tell("releases")

    def _note(self, fence: int, what: str) -> None:
        line = json.dumps({"worker": self.name, "what": what, "fence": fence, "time": time.monotonic()})
        log = os.open(self.log, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(log, f"{line}\n".encode())
        finally:
            os.close(log)


class _Teller:
    """Reports the waiting; other steps are reported where they happen."""

    def on_event(self, event: Event) -> None:
        name = type(event).__name__.lower()
        if isinstance(event, Waiting):
            holders = [holder.value.decode() for holder in event.blocker.holders]
            _tell(name, **dataclasses.asdict(event), holders=holders)
        elif name in {"jeopardy", "lost"}:
            _tell(name, **dataclasses.asdict(event))


def _listen(go_on: threading.Event) -> None:
    if sys.stdin.readline():
        go_on.set()
    if not sys.stdin.readline():
        os._exit(1)


def _tell(what: str, **fields: object) -> None:
    line = json.dumps({"what": what, "time": time.monotonic(), **fields}, default=str)
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    Part(**json.loads(sys.argv[1])).perform()
