"""Questions about everybody: who queues, who holds, what ran last. The server's own state is the judge.

Rules
- An answer is right if nothing was written between the question and the answer. With writes in between it may
  be that of any moment, and is not judged.
- The truth is read from keys and sessions here, and not by the recipes' own readers.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from consul_coord.io import IO
    from consul_coord.server.records import Entry
    from consul_coord.testing.simulation.cluster import Cluster


class View(NamedTuple):
    """One question."""

    what: str
    ask: Callable[[IO], Coroutine[Any, Any, object]]
    truth: Callable[[Cluster], object]
    requests: int = 1
    """How many it takes."""


def queued(cluster: Cluster, directory: str) -> list[tuple[str, int]]:
    """Return the living contenders in a directory in order, and the index at which each joined."""
    entries = [
        entry for entry in cluster.under(directory) if entry.session and entry.key.endswith(entry.session)
    ]
    return sorted(((each.session, each.create_index) for each in entries), key=lambda each: each[1])


def slot_waiters(cluster: Cluster, prefix: str) -> list[tuple[str, int]]:
    """Return the sessions of this package's waiters for slots, the first one first, each with its place."""
    record = cluster.entry(f"{prefix}/.lock")
    named = [] if record is None or not record.value else list(json.loads(record.value)["Holders"])
    waiting = [
        (entry.create_index, entry.session)
        for entry in cluster.under(f"{prefix}/")
        if entry.session not in {"", *named} and entry.value.startswith(b"consul-coord:wait")
    ]
    return [(session, place) for place, (_, session) in enumerate(sorted(waiting), 1)]


def _sides(cluster: Cluster, directory: str) -> tuple[list[Entry], list[Entry]]:
    """Return the contenders that are in a read-write lock, dead ones too, and the others."""
    places = sorted(
        (entry for entry in cluster.under(directory) if entry.value[:1] in {b"r", b"w"}),
        key=lambda entry: entry.create_index,
    )
    writers = [place for place, entry in enumerate(places) if entry.value[:1] == b"w"]
    first = max(1, min(writers, default=len(places)))
    return places[:first], places[first:]


def inside(cluster: Cluster, directory: str) -> list[tuple[str, int]]:
    """Return the sessions that are in a read-write lock, each with its fence."""
    return [(entry.session, entry.create_index) for entry in _sides(cluster, directory)[0] if entry.session]


def outside(cluster: Cluster, directory: str) -> list[tuple[str, int]]:
    """Return the sessions that wait to get in, the first one first, each with its place."""
    waiting = [entry.session for entry in _sides(cluster, directory)[1] if entry.session]
    return [(session, place) for place, session in enumerate(waiting, 1)]


def slot_holders(cluster: Cluster, prefix: str) -> tuple[list[tuple[str, int]], list[int]]:
    """Return the sessions that hold slots of a semaphore, each with its fence, and the fences in order."""
    record = cluster.entry(f"{prefix}/.lock")
    named = [] if record is None or not record.value else list(json.loads(record.value)["Holders"])
    entries = [(one, cluster.entry(f"{prefix}/{one}")) for one in named]
    held = sorted(
        (one, entry.modify_index) for one, entry in entries if entry is not None and entry.session == one
    )
    return held, sorted(index for _, index in held)
