"""Requests and Raft entries of one uncontended pair, of a lock and of a slot, counted at the agent."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from bench.bed import Unavailable
from bench.contenders.go_client import GO_GIVEN, GO_OWN, GO_SLOT_GIVEN, GO_SLOT_OWN
from bench.contenders.ours import OursAsync, OursOverHttpx, OursSync
from bench.contenders.py_consul import PyConsul
from bench.contenders.raw import RAW
from bench.counting import RENEWAL, REQUEST, WATCH, counting_proxy
from bench.measures import semaphore_pair
from bench.results import Figure, Outcome, Skipped, Spread

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from bench.bed import Bed
    from bench.contenders.pairs import Pairs
    from bench.rounds import Contender

REQUESTS = "requests per pair"
ENTRIES = "Raft entries per pair"
FAILED = "failed CAS per pair"
CONTENDERS: tuple[Contender[Pairs], ...] = (
    RAW,
    OursSync(),
    OursAsync(),
    OursOverHttpx(),
    PyConsul(),
    GO_GIVEN,
    GO_OWN,
)
SLOT_CONTENDERS: tuple[Contender[Pairs], ...] = (*semaphore_pair.OURS, GO_SLOT_GIVEN, GO_SLOT_OWN)

_PAIRS = 20
_WARM = 3
_ALWAYS = frozenset({REQUESTS, ENTRIES})
_WHAT = {
    REQUEST: REQUESTS,
    WATCH: "blocking queries per pair",
    RENEWAL: "renewals per pair",
}


def run(bed: Bed) -> Outcome:
    """Count the requests of each contender for a lock."""
    return _outcome(
        bed, CONTENDERS, measure="counts", title="Requests and Raft entries of the pair", besides=()
    )


def run_slots(bed: Bed) -> Outcome:
    """Count the requests of each contender for a slot."""
    return _outcome(
        bed,
        SLOT_CONTENDERS,
        measure="semaphore_counts",
        title="Requests and Raft entries of a slot's pair",
        besides=(FAILED,),
    )


def _outcome(
    bed: Bed,
    contenders: Sequence[Contender[Pairs]],
    *,
    measure: str,
    title: str,
    besides: Collection[str],
) -> Outcome:
    """Count one contender after the other: counts need no turns."""
    found: list[Figure] = []
    skipped: list[Skipped] = []
    for contender in contenders:
        try:
            found += count(bed, contender, rounds=bed.pick(full=10, quick=3), besides=besides)
        except Unavailable as error:
            skipped.append(Skipped(contender.name, str(error)))
    return Outcome(
        measure=measure,
        title=title,
        figures=tuple(found),
        skipped=tuple(skipped),
        notes=(
            f"Per round of {_PAIRS} pairs.",
            "Blocking queries and renewals go on by themselves, and have no line where there were none.",
            "The server makes Raft entries of its own now and then, which the median leaves out.",
        ),
    )


def count(
    bed: Bed, contender: Contender[Pairs], *, rounds: int, besides: Collection[str] = ()
) -> tuple[Figure, ...]:
    """Count what one contender sends in so many rounds; ``besides``: what is reported even if it is 0."""
    samples: dict[str, list[float]] = {what: [] for what in (*_WHAT.values(), ENTRIES, FAILED)}
    with ExitStack() as stack:
        behind, counts = stack.enter_context(counting_proxy(bed))
        pairs = stack.enter_context(contender.open(behind))
        pairs(_WARM)
        for _ in range(rounds):
            index, seen = bed.raft_index(), len(counts.seen)
            pairs(_PAIRS)
            kinds = counts.by_kind(since=seen)
            samples[ENTRIES].append((bed.raft_index() - index) / _PAIRS)
            samples[FAILED].append(counts.failed_cas(since=seen) / _PAIRS)
            for kind, what in _WHAT.items():
                samples[what].append(kinds[kind] / _PAIRS)
    return tuple(
        Figure(contender=contender.name, what=what, unit="", value=Spread.of(values))
        for what, values in samples.items()
        if what in _ALWAYS or what in besides or any(values)
    )
