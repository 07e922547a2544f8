"""What those cost the agent who do nothing but hold, wait, or lead: requests per hour.

Rules
- Each has a client of its own behind a proxy of its own, and all idle at the same time.
- The settings are the defaults: TTL 15 s, and the wait that each client asks for. What is counted in a
  window is multiplied up to an hour; the window is a bit longer than twice the usual wait.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.bed import Unavailable
from bench.contenders.go_client import go_peer
from bench.counting import RENEWAL, REQUEST, WATCH, counting_proxy
from bench.results import Figure, Outcome, Skipped, Spread
from consul_coord import Client, LeaderElection, Lock, Semaphore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from bench.bed import Bed
    from bench.counting import Counts

SETTLING = 3.0
"""Seconds until what comes with a start is over."""
HOUR = 3600.0
PER_HOUR = {WATCH: "blocking queries per hour", RENEWAL: "renewals per hour", REQUEST: "others per hour"}
ALL = "all requests per hour"


@dataclass(frozen=True, slots=True)
class Idler:
    """Somebody who does nothing but one thing."""

    name: str
    idle: Callable[[Bed, str], AbstractContextManager[object]]
    """Is idle on a key while entered. Raises Unavailable."""
    held: bool = False
    """Whether somebody else has the key."""


@contextmanager
def _hold(bed: Bed, key: str) -> Iterator[None]:
    with Client(address=bed.address) as client, Lock(client, key):
        yield


@contextmanager
def _wait(bed: Bed, key: str) -> Iterator[None]:
    from threading import Thread

    from consul_coord import AcquireCancelled

    with Client(address=bed.address) as client:
        lock = Lock(client, key)

        def wait() -> None:
            try:
                lock.acquire()
            except AcquireCancelled:
                return

        thread = Thread(target=wait)
        thread.start()
        try:
            yield
        finally:
            lock.cancel()
            thread.join()


@contextmanager
def _hold_a_permit(bed: Bed, key: str) -> Iterator[None]:
    with Client(address=bed.address) as client, Semaphore(client, key, 1):
        yield


@contextmanager
def _lead(bed: Bed, key: str) -> Iterator[None]:
    with Client(address=bed.address) as client, LeaderElection(client, key) as election:
        election.wait_for_leadership(timeout=10)
        yield


@contextmanager
def _stand(bed: Bed, key: str) -> Iterator[None]:
    with Client(address=bed.address) as client, LeaderElection(client, key):
        yield


@contextmanager
def _go(bed: Bed, command: str) -> Iterator[None]:
    with go_peer(bed) as peer:
        peer.ask(command)
        yield


IDLERS = (
    Idler("ours, holder", _hold),
    Idler("ours, waiter", _wait, held=True),
    Idler("ours, permit's holder", _hold_a_permit),
    Idler("ours, leader", _lead),
    Idler("ours, candidate", _stand, held=True),
    Idler("Go api.Lock, holder", lambda bed, key: _go(bed, f"hold {key}")),
    Idler("Go api.Lock, waiter", lambda bed, key: _go(bed, f"wait {key}"), held=True),
)


def run(bed: Bed) -> Outcome:
    """Have all of them idle for the same while."""
    window = bed.pick(full=61.0, quick=6.0)
    skipped: list[Skipped] = []
    with ExitStack() as stack:
        counted: dict[str, Counts] = {}
        holder = stack.enter_context(Client(address=bed.address))
        for idler in IDLERS:
            key = bed.key()
            if idler.held:
                stack.enter_context(Lock(holder, key))
            behind, counts = stack.enter_context(counting_proxy(bed))
            try:
                stack.enter_context(idler.idle(behind, key))
            except Unavailable as error:
                skipped.append(Skipped(idler.name, str(error)))
            else:
                counted[idler.name] = counts
        time.sleep(SETTLING)
        since = {name: len(counts.seen) for name, counts in counted.items()}
        time.sleep(window)
        found = tuple(
            figure
            for name, counts in counted.items()
            for figure in _figures(name, counts, since=since[name], window=window)
        )
    short = ("The quick form's window is shorter than a wait: its figures say little.",) if bed.quick else ()
    return Outcome(
        measure="idle",
        title="Requests per hour of idle clients",
        figures=found,
        skipped=tuple(skipped),
        notes=(
            f"Counted for {window:.0f} s with default settings, and multiplied.",
            "A renewal costs no Raft entry. Ours come after two fifths of the TTL, Go's after half of it.",
            *short,
        ),
    )


def _figures(name: str, counts: Counts, *, since: int, window: float) -> Iterator[Figure]:
    kinds = counts.by_kind(since=since)
    values = {what: kinds[kind] for kind, what in PER_HOUR.items()}
    for what, value in {**values, ALL: sum(values.values())}.items():
        yield Figure(contender=name, what=what, unit="", value=Spread.of([value * HOUR / window]))
