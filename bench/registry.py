"""The table of measures: what ``python -m bench`` can run, in this order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.measures import (
    async_throughput,
    capacity,
    counts,
    election,
    fleet,
    handoff,
    held,
    idle,
    imports,
    install,
    loss,
    pair,
    semaphore_crowd,
    semaphore_pair,
    server_memory,
    server_start,
    server_storm,
    server_txns,
    server_wake,
    threads,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.bed import Bed
    from bench.results import Outcome


@dataclass(frozen=True, slots=True)
class Measure:
    """One thing that can be measured."""

    name: str
    about: str
    run: Callable[[Bed], Outcome]


MEASURES = (
    Measure("pair", "uncontended acquire + release", pair.run),
    Measure("counts", "requests and Raft entries of that pair", counts.run),
    Measure("threads", "threads on one client", threads.run),
    Measure("async_throughput", "many tasks on one async client", async_throughput.run),
    Measure("handoff", "from holder to waiter", handoff.run),
    Measure("semaphore_pair", "uncontended slot", semaphore_pair.run),
    Measure("semaphore_counts", "requests and Raft entries of that slot", counts.run_slots),
    Measure("semaphore_crowd", "many waiting for a slot", semaphore_crowd.run),
    Measure("election", "from leader to leader", election.run),
    Measure("loss", "until a holder knows", loss.run),
    Measure("held", "what many held locks cost", held.run),
    Measure("idle", "requests of those who are idle", idle.run),
    Measure("fleet", "many processes waiting on one agent", fleet.run),
    Measure("imports", "import time", imports.run),
    Measure("install", "base install size", install.run),
    Measure("capacity", "long queues in virtual time", capacity.run),
    Measure("server_start", "start-up of the reference server", server_start.run),
    Measure("server_txns", "transactions a second of the reference server", server_txns.run),
    Measure("server_wake", "a thousand blocking queries woken", server_wake.run),
    Measure("server_memory", "memory of the reference server", server_memory.run),
    Measure("server_storm", "thousands of sessions that end at once", server_storm.run),
)
