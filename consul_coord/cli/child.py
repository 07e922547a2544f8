"""The command that is run: a process group, its signals and its end.

Rules
- The command leads a process group of its own, so that signals reach all that it starts.
- Its end is noticed without reaping it: until ``finish`` has killed what is left of the group, the group's id
  can't come to mean another one.
- Its exit code is that of the group's leader; 128 + n when signal n ended it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from consul_coord.cli.codes import SIGNALLED, ExitCode
from consul_coord.cli.inbox import ChildEnded, ChildStopped
from consul_coord.sync import lifetime

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from consul_coord.cli.guard import Guard, Limits
    from consul_coord.cli.inbox import Inbox
    from consul_coord.cli.terminal import Terminal


_PENDING = ("SigPnd:", "ShdPnd:")


class CannotStart(Exception):
    """The command could not be started. ``code`` is what a shell would exit with."""

    def __init__(self, command: str, error: OSError) -> None:
        super().__init__(f"{command}: {error.strerror or error}")
        missing = isinstance(error, FileNotFoundError)
        self.code = ExitCode.NOT_FOUND if missing else ExitCode.NOT_EXECUTABLE


@contextmanager
def heeding_children() -> Generator[None]:
    """Have the system keep how a child ended, although we were started by who ignored his children's ends."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, before)


class Child:
    """A running command; it has the terminal if it talks to that. Raises CannotStart."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environ: Mapping[str, str],
        guard: Guard,
        limits: Limits,
        inbox: Inbox,
        terminal: Terminal,
    ) -> None:
        try:
            # Until it has told the guard, the child runs Python: it tells nobody of what it inherited.
            with lifetime.becoming_a_program():
                self._process = subprocess.Popen(  # noqa: S603 - the user's own command, without a shell
                    list(command),
                    env=dict(environ),
                    process_group=0,
                    preexec_fn=guard.announcement(limits),  # noqa: PLW1509 - it takes no lock
                )
        except OSError as error:
            guard.dismiss()
            raise CannotStart(command[0], error) from error
        self._guard = guard
        self.is_guarded = self.limit(limits)
        """Whether the guard was there to get the news."""
        self._inbox = inbox
        if terminal.is_interactive:
            terminal.lend(self.group)
        self.is_stopped = False
        """Whether it was stopped, and not continued since."""
        threading.Thread(target=self._watch, name="consul-coord-child", daemon=True).start()

    @property
    def group(self) -> int:
        """The id of the process group, which is the leader's process id."""
        return self._process.pid

    def limit(self, limits: Limits) -> bool:
        """Have the guard end the command at these times; returns False when the guard is gone."""
        return self._guard.watch(self.group, limits)

    def send(self, number: int) -> bool:
        """Send a signal to the whole group; returns False when that is not permitted."""
        try:
            os.killpg(self.group, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            return False
        return True

    def is_pending(self, number: int) -> bool:
        """Return whether a signal waits for the stopped leader; False where the system does not tell.

        To continue a process drops the stops that wait for it.
        """
        try:
            status = Path(f"/proc/{self.group}/status").read_text(encoding="ascii", errors="replace")
        except OSError:
            return False
        masks = (line.split()[1] for line in status.splitlines() if line.startswith(_PENDING))
        return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)

    def resume(self) -> None:
        """Continue a stopped group."""
        self.is_stopped = False
        self.send(signal.SIGCONT)

    def finish(self) -> tuple[int, bool]:
        """Kill what is left of the group and wait for the leader.

        Returns its exit code, and whether the guard has stepped in.
        """
        self.send(signal.SIGKILL)
        os.waitid(os.P_PID, self.group, os.WEXITED | os.WNOWAIT)
        stepped_in = self._guard.dismiss()
        code = self._process.wait()
        return (code if code >= 0 else SIGNALLED - code), stepped_in

    def _watch(self) -> None:
        with suppress(ChildProcessError):  # ``finish`` was quicker
            while True:
                found = os.waitid(os.P_PID, self.group, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
                if found is None or found.si_code != os.CLD_STOPPED:
                    break
                os.waitid(os.P_PID, self.group, os.WSTOPPED | os.WNOHANG)
                self._inbox.put(ChildStopped(found.si_status))
        self._inbox.put(ChildEnded())
