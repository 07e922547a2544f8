"""An agent that takes no more connections."""

from __future__ import annotations

import socket
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator


def is_answered(sock: socket.socket) -> bool:
    """Return whether the agent serves this connection. Newer versions of Consul refuse one by a 429."""
    try:
        sock.sendall(b"GET /v1/status/leader HTTP/1.1\r\nHost: x\r\n\r\n")
        return sock.recv(1024).startswith(b"HTTP/1.1 200 ")
    except OSError:
        return False


@contextmanager
def full(address: str) -> Iterator[None]:
    """Take all the connections that the agent still gives."""
    parts = urlsplit(address)
    with ExitStack() as stack:
        while True:
            sock = socket.create_connection((parts.hostname, parts.port), timeout=5.0)
            if not is_answered(sock):
                sock.close()
                break
            stack.callback(sock.close)
        yield
