"""Requests and Raft entries of one uncontended pair, counted at the agent."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from bench.bed import Unavailable
from bench.contenders.go_client import GO_GIVEN, GO_OWN
from bench.contenders.ours import OursAsync, OursOverHttpx, OursSync
from bench.contenders.py_consul import PyConsul
from bench.contenders.raw import RAW
from bench.counting import RENEWAL, REQUEST, WATCH, counting_proxy
from bench.results import Figure, Outcome, Skipped, Spread

if TYPE_CHECKING:
    from bench.bed import Bed
    from bench.contenders.pairs import Pairs
    from bench.rounds import Contender

REQUESTS = "requests per pair"
ENTRIES = "Raft entries per pair"
CONTENDERS: tuple[Contender[Pairs], ...] = (
    RAW,
    OursSync(),
    OursAsync(),
    OursOverHttpx(),
    PyConsul(),
    GO_GIVEN,
    GO_OWN,
)

_PAIRS = 20
_WARM = 3
_ALWAYS = frozenset({REQUESTS, ENTRIES})
_WHAT = {
    REQUEST: REQUESTS,
    WATCH: "blocking queries per pair",
    RENEWAL: "renewals per pair",
}


def run(bed: Bed) -> Outcome:
    """Count each contender's requests, one contender after the other: counts need no turns."""
    found: list[Figure] = []
    skipped: list[Skipped] = []
    for contender in CONTENDERS:
        try:
            found += count(bed, contender, rounds=bed.pick(full=10, quick=3))
        except Unavailable as error:
            skipped.append(Skipped(contender.name, str(error)))
    return Outcome(
        measure="counts",
        title="Requests and Raft entries of the pair",
        figures=tuple(found),
        skipped=tuple(skipped),
        notes=(
            f"Per round of {_PAIRS} pairs.",
            "Blocking queries and renewals go on by themselves, and have no line where there were none.",
            "The server makes Raft entries of its own now and then, which the median leaves out.",
        ),
    )


def count(bed: Bed, contender: Contender[Pairs], *, rounds: int) -> tuple[Figure, ...]:
    """Count what one contender sends in so many rounds."""
    samples: dict[str, list[float]] = {what: [] for what in (*_WHAT.values(), ENTRIES)}
    with ExitStack() as stack:
        behind, counts = stack.enter_context(counting_proxy(bed))
        pairs = stack.enter_context(contender.open(behind))
        pairs(_WARM)
        for _ in range(rounds):
            index, seen = bed.raft_index(), len(counts.seen)
            pairs(_PAIRS)
            kinds = counts.by_kind(since=seen)
            samples[ENTRIES].append((bed.raft_index() - index) / _PAIRS)
            for kind, what in _WHAT.items():
                samples[what].append(kinds[kind] / _PAIRS)
    return tuple(
        Figure(contender=contender.name, what=what, unit="", value=Spread.of(values))
        for what, values in samples.items()
        if what in _ALWAYS or any(values)
    )
