"""The uncontended slot: acquire, then release, on a warm client."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from bench.contenders.go_client import GO_SLOT_GIVEN, GO_SLOT_OWN
from bench.contenders.ours import OursAsync, OursOverHttpx, OursSync, async_slots, slots
from bench.results import Outcome
from bench.rounds import figures, in_turns, open_all

if TYPE_CHECKING:
    from bench.bed import Bed
    from bench.contenders.pairs import Pairs
    from bench.rounds import Contender

OURS: tuple[Contender[Pairs], ...] = (
    OursSync(make=slots),
    OursAsync(make=async_slots),
    OursOverHttpx(make=slots),
)
CONTENDERS: tuple[Contender[Pairs], ...] = (GO_SLOT_GIVEN, GO_SLOT_OWN, *OURS)
_PAIRS = 20


def run(bed: Bed) -> Outcome:
    """Time the pair, contender by contender, round by round."""
    with ExitStack() as stack:
        opened, skipped = open_all(stack, CONTENDERS, bed)
        samples = in_turns(opened, lambda _, pairs: pairs(_PAIRS), rounds=bed.rounds(full=40, quick=4))
    return Outcome(
        measure="semaphore_pair",
        title="A semaphore's slot, uncontended: acquire + release, warm",
        base=GO_SLOT_GIVEN.name,
        figures=figures(samples, what="acquire + release", base=GO_SLOT_GIVEN.name),
        skipped=skipped,
    )
