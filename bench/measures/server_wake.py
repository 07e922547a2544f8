"""A thousand blocking queries on one key: how long after a write until all have their answer."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from time import perf_counter
from typing import TYPE_CHECKING

from bench.results import Outcome
from bench.rounds import figures, in_turns
from bench.serving import AGENT, REFERENCE, Served, reference_server

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.bed import Bed

WHAT = "write to last answer"
QUERIES = 1_000
_SETTLING = "100ms"
_READ_SIZE = 64 * 1024


def run(bed: Bed) -> Outcome:
    """Wake readers of each server in turn."""
    with ExitStack() as stack:
        servers = {
            REFERENCE: stack.enter_context(reference_server(bed.folder, http_max_conns_per_client=0)),
            AGENT: Served(bed.address),
        }
        key = bed.key()
        samples = in_turns(
            servers, lambda _, server: [_wake(server, key)], rounds=bed.rounds(full=9, quick=2)
        )
    return Outcome(
        measure="server_wake",
        title=f"{QUERIES:,} blocking queries on one key, woken by one write",
        base=AGENT,
        figures=figures(samples, what=WHAT, base=AGENT),
        notes=("One thread writes, then reads the answers one after the other.",),
    )


def _wake(server: Served, key: str) -> float:
    server.ask("PUT", f"/v1/kv/{key}", b"before")
    index = server.ask("GET", f"/v1/kv/{key}")[0]["ModifyIndex"]
    request = f"GET /v1/kv/{key}?index={index}&wait=60s HTTP/1.1\r\nHost: bench\r\n\r\n".encode()
    with ExitStack() as stack:
        readers: Sequence[socket.socket] = [
            stack.enter_context(socket.create_connection(server.place, timeout=30)) for _ in range(QUERIES)
        ]
        for reader in readers:
            reader.sendall(request)
        # Requests are served in the order in which they come in: when this one is over, all of them wait.
        server.ask("GET", f"/v1/kv/{key}?index={index}&wait={_SETTLING}")
        began = perf_counter()
        server.ask("PUT", f"/v1/kv/{key}", b"after")
        for reader in readers:
            if not reader.recv(_READ_SIZE).startswith(b"HTTP/1.1 200"):
                message = "a reader was not answered"
                raise RuntimeError(message)
        return perf_counter() - began
