"""Was the demo right? Judged by the log that its workers wrote, and by nothing else that they say."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Held:
    """One hold. Times are on the machine's monotonic clock; ``end`` is None when it never ended."""

    worker: str
    fence: int
    start: float
    end: float | None


def read_log(text: str, *, deaths: Mapping[str, float]) -> list[Held]:
    """Return the holds in a log, by their start; one without an end ended with its worker's death."""
    notes = [json.loads(line) for line in text.splitlines()]
    ends = {note["fence"]: note["time"] for note in notes if note["what"] == "end"}
    holds = [
        Held(note["worker"], note["fence"], note["time"], ends.get(note["fence"], deaths.get(note["worker"])))
        for note in notes
        if note["what"] == "start"
    ]
    return sorted(holds, key=lambda hold: hold.start)


def faults(holds: Sequence[Held], *, workers: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with a demo's holds, in words; nothing when all is well."""
    for worker in workers:
        turns = sum(hold.worker == worker for hold in holds)
        if turns != 1:
            yield f"{worker} had the lock {turns} times instead of once"
    for earlier, later in pairwise(holds):
        if later.fence <= earlier.fence:
            yield f"{later.worker} got fence {later.fence}, not above {earlier.worker}'s {earlier.fence}"
        if earlier.end is None or earlier.end > later.start:
            yield f"{later.worker} had the lock while {earlier.worker} still had it"
