"""A counter in Consul that only the holder of a lock can change: the guard makes Consul itself check that.

CONSUL_HTTP_ADDR=127.0.0.1:8500 python examples/guarded_writes.py
"""

from __future__ import annotations

from consul_coord import Client, Hold, Lock, TxnFailed, TxnOp

LOCK = "examples/counter/lock"
COUNTER = "examples/counter/value"


def increase(client: Client, hold: Hold) -> int:
    """Add one. Raises TxnFailed, with nothing written, when the hold is over."""
    found = client.kv.get(COUNTER).value
    value = 1 + (0 if found is None else int(found.value))
    # One transaction: the hold is checked and the value is written at the same moment, or neither.
    client.txn(*hold.guard(), TxnOp.set(COUNTER, str(value)))
    return value


def main() -> None:
    """Count, lose the lock, and fail to count."""
    with Client() as client, Client() as other:
        client.kv.delete(COUNTER)
        hold = Lock(client, LOCK).acquire(timeout=10)
        print(f"counted to {increase(client, hold)}")
        print(f"counted to {increase(client, hold)}")
        # Whatever ends the hold: here somebody else takes the lock by force, and counts himself.
        Lock(other, LOCK).break_lock(hold.session)
        with Lock(other, LOCK).hold(timeout=30) as newer:
            print(f"the other counted to {increase(other, newer)}")
        try:
            increase(client, hold)
        except TxnFailed as error:
            print(f"refused: {error.failures[0].kind}")
        hold.lost.wait(10)
        found = client.kv.get(COUNTER).value
        print(f"the counter says {'nothing' if found is None else found.value.decode()}")


if __name__ == "__main__":
    main()
