"""The reference server as a process of its own, for measures of it; and plain requests to any server.

Rules
- Whoever measures a server is not in its process: each has a core to itself where there are two.
- A reply other than 200 ends the run.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REFERENCE = "reference server"
AGENT = "Consul agent"
_STOP_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class Served:
    """A server somewhere; ``pid`` is 0 when it is not ours."""

    address: str
    pid: int = 0

    @property
    def place(self) -> tuple[str, int]:
        """Host and port."""
        url = urlsplit(self.address)
        return url.hostname or "", url.port or 0

    def ask(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - any JSON value
        """Send one request and return its JSON. Raises RuntimeError when it fails."""
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection = http.client.HTTPConnection(*self.place, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, sent)
            reply = connection.getresponse()
            text = reply.read()
            if reply.status != http.HTTPStatus.OK:
                message = f"{method} {path} gave {reply.status}"
                raise RuntimeError(message)
            return json.loads(text)


@contextmanager
def reference_server(folder: Path, **settings: object) -> Iterator[Served]:
    """Run ``consul-coord serve`` with some settings; give where, once it answers. Raises RuntimeError."""
    config = folder / "reference-server.json"
    # What it can do is measured, not how long it lets writes take.
    config.write_text(json.dumps({"write_time": 0, **settings}), encoding="utf-8")
    command = [sys.executable, "-m", "consul_coord", "serve", "--port", "0", "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - this very Python
        try:
            address = cast("IO[str]", process.stdout).readline().strip()
            if not address:
                message = "the reference server ended before it served"
                raise RuntimeError(message)
            yield Served(address, process.pid)
        finally:
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
