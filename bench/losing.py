"""A process that holds locks, computes on some threads, and says when it learns that its session has ended.

``python -m bench.losing HOLDS BUSY ADDRESS`` reads one line of standard input per round. For each it takes
the locks with a session of its own, starts the busy threads, prints the session's id, and once all holds are
lost one line of JSON: when ``lost.wait()`` returned, and when the last hold was lost, on the system's
monotonic clock, which all processes share.

Rules
- A busy thread computes in Python without a pause: it has the interpreter's lock whenever it can get it.
- One thread waits in ``lost.wait()``, as a user's would.
- The package's log is off: where it goes, and what that costs, is the user's.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import threading
import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

from consul_coord import Client, Lock, SessionSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT = 30.0


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Compute on so many threads meanwhile."""
    over = threading.Event()

    def compute() -> None:
        number = 0
        while not over.is_set():
            for _ in range(10_000):
                number = (number * 1_103_515_245 + 12_345) % 2**31

    threads = [threading.Thread(target=compute, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def lose(client: Client, holds: int, computing: int) -> dict[str, float]:
    """Hold locks until their session is destroyed by somebody; return when that was known."""
    prefix = f"bench/losing/{uuid.uuid4()}"
    everybody = threading.Event()
    left = [holds]
    last = 0.0

    def lost(_: object) -> None:
        nonlocal last
        left[0] -= 1
        last = time.monotonic()
        if not left[0]:
            everybody.set()

    taken = [Lock(client, f"{prefix}/{number}").acquire() for number in range(holds)]
    for hold in taken:
        hold.on_lost(lost)
    known = 0.0

    def wait() -> None:
        nonlocal known
        if taken[-1].lost.wait(TIMEOUT):
            known = time.monotonic()

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    time.sleep(0.5)  # until the session and the keys are watched
    with busy(computing):
        time.sleep(0.2)
        print(json.dumps(taken[0].session), flush=True)
        everybody.wait(TIMEOUT)
        waiter.join(TIMEOUT)
    if left[0] or not known:
        message = f"{left[0]} of {holds} holds were not lost within {TIMEOUT:.0f} s"
        raise RuntimeError(message)
    return {"known": known, "last": last}


def main() -> None:
    """Lose once per line."""
    parser = argparse.ArgumentParser(prog="bench.losing")
    parser.add_argument("holds", type=int)
    parser.add_argument("busy", type=int)
    parser.add_argument("address")
    given = parser.parse_args()
    logging.getLogger("consul_coord").disabled = True
    # Without a lock-delay: the keys are not used again, and the server need not remember them.
    with Client(address=given.address, session=SessionSpec(lock_delay=0.0, allow_unbounded=True)) as client:
        for _ in sys.stdin:
            print(json.dumps(lose(client, given.holds, given.busy)), flush=True)


if __name__ == "__main__":
    main()
