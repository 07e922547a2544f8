"""Which connections this process has open to a server, as the kernel knows them."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

_ESTABLISHED = 1

_OPEN = Path("/proc/self/fd")

needs_proc = pytest.mark.skipif(
    sys.platform != "linux" or not _OPEN.exists(), reason="open sockets are listed in /proc"
)


def connections_to(address: str) -> set[int]:
    """Return the local ports of this process's connections to a server.

    Each open socket is asked. The kernel's table of all connections is not read: it lists those of other
    programs, too, and thousands that are closed, and tests look often.
    """
    port = urlsplit(address).port
    if port is None:
        message = f"{address} names no port"
        raise ValueError(message)
    found = set()
    for entry in _OPEN.iterdir():
        with contextlib.suppress(OSError):  # it has been closed since
            if entry.is_socket() and (local := _local_port(int(entry.name), port)):
                found.add(local)
    return found


def _local_port(descriptor: int, port: int) -> int | None:
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        state = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        return copy.getsockname()[1] if state == _ESTABLISHED and copy.getpeername()[1] == port else None
