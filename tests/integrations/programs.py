"""Programs of the pages that go on until they are told to end: started, listened to, and ended for sure."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, TypeVar

from tests.integrations import pages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

T = TypeVar("T")
PATIENCE = 90.0
"""Seconds that anything here may take, on a machine that is busy with other things."""


class Served:
    """A server process, what it says, and where it listens."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.said.append(line)
                self._news.notify_all()

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until it has said something; return the match."""
        with self._news:
            found = self._news.wait_for(lambda: re.search(pattern, "".join(self.said)), PATIENCE)
        assert found, "".join(self.said)
        return found

    @property
    def url(self) -> str:
        return self.wait_for(r"http://127\.0\.0\.1:(?!0\b)\d+")[0]

    def ask(self, path: str, *, method: str = "GET") -> tuple[int, Any]:
        """Return the status and the JSON of a reply; wait for it to listen if it does not yet."""
        return eventually(lambda: self._answer(path, method))

    def _answer(self, path: str, method: str) -> tuple[int, Any] | None:
        request = urllib.request.Request(self.url + path, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, json.load(refused)
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ConnectionRefusedError):
                raise
            return None

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code


@contextlib.contextmanager
def serving(
    command: Sequence[str], *, folder: Path, address: str, more: Mapping[str, str] | None = None
) -> Iterator[Served]:
    """Run a program in a folder, pointed at one Consul; end it with the block at the latest."""
    unbuffered = {"PYTHONPATH": str(folder), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=pages.environment(address, unbuffered | dict(more or {})),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield Served(process)
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def eventually(look: Callable[[], T | None]) -> T:
    """Look until there is something to see; return it."""
    deadline = time.monotonic() + PATIENCE
    while (found := look()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found
