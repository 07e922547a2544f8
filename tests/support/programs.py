"""Programs that a test runs in a process of their own, without the time that their imports take.

Rules
- A program is forked from an interpreter that has imported the package and done nothing else: see
  ``prepared.py``. It has its own environment, folder, streams, signals and end, as if it were executed.
- A test of the start itself (how long it takes, what it imports, a terminal, a shell) starts an interpreter
  with ``subprocess`` instead.
- A program is not this process's child: only ``Program`` knows its exit code.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from tests.support import prepared

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self


INHERITED: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
"""The signals that a program ignores if this process does."""


class Interpreter:
    """The one that programs are forked from, started when the first is."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._requests: socket.socket | None = None

    def fork(self, request: bytes, descriptors: Sequence[int]) -> None:
        with self._turn:
            if self._requests is None:
                self._requests = self._start()
            socket.send_fds(self._requests, [request], descriptors)

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, prepared.__file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl-C in a terminal is for the tests
            )

        def end() -> None:
            ours.close()
            process.wait()

        atexit.register(end)
        return ours


_interpreter: Final = Interpreter()


class Program:
    """One program with pipes to its standard streams, much like a ``subprocess.Popen``. Not thread-safe."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        own_group: bool = False,
    ) -> None:
        self.returncode: int | None = None
        self._reports, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pipes = [os.pipe() for _ in range(3)]
        (stdin, into), (out, stdout), (err, stderr) = pipes
        self.stdin = os.fdopen(into, "w", encoding="utf-8", newline="\n")
        self.stdout = os.fdopen(out, encoding="utf-8", newline="\n")
        self.stderr = os.fdopen(err, encoding="utf-8", newline="\n")
        request = {
            "arguments": list(arguments),
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "own_group": own_group,
            "ignored": [each for each in INHERITED if signal.getsignal(each) is signal.SIG_IGN],
        }
        try:
            _interpreter.fork(json.dumps(request).encode(), [stdin, stdout, stderr, theirs.fileno()])
        finally:
            theirs.close()
            for descriptor in (stdin, stdout, stderr):
                os.close(descriptor)
        self.pid = self._report()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait()
        for stream in (self.stdin, self.stdout, self.stderr):
            stream.close()

    def _report(self) -> int:
        report = self._reports.recv(32)
        assert report, "the interpreter that forks programs is gone"
        return int(report)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raises ``subprocess.TimeoutExpired``."""
        if self.returncode is None:
            self._reports.settimeout(timeout)
            try:
                self.returncode = self._report()
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired("a program", timeout or 0.0) from None
            self._reports.close()
        return self.returncode

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        try:
            return self.wait(0.0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to a program that has not ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended by now, and the report is on its way
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """End its stdin, wait for its end, and return what it wrote. Raises ``subprocess.TimeoutExpired``."""
        self.stdin.close()
        told: dict[IO[str], str] = {}
        readers = [
            threading.Thread(target=lambda each=each: told.update({each: each.read()}), daemon=True)
            for each in (self.stdout, self.stderr)
        ]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join()
        self.stdout.close()
        self.stderr.close()
        return told[self.stdout], told[self.stderr]
