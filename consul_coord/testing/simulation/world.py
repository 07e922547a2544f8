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

import math
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from consul_coord.models.group import GROUP_FLAGS
from consul_coord.recipes.cleanup.tasks import SWEEPS, StraySession, Sweep
from consul_coord.recipes.group.members import GroupPlan
from consul_coord.recipes.watch.places import LINGER
from consul_coord.testing.simulation.call_rules import COUNTED, COUNTED_FLAGS
from consul_coord.testing.simulation.calls import KEYS, TREES, CallUser, Prober, is_idle
from consul_coord.testing.simulation.candidates import REST, CandidateUser
from consul_coord.testing.simulation.chaos import LONGEST_LOSS, Chaos
from consul_coord.testing.simulation.cluster import Cluster
from consul_coord.testing.simulation.connections import Room
from consul_coord.testing.simulation.dice import Dice
from consul_coord.testing.simulation.double import fork
from consul_coord.testing.simulation.foreign import ForeignLock, ForeignSemaphore
from consul_coord.testing.simulation.holding import CALM_HOLD
from consul_coord.testing.simulation.jobs import JobUser
from consul_coord.testing.simulation.joining import Guest
from consul_coord.testing.simulation.judge import Judge
from consul_coord.testing.simulation.keepers import KeepingUser
from consul_coord.testing.simulation.key_rules import PRIORITY_DELAY
from consul_coord.testing.simulation.network import COURSES, Network
from consul_coord.testing.simulation.process import STOPPING, Process
from consul_coord.testing.simulation.promises import AT_REST
from consul_coord.testing.simulation.scheduler import Scheduler
from consul_coord.testing.simulation.sharing import MemberUser, Sharing
from consul_coord.testing.simulation.threads import Threads
from consul_coord.testing.simulation.trace import short
from consul_coord.testing.simulation.watching import (
    GroupWatcher,
    LeaderWatcher,
    StateKind,
    StateWatcher,
    Watcher,
)
from consul_coord.testing.simulation.ways import SimAgent
from consul_coord.testing.simulation.workload import (
    LockUser,
    RwUser,
    SlotUser,
    locks_of,
    rwlocks_of,
    semaphores_of,
    several_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from consul_coord.testing.simulation.clock import LocalClock
    from consul_coord.testing.simulation.driver import SimIO
    from consul_coord.testing.simulation.keepers import Export
    from consul_coord.testing.simulation.plan import Plan
    from consul_coord.testing.simulation.program import SimTask

    AnyUser = (
        LockUser
        | RwUser
        | SlotUser
        | CandidateUser
        | JobUser
        | MemberUser
        | Guest
        | Watcher
        | CallUser
        | Prober
    )

WATCHED: tuple[tuple[str, StateKind], ...] = (
    *((key, "key") for key in (COUNTED, *KEYS[:2])),
    *((tree, "tree") for tree in (*TREES[:2], KEYS[1])),
    ("", "session"),
)
"""The things that users of plain calls watch; one tree has the name of a key.

A watch of a part of a tree may miss that the whole tree is deleted: Consul notes that under the tree's name.
"""
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
RESTED = 20.0
"""Seconds within which a client that has released everything has a moment without a connection: clean-up may
look for something in between."""
WATCHED_SHARE = 0.2
"""The part of the processes with candidates in which somebody watches the leader; twice that for members."""
WATCHED_SHARE_OF_STRANGERS = 0.7
"""The part of the processes that watch another group, of each."""
CROWD, CROWD_TTL = 140, 3_600.0
"""How many strangers are a crowd, and the TTL of their session, which nobody renews."""
AMID_CALLS = 0.5
"""The part of the runs in which the clients close amid their users' calls, at the end."""
HOLDING = 0.5
"""So often such a client holds something then."""
CLOSED_WITHIN = (0.05, 0.5, 3.0)
"""Seconds from one closing to the next one then, at most."""
_TURN = 1.5
"""Seconds that one turn takes at most, beyond the hold itself, when nothing goes wrong."""

_FREED = 7.0
"""Seconds within which a place at the agent's limit gets to another process. The former one keeps its idle
connection for 4 s, and looks once a second. The next one tries every 2 s."""
_STILL = 5.0
"""Seconds that each user's turns take longer where threads stand still."""


class World:
    """One run."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.scheduler = Scheduler(self._dice("order"))
        self.cluster = Cluster(self.scheduler, plan, self._dice("cluster"))
        self.judge = Judge(self.scheduler, plan, self.cluster)
        self.network = Network(self.scheduler, self.cluster, plan, self._dice("network"), self.judge)
        if plan.agents > 1:
            self.network.agents = self.judge.ways.agents = self._make_agents(plan)
        if plan.connections:
            self.network.room = Room(plan.connections, self._dice("room"))
            self.judge.watch_room(self.network.room)
        self.processes: list[Process] = []
        self._exports: dict[tuple[str, ...], list[Export]] = {}
        """The sessions that were handed over, and wait for a user of the same things."""
        self._users: list[AnyUser] = []
        self._running: dict[SimTask, str] = {}
        self._healed = False
        self._idle_since = 0.0
        self._nothing_comes_after = 0.0
        self.repairs: list[Callable[[], object]] = []
        """The ends of what an operator has damaged, by when all is healed at the latest."""
        self._chaos = Chaos(self, self._dice("chaos"))
        self._names = 0
        self._strangers = ""
        """The session of many strangers."""
        self.network.on_strike = self._chaos.strike
        self.network.on_still = self._chaos.stand_still

    def _dice(self, what: str) -> Dice:
        return Dice(self.plan.seed, what)

    def _make_agents(self, plan: Plan) -> tuple[SimAgent, ...]:
        """Return the ways in, with one into another cluster right after the first."""
        first, *rest = (SimAgent(f"agent{number}", self.cluster) for number in range(plan.agents))
        other = Cluster(self.scheduler, plan, self._dice("other cluster"))
        return first, SimAgent("stray", other, stray=True), *rest

    # -- who takes part

    def add_process(self) -> Process:
        """Start a process with its users and candidates."""
        process = self.new_process("p")
        self._add_users(process)
        return process

    def add_double(self, parent: Process) -> Process:
        """Start a process that a fork of another one has made: it has a copy of its client, and users."""
        child = self.new_process("f", clock=parent.clock)
        fork(parent, child, self.judge)
        self._add_users(child)
        return child

    def _add_users(self, process: Process) -> None:
        plan = self.plan
        locks, semaphores = locks_of(process, plan), semaphores_of(process, plan)
        several = several_of(process, plan)
        kinds: list[Callable[[str], LockUser | RwUser | SlotUser]] = []
        lock_user = KeepingUser if plan.keeping else LockUser
        if locks:
            kinds.append(lambda name: lock_user(process, name, locks, healed=self._is_healed))
        if several:
            kinds.append(lambda name: lock_user(process, name, several, healed=self._is_healed))
        if rwlocks := rwlocks_of(process, plan):
            kinds.append(lambda name: RwUser(process, name, rwlocks, healed=self._is_healed))
        if semaphores:
            kinds.append(
                lambda name: SlotUser(process, name, semaphores, several=plan.permits, healed=self._is_healed)
            )
        users = range(max(plan.users, len(kinds))) if kinds else ()
        self._run_users(process, [kinds[number % len(kinds)](f"user {number}") for number in users])
        candidates = [CandidateUser(process, key, plan, healed=self._is_healed) for key in plan.elections]
        self._run_users(process, candidates)
        self._run_users(process, [JobUser(process, key, healed=self._is_healed) for key in plan.jobs])
        self._add_callers(process)
        watches = self._dice(f"{process.name} watches")
        if plan.sharing is not None:
            self._run_users(process, [MemberUser(process, plan.sharing, healed=self._is_healed)])
            if watches.chance(2 * WATCHED_SHARE):
                self._run_users(process, [GroupWatcher(process, plan.sharing, healed=self._is_healed)])
        if plan.guests is not None:
            guests = [Guest(process, f"guest {n}", plan.guests, healed=self._is_healed) for n in range(2)]
            self._run_users(process, guests[: 1 + watches.chance(0.3)])
            if watches.chance(2 * WATCHED_SHARE):
                self._run_users(process, [GroupWatcher(process, plan.guests, healed=self._is_healed)])
        others = [
            Sharing(prefix, ()) for prefix in plan.strangers if watches.chance(WATCHED_SHARE_OF_STRANGERS)
        ]
        self._run_users(process, [GroupWatcher(process, one, healed=self._is_healed) for one in others])
        # Where all is calm, each candidate follows the leader anyway, and the requests are counted.
        if not plan.calm and watches.chance(WATCHED_SHARE):
            watchers = [LeaderWatcher(process, key, healed=self._is_healed) for key in plan.elections]
            self._run_users(process, watchers)

    def _add_callers(self, process: Process) -> None:
        plan = self.plan
        callers = [CallUser(process, f"caller {at}", healed=self._is_healed) for at in range(plan.callers)]
        self._run_users(process, callers)
        if plan.callers:
            self._run_users(process, [Prober(process, "prober", healed=self._is_healed)])
        watched = WATCHED if plan.callers and not is_idle(process) else ()
        for of, kind in watched:
            self._run_users(process, [StateWatcher(process, of, kind=kind, healed=self._is_healed)])
        for key in plan.crowd_keys:
            self._run_users(process, [StateWatcher(process, key, healed=self._is_without_crowd)])

    def _is_without_crowd(self) -> bool:
        return self._is_healed() or self.scheduler.now > self.plan.crowd_for

    def _run_users(
        self,
        process: Process,
        users: Sequence[AnyUser],
    ) -> None:
        for user in users:
            if isinstance(user, KeepingUser):
                user.exports = self._exports.setdefault(tuple(user.choices()), [])
            self._users.append(user)
            self.start(process, user.run, user.actor)

    def have_asked(self) -> None:
        """Have users ask about everybody, beside what they do."""
        for user in self._users:
            if user.asks_about and user.process.able and not user.process.core.closing.is_set():
                self.start(user.process, user.ask_around, "asks around")

    def have_used(self) -> None:
        """Have users use what they hold at once, beside what they do."""
        for user in self._users:
            if user.process.able and not user.process.core.closing.is_set():
                self.start(user.process, user.use_at_once, "uses its hold at once")

    def _is_healed(self) -> bool:
        return self._healed

    def new_process(self, kind: str, *, clock: LocalClock | None = None) -> Process:
        """Start a process without any users."""
        self._names += 1
        plan, name = self.plan, f"{kind}{self._names}"
        process = Process(
            name,
            scheduler=self.scheduler,
            network=self.network,
            judge=self.judge,
            plan=plan,
            rng=self._dice(name),
            clock=clock,
        )
        if plan.threads:
            process.threads = Threads(
                process,
                self._dice(f"{name}'s threads"),
                often=plan.threads,
                scheduler=self.scheduler,
                advance=self.advance,
            )
        self.processes.append(process)
        self.judge.add(process)
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
        self._gather_strangers()
        if self.plan.callers and self._dice("count").chance(0.5):
            self.cluster.put(COUNTED, b"0", flags=COUNTED_FLAGS)
        for key in self.plan.crowd_keys:
            self.cluster.put(key)  # any write wakes those that wait for a key that is not there
        for _ in range(self.plan.processes):
            self.add_process()
        for kind, names in (
            (ForeignLock, (*self.plan.keys, *self.plan.elections)),
            (ForeignSemaphore, tuple(pool.prefix for pool in self.plan.pools)),
        ):
            for _ in range(self.plan.foreign if names else 0):
                process = self.new_process("go")
                process.fair = False  # it knows of no queue
                process.foreign = True
                self.start(process, kind(process, names, healed=self._is_healed).run, "foreign")
        self._chaos.begin()
        phases = (
            self._chaos_phase,
            self._healing,
            self._settling,
            self._belongings,
            self._calm,
            self._resting,
            self._leftovers,
            self._closing,
        )
        for phase in phases:
            phase()
            if self.judge.violation is not None:
                return

    def _gather_strangers(self) -> None:
        """Let many strangers be members of one group from the beginning."""
        if self.plan.large:
            group = GroupPlan(self.plan.large)
            self._strangers = self.cluster.open_session(ttl=CROWD_TTL)
            for number in range(CROWD):
                self.cluster.lock(group.key(f"one of many {number}"), self._strangers, flags=GROUP_FLAGS)

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
        lateness = self._latest + sum(SWEEPS) if self._latest else 0.0
        silence = _LONGEST_WATCH + self.plan.timeout if silent else self.plan.timeout
        delay = max((pool.lock_delay for pool in self.plan.pools), default=0.0)
        vacancy = PRIORITY_DELAY + REST[1] if self.plan.elections else 0.0
        aftermath = max(lateness, silence) + 2 * sessions + _LONGEST_PAUSE + 2 * delay + vacancy
        return self.plan.stretch * aftermath

    @property
    def _round(self) -> float:
        """How many seconds everybody's turns take at most, one after the other."""
        plan = self.plan
        things = (
            len(plan.all_keys)
            + len(plan.pools)
            + 2 * len(plan.rwlocks)
            + 3 * bool(plan.callers or plan.crowd)
        ) or 3
        longest = CALM_HOLD + _TURN + (2 * (PRIORITY_DELAY + REST[1]) if plan.elections else 0.0)
        return plan.stretch * len(self._users) * things * longest

    def _healing(self) -> None:
        now = self.scheduler.now
        self.judge.note("world", "all is healed")
        self._healed = True
        self._chaos.end()
        if self._strangers:
            self.cluster.destroy_session(self._strangers)
        self.network.heal()
        self.cluster.start()
        for agent in self.network.agents:
            agent.come_back()
        if self.network.room is not None:
            self.network.room.thin_out()
        self.cluster.elect_leader()
        self.cluster.set_health(passing=True)
        self.cluster.permit(())
        for pool in self.plan.pools:
            self._chaos.repair(pool.prefix)
        for repair in self.repairs:
            repair()
        for process in self.processes:
            process.link.mend()
            process.resume()
        if all(user.process.crashed or user.process.core.closing.is_set() for user in self._users):
            self.add_process()
        self.judge.healed_at = now
        self.judge.quiet_at = now + self._aftermath
        expiry = self.plan.ttl_factor * max(self.plan.spec.ttl or 0.0, ForeignLock.spec.ttl or 0.0) + 1.0
        self._nothing_comes_after = now + max(self.plan.latest if self._late else 0.0, expiry)
        bound = self._aftermath + self._round
        if not self.advance(now + bound, unless=lambda: not self._running):
            waiting = ", ".join(self._running.values())
            self.judge.convict("progress", f"after {bound:.0f} s without faults still waiting: {waiting}")

    def _settling(self) -> None:
        """Let clean-up end, and what comes late come."""
        self._idle_since = self._idle_since or self.scheduler.now
        most = self.plan.stretch * (sum(SWEEPS) + 2 * _LONGEST_PAUSE)
        self.advance(self.scheduler.now + most, unless=self._settled)
        if not self._settled():
            self.judge.convict("nothing left", "there is still clean-up to do")

    def _settled(self) -> bool:
        if self.scheduler.now < self._nothing_comes_after:
            return False
        duties = [duty for process in self._alive() for duty in process.reaper.tasks]
        # The first look after the last late request finds all there is; only some runs wait for the others.
        latest = self._latest or SWEEPS[0]
        enough = next((look for look in accumulate(SWEEPS[:-1]) if look > latest), None)
        patient = self.plan.patient or enough is None
        swept = not patient and self.scheduler.now > self._idle_since + (enough or 0.0) + 1.0
        return not duties or (swept and all(isinstance(duty, Sweep | StraySession) for duty in duties))

    @property
    def _late(self) -> bool:
        """Whether requests may be applied after their clients have given up."""
        return any(COURSES[name].delay and COURSES[name].answer != "reply" for name in self.plan.fates)

    @property
    def _latest(self) -> float:
        """How long after their sending, in seconds, requests may be applied whose clients have given up."""
        silence = LONGEST_LOSS if "agent silence" in self.plan.chaos else 0.0
        return max(self.plan.latest if self._late else 0.0, silence)

    def _alive(self) -> list[Process]:
        return [process for process in self.processes if not process.crashed]

    def _calm(self) -> None:
        self._calm_turns()
        while not (self._enough() or self.judge.violation):
            self._calm_turns()
        self._settling()

    def _calm_turns(self) -> None:
        self.judge.note("world", "everybody takes each thing once more")
        self.judge.quiet_at = self.scheduler.now
        now = self.scheduler.now
        for user in self._users:
            if not (user.process.crashed or user.process.core.closing.is_set()):
                self.start(user.process, user.calm_rounds, "calm user")
        # A crashed holder's lock-delay may still be in force.
        delay = max((pool.lock_delay for pool in self.plan.pools), default=0.0)
        bound = self._round + 2.0 + (self.plan.spec.lock_delay or 0.0) + delay
        if self.plan.connections:
            bound += _FREED * len(self.processes)
        if self.plan.threads:
            bound += _STILL * len(self._users)
        if not self.advance(now + bound, unless=lambda: not self._running):
            self.judge.convict("progress", f"undisturbed, the turns took more than {bound:.1f} s")

    def _belongings(self) -> None:
        """Judge what clients have on the server while users want nothing: the next call would hide it."""
        for process in self._alive():
            # Stuck holders still have a hold, or had one less than a lock-delay ago.
            for kept in () if process.core.holds.limits else process.core.sessions:
                for entry in () if kept.dependents else self.cluster.under(""):
                    if entry.session == kept.id:
                        text = f"{process.name} keeps {entry.key} locked by {short(kept.id)} for nobody"
                        self.judge.convict("nothing left", text)

    def _leftovers(self) -> None:
        for rules in self.judge.rules.values():
            rules.check_left()

    def _resting(self) -> None:
        """Let what is not needed any more come to its end."""
        promises, half = self.judge.promises, self.plan.stretch * AT_REST / 2
        # A client whose contact was looked at asks for a while whether it has any.
        looked_at = max(map(self.judge.plain.looked_at_until, self._alive()), default=0.0)
        self.advance(max(self.scheduler.now, self.plan.stretch * looked_at))
        # A group whose follower is away is kept for a while from the end of the next query on.
        has_groups = self.plan.sharing or self.plan.guests or self.plan.strangers
        self.advance(self.scheduler.now + half + self.plan.stretch * LINGER * bool(has_groups))
        asked = {
            process: math.inf if process.core.reaper.pending else promises.asked(process)
            for process in self._alive()
        }
        self.judge.sessions.at_rest = True
        self.advance(self.scheduler.now + half)
        self.judge.sessions.at_rest = False
        for process, before in asked.items():
            promises.rests(process, asked=before)
        self._free_connections()

    def _free_connections(self) -> None:
        """Let connections be closed that are not needed any more, where there is a limit on them."""
        room, rules, began = self.network.room, self.judge.room, self.scheduler.now
        if room is None or rules is None:
            return
        self.advance(began + self.plan.stretch * RESTED, unless=lambda: not rules.kept_since(began))
        if kept := rules.kept_since(began):
            self.judge.convict("connections", f"kept with nothing to do: {', '.join(kept)}")
        room.widen()  # a client that closes at the limit leaves its sessions to their TTL

    def _close_clients(self) -> list[str]:
        """Begin to close all clients, at rest or amid their users' calls; returns the sessions that end."""
        dice, sessions = self._dice("closing"), list[str]()
        amid_calls = not self.plan.callers and dice.chance(AMID_CALLS)
        for user in self._users if amid_calls else ():
            if not (user.process.crashed or user.process.core.closing.is_set()):
                self.start(user.process, user.calm_rounds, "calm user")
        for process in self._alive():
            if amid_calls:
                self.advance(self.scheduler.now + dice.uniform(0.0, dice.choice(CLOSED_WITHIN)))
            if amid_calls and dice.chance(HOLDING):
                self.advance(self.scheduler.now + CLOSED_WITHIN[-1], unless=process.has_holds)
            sessions += [kept.id for kept in process.core.sessions]
            self.start(process, partial(process.close_twice, close=process.close), "close")
        return sessions

    def _closing(self) -> None:
        kept = self._close_clients()
        self.advance(self.scheduler.now + 5.0, unless=lambda: not self._running)
        alive = {session.id for session in self.cluster.sessions()}
        for outlived in filter(alive.__contains__, kept):
            self.judge.convict("nothing left", f"{short(outlived)} has outlived its client")
        for process in self._alive():
            process.stop_background()
        self.advance(self.scheduler.now + STOPPING)
        for process in self._alive():
            self.start(process, process.close_late, "close")
        self.advance(self.scheduler.now + 5.0, unless=lambda: not self._running)
        self.advance(self.scheduler.now + 1.0)
        for process in self._alive():
            if process.core.reaper.pending or process.connections:
                self.judge.convict("nothing left", f"{process.name} closed with clean-up to do")
            self.judge.news.closed(process)
            process.end()
        ttl = (self.plan.spec.ttl or 0.0) * self.plan.ttl_factor
        self.advance(self.scheduler.now + ttl + 1.0)
        for session in self.cluster.sessions():
            self.judge.convict("nothing left", f"{short(session.id)} never ends")
        self._leftovers()
