"""One process: a clock, a host, the coordinator of one client, and its programs.

Rules
- A process that stands still takes no event; those that are due meanwhile come when it goes on, in any order.
- A crash ends all programs at once; nothing of theirs reaches the world any more but the end of their
  connections.
- Calls are made as the clients make them: known to the coordinator, so that its closing ends them.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from consul_coord.errors import ClientClosed
from consul_coord.events import SlotAhead
from consul_coord.http.agents import LOOK, Agents
from consul_coord.io import Interrupt
from consul_coord.recipes import client as coordinator
from consul_coord.recipes.cleanup.reaper import Reaper
from consul_coord.recipes.client import ClientState
from consul_coord.testing.simulation.clock import LocalClock
from consul_coord.testing.simulation.connections import SimEngine
from consul_coord.testing.simulation.dice import Dice
from consul_coord.testing.simulation.driver import SimHost, SimIO, Way
from consul_coord.testing.simulation.network import Link
from consul_coord.testing.simulation.program import SimTask
from consul_coord.testing.simulation.threads import BACKGROUND
from consul_coord.testing.simulation.ways import settings_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from consul_coord.config import Settings
    from consul_coord.events import Event as Happening
    from consul_coord.io import IO
    from consul_coord.recipes.cleanup.tasks import CleanupTask
    from consul_coord.testing.simulation.judge import Judge
    from consul_coord.testing.simulation.network import Network
    from consul_coord.testing.simulation.plan import Plan
    from consul_coord.testing.simulation.scheduler import Event, Scheduler
    from consul_coord.testing.simulation.threads import Threads

T = TypeVar("T")

_WAKING = 0.0002
"""Seconds, at most, until a program goes on that could."""
STOPPING = 0.2
"""Seconds that what is under way at a closing takes to end."""
STRUCK_SHARE = 0.4
"""The part of the closings that a Ctrl-C cuts short, if they are not over by then."""
STRUCK_WITHIN = (0.01, 0.05, 1.0)
"""Seconds within which it strikes."""
_TIMER_SLACK = 0.002
"""Seconds, at most, that a timer goes off late."""


class Process:
    """One client's process."""

    def __init__(
        self,
        name: str,
        *,
        scheduler: Scheduler,
        network: Network,
        judge: Judge,
        plan: Plan,
        rng: Dice,
        clock: LocalClock | None = None,
    ) -> None:
        """Start one; ``clock`` is another process's of the same machine."""
        self.name = name
        self.rng = rng
        self.judge = judge
        self.clock = clock or LocalClock(
            scheduler, rate=1.0 + rng.uniform(-plan.skew, plan.skew), offset=rng.uniform(1_000.0, 9_000.0)
        )
        self.host = SimHost(self, rng)
        self.link = Link(network, name, self)
        self.crashed = False
        self.closed = False
        self.left = False
        """Whether its client was closed, with its connections: what it sends yet is refused."""
        self.awake_since = 0.0
        """True time since which it has not stood still."""
        self.cancelled: dict[str, float] = {}
        """When waiting calls for something were cancelled last, by its clock."""
        self.struck_at = -math.inf
        """When a Ctrl-C has struck it last."""
        self.asked_at = 0.0
        """When one of its users has asked for something last with a hold, the true time."""
        self.slept = 0.0
        """Seconds, in all, for which its timers stood still as well."""
        self.fair = rng.chance(0.4)
        self.foreign = False
        """Whether its users are no clients of this package."""
        self.lingering = plan.lingering
        self.curious = plan.curious
        self.stuck = plan.stuck
        """Of so many of its holds the end is given in advance."""
        self.seed = plan.seed
        self.aside: dict[str, float] = {}
        """By key: until when its candidate is to stand aside, the true time."""
        self.modest: set[str] = set()
        """The keys that it has candidates of low priority for."""
        self._scheduler = scheduler
        self._stopped = False
        self._kept: list[Event] = []
        self._tasks: dict[SimTask, None] = {}
        self.running: SimTask | None = None
        self.threads: Threads | None = None
        self.agents = self._know_agents(network)
        self.engine = None if network.room is None else SimEngine(self, network.room)
        self.core = ClientState(self.host, spec=plan.spec, timeout=plan.timeout)
        if self.agents is not None:
            self.core.attach(self.agents)
            self.spawn(
                partial(self._look_after, self.agents), name="look after the agents", thread=BACKGROUND
            )
        if self.engine is not None:
            self.engine.listen(partial(self.core.refused, "the agent"))
            self.spawn(partial(self._sweep, self.engine), name="idle connections", thread=BACKGROUND)
        self.reaper = WatchedReaper(self.core, judge)
        self.core.reaper = self.reaper

    def _know_agents(self, network: Network) -> Agents | None:
        if not network.agents:
            return None

        def cutter(settings: Settings) -> Callable[[], object]:
            agent = network.agent(settings.address)
            return lambda: agent.cut(self.link)

        return Agents(settings_of(network.agents), cutter=cutter)

    async def _look_after(self, agents: Agents, io: SimIO) -> None:
        """Look after the agents, as the background of a client does."""
        way = Way(io)
        while not (self.closed or self.core.closing.is_set()):
            await io.sleep(LOOK)
            await agents.look_for_life(way)
            await agents.look_after(way)

    async def _sweep(self, engine: SimEngine, io: SimIO) -> None:
        """Close connections soon after their last use, as the background of a client does."""
        wait = 0.0
        while wait < math.inf:
            await io.sleep(wait)
            wait = engine.sweep()

    def has_holds(self) -> bool:
        """Return whether its client holds anything."""
        return any(True for _ in self.core.holds.all())

    @property
    def connections(self) -> int:
        """How many are open, where the agent has a limit on them."""
        return 0 if self.engine is None else len(self.engine.pool.open.all())

    @property
    def tasks(self) -> list[str]:
        """The names of those that are running or waiting."""
        return [task.name for task in self._tasks]

    def runs(self, name: str) -> int:
        """Return how many programs of a name there are that have begun to wait."""
        return sum(task.has_waited and task.name == name for task in self._tasks)

    # -- events

    def admit(self, event: Event) -> bool:
        """Return whether it takes an event now."""
        if self._stopped and not self.crashed:
            self._kept.append(event)
        if self.crashed or self._stopped:
            return False
        return self.threads is None or self.threads.admit(event)

    def soon(self, action: Callable[[], object], *, thread: object = None) -> Event:
        """Have something happen as soon as the process comes to it, or that thread of it."""
        event = self._scheduler.after(self.rng.uniform(0.0, _WAKING), action, gate=self)
        event.thread = thread
        return event

    def alarm(self, local: float, action: Callable[[], object]) -> Callable[[], None]:
        """Have something happen when the process's clock shows ``local``; returns how to cancel that."""
        alarm = _Alarm(self, self._scheduler, action)
        alarm.set(max(self.clock.true(local), self._scheduler.now))
        return alarm.cancel

    def on_event(self, event: Happening) -> None:
        """Tell the judge what the client reports."""
        if not self.crashed:
            self.judge.reported(self, event)
            if isinstance(event, SlotAhead):
                self.judge.jobs[event.key].warned(self, event)
            if self.judge.room is not None:
                self.judge.room.reported(self, event)

    def on_failure(self, where: str, error: BaseException) -> None:
        """Tell the judge of a bug. ClientClosed is right where the client is closed."""
        closes = self.core.closing.is_set() or not self.able
        if not (self.crashed or (isinstance(error, ClientClosed) and closes)):
            self.judge.failed(self, where, error)

    # -- fate

    def goes_without_queue(self, key: str) -> bool:
        """Return whether the client goes without a key's queue, for want of permission."""
        return self.core.queue_memory.closed.get(key, -math.inf) > self.host.now()

    @property
    def able(self) -> bool:
        """Whether it does anything at present, and all of its threads do."""
        is_still = self._stopped or (self.threads is not None and self.threads.stand_still)
        return not (self.crashed or is_still)

    @property
    def is_behind(self) -> bool:
        """Whether a thread stands still, or did a moment ago, so that what it says is of before."""
        return self.threads is not None and self.threads.are_behind

    @property
    def lag(self) -> float:
        """For how many seconds its threads have stood still, in all, while others went on."""
        return 0.0 if self.threads is None else self.threads.lag

    @property
    def stands_still(self) -> bool:
        """Whether the whole process stands still."""
        return self._stopped

    def stop(self) -> None:
        """Stand still."""
        self._stopped = True

    def resume(self, *, slept: float = 0.0) -> None:
        """Go on; the timers stood still for ``slept`` seconds of it."""
        if not self._stopped:
            return
        self._stopped = False
        self.slept += slept
        self.awake_since = self._scheduler.now
        kept, self._kept = self._kept, []
        for event in kept:
            event.when = self._scheduler.now
            self._scheduler.push(event)

    def crash(self) -> None:
        """Be no more."""
        if self.threads is not None and self.threads.stand_still:
            self.threads.at_last = self.crash
            return
        self.crashed = True
        self._kept.clear()
        for task in list(self._tasks):
            task.abandon()
        self._tasks.clear()
        if self.engine is not None:
            self.engine.die()

    # -- programs

    def spawn(
        self, program: Callable[[SimIO], Coroutine[Any, Any, object]], *, name: str, thread: object = None
    ) -> SimTask:
        """Run a program in a task of its own, on a thread of its own unless another one is given."""
        task = SimTask(self, name, on_failure=self.on_failure)
        task.thread = thread or task
        if self.crashed or self.closed:
            task.done.set()
            return task
        self._tasks[task] = None
        task.done.subscribe(lambda: self._tasks.pop(task, None))
        task.start(program(SimIO(self, task)))
        return task

    async def call(
        self,
        task: SimTask,
        program: Callable[[IO], Coroutine[Any, Any, T]],
        *,
        interrupt: Interrupt | None = None,
        closing: bool = False,
    ) -> T:
        """Run a program in the calling task, as a client does; ``closing`` allows it on a closed one."""
        interrupt = interrupt or Interrupt()
        try:
            if not closing:
                self.core.calls.enter(interrupt)
            return await program(SimIO(self, task, interrupt))
        finally:
            self.core.calls.pop(interrupt, None)
            self.core.calls.left()

    async def close(self, io: SimIO, *, timeout: float = 5.0) -> None:
        """Close the client, as its user does; again, it goes on."""
        if self.core.begin_close():
            self.judge.record(self.name, "died")  # its holds are over
        await coordinator.close(io, self.core, deadline=io.now() + timeout)

    def stop_background(self) -> None:
        """End what is still under way, as the drivers do when a client closes."""
        for task in list(self._tasks):
            task.cancel()

    async def close_late(self, io: SimIO, *, timeout: float = 5.0) -> None:
        """Do what closing does once the background has ended."""
        await coordinator.close_late(io, self.core, deadline=io.now() + timeout)
        self.left = True
        if self.engine is not None:
            self.engine.close()

    async def close_twice(self, io: SimIO, close: Callable[[SimIO], Coroutine[Any, Any, object]]) -> None:
        """Close the client, and go on if a Ctrl-C has cut that short, which it does now and then."""

        def strike() -> None:
            self.struck_at = self._scheduler.now
            io.task.strike()

        dice = Dice(self.seed, f"{self.name} is struck as it closes")
        call_off = _nothing
        if dice.chance(STRUCK_SHARE):
            call_off = self.alarm(io.now() + dice.uniform(0.0, dice.choice(STRUCK_WITHIN)), strike)
        try:
            await close(io)
        except KeyboardInterrupt:
            self.judge.see("close interrupted by Ctrl-C")
            await close(io)
        finally:
            call_off()

    async def leave(self, io: SimIO, *, timeout: float) -> None:
        """Close the client in all steps, amid its users' calls."""
        began = io.now()
        for step, close in (("closes", self.close), ("closes at last", self.close_late)):
            left = max(0.0, began + timeout - io.now())
            what = f"{step}, within {left:.2f} s"
            call = self.judge.promises.called(self, what, left, gives_back=True)
            try:
                await close(io, timeout=left)
            finally:
                self.judge.promises.ended(call)
            for task in list(self._tasks):
                if task is not io.task:
                    task.cancel()
            await io.sleep(STOPPING)

    def end(self) -> None:
        """Let all be gone that is left, the run being over."""
        self.closed = True
        self.crash()


class WatchedReaper(Reaper):
    """A reaper that tells the judge what it does."""

    def __init__(self, client: ClientState, judge: Judge) -> None:
        super().__init__(
            client.host,
            timeout=client.timeout,
            closing=client.closing,
            handed_over=client.sessions.handed_over,
        )
        self._judge = judge

    def add(self, task: CleanupTask, *, after: float = 0.0) -> None:
        """Take on a task."""
        self._judge.counts.see(f"reaper: {type(task).__name__}")
        super().add(task, after=after)

    async def _do(self, io: Any, entry: Any, *, deadline: float) -> None:  # noqa: ANN401 - private there
        self._judge.duty = type(entry.task).__name__
        io.task.wants_present = True  # what an old leader shows would be left behind
        try:
            await super()._do(io, entry, deadline=deadline)
        finally:
            io.task.wants_present = False


class _Alarm:
    """A timer of a process: it stands still while the machine sleeps, and may go off a little late."""

    __slots__ = ("_action", "_event", "_process", "_scheduler", "_slept", "_when")

    def __init__(self, process: Process, scheduler: Scheduler, action: Callable[[], object]) -> None:
        self._process = process
        self._scheduler = scheduler
        self._action = action
        self._when = 0.0
        self._slept = 0.0
        self._event: Event | None = None

    def set(self, when: float) -> None:
        self._when = when
        self._slept = self._process.slept
        late = self._process.rng.uniform(0.0, _TIMER_SLACK)
        self._event = self._scheduler.at(when + late, self._go_off, gate=self._process)

    def cancel(self) -> None:
        if self._event is not None:
            self._event.cancel()

    def _go_off(self) -> None:
        slept = self._process.slept - self._slept
        if slept > 0:
            self.set(self._when + slept)
        else:
            self._action()


def _nothing() -> None:
    return None
