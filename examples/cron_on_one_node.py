"""A job that cron starts on every node, and that runs on one of them, once for each due time.

Here three threads stand for three nodes; each has a client of its own, as each process would.

    CONSUL_HTTP_ADDR=127.0.0.1:8500 python examples/cron_on_one_node.py
"""

from __future__ import annotations

import threading
import time

from consul_coord import Client, Once, OnceRun

ran_on: list[str] = []


def job(node: str, due: str) -> None:
    """Do what is due, unless another node does or has done it."""

    def work(run: OnceRun) -> None:
        print(f"{node}: running what is due at {run.slot}, fence {run.fence}")
        ran_on.append(node)

    # A lock alone is not enough: a node whose clock is late gets it after the job is done. `Once` also keeps
    # a record of the last run. If the node that runs dies halfway, one that waits takes over.
    with Client() as client:
        result = Once(client, "examples/cron", value=node).run(work, slot=due, timeout=60)
    if not result.ran:
        print(f"{node}: done already, by {result.by}")


def main() -> None:
    """Let three nodes start the job at the same time."""
    due = time.strftime("%Y-%m-%dT%H:%M:%S")
    nodes = [threading.Thread(target=job, args=(f"node-{number}", due)) for number in range(1, 4)]
    for node in nodes:
        node.start()
    for node in nodes:
        node.join()
    print(f"ran {len(ran_on)} time(s)")


if __name__ == "__main__":
    main()
