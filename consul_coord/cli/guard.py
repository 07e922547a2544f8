"""A process that ends the command when consul-coord can't: when it is stopped, stalled or killed.

Without it the command would go on while its lock expires and another client takes it. That other process has
to exist and to know the deadline before anything goes wrong, so it is forked at the start of the verb.

Rules
- Fork before any client exists and before any thread starts. The guard imports nothing and shares nothing
  with consul-coord but a socket: a copy of a lock that another thread holds could block it for ever.
- Each record on the socket replaces the one before: the process group to watch, when to send TERM and when to
  send KILL, on the lease clock. The group 0 means that there is nothing to watch; the guard answers with
  whether it has sent a signal. It never signals a group after that answer, so the id may be used again.
- The end of the socket means that consul-coord is gone: the group is killed.
- The guard reads what there is before it looks at the clock, so that a renewal that came through counts. It
  looks every ``TICK``, because timers stand still while a machine is suspended, and the lease clock does not.
- It has a session of its own and ignores the signals that usually end programs, because a service manager may
  send them to all processes of a service.
- It can't help when it is stopped as well, or while the whole machine stands still. When that goes on it
  sends KILL first of all; what the command did before is for the fence to refuse.
- The command's own process announces its group before it becomes the command. So there is no instant in which
  consul-coord could be stopped or killed and leave a command that the guard does not know.
"""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from consul_coord.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Never, Self

TICK = 0.2
"""Seconds between two looks at the clock while a command runs."""
PATIENCE = 2.0
"""Seconds to wait for the guard; a guard that does not answer is taken for stopped, and killed."""
_RECORD = struct.Struct("=qdd")
_CALM, _ACTED = b".", b"!"
_IGNORED = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
)


class Limits(NamedTuple):
    """When the guard ends a command, on the lease clock. Either may be infinite."""

    term_at: float
    kill_at: float


class Guard:
    """The guard, as consul-coord sees it; a context manager."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            try:
                self._pid = os.fork()
            except OSError:
                self._socket.close()
                raise
            if self._pid == 0:
                _run(theirs.detach())
        self._socket.settimeout(PATIENCE)

    def watch(self, group: int, limits: Limits) -> bool:
        """Have a process group ended at these times; returns False when the guard is gone."""
        try:
            self._socket.send(_RECORD.pack(group, *limits))
        except OSError:
            return False
        return True

    def announcement(self, limits: Limits) -> Callable[[], None]:
        """Return what a new process calls before it becomes the command: the guard watches its group.

        It runs between fork and exec, so it takes no lock and allocates next to nothing. If the guard is
        gone, the next ``watch`` reports that.
        """
        link = self._socket.fileno()

        def announce() -> None:
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # without a guard the command lives on
            try:
                os.write(link, _RECORD.pack(os.getpid(), *limits))
            except OSError:
                pass
            finally:
                signal.signal(signal.SIGPIPE, signal.SIG_DFL)

        return announce

    def dismiss(self) -> bool:
        """Have it watch nothing; returns whether it has sent the group a signal.

        Afterwards the group's leader may be reaped.
        """
        self.watch(0, Limits(math.inf, math.inf))
        try:
            if answer := self._socket.recv(1):
                return answer == _ACTED
        except OSError:
            pass
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self.close()
        return False

    def close(self) -> None:
        """End the guard."""
        self._socket.close()
        with suppress(ChildProcessError):  # reaped before
            os.waitpid(self._pid, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _run(link: int) -> Never:
    """Be the guard, and end with that; never returns into what was forked."""
    try:
        os.setsid()
        os.chdir("/")
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        os.dup2(link, 3)  # first of all: where stdin was closed, the link may be 0
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nowhere, standard)
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))
        _Watch(3).run()
    finally:
        os._exit(0)


class _Watch:
    def __init__(self, link: int) -> None:
        self._link = link
        self._clock = SystemClock()
        self._unread = b""
        self._group = 0
        self._limits = Limits(math.inf, math.inf)
        self._acted = False

    def run(self) -> None:
        """Watch until consul-coord is gone."""
        poll = select.poll()
        poll.register(self._link, select.POLLIN)
        while True:
            if poll.poll(self._patience()) and not self._read():
                self._signal(signal.SIGKILL)
                return
            now = self._clock.now()
            if now >= self._limits.kill_at:
                self._signal(signal.SIGKILL)
            elif now >= self._limits.term_at:
                self._limits = Limits(math.inf, self._limits.kill_at)
                self._signal(signal.SIGTERM)

    def _patience(self) -> float | None:
        """Return the milliseconds until the next look at the clock."""
        if not self._group:
            return None
        left = min(self._limits) - self._clock.now()
        return 1000 * min(TICK, left) if left > 0 else TICK * 1000

    def _read(self) -> bool:
        """Take in what was sent; returns False at the end of the link."""
        data = os.read(self._link, 4096)
        self._unread += data
        while len(self._unread) >= _RECORD.size:
            group, *limits = _RECORD.unpack_from(self._unread)
            self._unread = self._unread[_RECORD.size :]
            self._group, self._limits = group, Limits(*limits)
            if not group:
                os.write(self._link, _ACTED if self._acted else _CALM)
                self._acted = False
        return bool(data)

    def _signal(self, number: int) -> None:
        if self._group:
            self._acted = True
            with suppress(OSError):
                os.killpg(self._group, number)
