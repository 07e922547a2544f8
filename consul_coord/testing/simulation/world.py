"""One run put together: the server, the network, the processes, their users, and the three phases.

Rules
- First faults, for a time drawn from the seed. Then all is healed, and everybody who waits must get his turn.
  Last, each takes each lock once more, undisturbed; then nothing may be left: no contender, no locked key, no
  clean-up that is pending, and after all clients have closed, no session.
- No run is too small to prove anything: the faults go on, and the undisturbed turns, until there were
  ``LEAST_EVENTS``.
- The same seed gives the same run, to the last digit: nothing here asks for the time, the system's
  randomness, or the order of a set of objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from consul_coord.recipes import waitqueue
from consul_coord.recipes.reaper import SWEEPS, Sweep
from consul_coord.testing.simulation.chaos import Chaos
from consul_coord.testing.simulation.cluster import Cluster
from consul_coord.testing.simulation.dice import Dice
from consul_coord.testing.simulation.foreign import Foreign
from consul_coord.testing.simulation.judge import Judge
from consul_coord.testing.simulation.network import COURSES, LATEST, Network
from consul_coord.testing.simulation.process import Process
from consul_coord.testing.simulation.scheduler import Scheduler
from consul_coord.testing.simulation.trace import short
from consul_coord.testing.simulation.workload import CALM_HOLD, User, locks_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from consul_coord.recipes.lock import LockCore
    from consul_coord.testing.simulation.driver import SimIO
    from consul_coord.testing.simulation.plan import Plan
    from consul_coord.testing.simulation.program import SimTask

MOST_EVENTS = 200_000
"""In one run: far more than any that goes well has."""
LEAST_EVENTS = 200
"""In one run, at least."""
_LONGEST_CHAOS = 60.0
"""Seconds for which faults go on, at most."""
_LONGEST_WATCH = 37.0
"""Seconds after which a client gives up a blocking query of which it hears nothing."""
_LONGEST_PAUSE = 16.0
"""Seconds between two tries of anything, at most."""
_TURN = 1.5
"""Seconds that one turn takes at most, beyond the hold itself, when nothing goes wrong."""


class World:
    """One run."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.scheduler = Scheduler(self._dice("order"))
        self.judge = Judge(self.scheduler, plan)
        self.cluster = Cluster(self.scheduler, plan, self._dice("cluster"))
        self.judge.cluster = self.cluster
        self.network = Network(self.scheduler, self.cluster, plan, self._dice("network"), self.judge)
        self.processes: list[Process] = []
        self._users: list[User] = []
        self._running: dict[SimTask, str] = {}
        self._healed = False
        self._idle_since = 0.0
        self._chaos = Chaos(self, self._dice("chaos"))
        self._names = 0

    def _dice(self, what: str) -> Dice:
        return Dice(self.plan.seed, what)

    # -- who takes part

    def add_process(self) -> Process:
        """Start a process with its users."""
        process = self.new_process("p")
        locks: dict[str, LockCore] = locks_of(process, self.plan)
        for number in range(self.plan.users):
            user = User(process, locks, healed=lambda: self._healed)
            self._users.append(user)
            self.start(process, user.run, f"user {number}")
        return process

    def new_process(self, kind: str) -> Process:
        """Start a process without any users."""
        self._names += 1
        name = f"{kind}{self._names}"
        process = Process(
            name,
            scheduler=self.scheduler,
            network=self.network,
            judge=self.judge,
            plan=self.plan,
            rng=self._dice(name),
        )
        self.processes.append(process)
        self.judge.processes.append(process)
        return process

    def start(
        self, process: Process, program: Callable[[SimIO], Coroutine[Any, Any, object]], name: str
    ) -> None:
        """Run a program in a process; a phase waits for its end."""
        task = process.spawn(program, name=name)
        self._running[task] = f"{name} of {process.name}"
        task.done.subscribe(lambda: self._running.pop(task, None))

    # -- the run

    def run(self) -> None:
        """Run it to its end, or to the first violation, which the judge then knows."""
        try:
            self._run_phases()
        finally:
            for process in self.processes:
                process.end()

    def _run_phases(self) -> None:
        for _ in range(self.plan.processes):
            self.add_process()
        for _ in range(self.plan.foreign):
            process = self.new_process("go")
            self.start(process, Foreign(process, self.plan.keys, healed=lambda: self._healed).run, "foreign")
        self._chaos.begin()
        phases = (
            self._chaos_phase,
            self._healing,
            self._settling,
            self._calm,
            self._leftovers,
            self._closing,
        )
        for phase in phases:
            phase()
            if self.judge.violation is not None:
                return

    def advance(self, until: float, *, unless: Callable[[], bool] = lambda: False) -> bool:
        """Let events happen until a time, or until ``unless`` says so; returns whether it did."""
        judge, scheduler = self.judge, self.scheduler
        while judge.violation is None and not unless():
            if not scheduler.step(until):
                return unless()
            judge.look()
            if scheduler.happened > MOST_EVENTS:
                judge.convict("progress", f"{MOST_EVENTS} events, and no end of them")
        return True

    def _chaos_phase(self) -> None:
        self.advance(self.plan.chaos_seconds)
        self.advance(_LONGEST_CHAOS, unless=self._enough)

    def _enough(self) -> bool:
        return self.scheduler.happened >= LEAST_EVENTS

    # -- healing

    @property
    def _aftermath(self) -> float:
        """For how many seconds after the healing what went wrong before can still be felt."""
        fates = [COURSES[name] for name in self.plan.fates]
        silent = "cut" in self.plan.chaos or any(
            course.answer == "nothing" or course.fades for course in fates
        )
        spec = self.plan.spec
        sessions = self.plan.ttl_factor * (spec.ttl or 0.0) + (spec.lock_delay or 0.0)
        lateness = LATEST + sum(SWEEPS) if self._late else 0.0
        silence = _LONGEST_WATCH + self.plan.timeout if silent else self.plan.timeout
        return max(lateness, silence) + 2 * sessions + _LONGEST_PAUSE

    @property
    def _round(self) -> float:
        """How many seconds everybody's turns take at most, one after the other."""
        return len(self._users) * len(self.plan.keys) * (CALM_HOLD + _TURN)

    def _healing(self) -> None:
        now = self.scheduler.now
        self.judge.note("world", "all is healed")
        self._healed = True
        self._chaos.end()
        self.network.heal()
        self.cluster.start()
        self.cluster.elect_leader()
        self.cluster.set_health(passing=True)
        for process in self.processes:
            process.link.mend()
            process.resume()
        if all(user.process.crashed for user in self._users):
            self.add_process()
        self.judge.healed_at = now
        self.judge.quiet_at = now + self._aftermath
        bound = self._aftermath + self._round
        if not self.advance(now + bound, unless=lambda: not self._running):
            waiting = ", ".join(self._running.values())
            self.judge.convict("progress", f"after {bound:.0f} s without faults still waiting: {waiting}")

    def _settling(self) -> None:
        """Let clean-up end, and what comes late come."""
        self._idle_since = self._idle_since or self.scheduler.now
        self.advance(self.scheduler.now + sum(SWEEPS) + 2 * _LONGEST_PAUSE, unless=self._settled)
        if not self._settled():
            self.judge.convict("nothing left", "there is still clean-up to do")

    def _settled(self) -> bool:
        spec = self.plan.spec
        expiry = self.plan.ttl_factor * (spec.ttl or 0.0) + 1.0
        if self.scheduler.now < (self.judge.healed_at or 0.0) + max(LATEST if self._late else 0.0, expiry):
            return False
        duties = [duty for process in self._alive() for duty in process.reaper.duties()]
        # Without lateness the first looks find all there is; only some runs wait for the last ones.
        patient = self.plan.patient or self._late
        swept = not patient and self.scheduler.now > self._idle_since + SWEEPS[0] + SWEEPS[1] + 1.0
        return not duties or (swept and all(isinstance(duty, Sweep) for duty in duties))

    @property
    def _late(self) -> bool:
        """Whether requests may be applied after their clients have given up."""
        return any(COURSES[name].delay and COURSES[name].answer != "reply" for name in self.plan.fates)

    def _alive(self) -> list[Process]:
        return [process for process in self.processes if not process.crashed]

    def _calm(self) -> None:
        self._calm_turns()
        while not (self._enough() or self.judge.violation):
            self._calm_turns()
        self._settling()

    def _calm_turns(self) -> None:
        self.judge.note("world", "everybody takes each lock once more")
        self.judge.quiet_at = self.scheduler.now
        now = self.scheduler.now
        for user in self._users:
            if not user.process.crashed:
                self.start(user.process, user.calm_rounds, "calm user")
        # A crashed holder's lock-delay may still be in force.
        bound = self._round + 2.0 + (self.plan.spec.lock_delay or 0.0)
        if not self.advance(now + bound, unless=lambda: not self._running):
            self.judge.convict("progress", f"undisturbed, the turns took more than {bound:.1f} s")

    def _leftovers(self) -> None:
        for key in self.plan.keys:
            if holder := self.cluster.holder(key):
                self.judge.convict("nothing left", f"{key} is locked by {short(holder)} for nobody")
            for entry in self.cluster.under(waitqueue.directory(key)):
                self.judge.convict("nothing left", f"{entry.key} of {short(entry.session)} queues for nobody")

    def _closing(self) -> None:
        for process in self._alive():
            self.start(process, process.close, "close")
        kept = [kept.id for process in self._alive() for kept in process.core.sessions()]
        self.advance(self.scheduler.now + 5.0, unless=lambda: not self._running)
        alive = {session.id for session in self.cluster.sessions()}
        for outlived in filter(alive.__contains__, kept):
            self.judge.convict("nothing left", f"{short(outlived)} has outlived its client")
        for process in self._alive():
            if process.core.reaper.pending:
                self.judge.convict("nothing left", f"{process.name} closed with clean-up to do")
            process.end()
        ttl = (self.plan.spec.ttl or 0.0) * self.plan.ttl_factor
        self.advance(self.scheduler.now + ttl + 1.0)
        for session in self.cluster.sessions():
            self.judge.convict("nothing left", f"{short(session.id)} never ends")
