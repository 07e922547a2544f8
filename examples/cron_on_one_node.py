"""A job that cron starts on every node, and that runs on one of them, once for each due time.

Here three threads stand for three nodes; each has a client of its own, as each process would.

    CONSUL_HTTP_ADDR=127.0.0.1:8500 python examples/cron_on_one_node.py
"""

from __future__ import annotations

import threading
import time

from consul_coord import Client, Lock, TxnOp

LAST_RUN = "examples/cron/last-run"
ran_on: list[str] = []


def job(node: str, due: str) -> None:
    """Do what is due, unless another node does or has done it."""
    # Not `try_acquire`: it would skip the run when the node that has the lock dies halfway.
    with Client() as client, Lock(client, "examples/cron/lock", value=node).hold(timeout=60) as hold:
        last = client.kv.get(LAST_RUN).value
        # The lock alone is not enough: a node whose clock is late gets it after the job is done.
        if last is not None and last.value.decode() >= due:
            print(f"{node}: done already")
            return
        print(f"{node}: running what is due at {due}, fence {hold.fence}")
        ran_on.append(node)
        # The guard: had the lock been lost meanwhile, nothing would be written, and this would raise.
        client.txn(*hold.guard(), TxnOp.set(LAST_RUN, due))


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
