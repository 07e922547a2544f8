"""Which connections this process has open to a server, as the kernel knows them."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

_ESTABLISHED = "01"

_TABLE = Path("/proc/self/net/tcp")

needs_proc = pytest.mark.skipif(not _TABLE.exists(), reason="connections are read in /proc")


def connections_to(address: str) -> set[str]:
    """Return the local ends of this process's connections to a server, as hexadecimal ``address:port``."""
    port = urlsplit(address).port
    if port is None:
        message = f"{address} names no port"
        raise ValueError(message)
    own = set(_own_sockets())
    rows = [line.split() for line in _TABLE.read_text("ascii").splitlines()[1:]]
    return {
        local
        for _, local, remote, state, *_, inode in (row[:10] for row in rows)
        if state == _ESTABLISHED and int(remote.partition(":")[2], 16) == port and inode in own
    }


def _own_sockets() -> list[str]:
    """Return the inodes of the sockets that this process has open."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            found.append(target.removeprefix("socket:[").removesuffix("]"))
    return found
