"""What a run has shown: the checks of every history, and those of a run that was healed in the end.

Besides `proof.judge`, with no overlap allowed at all, since all clocks are one:

- **bugs**: no worker met an error that it should not meet, and every process that was asked to end did,
  leaving no thread, file or clean-up.
- **progress**: once all was healed, every key and every process had a turn within the bound.

Holds that an operator has ended by force count as relied upon until then. The order of fences is not judged
where the time of a grant can't be known well enough: of slots, which several hold at once, and of holds ended
by force, whose holder may have written the grant down after somebody else's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from consul_coord.testing.history import Record, merge
from consul_coord.testing.history.spans import read
from proof.chaos.diary import BUG, CLOSED
from proof.judge import Finding, Verdict, check

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from consul_coord.testing.history.spans import Hold
    from proof.chaos.force import Force
    from proof.chaos.plan import Plan
    from proof.judge import Entry

GRANTS: Final = frozenset({"acquired", "elected"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that a run has left.

    ``healed`` is when nothing was harmed any more. ``left`` has what remained at the servers, by kind.
    ``codes`` has the exit code of every process that was asked to end.
    """

    records: Sequence[Record]
    forces: Sequence[Force]
    registers: Mapping[str, Sequence[Entry]]
    left: Mapping[str, Sequence[str]]
    healed: float
    codes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on a run, and how many holds an operator may have ended by force."""

    verdict: Verdict
    forced: int


def judge(plan: Plan, evidence: Evidence) -> Judgement:
    """Judge a run."""
    records, holds = evidence.records, read(evidence.records).holds
    forced = [(force, hold) for force in evidence.forces for hold in holds if force.hits(hold)]
    verdict = check(
        merge(records, (_end(force, hold) for force, hold in forced)),
        limits=plan.limits,
        registers=evidence.registers,
        left=evidence.left,
    )
    unsure = {(hold.key, hold.relied.began) for _, hold in forced}
    findings = [
        finding
        for finding in verdict.findings
        if finding.rule != "fences"
        or (finding.key not in plan.limits and (finding.key, finding.at) not in unsure)
    ]
    findings += _shared_fences(holds, plan)
    findings += _bugs(evidence)
    findings += _progress(plan, records, evidence.healed)
    return Judgement(replace(verdict, findings=tuple(findings)), forced=len(unsure))


def _end(force: Force, hold: Hold) -> Record:
    at = max(force.at, hold.relied.began)
    return Record(
        at=at, process="operator", kind="ended", key=hold.key, session=hold.session, detail="forced"
    )


def _shared_fences(holds: Iterable[Hold], plan: Plan) -> Iterator[Finding]:
    """Yield slots of one semaphore with one fence: of those, that much can be said."""
    seen: set[tuple[str, int | None]] = set()
    for hold in holds:
        if hold.key in plan.limits:
            if (hold.key, hold.fence) in seen:
                yield Finding("fences", hold.key, f"two holds have fence {hold.fence}", hold.relied.began)
            seen.add((hold.key, hold.fence))


def _bugs(evidence: Evidence) -> Iterator[Finding]:
    closed = 0
    for record in evidence.records:
        if record.kind == "note":
            closed += record.detail == CLOSED
            if record.detail.startswith(BUG):
                yield Finding("bugs", record.key, f"{record.process}: {record.detail}", record.at)
    for name, code in evidence.codes.items():
        if code:
            yield Finding("bugs", "", f"{name} ended with {code}", evidence.healed)
    if closed < len(evidence.codes):
        missing = len(evidence.codes) - closed
        yield Finding("bugs", "", f"{missing} processes did not close", evidence.healed)


def _progress(plan: Plan, records: Iterable[Record], healed: float) -> Iterator[Finding]:
    """Yield who, and what, had no turn in time."""
    first: dict[str, float] = {}
    for record in records:
        if record.kind in GRANTS and record.at >= healed:
            first.setdefault(record.key, record.at - healed)
            first.setdefault(record.process, record.at - healed)
    for name in (*plan.keys, *(f"worker{place}" for place in range(plan.processes))):
        if first.get(name, plan.progress_bound + 1) > plan.progress_bound:
            what = f"no turn within {plan.progress_bound} s after the healing"
            yield Finding("progress", name, what, healed)
