"""A proxy before an agent that loses requests and replies to order, and sees what passes.

Rules
- It speaks whole requests: a fault hits exactly one exchange, never half of the next one.
- A late request is passed on when the test says so, whether its client still waits or has hung up long ago:
  a real agent that goes on after a pause does the same.
- What no fault hits goes through unchanged. Of several faults the first that fits counts, ``times`` times.
"""

from __future__ import annotations

import contextlib
import enum
import http.client
import socket
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

PATIENCE: Final = 60.0
_HOP_BY_HOP: Final = frozenset({"connection", "content-length", "transfer-encoding", "keep-alive"})


class Lose(enum.Enum):
    """What is lost of an exchange."""

    REQUEST = enum.auto()
    """The connection ends before the agent saw it."""
    REPLY = enum.auto()
    """The agent has answered; the connection ends instead."""
    TIME = enum.auto()
    """The request is held back until ``Fault.let_go``; nothing is answered meanwhile."""
    AGENT = enum.auto()
    """An error is answered in the agent's place: ``status`` and ``body``."""


@dataclass(slots=True, eq=False, kw_only=True)
class Fault:
    """Which exchanges are hit, and how."""

    lose: Lose
    method: str = ""
    path: str = ""
    """The beginning of the path."""
    containing: bytes = b""
    """Something in the body."""
    times: int = 1
    status: int = 500
    body: bytes = b"No cluster leader"
    hits: int = 0
    hit: threading.Event = field(default_factory=threading.Event)
    passed_on: threading.Event = field(default_factory=threading.Event)
    """Raised when a late request was answered by the agent."""
    _go: threading.Event = field(default_factory=threading.Event)

    def fits(self, request: Passed) -> bool:
        return (
            self.hits < self.times
            and self.method in {"", request.method}
            and request.path.startswith(self.path)
            and self.containing in request.body
        )

    def strike(self) -> None:
        self.hits += 1
        self.hit.set()

    def let_go(self) -> None:
        """Pass late requests on to the agent."""
        self._go.set()

    def wait_until_let_go(self) -> bool:
        return self._go.wait(PATIENCE)


@dataclass(frozen=True, slots=True)
class Passed:
    """A request, as the proxy has read it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class FaultProxy:
    """Listens on loopback before an agent on loopback; a context manager."""

    def __init__(self, agent: str) -> None:
        self._agent = agent.removeprefix("http://")
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.requests: list[Passed] = []
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._down = False

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for fault in self._faults:
            fault.let_go()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def add(self, fault: Fault) -> Fault:
        """Let a fault hit from now on."""
        with self._lock:
            self._faults.append(fault)
        return fault

    def clear(self) -> None:
        """Take all faults back, and let late requests go."""
        with self._lock:
            faults, self._faults = self._faults, []
        for fault in faults:
            fault.let_go()

    def go_down(self) -> None:
        """End all connections, and every new one at once."""
        self._down = True
        self.cut()

    def come_up(self) -> None:
        """Serve again."""
        self._down = False

    def cut(self) -> None:
        """End all connections."""
        with self._lock:
            sockets = list(self._sockets)
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def count(self, method: str, path: str) -> int:
        """Return how many requests of this kind were read."""
        return sum(each.method == method and each.path.startswith(path) for each in list(self.requests))

    # -- serving

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            with self._lock:
                self._sockets.add(sock)
            try:
                if not self._down:
                    self._exchange_all(sock)
            finally:
                with self._lock:
                    self._sockets.discard(sock)

    def _exchange_all(self, sock: socket.socket) -> None:
        with sock.makefile("rb") as incoming:
            while (request := _read(incoming)) is not None:  # type: ignore[arg-type]
                fault = self._note(request)
                reply = self._answer(request, fault)
                if reply is None or self._down:
                    return
                sock.sendall(reply)

    def _note(self, request: Passed) -> Fault | None:
        with self._lock:
            self.requests.append(request)
            fault = next((each for each in self._faults if each.fits(request)), None)
            if fault is not None:
                fault.strike()
            return fault

    def _answer(self, request: Passed, fault: Fault | None) -> bytes | None:
        if fault is None:
            return self._ask_agent(request)
        if fault.lose is Lose.REQUEST:
            return None
        if fault.lose is Lose.AGENT:
            return _reply(fault.status, [], fault.body)
        if fault.lose is Lose.TIME and not fault.wait_until_let_go():
            return None
        reply = self._ask_agent(request)
        fault.passed_on.set()
        return None if fault.lose is Lose.REPLY else reply

    def _ask_agent(self, request: Passed) -> bytes:
        connection = http.client.HTTPConnection(self._agent, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.connect()
            upstream = connection.sock
            with self._lock:
                self._sockets.add(upstream)
            try:
                connection.request(request.method, request.path, body=request.body, headers=request.headers)
                reply = connection.getresponse()
                return _reply(reply.status, reply.getheaders(), reply.read())
            finally:
                with self._lock:
                    self._sockets.discard(upstream)


def _read(incoming: socket.SocketIO) -> Passed | None:
    start = incoming.readline().decode("ascii").split()
    if not start:
        return None
    message = http.client.parse_headers(incoming)
    headers = {name: value for name, value in message.items() if name.lower() not in _HOP_BY_HOP}
    body = incoming.read(int(message.get("Content-Length") or 0)) or b""
    return Passed(start[0], start[1], headers, body)


def _reply(status: int, headers: list[tuple[str, str]], body: bytes) -> bytes:
    kept = [f"{name}: {value}" for name, value in headers if name.lower() not in _HOP_BY_HOP]
    head = "\r\n".join([f"HTTP/1.1 {status} -", *kept, f"Content-Length: {len(body)}", "", ""])
    return head.encode() + body
