"""A candidate as a process of its own: ``python -m tests.election.candidate ADDRESS KEY LEDGER``.

It writes down what it believes, looking every millisecond. SIGUSR1: resign, and stay out for a moment.
SIGTERM: stop as programs do, by leaving the ``with`` blocks.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from consul_coord import Client, LeaderElection, SessionSpec
from tests.election.ledger import Ledger, now

if TYPE_CHECKING:
    from types import FrameType

SPEC = SessionSpec(ttl=1.0, lock_delay=0.3)
LOOK = 0.001
PAUSE = 1.0


def main(address: str, key: str, path: str) -> None:
    ledger = Ledger(Path(path))
    with Client(address=address, session=SPEC, timeout=2.0) as client:
        election = LeaderElection(client, key, retry_wait=(0.05, 0.2), value=path)

        def resign(number: int, frame: FrameType | None) -> None:
            threading.Thread(target=election.resign, kwargs={"pause": PAUSE}).start()

        def stop(number: int, frame: FrameType | None) -> None:
            sys.exit(0)

        signal.signal(signal.SIGUSR1, resign)
        signal.signal(signal.SIGTERM, stop)
        with election:
            while True:
                election.wait_for_leadership()
                at = now()
                while (term := election.term) is not None:
                    ledger.believe(term, at)
                    time.sleep(LOOK)
                    at = now()


if __name__ == "__main__":
    main(*sys.argv[1:])
