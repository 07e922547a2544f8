"""A worker of which one runs in the whole fleet; the others stand by, and one takes over when it ends.

CONSUL_HTTP_ADDR=127.0.0.1:8500 python examples/singleton_worker.py
"""

from __future__ import annotations

import threading

from consul_coord import Client, Hold, Lock, LockLost

QUEUE = [f"task-{number}" for number in range(1, 7)]
PER_TURN = 2


def work(name: str, hold: Hold) -> None:
    """Do a few tasks, and only as long as this is the one."""
    for _ in range(PER_TURN):
        # Before each step: is there still time enough for it? Renews the lease if not, raises if it is lost.
        hold.ensure(5.0)
        print(f"{name} does {QUEUE.pop(0)}")
        # Sleep so that a loss ends the sleep.
        hold.lost.wait(0.02)
        hold.check()


def worker(name: str) -> None:
    """Wait for the turn, work, and leave."""
    with Client() as client:
        try:
            Lock(client, "examples/singleton", value=name).run(lambda hold: work(name, hold))
        except LockLost as lost:
            # What was under way may have been done twice: that is what fences and guards are for.
            print(f"{name} is not the one any more: {lost.reason}")


def main() -> None:
    """Start three workers."""
    workers = [threading.Thread(target=worker, args=(f"worker-{number}",)) for number in range(1, 4)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    print(f"{len(QUEUE)} task(s) left")


if __name__ == "__main__":
    main()
