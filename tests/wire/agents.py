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
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_httpserver import HTTPServer
from werkzeug import Response

from tests.wire.servers import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from werkzeug import Request


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
        self._server = HTTPServer(host="127.0.0.1", port=0, threaded=True)
        self._server.expect_request("").respond_with_handler(self._respond)
        self._asked = threading.Condition()
        self._over = threading.Event()
        self.requests: list[Seen] = []
        self.answer: Callable[[Seen], Reply] = unexpected
        self.serves_trials = False
        """Whether a request like a trial is answered as one, and no news to the test."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.port}"

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
        self._server.clear_log()
        self._server.check()

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.stop()

    def _respond(self, request: Request) -> Response:
        seen = Seen(
            request.method,
            str(request.environ["REQUEST_URI"]),
            {name.lower(): value for name, value in request.headers.items()},
            request.get_data(),
            time.monotonic(),
        )
        if self.serves_trials and seen.line == TRIAL:
            return Response(b'"127.0.0.1:8300"', 200)
        with self._asked:
            self.requests.append(seen)
            self._asked.notify_all()
        reply = self.answer(seen)
        if reply.hangs_up:
            hang_up(request.environ["werkzeug.socket"])
        response = Response(reply.body, reply.status, dict(reply.headers))
        if reply.missing:
            response.automatically_set_content_length = False
            response.headers["Content-Length"] = str(len(reply.body) + reply.missing)
            response.headers["Connection"] = "close"
        return response


def hang_up(connection: socket.socket) -> None:
    """End a connection that another thread may be using."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
