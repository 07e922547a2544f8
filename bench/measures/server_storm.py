"""Thousands of sessions that end at once, each with a key: how long other requests wait meanwhile.

Without a leader nothing ends, and a new one starts every session's TTL afresh: so all are due at one moment.
"""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from time import perf_counter
from typing import TYPE_CHECKING

from bench.results import Outcome
from bench.rounds import figures, in_turns
from bench.serving import REFERENCE, Served, reference_server

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.bed import Bed

LONGEST = "longest wait of another request"
_OPS = 64
_LEADER = "/reference/leader"


def run(bed: Bed) -> Outcome:
    """Make sessions, let them all be due at once, and ask on."""
    sessions, ttl = bed.pick(full=(10_000, 10), quick=(100, 2))

    def storm(_name: str, _: None) -> Sequence[float]:
        with reference_server(
            bed.folder, session_ttl_min=1.0, session_ttl_factor=1.0, control=True
        ) as server:
            last = _fill(server, sessions, ttl)
            for change in ("lose", "elect"):
                server.ask("POST", f"{_LEADER}/{change}", {})
            return _ask_until_free(server, last)

    samples = in_turns({REFERENCE: None}, storm, rounds=bed.rounds(full=2, quick=1))
    longest = {name: [[max(times)] for times in rounds] for name, rounds in samples.items()}
    return Outcome(
        measure="server_storm",
        title=f"{sessions:,} sessions that end at once, each with a key",
        figures=(
            *figures(longest, what=LONGEST),
            *figures(samples, what="other requests"),
        ),
        notes=(f"Requests on one connection, from {ttl} s before the sessions end until all have ended.",),
    )


def _fill(server: Served, sessions: int, ttl: int) -> str:
    """Make sessions that hold a key each; return the last one's key."""
    spec = json.dumps({"TTL": f"{ttl}s", "NodeChecks": []}).encode()
    made: list[str] = []
    with closing(http.client.HTTPConnection(*server.place, timeout=30)) as connection:
        for _ in range(sessions):
            connection.request("PUT", "/v1/session/create", spec)
            made.append(json.loads(connection.getresponse().read())["ID"])
    for first in range(0, sessions, _OPS):
        batch = made[first : first + _OPS]
        locks = [{"KV": {"Verb": "lock", "Key": f"storm/{each}", "Session": each}} for each in batch]
        server.ask("PUT", "/v1/txn", locks)
    return f"storm/{made[-1]}"


def _ask_until_free(server: Served, key: str) -> Sequence[float]:
    """Return the times of requests until a key is held no more."""
    times: list[float] = []
    held = True
    with closing(http.client.HTTPConnection(*server.place, timeout=30)) as connection:
        while held:
            began = perf_counter()
            connection.request("GET", f"/v1/kv/{key}")
            text = connection.getresponse().read()
            times.append(perf_counter() - began)
            held = "Session" in json.loads(text)[0]
    return times
