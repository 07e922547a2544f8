"""Lock and unlock transactions a second that a server takes, over plain sockets."""

from __future__ import annotations

import json
import selectors
import socket
from contextlib import ExitStack
from time import perf_counter
from typing import TYPE_CHECKING

from bench.results import Outcome
from bench.rounds import figures, in_turns
from bench.serving import AGENT, REFERENCE, Served, reference_server

if TYPE_CHECKING:
    from typing import Self

    from bench.bed import Bed

CONNECTIONS = 8
_READ_SIZE = 64 * 1024


def run(bed: Bed) -> Outcome:
    """Load each server in turn."""
    transactions = bed.pick(full=8_000, quick=1_600)
    with ExitStack() as stack:
        servers = {
            REFERENCE: stack.enter_context(reference_server(bed.folder)),
            AGENT: Served(bed.address),
        }
        loads = {name: stack.enter_context(_Load(server, bed.key())) for name, server in servers.items()}
        samples = in_turns(
            loads, lambda _, load: [load.run(transactions)], rounds=bed.rounds(full=9, quick=2)
        )
    return Outcome(
        measure="server_txns",
        title=f"Lock and unlock transactions on {CONNECTIONS} connections",
        base=AGENT,
        figures=figures(samples, what="transactions", unit="1/s", scale=1.0, base=AGENT),
        notes=("Each connection has a key of its own, and sends when it has its answer.",),
    )


class _Load:
    """Connections that lock and unlock in turns."""

    def __init__(self, server: Served, key: str) -> None:
        self._server = server
        self._key = key
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        session: str = self._server.ask("PUT", "/v1/session/create", {"TTL": "600s", "NodeChecks": []})["ID"]
        self._stack.callback(self._server.ask, "PUT", f"/v1/session/destroy/{session}")
        self._sockets = [
            self._stack.enter_context(socket.create_connection(self._server.place, timeout=30))
            for _ in range(CONNECTIONS)
        ]
        for each in self._sockets:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._requests = [
            [_request(verb, f"{self._key}/{number}", session) for verb in ("lock", "unlock")]
            for number in range(CONNECTIONS)
        ]
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, transactions: int) -> float:
        """Return how many transactions a second were answered."""
        each = transactions // CONNECTIONS // 2 * 2
        left = dict.fromkeys(range(CONNECTIONS), each)
        began = perf_counter()
        with selectors.DefaultSelector() as selector:
            for number, connection in enumerate(self._sockets):
                selector.register(connection, selectors.EVENT_READ, number)
                connection.sendall(self._requests[number][0])
            while left:
                for ready, _ in selector.select():
                    answered: int = ready.data
                    self._finish(answered)
                    left[answered] -= 1
                    if left[answered]:
                        self._sockets[answered].sendall(self._requests[answered][left[answered] % 2])
                    else:
                        del left[answered]
        return each * CONNECTIONS / (perf_counter() - began)

    def _finish(self, number: int) -> None:
        reply = b""
        while not _is_whole(reply):
            piece = self._sockets[number].recv(_READ_SIZE)
            if not piece:
                break
            reply += piece
        if not reply.startswith(b"HTTP/1.1 200"):
            message = f"a transaction was refused: {reply[:200]!r}"
            raise RuntimeError(message)


def _is_whole(reply: bytes) -> bool:
    head, end, body = reply.partition(b"\r\n\r\n")
    if not end:
        return False
    return len(body) >= int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])


def _request(verb: str, key: str, session: str) -> bytes:
    body = json.dumps([{"KV": {"Verb": verb, "Key": key, "Session": session}}]).encode()
    head = f"PUT /v1/txn HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body
