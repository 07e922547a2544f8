"""Workers that share shards: each shard has one owner, which is told before another worker has it.

CONSUL_HTTP_ADDR=127.0.0.1:8500 python examples/sharded_workers.py
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

from consul_coord import Client, Group, Hold, Partitioner

SHARDS = 12


class Ledger:
    """Who owns each shard, as the owners say; refuses an older fence, as a shard's store would."""

    def __init__(self) -> None:
        self.owners: dict[str, str] = {}
        self.fences: dict[str, int] = {}
        self._changed = threading.Condition()

    def begin(self, worker: str, shard: str, hold: Hold) -> None:
        """Take a shard over."""
        with self._changed:
            if shard in self.owners or hold.fence <= self.fences.get(shard, 0):
                raise RuntimeError(f"{shard}: a second owner, or an older fence")
            self.owners[shard], self.fences[shard] = worker, hold.fence
            self._changed.notify_all()

    def end(self, worker: str, shard: str, hold: Hold) -> None:
        """Finish work on a shard, while its hold still guards what is written."""
        print(f"{worker} hands over {shard}" if hold.is_held else f"{worker} has lost {shard}")
        with self._changed:
            del self.owners[shard]
            self._changed.notify_all()

    def wait_for(self, workers: set[str]) -> None:
        """Wait until these workers own all shards between them."""

        def done() -> bool:
            return len(self.owners) == SHARDS and set(self.owners.values()) == workers

        with self._changed:
            if not self._changed.wait_for(done, 60):
                raise TimeoutError(f"the shards' owners are still {self.owners}")


def start(worker: str, ledger: Ledger, stack: ExitStack) -> Partitioner:
    """Start a worker: a member of the group, and its share of the shards."""
    client = stack.enter_context(Client())
    group = stack.enter_context(Group(client, "examples/shards", id=worker))
    return stack.enter_context(
        Partitioner(
            group,
            SHARDS,
            on_acquired=lambda shard, hold: ledger.begin(worker, shard, hold),
            on_released=lambda shard, hold: ledger.end(worker, shard, hold),
            settle=0.1,
        )
    )


def main() -> None:
    """Start three workers, and let one of them leave."""
    ledger = Ledger()
    with ExitStack() as others, ExitStack() as leaving:
        first = start("worker-1", ledger, others)
        start("worker-2", ledger, leaving)
        start("worker-3", ledger, others)
        ledger.wait_for({"worker-1", "worker-2", "worker-3"})
        print(f"{len(first.group.members())} members, each shard has one owner")
        began = time.monotonic()
        leaving.close()
        ledger.wait_for({"worker-1", "worker-3"})
        print(f"worker-2 has left; the others own its shards after {time.monotonic() - began:.1f} s")
    print(f"{len(ledger.fences)} shards, no fence went down")


if __name__ == "__main__":
    main()
