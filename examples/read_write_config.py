"""A configuration in several keys that many read at a time, and one writes alone: nobody sees half a change.

CONSUL_HTTP_ADDR=127.0.0.1:8500 python examples/read_write_config.py
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from consul_coord import Client, ReadWriteLock, TxnOp

LOCK = "examples/config/lock"
PRIMARY, REPLICA = "examples/config/primary", "examples/config/replica"
READERS = 4


class Audience:
    """How many read at once."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0
        self._counting = threading.Lock()

    def __enter__(self) -> None:
        with self._counting:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self._counting:
            self.now -= 1


def read(client: Client) -> tuple[str, str]:
    """Read both settings, one after the other."""
    return text(client, PRIMARY), text(client, REPLICA)


def text(client: Client, key: str) -> str:
    """Return a key's value, or nothing."""
    found = client.kv.get(key).value
    return "" if found is None else found.value.decode()


def main() -> None:
    """Let four readers read while a writer swaps the two servers; threads stand for processes here."""
    audience = Audience()
    together = threading.Barrier(READERS + 1)
    with Client() as client, Client() as writing:
        config = ReadWriteLock(client, LOCK)
        with config.write.hold(timeout=30) as hold:
            client.txn(*hold.guard(), TxnOp.set(PRIMARY, "db-1"), TxnOp.set(REPLICA, "db-2"))

        def reader(_: int) -> set[tuple[str, str]]:
            seen = set()
            with config.read.hold(timeout=30), audience:
                together.wait(30)  # all of them are in at once, and the writer comes
                seen.add(read(client))
            for _ in range(5):
                with config.read.hold(timeout=30), audience:
                    seen.add(read(client))
            return seen

        def writer() -> None:
            together.wait(30)
            # Its turn comes although readers come and go: those that come later wait behind it.
            with ReadWriteLock(writing, LOCK).write.hold(timeout=30):
                primary, replica = read(writing)
                print(f"swapping, {audience.now} reading")
                # Two steps on purpose; in between the settings make no sense, and nobody looks.
                writing.kv.put(PRIMARY, replica)
                writing.kv.put(REPLICA, primary)

        with ThreadPoolExecutor(READERS + 1) as pool:
            readers = [pool.submit(reader, number) for number in range(READERS)]
            pool.submit(writer).result()
            seen = set[tuple[str, str]]().union(*(each.result() for each in readers))
        print(f"at most {audience.most} read at once; now {' and '.join(read(client))}")
        if not seen <= {("db-1", "db-2"), ("db-2", "db-1")}:
            raise SystemExit(f"half a change was seen: {seen}")


if __name__ == "__main__":
    main()
