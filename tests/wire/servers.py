"""A server on loopback that speaks bytes, not HTTP: each test says what its agent sends, and when.

A handler gets a ``Peer`` per connection and runs on a thread of its own. Leaving it closes the connection. A
failed assertion in a handler fails the test when the server is closed.
"""

from __future__ import annotations

import socket
import struct
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType
    from typing import Self

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 4\r\n\r\ntrue"
PATIENCE = 20.0
"""How long anything in a test may take: seconds."""


class Peer:
    """One accepted connection, seen from the server."""

    def __init__(self, sock: socket.socket, server: RawServer) -> None:
        self._socket = sock
        self._buffer = b""
        self.server = server

    def request(self) -> bytes | None:
        """Return the next request with its body, or None when the client has hung up."""
        while b"\r\n\r\n" not in self._buffer:
            if not self._receive():
                return None
        end = self._buffer.index(b"\r\n\r\n") + 4
        size = end + _content_length(self._buffer[:end])
        while len(self._buffer) < size:
            if not self._receive():
                return None
        request, self._buffer = self._buffer[:size], self._buffer[size:]
        self.server.note(request)
        return request

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def drip(self, data: bytes, *, pause: float) -> None:
        """Send byte by byte until the data or the client's patience ends."""
        for index in range(len(data)):
            self._socket.sendall(data[index : index + 1])
            if self.server.closing.wait(pause):
                return

    def reset(self) -> None:
        """End the connection with a reset."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def wait_for_hang_up(self) -> bool:
        """Return True as soon as the client closes, False when it does not in time."""
        try:
            while self._socket.recv(65536):
                pass
        except TimeoutError:
            return False
        except OSError:
            return True
        return True

    def _receive(self) -> bool:
        data = self._socket.recv(65536)
        self._buffer += data
        return bool(data)


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


class RawServer:
    """Runs ``handler`` for each connection, until it is closed."""

    def __init__(
        self,
        handler: Callable[[Peer], object],
        *,
        uds: Path | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._handler = handler
        self._tls = tls
        self._listener = _listen(uds)
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._troubles: list[BaseException] = []
        self.requests: list[bytes] = []
        self.connections = 0
        self.closing = threading.Event()
        scheme = "https" if tls else "http"
        self.address = f"unix://{uds}" if uds else f"{scheme}://127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        address = self._listener.getsockname()
        return address[1] if isinstance(address, tuple) else 0

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.closing.set()
        self.stop_listening()
        self.disconnect()
        for thread in list(self._threads):
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a handler hangs"
        self._listener.close()
        if self._troubles and error is None:
            raise self._troubles[0]

    def stop_listening(self) -> None:
        """Refuse new connections, and go on with those that are there."""
        _shut_down(self._listener)

    def disconnect(self) -> None:
        """End every connection."""
        with self._lock:
            for sock in self._sockets:
                _shut_down(sock)

    def wait_until_idle(self) -> None:
        """Wait until no connection is being served."""
        for thread in self._threads[1:]:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a connection stays open"

    def note(self, request: bytes) -> None:
        with self._lock:
            self.requests.append(request)

    def _start(self, target: Callable[..., object], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.settimeout(PATIENCE)
            with self._lock:
                self.connections += 1
                self._sockets.append(sock)
                if self.closing.is_set():
                    _shut_down(sock)
            self._start(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        try:
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
                with self._lock:
                    self._sockets.append(sock)
            self._handler(Peer(sock, self))
        except OSError:
            return  # the client has left
        except AssertionError as error:
            self._troubles.append(error)
        finally:
            sock.close()


def _listen(uds: Path | None) -> socket.socket:
    if uds is None:
        return socket.create_server(("127.0.0.1", 0), backlog=64)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(uds))
    listener.listen(64)
    return listener


def _shut_down(sock: socket.socket) -> None:
    try:
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
    except OSError:
        return


def answering(*replies: bytes) -> Callable[[Peer], None]:
    """Return a handler that gives these replies in turn on each connection, then closes it."""

    def handle(peer: Peer) -> None:
        for reply in replies:
            if peer.request() is None:
                return
            peer.send(reply)

    return handle


def always(reply: bytes) -> Callable[[Peer], None]:
    """Return a handler that gives this reply to every request."""

    def handle(peer: Peer) -> None:
        while peer.request() is not None:
            peer.send(reply)

    return handle


def silent(peer: Peer, *, arrived: threading.Event | None = None) -> None:
    """Read a request and never answer it; raises an event when it is read."""
    peer.request()
    if arrived is not None:
        arrived.set()
    peer.wait_for_hang_up()
