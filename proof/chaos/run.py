"""One run, from the first start to the verdict.

1. The cluster and the workers start; every key gets its first hold.
2. For the plan's seconds, harms come and go, several at a time. An agent that ends by itself is started
   again, as a supervisor would. Its log is kept.
3. All is healed, and the workers go on until everybody can have had a turn.
4. They end as programs end. Each key is used once more, as its next user would, since sessions of killed
   processes have left places in queues, which are removed by whoever queues next. Then nothing may be left.
"""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from consul_coord import Client, Lock, Semaphore, SessionSpec
from proof.chaos import force, links
from proof.chaos.bed import ENDED, Bed
from proof.chaos.faults import FAULTS, Hands, Harmed
from proof.chaos.journal import read_all
from proof.chaos.register import Register
from proof.chaos.verdict import GRANTS, Evidence, judge

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from consul_coord.testing.history import Record
    from proof.chaos.plan import Plan
    from proof.judge import Verdict

_WARM: Final = 60.0
"""Seconds within which every key must have been held once, before anything is harmed."""
_MEANS: Final = (0.07, 0.4)
"""How long short and long harms last on average, as parts of the longest."""
_CLOSE: Final = 40.0
_POLL: Final = 0.1
_ID: Final = 36


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run has come to."""

    verdict: Verdict
    records: tuple[Record, ...]
    faults: Mapping[str, int]
    """How often each kind of harm was done."""
    acts: int
    """How often an operator used force."""
    forced: int
    """How many holds that may have ended."""

    def __str__(self) -> str:
        """Return it in a few lines, for people."""
        kinds = Counter(record.kind for record in self.records)
        counted = ", ".join(f"{name} {number}" for name, number in sorted(self.faults.items()))
        seen = ", ".join(f"{name} {number}" for name, number in sorted(kinds.items()))
        verdict = self.verdict
        return "\n".join(
            (
                f"harm: {sum(self.faults.values())} ({counted})",
                f"records: {len(self.records)} ({seen})",
                f"holds {verdict.holds}, handovers {verdict.handovers}, lost {verdict.lost}",
                f"fenced writes {verdict.writes}, acts of force {self.acts} on {self.forced} holds",
                *map(str, verdict.findings),
                f"findings: {len(verdict.findings)}",
            )
        )


def play(plan: Plan, folder: Path) -> Outcome:
    """Run a plan in an empty folder, which then has the histories, and return what it has come to.

    Links are cut where `links.enter_private` has made that possible. Raises ``AgentError`` when the cluster
    can't be started, or does not recover once it is healed.
    """
    with Bed(plan, folder, links=links.Links() if links.is_private() else None) as bed:
        _warm_up(bed)
        hands = Hands(bed, random.Random(plan.seed))  # noqa: S311 - the faults of a test
        faults = _harm(bed, hands)
        bed.heal()
        healed = bed.clock.now()
        _settle(bed, healed=healed)
        bed.stop_workers(timeout=_CLOSE + plan.drain)
        left = _left(bed)
        force.save(hands.forces, folder / "forces.jsonl")
        evidence = Evidence(
            records=read_all(folder),
            forces=hands.forces,
            registers={key: Register.of(folder, key).log() for key in plan.keys},
            left=left,
            healed=healed,
            codes=dict(bed.codes),
        )
    judgement = judge(plan, evidence)
    return Outcome(
        judgement.verdict,
        tuple(evidence.records),
        faults,
        acts=len(hands.forces),
        forced=judgement.forced,
    )


def _warm_up(bed: Bed) -> None:
    deadline = time.monotonic() + _WARM
    missing = set(bed.plan.keys)
    while missing and time.monotonic() < deadline:
        time.sleep(_POLL)
        missing -= {record.key for record in read_all(bed.folder) if record.kind in GRANTS}


class _Harms:
    """What is harmed at present, and until when."""

    def __init__(self, hands: Hands) -> None:
        self._hands = hands
        self._order = itertools.count()
        self._undone: list[tuple[float, int, str, Harmed]] = []

    @property
    def next_end(self) -> float:
        """When the next harm is to be taken back."""
        return self._undone[0][0] if self._undone else float("inf")

    def begin(self, name: str, harmed: Harmed, *, until: float) -> None:
        bed = self._hands.bed
        for target in harmed.targets:
            bed.say("fault", target, detail=name)
        if harmed.undo is not None:
            self._hands.harmed |= set(harmed.targets)
            heapq.heappush(self._undone, (until, next(self._order), name, harmed))

    def end(self, now: float) -> None:
        """Take back what is due."""
        while self._undone and self._undone[0][0] <= now:
            _, _, name, harmed = heapq.heappop(self._undone)
            if harmed.undo is not None:
                harmed.undo()
            self._hands.harmed -= set(harmed.targets)
            for target in harmed.targets:
                self._hands.bed.say("healed", target, detail=name)


def _harm(bed: Bed, hands: Hands) -> dict[str, int]:
    """Do harm for as long as the plan says; returns what was done how often."""
    names = bed.plan.only or tuple(FAULTS)
    weights = [FAULTS[name][0] for name in names]
    done: Counter[str] = Counter()
    harms = _Harms(hands)
    chance = hands.chance
    following = bed.clock.now()
    end = following + bed.plan.seconds
    while (now := bed.clock.now()) < end:
        harms.end(now)
        done[ENDED] += bed.revive(apart_from=hands.harmed)
        if now >= following:
            following = now + chance.expovariate(1 / bed.plan.pace)
            (name,) = chance.choices(names, weights)
            harmed = _attempt(name, hands)
            if harmed is not None:
                done[name] += 1
                mean = bed.plan.longest * chance.choice(_MEANS)
                harms.begin(name, harmed, until=now + min(chance.expovariate(1 / mean), bed.plan.longest))
        time.sleep(max(0.0, min(following, harms.next_end, end) - bed.clock.now()))
    harms.end(float("inf"))
    return dict(+done)


def _attempt(name: str, hands: Hands) -> Harmed | None:
    """Do one harm; None when it can't be done now."""
    try:
        return FAULTS[name][1](hands)
    except force.UNANSWERED:
        return None  # an operator who got no answer: what he may have done is written down


def _settle(bed: Bed, *, healed: float) -> None:
    """Let the workers go on until the sessions of the dead have ended, and everybody has had a turn."""
    everybody = {*bed.plan.keys, *(place.name for place in bed.places)}
    now = bed.clock.now
    time.sleep(max(0.0, healed + bed.plan.failover - now()))
    while now() < healed + bed.plan.progress_bound:
        grants = [each for each in read_all(bed.folder) if each.at >= healed and each.kind in GRANTS]
        if everybody <= {name for each in grants for name in (each.key, each.process)}:
            return
        time.sleep(1.0)


def _left(bed: Bed) -> dict[str, list[str]]:
    """Use every key once more, and return what is left then, as soon as that is nothing."""
    plan = bed.plan
    agent = bed.cluster.clients[0]
    with Client(address=agent.address, session=SessionSpec(name=plan.prefix)) as client:
        for key in plan.keys:
            limit = plan.limits.get(key)
            thing = Semaphore(client, key, limit, fair=True) if limit else Lock(client, key, fair=True)
            thing.acquire(timeout=_CLOSE).release()
    operator = force.Operator(agent)
    deadline = time.monotonic() + plan.failover
    while True:
        entries = operator.under(f"{plan.prefix}/")
        left = {
            "session": operator.sessions(plan.prefix),
            "locked key": [each["Key"] for each in entries if each.get("Session")],
            "place": [each["Key"] for each in entries if _is_place(each["Key"])],
        }
        if not any(left.values()) or time.monotonic() > deadline:
            return left
        time.sleep(_POLL)


def _is_place(key: str) -> bool:
    """Return whether a key is somebody's place in a queue: its last part is a session's id."""
    return len(key.rpartition("/")[2]) == _ID
