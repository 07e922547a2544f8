"""A process that kills a command when consul-coord itself dies without being able to, e.g. by ``kill -9``.

Without it the command would go on while its lock expires and somebody else takes it.

Rules
- The guard reads from a pipe whose other end only consul-coord has. A line means "all is well, go"; the
  pipe's end without one means that consul-coord is gone, and the command's process group is killed.
- It has a session of its own, so that no signal for the command or the terminal reaches it.
- It can't help when it is killed as well, nor on a machine that stops: then only the fence does.
"""

from __future__ import annotations

import subprocess

_SCRIPT = 'read -r _ || kill -s KILL -- "-$1"'


class Guard:
    """Watches over one process group until ``dismiss``."""

    def __init__(self, group: int) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - a constant script
            ["/bin/sh", "-c", _SCRIPT, "consul-coord-guard", str(group)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """End the guard without touching the group. To be called before the group's leader is reaped."""
        self._process.communicate(b"\n")
