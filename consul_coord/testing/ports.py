"""Choose loopback ports for an agent.

Rules
- Ports come from below the range from which the kernel picks ports for outgoing connections: while an agent
  is down for a restart, nothing else is likely to take them.
- A port is free when both TCP and UDP are, since Serf speaks both.
- Free means free at this moment. Nothing is reserved: whoever uses the ports must cope with losing a race for
  them.
"""

from __future__ import annotations

import contextlib
import random
import socket
from dataclasses import dataclass
from typing import Final

_RANGE: Final = range(20_000, 32_000)
# The operating system's randomness: test runners seed the global generator alike in each of their worker
# processes.
_random: Final = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of one agent, named as in Consul's configuration."""

    http: int
    server: int
    serf_lan: int
    serf_wan: int

    @classmethod
    def free(cls, host: str) -> Ports:
        """Return ports of ``host`` that are free at this moment."""
        with contextlib.ExitStack() as held:
            free = (port for port in _random.sample(_RANGE, len(_RANGE)) if _take(host, port, held))
            return cls(http=next(free), server=next(free), serf_lan=next(free), serf_wan=next(free))


def _take(host: str, port: int, held: contextlib.ExitStack) -> bool:
    """Bind ``port`` for TCP and UDP until ``held`` ends; false when it is in use."""
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        try:
            held.enter_context(socket.socket(socket.AF_INET, kind)).bind((host, port))
        except OSError:
            return False
    return True
