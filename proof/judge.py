"""Judge a history of holds and fenced writes. Pure.

Rules
- **exclusion**: never more holds of a key than its limit (1, if none is given) are relied upon at one time.
  What overlaps by no more than ``bound`` seconds is no finding: it is what the clocks of the writers may
  differ by.
- **fences**: no two holds of a key have one fence, and a hold that began after another one had ended has the
  higher fence.
- **writes**: every write that was acknowledged under a fence is in the register's log, once, and none that
  was refused; the fences in the log never go down; nobody wrote under a fence that he had not been given.
- **ends**: no hold and no wait is open when the history ends, but for those of processes that died.
- **leftovers**: what was found at the servers after all had ended is a finding each.
- A verdict also counts what was seen: a history without holds and writes proves nothing, and whoever asks has
  to look at the counts.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING

from consul_coord.testing.history.spans import read

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from consul_coord.testing.history.record import Record
    from consul_coord.testing.history.spans import Hold, Spans


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a fenced register's log: the fence that it was written under, and the name of the write."""

    fence: int
    name: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule: which, of which key, what happened, and when (seconds on the history's clock)."""

    rule: str
    key: str
    what: str
    at: float

    def __str__(self) -> str:
        return f"{self.rule} of {self.key!r} at {self.at:.3f} s: {self.what}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found, and how much was looked at.

    ``handovers`` counts holds that followed one of another process or actor; ``writes`` those acknowledged.
    """

    findings: tuple[Finding, ...]
    holds: int
    handovers: int
    writes: int
    lost: int


def check(
    records: Sequence[Record],
    *,
    limits: Mapping[str, int] | None = None,
    bound: float = 0.0,
    registers: Mapping[str, Sequence[Entry]] | None = None,
    left: Mapping[str, Iterable[str]] | None = None,
) -> Verdict:
    """Judge a history, given in the order of time, and return what was found.

    ``limits`` has the number of slots of each key that is a semaphore; ``bound`` is in seconds. ``registers``
    has the whole log of each key's fenced register, oldest first; without any, the writes are not judged.
    ``left`` has what remained at the servers, by kind (such as ``"session"``).
    """
    spans = read(records)
    by_key: dict[str, list[Hold]] = {}
    for hold in spans.holds:
        by_key.setdefault(hold.key, []).append(hold)
    findings = [
        finding
        for key, holds in by_key.items()
        for finding in (
            *_exclusion(key, holds, limit=(limits or {}).get(key, 1), bound=bound),
            *_fences(key, holds),
        )
    ]
    if registers is not None:
        findings += _writes(records, registers)
    findings += _ends(spans)
    findings += (
        Finding("leftovers", name, f"a {kind} was left", spans.whole.ended)
        for kind, names in (left or {}).items()
        for name in names
    )
    return Verdict(
        findings=tuple(sorted(findings, key=attrgetter("at"))),
        holds=len(spans.holds),
        handovers=sum(_handovers(holds) for holds in by_key.values()),
        writes=sum(record.kind == "write" for record in records),
        lost=sum(hold.how == "lost" for hold in spans.holds),
    )


def _exclusion(key: str, holds: Sequence[Hold], *, limit: int, bound: float) -> Iterator[Finding]:
    """Yield each beginning of a hold at which too many others were, and stayed, relied upon."""
    relied: list[tuple[float, int]] = []
    for number, hold in enumerate(holds):
        began = hold.relied.began
        while relied and relied[0][0] <= began + bound:
            heapq.heappop(relied)
        if hold.relied.ended - began <= bound:
            continue
        heapq.heappush(relied, (hold.relied.ended, number))
        if len(relied) > limit:
            others = ", ".join(_named(holds[other]) for _, other in sorted(relied) if other != number)
            yield Finding(
                "exclusion", key, f"{_named(hold)} began while {others} lasted (limit {limit})", began
            )


def _fences(key: str, holds: Sequence[Hold]) -> Iterator[Finding]:
    """Yield each hold whose fence is missing, not its own, or not above those of all that had ended."""
    seen: dict[int, Hold] = {}
    ended: list[tuple[float, int]] = []
    highest = -1
    for hold in holds:
        began, fence = hold.relied.began, hold.fence
        if fence is None:
            yield Finding("fences", key, f"{_named(hold)} has no fence", began)
            continue
        while ended and ended[0][0] <= began:
            highest = max(highest, heapq.heappop(ended)[1])
        if fence in seen:
            yield Finding("fences", key, f"{_named(hold)} has the fence of {_named(seen[fence])}", began)
        elif fence < highest:
            yield Finding("fences", key, f"{_named(hold)} began after fence {highest} had ended", began)
        seen[fence] = hold
        heapq.heappush(ended, (hold.relied.ended, fence))


def _writes(records: Sequence[Record], registers: Mapping[str, Sequence[Entry]]) -> Iterator[Finding]:
    """Yield what the registers' logs lack, or have and should not."""
    end = records[-1].at if records else 0.0
    logged = {key: Counter(log) for key, log in registers.items()}
    granted = {
        (record.key, record.process, record.fence)
        for record in records
        if record.kind in {"acquired", "elected"}
    }
    for record in records:
        if record.kind not in {"write", "refused"} or record.fence is None:
            continue
        found = logged.get(record.key, Counter())[Entry(record.fence, record.detail)]
        wanted = int(record.kind == "write")
        if found != wanted:
            told = "acknowledged" if wanted else "refused"
            what = f"{record.detail!r} under fence {record.fence} was {told}, and was logged {found} times"
            yield Finding("writes", record.key, what, record.at)
        if wanted and (record.key, record.process, record.fence) not in granted:
            what = f"{record.process} wrote under fence {record.fence}, which it had not been given"
            yield Finding("writes", record.key, what, record.at)
    for key, log in registers.items():
        for before, after in pairwise(log):
            if after.fence < before.fence:
                what = f"{after.name!r} of fence {after.fence} was logged after one of fence {before.fence}"
                yield Finding("writes", key, what, end)


def _ends(spans: Spans) -> Iterator[Finding]:
    for hold in spans.holds:
        if hold.how == "open":
            yield Finding("ends", hold.key, f"{_named(hold)} never ended", hold.relied.began)
    for wait in spans.waits:
        if wait.how == "open":
            what = f"{wait.process} {wait.actor}".rstrip() + " waits still"
            yield Finding("ends", wait.key, what, wait.span.began)


def _handovers(holds: Sequence[Hold]) -> int:
    return sum((one.process, one.actor) != (other.process, other.actor) for one, other in pairwise(holds))


def _named(hold: Hold) -> str:
    who = f"{hold.process} {hold.actor}".rstrip()
    return f"fence {hold.fence} of {who} ({hold.relied.began:.3f} to {hold.relied.ended:.3f} s)"
