"""A fleet that runs one job in every period, by wrong clocks, while it is killed, stopped and cut off.

Rules
- Workers are processes. What each was told goes to a file of its own, line by line, so that a kill loses
  nothing that was told before.
- Time of day runs faster than real time, so that clocks which are minutes apart meet in seconds. Leases do
  not: they are real.
- A run is successful when somebody was told so: by the run itself, by a later call, or by the record. All
  three are collected, and have to agree.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import random
import signal
import threading
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from consul_coord import (
    Client,
    ConsulCoordError,
    Lock,
    Once,
    OnceRun,
    ReadOptions,
    SessionSpec,
    SystemClock,
    TxnOp,
    period_slot,
)
from consul_coord.periods import beginning_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PERIOD: Final = 600
"""Seconds of the time of day."""
BEGINNING: Final = 1_800_000_000.0
"""The time of day at the trial's beginning: that of a period, too."""
KEY: Final = "jobs/trial"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a trial is like."""

    address: str
    folder: Path
    workers: int
    periods: int
    period_takes: float
    """Real seconds."""
    skew: float
    """Seconds of the time of day by which a clock is wrong, at most."""
    ttl: float
    lock_delay: float
    fault_every: float
    """Real seconds between two faults, on average."""
    began: float = field(default_factory=SystemClock.now)

    @property
    def speed(self) -> float:
        """How much faster than real time the time of day runs."""
        return PERIOD / self.period_takes


class WrongClock:
    """A clock with a right lease time and a wrong time of day."""

    def __init__(self, setting: Setting, skew: float) -> None:
        self._setting = setting
        self._skew = skew

    now = staticmethod(SystemClock.now)

    def wall(self) -> float:
        return BEGINNING + (self.now() - self._setting.began) * self._setting.speed + self._skew


class Failure(Exception):
    """The work failed."""


class Worker:
    """One process of the fleet."""

    def __init__(self, setting: Setting, name: str, skew: float) -> None:
        self._setting = setting
        self._rng = random.Random(name)
        self._log = (setting.folder / name).open("a", buffering=1)
        self._clock = WrongClock(setting, skew)
        spec = SessionSpec(ttl=setting.ttl, lock_delay=setting.lock_delay, name="trial")
        self._client = Client(address=setting.address, clock=self._clock, session=spec, timeout=5)
        self._once = Once(self._client, KEY, value=f"{os.getpid()}")

    def run(self) -> None:
        end = BEGINNING + self._setting.periods * PERIOD
        with self._client:
            while (now := self._clock.wall()) < end:
                asked = period_slot(PERIOD, at=now)
                try:
                    result = self._once.run(self._work, period=PERIOD)
                except (ConsulCoordError, Failure) as error:
                    self._tell(asked=asked, error=type(error).__name__)
                    time.sleep(self._rng.uniform(0.0, 0.2))
                    continue
                self._tell(asked=asked, **asdict(result))
                following = (now // PERIOD + 1 + self._rng.uniform(0.0, 0.3)) * PERIOD
                time.sleep(max(0.0, (following - self._clock.wall()) / self._setting.speed))

    def _work(self, hold: Any) -> None:
        assert isinstance(hold, OnceRun)
        self._tell(began=hold.slot, fence=hold.fence)
        time.sleep(self._rng.uniform(0.0, 0.08) * self._setting.period_takes)
        self._client.txn(*hold.guard(), TxnOp.set(f"{KEY}-work/{hold.slot}", str(hold.fence)))
        if self._rng.random() < 0.15:
            raise Failure

    def _tell(self, **facts: object) -> None:
        self._log.write(json.dumps(facts) + "\n")


def work(setting: Setting, name: str, skew: float) -> None:
    """Be one worker: what a process does."""
    with suppress(KeyboardInterrupt):
        Worker(setting, name, skew).run()


@dataclass(slots=True)
class Evidence:
    """What was told by whom."""

    done: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    """By slot: the fences under which it is said to have been run with success."""
    claimed: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """By slot: how many calls were told that they ran it."""
    begun: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    """By slot: the fences under which it was begun."""
    survived: set[str] = field(default_factory=set)
    """The slots that somebody asked for who lived to be answered."""
    records: list[dict[str, Any]] = field(default_factory=list)
    """The records, as a watch saw them."""
    calls: int = 0
    kills: int = 0
    stops: int = 0
    restarts: int = 0
    errors: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def read(self, folder: Path) -> None:
        """Take in what the workers wrote."""
        for path in folder.iterdir():
            for line in path.read_text().splitlines():
                with suppress(ValueError):  # the last line of a worker that was killed
                    self._fact(json.loads(line))
        for record in self.records:
            if record["outcome"] == "done":
                self.done[record["slot"]].add(record["fence"])

    def _fact(self, fact: dict[str, Any]) -> None:
        if "began" in fact:
            self.begun[fact["began"]].add(fact["fence"])
            return
        self.calls += 1
        if "error" in fact:
            self.errors[fact["error"]] += 1
            return
        self.survived.add(fact["asked"])
        if not fact["failed"]:
            self.done[fact["slot"]].add(fact["fence"])
        self.claimed[fact["slot"]] += fact["ran"]

    def wrong(self) -> list[str]:
        """Return what must never be."""
        many = {slot: sorted(fences) for slot, fences in self.done.items() if len(fences) > 1}
        found = [f"{slot} succeeded under {fences}" for slot, fences in many.items()]
        found += [f"{slot} was claimed {count} times" for slot, count in self.claimed.items() if count > 1]
        order = [(record["slot"], record["fence"]) for record in self.records]
        if order != sorted(order):
            found.append(f"the records fell back: {order}")
        return found

    def left_out(self) -> list[str]:
        """Return the periods without a run, which only a machine with time for everybody has none of."""
        # Before the first slot that was done, clocks disagree on when the trial began.
        asked = {slot for slot in self.survived if slot > min(self.done, default="")}
        found = [f"{slot} was asked for and never done" for slot in sorted(asked - set(self.done))]
        slots = sorted(beginning_of(slot) or 0.0 for slot in self.done)
        gaps = [later for before, later in pairwise(slots) if later != before + PERIOD]
        found += [f"periods were left out before {period_slot(PERIOD, at=gap)}" for gap in gaps]
        return found

    def told(self) -> str:
        """Return the figures."""
        begun = sum(len(fences) for fences in self.begun.values())
        return (
            f"{len(self.done)} slots done, in {begun} runs that were begun; {self.calls} calls answered; "
            f"{self.kills} kills, {self.stops} stops, {self.restarts} restarts of the agent; "
            f"errors told: {dict(self.errors)}"
        )


class Trial:
    """The fleet, and what is done to it."""

    def __init__(self, setting: Setting, *, restart: Callable[[], object] | None, seed: int) -> None:
        self._setting = setting
        self._restart = restart
        self._rng = random.Random(seed)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.once.trial"])
        self._processes: list[Any] = []
        self._number = 0
        self._stopped: dict[int, float] = {}
        """When a process that was stopped goes on, by its id."""
        self.evidence = Evidence()

    def run(self) -> Evidence:
        """Run it, and return what was told."""
        setting, over = self._setting, threading.Event()
        watching = threading.Thread(target=self._watch, args=(over,))
        watching.start()
        try:
            for _ in range(setting.workers):
                self._start()
            end = setting.began + (setting.periods - 1) * setting.period_takes
            restart_at = setting.began + 0.3 * setting.periods * setting.period_takes
            while SystemClock.now() < end:
                time.sleep(self._rng.expovariate(1 / setting.fault_every))
                self._fault()
                if self._restart is not None and SystemClock.now() > restart_at:
                    restart_at += 0.25 * setting.periods * setting.period_takes
                    self._restart()
                    self.evidence.restarts += 1
            self._go_on(math.inf)
            for process in self._processes:
                process.join(120)
                assert process.exitcode == 0, process
        finally:
            over.set()
            for process in self._processes:
                process.kill()
            watching.join()
        self.evidence.read(setting.folder)
        return self.evidence

    def _start(self) -> None:
        self._number += 1
        skew = self._rng.uniform(-self._setting.skew, self._setting.skew)
        process = self._context.Process(
            target=work, args=(self._setting, f"worker-{self._number}", skew), daemon=True
        )
        process.start()
        self._processes.append(process)

    def _fault(self) -> None:
        now = SystemClock.now()
        self._go_on(now)
        victim = self._victim()
        if victim is None or victim.pid in self._stopped:
            return
        with suppress(ProcessLookupError):
            if self._rng.random() < 0.5:
                os.kill(victim.pid, signal.SIGKILL)
                self.evidence.kills += 1
                victim.join()
                self._processes.remove(victim)
                self._start()
            else:
                os.kill(victim.pid, signal.SIGSTOP)
                self.evidence.stops += 1
                longest = 2 * self._setting.ttl + self._setting.lock_delay
                self._stopped[victim.pid] = now + self._rng.uniform(0.1, longest)

    def _victim(self) -> Any:
        """Return whoever runs the job, or anybody."""
        if self._rng.random() < 0.5:
            with suppress(ConsulCoordError), Client(address=self._setting.address, timeout=1) as client:
                holder = Lock(client, KEY).holder()
                pid = int(holder.value or 0) if holder is not None else 0
                return next((each for each in self._processes if each.pid == pid), None)
        return self._rng.choice([each for each in self._processes if each.is_alive()])

    def _go_on(self, now: float) -> None:
        for pid, due in list(self._stopped.items()):
            if due <= now:
                del self._stopped[pid]
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _watch(self, over: threading.Event) -> None:
        consistent = ReadOptions(consistency="consistent")
        with Client(address=self._setting.address) as client:
            while not over.is_set():
                with suppress(ConsulCoordError):
                    # Consistent: a server that has just started shows an old state for a moment.
                    pair = client.kv.get(f"{KEY}/.once", options=consistent).value
                    if pair is not None and json.loads(pair.value) not in self.evidence.records[-1:]:
                        self.evidence.records.append(json.loads(pair.value))
                over.wait(0.02)
