"""Writes that a file refuses when their fence is old: what a lock needs to be safe against a paused holder.

The register stands for whatever is protected: a database row with a fence column, an object store with
conditional writes. It knows nothing of Consul, and needs not to.

    CONSUL_HTTP_ADDR=127.0.0.1:8500 python examples/fenced_register.py
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from pathlib import Path

from consul_coord import Client, Lock


class StaleFence(Exception):
    """Somebody with a newer hold has written already."""


class Register:
    """A value in a file, with the highest fence that has written it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, value: str, *, fence: int) -> None:
        """Replace the value, unless the fence is below one that was seen."""
        with self._path.open("a+", encoding="utf-8") as file:
            # Comparing and writing have to be one step for the processes of this machine.
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            text = file.read()
            last = json.loads(text)["fence"] if text else 0
            if fence < last:
                raise StaleFence(f"fence {fence} after {last}")
            file.seek(0)
            file.truncate()
            json.dump({"fence": fence, "value": value}, file)
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> str:
        """Return the value."""
        value: str = json.loads(self._path.read_text(encoding="utf-8"))["value"]
        return value


def main() -> None:
    """Let a holder be overtaken while it sleeps, and write all the same."""
    with tempfile.TemporaryDirectory() as folder, Client() as client, Client() as other:
        register = Register(Path(folder) / "register.json")
        sleeper = Lock(client, "examples/register").acquire(timeout=10)
        register.write("from the first", fence=sleeper.fence)
        # An operator takes the lock from it. (So would its TTL, if this process were stopped for long.)
        Lock(other, "examples/register").break_lock(sleeper.session)
        with Lock(other, "examples/register").hold(timeout=30) as hold:
            register.write("from the second", fence=hold.fence)
        try:
            # It may not have noticed yet, as a stopped process would not have.
            register.write("from the first, late", fence=sleeper.fence)
        except StaleFence as error:
            print(f"refused: {error}")
        print(f"the register says: {register.read()}")
        # It learns of its loss all the same, and logs it; only not always in time.
        sleeper.lost.wait(10)
        print(f"the first lost it: {sleeper.reason}")


if __name__ == "__main__":
    main()
