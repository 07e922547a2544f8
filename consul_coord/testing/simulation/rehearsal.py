"""A user's own worker or leader in the simulator: several processes of it, virtual time, faults from a seed.

Rules
- The program is the user's, on asyncio, over an ``AsyncClient`` as it ships. Each process has a client and a
  clock of its own; all run in one event loop on virtual time, so an hour takes seconds.
- For ``seconds`` there are faults. Requests and replies are lost, cut off, slow or refused, a leader goes, an
  agent restarts, a link is cut, a process crashes, a session is destroyed. Then all is healed, and the
  program must get to work again within ``CALM`` seconds.
- ``Stage.working`` is where the program says that it does what only one at a time may do; two at once break
  the rule, and so does a write under a fence older than the last.
- A program that returns, or raises what this package raises, is started again; any other error is a failure.
- At the end the programs are cancelled and the clients closed: then no session is left, and no key locked.

Not shown are a process that is paused while the others go on, and code that blocks or runs in threads.
"""

from __future__ import annotations

import asyncio
import math
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING

from consul_coord.aio.client import AsyncClient
from consul_coord.aio.endpoints import AsyncEndpoints
from consul_coord.aio.runner import AsyncRunner
from consul_coord.config import Settings
from consul_coord.errors import ConsulCoordError, RequestTimeout
from consul_coord.models import SessionSpec
from consul_coord.testing.simulation.clock import LocalClock
from consul_coord.testing.simulation.cluster import Cluster
from consul_coord.testing.simulation.dice import Dice
from consul_coord.testing.simulation.judge import Judge
from consul_coord.testing.simulation.loop import VirtualLoop
from consul_coord.testing.simulation.network import Link, Network
from consul_coord.testing.simulation.plan import SAFE_SKEW, Plan
from consul_coord.testing.simulation.scheduler import Scheduler
from consul_coord.testing.simulation.simulation import Outcome, SimulationFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from consul_coord.events import Event as Happening
    from consul_coord.http.messages import Request, Response
    from consul_coord.testing.simulation.scheduler import Event

CALM = 60.0
"""Seconds without faults within which work must have gone on."""
FATES = (
    "request lost",
    "reply lost",
    "reply cut off",
    "connection refused",
    "slow",
    "no leader",
    "rate limited",
)
"""The possible fates of a request, except being served."""
CHAOS = ("leaderless", "agent restart", "cut", "crash", "destroy session")
"""The faults that may come at any time."""
_AGAIN = 0.5
"""Seconds, at most, until a program that has ended is started again."""
_ADDRESS = "http://127.0.0.1:8500"


class Stage:
    """The tools of one process of the rehearsed program."""

    def __init__(self, rehearsal: Rehearsal, name: str, client: AsyncClient, link: Link) -> None:
        self.name = name
        """The process's name: unique in a run."""
        self.client = client
        """The process's client."""
        self.link = link
        self.crashed = False
        self._rehearsal = rehearsal

    @contextmanager
    def working(self, what: str) -> Generator[None]:
        """Say that the block does what only one process at a time may do."""
        self._rehearsal.begin(self, what)
        try:
            yield
        finally:
            self._rehearsal.end(self, what)

    def write(self, what: str, *, fence: int) -> bool:
        """Write under a fence to a resource that takes none older than the last; returns whether it did."""
        return self._rehearsal.write(self, what, fence)

    def note(self, text: str) -> None:
        """Write a line to the run's story."""
        self._rehearsal.judge.note(self.name, text)


class Rehearsal:
    """One run of a user's program, from one seed."""

    def __init__(
        self,
        program: Callable[[Stage], Awaitable[object]],
        *,
        seed: int,
        processes: int = 3,
        seconds: float = 60.0,
        session: SessionSpec | None = None,
        faults: bool = True,
    ) -> None:
        """Describe the run; nothing happens yet.

        ``program`` is called in each process with its ``Stage``. ``seconds``: of virtual time with faults.
        ``session``: what the clients' shared sessions are like. ``faults=False`` leaves all faults out.
        """
        self._program = program
        self._rng = Dice(seed, "rehearsal")
        self.plan = _plan(seed, processes, seconds, session or SessionSpec(), self._rng if faults else None)
        self._scheduler = Scheduler(Dice(seed, "order"))
        self._cluster = Cluster(self._scheduler, self.plan, Dice(seed, "cluster"))
        self.judge = Judge(self._scheduler, self.plan, self._cluster)
        self._network = Network(self._scheduler, self._cluster, self.plan, Dice(seed, "network"), self.judge)
        self._stages: dict[Stage, asyncio.Task[None]] = {}
        self._names = 0
        self._over = False
        self._at_work: dict[str, Stage] = {}
        self._fences: dict[str, int] = {}
        self._calm_work = 0

    def run(self) -> Outcome:
        """Run it, and return what came of it. Raises SimulationFailed, with seed and story."""
        state = random.getstate()
        random.seed(self.plan.seed)  # the client's own jitter
        try:
            with asyncio.Runner(loop_factory=lambda: VirtualLoop(self._scheduler)) as runner:
                runner.run(self._play())
        finally:
            random.setstate(state)
        judge, scheduler = self.judge, self._scheduler
        outcome = Outcome(
            self.plan, judge.violation, judge.trace, judge.counts, scheduler.happened, scheduler.now
        )
        if outcome.violation is not None:
            raise SimulationFailed(outcome)
        return outcome

    # -- what the program says

    def begin(self, stage: Stage, what: str) -> None:
        """Judge whether anybody else is at it."""
        other = self._at_work.setdefault(what, stage)
        if other is not stage and not other.crashed:
            self.judge.convict("exclusion", f"{stage.name} and {other.name} are both at work on {what}")
        self._at_work[what] = stage
        self._calm_work += self._network.healed
        self.judge.note(stage.name, f"begins to work on {what}")

    def end(self, stage: Stage, what: str) -> None:
        """Take note that somebody has stopped."""
        if self._at_work.get(what) is stage:
            del self._at_work[what]
        if not stage.crashed:
            self.judge.note(stage.name, f"stops working on {what}")

    def write(self, stage: Stage, what: str, fence: int) -> bool:
        """Let the resource take a write, or refuse it."""
        taken = not stage.crashed and fence >= self._fences.get(what, 0)
        if taken:
            self._fences[what] = fence
        self.judge.note(stage.name, f"writes {what} under fence {fence}: {'taken' if taken else 'refused'}")
        if not taken and not stage.crashed and self._at_work.get(what) is stage:
            self.judge.convict("fences", f"{stage.name} is at work on {what}, and its fence {fence} is old")
        return taken

    # -- the play

    async def _play(self) -> None:
        for _ in range(self.plan.processes):
            self._enter()
        for name, mean in self.plan.chaos.items():
            self._plan_next(name, mean)
        await self._last(self.plan.chaos_seconds)
        self._heal()
        await self._last(CALM, unless=lambda: self._calm_work > 0)
        if not self._calm_work:
            self.judge.convict("progress", f"nobody got to work in {CALM:.0f} s without faults")
        self._over = True
        tasks = list(self._stages.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(2 * (self.plan.spec.ttl or 0.0) + 1.0)
        for session in self._cluster.sessions():
            self.judge.convict("nothing left", f"session {session.id} never ends")

    async def _last(self, seconds: float, *, unless: Callable[[], bool] = lambda: False) -> None:
        until = self._scheduler.now + seconds
        # What it looks at is no event of the loop's, and a look costs nothing in virtual time.
        while self._scheduler.now < until and self.judge.violation is None and not unless():  # noqa: ASYNC110
            await asyncio.sleep(min(0.25, until - self._scheduler.now))

    def _heal(self) -> None:
        self.judge.note("world", "all is healed")
        self._network.heal()
        self._cluster.start()
        self._cluster.elect_leader()
        for stage in self._stages:
            stage.link.mend()

    def _enter(self) -> None:
        self._names += 1
        name = f"p{self._names}"
        link = Link(self._network, name, _OPEN)
        clock = LocalClock(
            self._scheduler,
            rate=1.0 + self._rng.uniform(-self.plan.skew, self.plan.skew),
            offset=self._rng.uniform(1_000.0, 9_000.0),
        )
        client = _Client(link, self.judge, clock=clock, session=self.plan.spec, timeout=self.plan.timeout)
        stage = Stage(self, name, client, link)
        self.judge.record(name, "started")
        self._stages[stage] = asyncio.get_running_loop().create_task(self._process(stage), name=name)

    async def _process(self, stage: Stage) -> None:
        async with stage.client:
            while not self._over and not stage.crashed:
                try:
                    await self._program(stage)
                except ConsulCoordError as error:
                    self.judge.note(stage.name, f"{type(error).__name__}: {error}")
                except Exception as error:  # noqa: BLE001 - told as what it is: the program's failure
                    self.judge.convict("no bugs", f"{stage.name}: {type(error).__name__}: {error}")
                    return
                await asyncio.sleep(self._rng.uniform(0.0, _AGAIN))

    # -- faults

    def _plan_next(self, name: str, mean: float) -> None:
        strikes = {
            "leaderless": self._be_leaderless,
            "agent restart": self._restart,
            "cut": self._cut,
            "crash": self._crash,
            "destroy session": self._destroy,
        }

        def strike() -> None:
            if not self._network.healed:
                strikes[name]()
                self._plan_next(name, mean)

        self._scheduler.after(self._rng.expovariate(1 / mean), strike)

    def _later(self, least: float, most: float, action: Callable[[], object]) -> float:
        seconds = self._rng.uniform(least, most)
        self._scheduler.after(seconds, action)
        return seconds

    def _fault(self, who: str, what: str) -> None:
        self.judge.note("world", f"{who}: {what}")
        self.judge.record(who, "fault", detail=what)
        self.judge.see(f"chaos: {what.split(',', maxsplit=1)[0]}")

    def _be_leaderless(self) -> None:
        if not self._cluster.down:
            self._fault("agent", f"no leader, {self._later(0.5, 10.0, self._cluster.elect_leader):.2f} s")
            self._cluster.lose_leader()

    def _restart(self) -> None:
        if not self._cluster.down:
            self._fault("agent", f"restarts, {self._later(0.1, 5.0, self._cluster.start):.2f} s")
            self._cluster.stop()

    def _one(self) -> Stage | None:
        alive = [stage for stage in self._stages if not stage.crashed]
        return self._rng.choice(alive) if alive else None

    def _cut(self) -> None:
        if (stage := self._one()) is not None:
            longest = 4.0 * (self.plan.spec.ttl or 0.0)
            self._fault(stage.name, f"cut off, {self._later(0.1, longest, stage.link.mend):.2f} s")
            stage.link.cut = True

    def _crash(self) -> None:
        """Let a process be gone: nothing of its reaches anybody any more, whatever it still does."""
        if (stage := self._one()) is not None:
            self._fault(stage.name, "crashes")
            stage.crashed = True
            stage.link.cut = stage.link.dead = True
            self._stages[stage].cancel()
            self._later(0.0, 5.0, lambda: None if self._over else self._enter())

    def _destroy(self) -> None:
        sessions = self._cluster.sessions()
        if sessions and self._cluster.state.leader:
            self._fault("agent", "an operator destroys a session")
            self._cluster.destroy_session(self._rng.choice(sessions).id)


class _Client(AsyncClient):
    """A client whose requests go over a simulated link."""

    def __init__(
        self, link: Link, judge: Judge, *, clock: LocalClock, session: SessionSpec, timeout: float
    ) -> None:
        AsyncEndpoints.__init__(
            self,
            AsyncRunner(
                Settings.resolve(address=_ADDRESS, timeout=timeout, environ={}),
                _Transport(link),
                kind="AsyncClient",
                session=session,
                observer=_Eyes(judge, link.who),
                clock=clock,
            ),
        )


class _Eyes:
    """Tells the story of what a client reports."""

    def __init__(self, judge: Judge, who: str) -> None:
        self._judge = judge
        self._who = who

    def on_event(self, event: Happening) -> None:
        """Write it down."""
        self._judge.note(self._who, event.describe())


class _Transport:
    """Sends over a simulated link."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def send(self, request: Request, *, timeout: float) -> Response:
        """Return the reply, when there is one."""
        reply: asyncio.Future[Callable[[], object]] = asyncio.get_running_loop().create_future()

        def fire(outcome: Callable[[], object]) -> None:
            if not reply.done():
                reply.set_result(outcome)

        hang_up = self._link.send(request, fire)
        try:
            async with asyncio.timeout(timeout):
                outcome = await reply
        except TimeoutError:
            message = f"{request.method} {request.path}: no reply in time"
            raise RequestTimeout(
                message, method=request.method, path=request.path, outcome_unknown=True
            ) from None
        finally:
            hang_up()
        response: Response = outcome()  # type: ignore[assignment]
        return response

    async def aclose(self) -> None:
        """Do nothing: there are no connections."""

    def listen(self, on_refusal: Callable[[], object]) -> None:
        """Do nothing, likewise."""

    async def sweep(self) -> float:
        """Do nothing, likewise."""
        return math.inf

    def forget(self) -> None:
        """Do nothing, likewise."""


class _Open:
    """A gate that is always open: these processes never stand still."""

    @staticmethod
    def admit(event: Event) -> bool:  # noqa: ARG004 - a Gate's
        """Let it happen."""
        return True


_OPEN = _Open()


def _plan(seed: int, processes: int, seconds: float, spec: SessionSpec, rng: Dice | None) -> Plan:
    """Draw what goes wrong; nothing does without ``rng``."""
    fates = {} if rng is None else {name: 10 ** rng.uniform(-2.5, -1.3) for name in FATES if rng.chance(0.5)}
    chaos = {} if rng is None else {name: rng.uniform(8.0, 30.0) for name in CHAOS if rng.chance(0.5)}
    return Plan(
        seed=seed,
        processes=processes,
        users=0,
        keys=(),
        pools=(),
        elections=(),
        foreign=0,
        spec=spec,
        timeout=5.0,
        ttl_factor=2.0,
        skew=0.0 if rng is None else rng.choice((0.0, SAFE_SKEW)),
        chaos_seconds=seconds,
        fates=fates,
        hot=frozenset(),
        hot_probability=0.0,
        latest=0.0,
        chaos=chaos,
        patient=False,
        spurious=False,
    )
