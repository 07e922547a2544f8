"""Cut links between loopback addresses, in a network namespace of one's own.

Rules
- Only in such a namespace: there nobody else's traffic can be hit, and everything ends with it.
  `enter_private` replaces the calling program by itself, run under ``unshare`` with namespaces of its own for
  users, network and processes; whatever it starts ends with it, even when it is killed.
- A cut is a routing rule that drops packets from one address to the other, for either direction by itself.
  Connections feel a cut as they do in a network: nothing arrives, and goes on when it is mended.
- Where the machine doesn't allow this, `available` says so, and a run does without cuts.

Consul's own gossip falls back to TCP without a source address of its own, so a cut does not make a node dead
for the others: Raft and RPC do feel it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNSHARE: Final = ("unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child")
_PREPARE: Final = "ip link set lo up && ip rule add prio 100 lookup local && ip rule del prio 0"
_PRIVATE: Final = "CONSUL_COORD_PRIVATE_NETWORK"
_TIMEOUT: Final = 20.0


def available() -> bool:
    """Return whether a namespace can be made here, and its links be cut."""
    if not (shutil.which("unshare") and shutil.which("ip")):
        return False
    script = f"{_PREPARE} && ip rule add prio 10 from 127.0.0.11 to 127.0.0.12 blackhole"
    tried = subprocess.run(  # noqa: S603 - a fixed command
        [*_UNSHARE, "sh", "-c", script], capture_output=True, check=False, timeout=_TIMEOUT
    )
    return tried.returncode == 0


def is_private() -> bool:
    """Return whether this program was started by `enter_private`."""
    return _PRIVATE in os.environ


def enter_private(module: str, arguments: Sequence[str]) -> None:
    """Replace this program by ``python -m module arguments``, in namespaces of its own."""
    script = f'{_PREPARE} && exec "$@"'
    command = [*_UNSHARE, "sh", "-c", script, "sh", sys.executable, "-m", module, *arguments]
    os.execvpe(command[0], command, {**os.environ, _PRIVATE: "1"})  # noqa: S606 - no shell between


class Links:
    """The links that are cut at present. Several may cut the same one: it is mended by the last of them."""

    def __init__(self) -> None:
        self._cuts: Counter[tuple[str, str]] = Counter()

    def cut(self, source: str, target: str) -> None:
        """Drop all packets from one address to another."""
        self._cuts[source, target] += 1
        if self._cuts[source, target] == 1:
            _rule("add", source, target)

    def mend(self, source: str, target: str) -> None:
        """Take such a cut back."""
        self._cuts[source, target] -= 1
        if not self._cuts[source, target]:
            _rule("del", source, target)


def _rule(verb: str, source: str, target: str) -> None:
    command = ["ip", "rule", verb, "prio", "10", "from", source, "to", target, "blackhole"]
    subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT)  # noqa: S603 - addresses of our own
