"""The uncontended pair: acquire, then release, on a warm client."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.contenders.commands import CONSUL_COMMAND, OUR_COMMAND
from bench.contenders.go_client import GO_GIVEN, GO_OWN
from bench.contenders.ours import OursAsync, OursOverHttpx, OursSync
from bench.contenders.py_consul import PyConsul
from bench.contenders.raw import RAW, RAW_BARE, BareHttpx
from bench.results import Outcome
from bench.rounds import figures, in_turns, open_all

if TYPE_CHECKING:
    from bench.bed import Bed
    from bench.contenders.pairs import Pairs
    from bench.rounds import Contender


@dataclass(frozen=True, slots=True)
class Entry:
    """A contender, and how many pairs it does in one round."""

    contender: Contender[Pairs]
    pairs: int = 20


ENTRIES = (
    Entry(RAW),
    Entry(RAW_BARE),
    Entry(OursSync()),
    Entry(OursAsync()),
    Entry(OursOverHttpx()),
    Entry(BareHttpx()),
    Entry(PyConsul()),
    Entry(GO_GIVEN),
    Entry(GO_OWN),
    Entry(OUR_COMMAND, pairs=1),
    Entry(CONSUL_COMMAND, pairs=1),
)


def run(bed: Bed) -> Outcome:
    """Time the pair, contender by contender, round by round."""
    batches = {entry.contender.name: entry.pairs for entry in ENTRIES}
    with ExitStack() as stack:
        opened, skipped = open_all(stack, [entry.contender for entry in ENTRIES], bed)
        samples = in_turns(
            opened, lambda name, pairs: pairs(batches[name]), rounds=bed.rounds(full=60, quick=4)
        )
    return Outcome(
        measure="pair",
        title="Uncontended acquire + release, warm",
        base=RAW.name,
        figures=figures(samples, what="acquire + release", base=RAW.name),
        skipped=skipped,
    )
