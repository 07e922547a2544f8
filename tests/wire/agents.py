"""An agent on loopback that answers what a test says, and remembers what it was asked.

Rules
- One function, ``answer``, decides on every reply; by default every request is an unexpected one.
- Replies are values. What no sound server does (cutting a body short, hanging up) is said by ``Reply`` too.
- Requests are remembered in the order of their arrival, before they are answered.
- A request that is not answered when its test ends is let go then.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from tests.wire.servers import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True)
class Seen:
    """A request as it came over the wire. Header names are in lower case."""

    method: str
    target: str
    """Path and query, still percent-encoded."""
    headers: Mapping[str, str]
    body: bytes
    at: float
    """When it came, in monotonic seconds."""

    @property
    def line(self) -> str:
        return f"{self.method} {self.target}"

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def is_blocking(self) -> bool:
        return "index=" in self.target

    @property
    def ops(self) -> list[dict[str, object]]:
        """The operations of a transaction; none for other requests."""
        return [op["KV"] for op in json.loads(self.body)] if self.path == "/v1/txn" else []

    @property
    def verbs(self) -> list[object]:
        """What a transaction does, one word an operation."""
        return [op["Verb"] for op in self.ops]


@dataclass(frozen=True)
class Reply:
    """What an agent sends, and how badly."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    missing: int = 0
    """So many bytes of the body are announced, and never sent."""
    hangs_up: bool = False
    """Close the connection without a word."""


HANGS_UP = Reply(hangs_up=True)
TRIAL = "GET /v1/status/leader"
"""What a client tries out a new connection with, after one that ended without a reply."""


def said(status: int, text: str = "") -> Reply:
    """Return a plain text, as Consul words its refusals."""
    return Reply(status, text.encode(), {"Content-Type": "text/plain; charset=utf-8"})


def told(value: object, headers: Mapping[str, str] | None = None, *, status: int = 200) -> Reply:
    """Return JSON, as Consul writes its answers."""
    body = json.dumps(value, separators=(",", ":")).encode()
    return Reply(status, body, {"Content-Type": "application/json"} | dict(headers or {}))


def unexpected(seen: Seen) -> Reply:
    raise AssertionError(f"nobody expected {seen.line}")


class ScriptedAgent:
    """Serves ``answer`` on loopback."""

    def __init__(self) -> None:
        self._server = _Server(self)
        self._errors: list[BaseException] = []
        self._asked = threading.Condition()
        self._over = threading.Event()
        self.requests: list[Seen] = []
        self.answer: Callable[[Seen], Reply] = unexpected
        self.serves_trials = False
        """Whether a request like a trial is answered as one, and no news to the test."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def always(self, reply: Reply) -> None:
        """Give this reply to every request."""
        self.answer = lambda _: reply

    def in_turn(self, *replies: Reply) -> None:
        """Give these replies one after the other, and the last one ever after."""
        left = list(replies)
        self.answer = lambda _: left.pop(0) if len(left) > 1 else left[0]

    def silent(self, _: Seen) -> Reply:
        """Answer nothing: an ``answer``."""
        self._over.wait(2 * PATIENCE)
        return HANGS_UP

    def forget(self) -> None:
        """Forget what was asked so far."""
        self.requests = []

    @property
    def lines(self) -> list[str]:
        return [seen.line for seen in self.requests]

    def wait_for(self, wanted: Callable[[Seen], object]) -> Seen:
        """Return the first request of a kind, as soon as it has come."""
        with self._asked:
            found = self._asked.wait_for(lambda: next(filter(wanted, self.requests), None), PATIENCE)
        assert found is not None, f"it never came; there were {self.lines}"
        return found

    def begin_test(self) -> None:
        self._over.clear()
        self.forget()
        self.answer = unexpected
        self.serves_trials = False

    def end_test(self) -> None:
        """Let go of what waits, and fail for a request that was not expected."""
        self._over.set()
        errors, self._errors = self._errors, []
        for error in errors:
            raise error

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def respond(self, seen: Seen) -> Reply:
        """Return the reply to a request, after remembering it."""
        if self.serves_trials and seen.line == TRIAL:
            return Reply(200, b'"127.0.0.1:8300"')
        with self._asked:
            self.requests.append(seen)
            self._asked.notify_all()
        try:
            return self.answer(seen)
        except Exception as error:  # noqa: BLE001 - `end_test` raises it
            self._errors.append(error)
            return Reply(500)


class _Server(ThreadingHTTPServer):
    request_queue_size = 128

    def __init__(self, agent: ScriptedAgent) -> None:
        self.agent = agent
        super().__init__(("127.0.0.1", 0), _Exchange)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a client that has hung up."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Exchange(BaseHTTPRequestHandler):
    """One connection, for one request."""

    protocol_version = "HTTP/1.1"

    def _respond(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        assert isinstance(self.server, _Server)
        reply = self.server.agent.respond(Seen(self.command, self.path, headers, body, time.monotonic()))
        if reply.hangs_up:
            hang_up(self.connection)
            return
        self.send_response_only(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.body) + reply.missing))
        self.send_header("Connection", "close")
        with suppress(OSError):  # the client may have hung up
            self.end_headers()
            self.wfile.write(reply.body)

    do_GET = do_PUT = do_POST = do_DELETE = _respond  # noqa: N815 - the names that the base class calls


def hang_up(connection: socket.socket) -> None:
    """End a connection that another thread may be using."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
