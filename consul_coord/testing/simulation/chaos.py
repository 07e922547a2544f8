"""Faults that come by themselves, apart from any request: each kind at its own pace, until the world heals.

Rules
- Every kind is one row: a name from the plan, and what happens then.
- The judge is notified of each act of an operator: it ends some guarantees, and only those.
"""

from __future__ import annotations

import json
import math
from functools import partial
from typing import TYPE_CHECKING

from consul_coord.models.group import GROUP_FLAGS
from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.group.members import GroupPlan
from consul_coord.recipes.once.record import key_of
from consul_coord.recipes.rwlock import queue as rwqueue
from consul_coord.server.acl import Rule
from consul_coord.testing.simulation.dice import Dice
from consul_coord.testing.simulation.network import FADED
from consul_coord.testing.simulation.plan import ACTS_BESIDE
from consul_coord.testing.simulation.promises import LONGEST_PAUSE, RELEASED_WITHIN, UNANSWERED
from consul_coord.testing.simulation.slot_rules import GARBAGE
from consul_coord.testing.simulation.trace import short
from consul_coord.testing.simulation.way_rules import LEFT_WITHIN
from consul_coord.testing.simulation.ways import SimAgent

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.server.records import Entry, SessionRecord
    from consul_coord.testing.simulation.driver import SimIO
    from consul_coord.testing.simulation.process import Process
    from consul_coord.testing.simulation.world import World


CLUSTER_KNOWN = 1.0
"""Seconds after which each client knows its cluster: until then, none of its further agents may serve it."""
_GONE = RELEASED_WITHIN + 4.0
"""Seconds after which nothing of a closed client runs: a release has ended by then, and a user has rested."""
_TRIED_WITHIN = 8.0
"""Seconds after which what was refused for a while is tried again: pauses grow with that time."""
_REFUSED = 8.0
"""Seconds for which a request waits for a leader, before it is refused."""
OLD_FOR = 2.5
"""Seconds for which a leader that has lost its followers takes itself for the leader, at most."""
ABOUT_A_LEASE = 0.6, 1.3
"""TTLs for which a process stands still that has just asked for something."""
LOOKS_FIRST = 0.5
"""The share of pauses after which users look at their holds before their process does anything else."""
NEW = 0.1
"""Seconds for which a hold is new: it is not watched yet."""
BETWEEN = 0.5
"""So often an agent falls silent between two answers to one process."""
MOST_FIT = 2
"""With fewer agents that serve, none is lost."""
SETTLED_WITHIN = 2.0
"""Seconds after that within which every client has settled at another agent."""
LONGEST_LOSS = 20.0
"""Seconds for which one of several agents is gone or silent, at most."""
MOST_PROCESSES = 8
"""With so many, living and dead, none forks any more."""


class Chaos:
    """The faults that come by themselves."""

    def __init__(self, world: World, rng: Dice) -> None:
        self._world = world
        self._rng = rng
        self._looks = Dice(world.plan.seed, "first looks")
        self._between = Dice(world.plan.seed, "between answers")
        self._over = False
        self._kinds: dict[str, Callable[[], object]] = {
            "pause": lambda: self._stand_still(asleep=False),
            "suspend": lambda: self._stand_still(asleep=True),
            "crash": self._crash,
            "close": self._close,
            "cut": self._cut,
            "leader change": lambda: self._leaderless(0.0, 0.3),
            "leaderless": lambda: self._leaderless(1.0, 12.0),
            "old leader": self._old_leader,
            "agent restart": lambda: self._restart(0.05, 4.0),
            "outage": lambda: self._restart(3.0, 15.0),
            "destroy session": self._destroy_session,
            "deregister node": self._deregister_node,
            "release key": self._release_key,
            "delete key": self._delete_key,
            "delete contender": self._delete_contender,
            "overwrite": self._overwrite,
            "restore": self._restore,
            "delete record": self._delete_record,
            "rewrite record": self._rewrite_record,
            "damage record": self._damage_record,
            "overwrite contender": self._overwrite_contender,
            "release contender": self._release_contender,
            "check critical": self._fail_check,
            "check flapping": self._let_check_flap,
            "permission revoked": self._revoke,
            "idle candidate": self._idle,
            "double": self._double,
            "agent death": lambda: self._lose_agent(SimAgent.die),
            "agent silence": self._silence_agent,
            "crowd": self._crowd,
            "remove member": self._remove_member,
            "strangers": self._move_stranger,
            "write": self._write,
            "damage job": self._damage_job,
        }
        self._agents_rest_until = CLUSTER_KNOWN
        self._keys = tuple(world.judge.keys)
        self._pools = world.plan.pools
        self._rwlocks = {waitqueue.directory(rwqueue.base_of(name)): name for name in world.plan.rwlocks}
        """Read-write locks by where their queues are."""

    def begin(self) -> None:
        """Start every kind that the plan has."""
        for name, mean in self._world.plan.chaos.items():
            self._plan_next(name, mean)

    def strike(self, name: str) -> None:
        """Do what a kind does."""
        self._kind = name
        self._kinds[name]()
        if name in ACTS_BESIDE:
            self._world.have_used()

    def end(self) -> None:
        """Start nothing any more; what is going on, the world heals."""
        self._over = True

    def _plan_next(self, name: str, mean: float) -> None:
        def strike() -> None:
            if not self._over:
                self.strike(name)
                self._plan_next(name, mean)

        self._world.scheduler.after(self._rng.expovariate(1 / mean), strike)

    def _note(self, what: str, who: str = "agent", *, seconds: float | None = None) -> None:
        """Tell of a fault; of one that lasts, also its end."""
        judge = self._world.judge
        judge.note("world", what if seconds is None else f"{what} for {seconds:.2f} s")
        judge.record(who, "fault", detail=what)
        judge.see(f"chaos: {self._kind}")
        if seconds is not None:
            self._world.scheduler.after(seconds, lambda: judge.record(who, "healed", detail=what))

    def _trouble(self, who: str | None = None, *, lasts: float, over_in: float = math.inf) -> None:
        self._world.judge.promises.trouble(who, lasts=lasts, over_in=over_in)

    _kind = ""
    """The faults under way."""

    def _later(self, least: float, most: float, action: Callable[[], object]) -> float:
        seconds = self._rng.uniform(least, most)
        self._world.scheduler.after(seconds, action)
        return seconds

    # -- processes

    def _victim(self) -> Process | None:
        able = [process for process in self._world.processes if process.able]
        holders = [process for process in able if any(True for _ in process.core.holds.all())]
        chosen = holders if holders and self._rng.chance(0.5) else able
        return self._rng.choice(chosen) if chosen else None

    def stand_still(self, name: str) -> None:
        """Let a process stand still for about a lease: what comes meanwhile it hears late."""
        process = self._world.judge.process(name)
        if process is not None and process.able and not self._over:
            self._kind = "pause"
            seconds = self._rng.uniform(*ABOUT_A_LEASE) * (self._world.plan.spec.ttl or 0.0)
            self._have_stand_still(process, asleep=self._rng.chance(0.2), lasts=(seconds, seconds))

    def _stand_still(self, *, asleep: bool) -> None:
        process = self._victim()
        if process is not None:
            self._have_stand_still(process, asleep=asleep, lasts=(0.0, self._rng.choice((0.5, 8.0))))

    def _have_stand_still(self, process: Process, *, asleep: bool, lasts: tuple[float, float]) -> None:
        began = self._world.scheduler.now
        valid_until = max((hold.lease.valid_until for hold in process.core.holds.all()), default=None)
        process.stop()

        def resume() -> None:
            if not process.crashed:
                self._world.judge.note("world", f"{process.name} goes on")
                slept = self._world.scheduler.now - began if asleep else 0.0
                process.resume(slept=slept)
                if self._looks.chance(LOOKS_FIRST):
                    self._world.judge.looked_at_by(process)
                if valid_until is not None and process.clock.now() > valid_until:
                    self._world.judge.see("pause of a holder beyond its lease")

        seconds = self._later(*lasts, resume)
        self._note("asleep" if asleep else "stands still", process.name, seconds=seconds)

    def _crash(self) -> None:
        process = self._victim()
        if process is None:
            return
        if any(True for _ in process.core.holds.all()):
            self._world.judge.see("crash of a holder")
        self._note("crashes", process.name)
        self._world.judge.record(process.name, "died")
        process.crash()
        self._later(0.0, 5.0, lambda: None if self._over else self._world.add_process())

    def _close(self) -> None:
        process = self._victim()
        if process is not None and not process.core.closing.is_set():
            timeout = self._rng.choice((0.2, 1.0, 5.0))
            self._note("is closed", process.name)
            self._world.start(process, partial(self._leave, process, timeout), "close")

    async def _leave(self, process: Process, timeout: float, io: SimIO) -> None:
        await process.close_twice(io, partial(process.leave, timeout=timeout))
        self._later(0.0, 5.0, lambda: None if self._over else self._world.add_process())
        self._world.scheduler.after(_GONE, partial(self._be_gone, process))

    def _be_gone(self, process: Process) -> None:
        self._world.judge.promises.is_gone(process)
        process.end()

    def _cut(self) -> None:
        process = self._victim()
        if process is None:
            return
        process.link.cut = True
        longest = FADED * (self._world.plan.spec.ttl or 0.0)
        seconds = self._later(0.1, longest, process.link.mend)
        self._note("cut off", process.name, seconds=seconds)
        self._trouble(process.name, lasts=seconds + UNANSWERED)

    def _double(self) -> None:
        process = self._victim()
        if process is not None and len(self._world.processes) < MOST_PROCESSES:
            self._note("forks", process.name)
            self._world.add_double(process)

    # -- servers

    def _leaderless(self, least: float, most: float) -> None:
        cluster = self._world.cluster
        if cluster.down:
            return
        seconds = self._later(least, most, cluster.elect_leader)
        self._note("no leader", seconds=seconds)
        self._trouble(lasts=seconds + _REFUSED)
        cluster.lose_leader()

    def _old_leader(self) -> None:
        cluster = self._world.cluster
        if not cluster.down and cluster.state.leader:
            cluster.be_followed()
            seconds = self._later(0.3, OLD_FOR, cluster.be_alone)
            self._note("an old leader", seconds=seconds)
            self._world.have_asked()
            rng = Dice(self._world.plan.seed, f"beside an old leader at {self._world.scheduler.now}")
            acts = [name for name in ACTS_BESIDE if name in self._world.plan.chaos]
            if acts:
                act = partial(Chaos(self._world, rng).strike, rng.choice(acts))
                self._act_beside(act, latest=self._world.scheduler.now + seconds * rng.random())

    def _act_beside(self, act: Callable[[], object], *, latest: float) -> None:
        """Act when somebody has just got something, which nobody watches yet."""
        if not self._over:
            if self._world.scheduler.now >= latest or self._is_a_hold_new():
                act()
            else:
                self._world.scheduler.after(NEW / 4, partial(self._act_beside, act, latest=latest))

    def _is_a_hold_new(self) -> bool:
        able = [process for process in self._world.processes if process.able]
        ages = (one.clock.now() - hold.granted_at for one in able for hold in one.core.holds.all())
        return any(age < NEW for age in ages)

    def _silence_agent(self) -> None:
        """Have an agent fall silent, now or between two answers to one process."""
        if self._between.chance(BETWEEN):
            for agent in self._world.network.agents:
                agent.between = partial(self._lose_agent, SimAgent.fall_silent, agent)
        else:
            self._lose_agent(SimAgent.fall_silent)

    def _lose_agent(self, harm: Callable[[SimAgent], object], agent: SimAgent | None = None) -> None:
        """Do without one agent; the next one not before every client has settled at another."""
        world = self._world
        now, fit = world.scheduler.now, [agent for agent in world.network.agents if agent.serves]
        if self._over or now < self._agents_rest_until or len(fit) < MOST_FIT:
            return
        agent = agent or self._rng.choice(fit)
        harm(agent)
        seconds = self._later(0.5, LONGEST_LOSS, agent.come_back)
        self._note(f"{agent.address} fails", seconds=seconds)
        world.judge.ways.fails(agent, seconds)
        self._trouble(lasts=LEFT_WITHIN)
        self._agents_rest_until = now + seconds + LEFT_WITHIN + SETTLED_WITHIN

    def _crowd(self) -> None:
        """Let strangers take the agent's connections, all that are free or each that becomes free."""
        room = self._world.network.room
        if room is not None:
            room.crowd(greedy=self._rng.chance(0.5))
            self._note("strangers take all connections", seconds=self._later(0.1, 20.0, room.thin_out))

    def _restart(self, least: float, most: float) -> None:
        cluster = self._world.cluster
        if cluster.down:
            return
        seconds = self._later(least, most, cluster.start)
        self._note("restarts", seconds=seconds)
        # Pauses have grown meanwhile, to twice that time at most, and the last one may just have begun.
        self._trouble(lasts=seconds + min(2 * seconds, LONGEST_PAUSE), over_in=seconds)
        cluster.stop()
        if self._world.network.room is not None:
            self._world.network.room.break_all()

    def _fail_check(self) -> None:
        self._be_critical(self._rng.uniform(0.05, 3.0))

    def _be_critical(self, seconds: float) -> None:
        cluster = self._world.cluster
        if cluster.state.leader:
            self._world.scheduler.after(seconds, lambda: cluster.set_health(passing=True))
            self._note("check critical", seconds=seconds)
            self._keep_sessions_out(seconds)
            for session in cluster.sessions():
                self._end_early(session)  # those of members have no lock-delay
            cluster.set_health(passing=False)

    def _keep_sessions_out(self, seconds: float) -> None:
        """Tell the judge that nobody gets a session for a while, unless sessions have a node of their own."""
        if not self._world.plan.calm:
            self._trouble(lasts=seconds)

    def _let_check_flap(self) -> None:
        for number in range(self._rng.randrange(2, 6)):
            self._world.scheduler.after(number * 0.4, lambda: None if self._over else self._be_critical(0.2))

    def _revoke(self) -> None:
        """Refuse something that was permitted: writing, reading, the queue alone, or sessions."""
        plan = self._world.plan
        groups = [one.prefix for one in (plan.sharing, plan.guests) if one is not None]
        names = (*self._keys, *(pool.prefix for pool in self._pools), *self._rwlocks.values(), *groups)
        name = self._rng.choice(names)
        rule = self._rng.choice(
            (
                Rule("key", name, "read", prefix=True),
                Rule("key", name, "deny", prefix=True),
                Rule("key", waitqueue.directory(name), "deny", prefix=True),
                Rule("session", "", "read", prefix=True),
            )
        )
        cluster = self._world.cluster
        cluster.permit((rule,))
        # Where no request fails, for long enough to be tried again and again.
        longest = 6.0 if plan.fates else 15.0
        seconds = self._later(0.1, longest, lambda: cluster.permit(()))
        self._note(f"only {rule.policy} on {rule.resource} {rule.name!r}", seconds=seconds)
        self._world.judge.promises.refuse(lasts=seconds + _TRIED_WITHIN)

    # -- operators

    def _destroy_session(self) -> None:
        world = self._world
        sessions = world.cluster.sessions()
        if not sessions or not world.cluster.state.leader:
            return
        session = self._rng.choice(sessions)
        self._note(f"operator destroys {short(session.id)}")
        self._end_early(session)
        world.cluster.destroy_session(session.id)

    def _deregister_node(self) -> None:
        cluster = self._world.cluster
        if not cluster.state.leader:
            return
        # Until anti-entropy has put the agent's node back, nobody gets a session.
        seconds = self._later(0.1, 4.0, lambda: cluster.set_health(passing=True))
        self._note("node deregistered", seconds=seconds)
        self._keep_sessions_out(seconds)
        for session in cluster.sessions():
            self._end_early(session)
        cluster.deregister()
        if not self._world.plan.calm and self._rng.chance(0.7):
            self._cut()  # as when autopilot removes a node that nobody reaches: its clients do not hear of it

    def _end_early(self, session: SessionRecord) -> None:
        """Tell the judge what is promised no more when a session ends before its TTL has passed.

        A lock-delay covers for as long as the holder may believe, that of a slot too.
        """
        world = self._world
        if session.lock_delay:
            return
        for key in self._keys:
            if world.cluster.holder(key) == session.id:
                world.judge.rules[key].forced()
        for pool in self._pools:
            if world.cluster.entry(f"{pool.prefix}/{session.id}") is not None:
                world.judge.rules[pool.prefix].forced(session.id)
        for directory, name in self._rwlocks.items():
            if world.cluster.entry(directory + session.id) is not None:
                world.judge.rules[name].forced(session.id)

    def _key(self) -> str:
        """Return a key that has a leader to write it; empty if there is none."""
        return self._rng.choice(self._keys) if self._keys and self._world.cluster.state.leader else ""

    def _pool(self) -> str:
        """Return the prefix of a semaphore, likewise."""
        if not self._pools or not self._world.cluster.state.leader:
            return ""
        return self._rng.choice(self._pools).prefix

    def _release_key(self) -> None:
        key = self._key()
        if key and self._world.cluster.holder(key):
            self._note(f"operator releases {key}")
            self._world.judge.rules[key].forced()
            self._world.cluster.release(key)

    def _delete_key(self) -> None:
        key = self._key()
        if key and self._world.cluster.entry(key) is not None:
            self._note(f"operator deletes {key}")
            self._world.judge.rules[key].forced()
            self._world.cluster.delete(key)

    def _overwrite(self) -> None:
        if (key := self._key()) and key not in self._world.plan.ids:
            self._note(f"operator writes {key}")
            self._world.judge.rules[key].overwritten()
            self._world.cluster.overwrite(key, self._rng.randbytes(2).hex().encode())

    def _delete_contender(self) -> None:
        contender = self._contender()
        if contender is not None:
            self._note(f"operator deletes {contender.key}")
            self._world.judge.contender_deleted(contender.key)
            self._world.cluster.delete(contender.key)

    def _contender(self) -> Entry | None:
        """Choose a contender for a key or a slot; who has a slot by it is not counted any more."""
        pools = (f"{pool.prefix}/" for pool in self._pools)
        places = [*map(waitqueue.directory, self._keys), *pools, *self._rwlocks]
        cluster = self._world.cluster
        directory = self._rng.choice(places)
        found = [entry for entry in cluster.under(directory) if entry.key == directory + entry.session]
        if not found or not cluster.state.leader:
            return None
        entry = self._rng.choice(found)
        judge = self._world.judge
        name = self._rwlocks.get(directory, directory.removesuffix("/"))
        rules = judge.pools.get(name) or judge.rwlocks.get(name)
        if rules is not None:
            rules.forced(entry.session)
        return entry

    def _remove_member(self) -> None:
        """Delete a member's key, or release it: its session goes on."""
        cluster, plan = self._world.cluster, self._world.plan
        if not cluster.state.leader:
            return
        groups = [group for group in (plan.sharing, plan.guests) if group is not None]
        folders = [f"{each.group.directory}/" for each in groups]
        members = [one for folder in folders for one in cluster.under(folder) if one.session]
        if members:
            key, act = self._rng.choice(members).key, self._rng.choice(("deletes", "releases"))
            self._note(f"operator {act} {key}")
            if (rules := self._world.judge.rules.get(key)) is not None:
                rules.forced()
            bare = Dice(plan.seed, f"{key} at {self._world.scheduler.now}").chance(0.5)
            if act == "deletes":
                cluster.delete(key)
            else:
                cluster.release(key, bare=bare)
                self._world.repairs.append(partial(self._tidy, key))

    def _tidy(self, key: str) -> None:
        """Delete a key without flags that nobody has: who was no member before must not take it."""
        entry = self._world.cluster.entry(key)
        if entry is not None and not (entry.session or entry.flags):
            self._world.cluster.delete(key)

    def _move_stranger(self) -> None:
        """Let a member of another group come, show another value, or go."""
        cluster, groups = self._world.cluster, self._world.plan.strangers
        group = GroupPlan(self._rng.choice(groups)) if groups else None
        if group is None or not cluster.state.leader or not cluster.has_node:
            return
        members = [one.key for one in cluster.under(f"{group.directory}/") if one.session]
        act = self._rng.choice(("comes", "shows another value", "goes")) if members else "comes"
        self._note(f"a member of {group.prefix} {act}")
        if act == "comes":
            session, name = cluster.open_session(ttl=60.0), f"stranger {self._rng.randrange(100)}"
            cluster.lock(group.key(name), session, flags=GROUP_FLAGS)
            self._later(1.0, 14.0, lambda: cluster.destroy_session(session))
        elif act == "goes":
            cluster.delete(self._rng.choice(members))
        else:
            cluster.overwrite(self._rng.choice(members), self._rng.randbytes(2).hex().encode())

    def _damage_job(self) -> None:
        """Make a job's record unreadable, or another's, for a while."""
        cluster, jobs = self._world.cluster, self._world.plan.jobs
        if not jobs:
            return
        name = self._rng.choice(jobs)
        rules, key = self._world.judge.jobs[name], key_of(name)
        entry, damage = cluster.entry(key), rules.damage(self._rng) if cluster.state.leader else None
        if entry is None or damage is None:
            return
        self._note(f"the record of {name} is damaged")
        cluster.overwrite(key, damage)

        def repair() -> None:
            present = cluster.entry(key)
            if present is not None and present.value == damage:
                cluster.overwrite(key, entry.value)

        self._later(0.5, 5.0, repair)
        self._world.repairs.append(repair)

    def _write(self) -> None:
        """Let a stranger write or delete a key that is watched."""
        cluster, keys = self._world.cluster, self._world.plan.crowd_keys
        key = self._rng.choice(keys) if keys else ""
        if key and cluster.state.leader:
            delete = cluster.entry(key) is not None and self._rng.chance(0.1)
            self._note(f"{key} is {'deleted' if delete else 'written'}")
            (cluster.delete if delete else cluster.put)(key)

    def _idle(self) -> None:
        cluster, elections = self._world.cluster, self._world.plan.elections
        if elections and cluster.state.leader and cluster.has_node:
            directory = waitqueue.directory(self._rng.choice(elections))
            session = cluster.open_session(ttl=60.0)
            cluster.lock(directory + session, session)
            self._note(f"{short(session)} is an idle candidate")
            self._later(8.0, 14.0, lambda: cluster.destroy_session(session))

    # -- operators of semaphores

    def _slot(self) -> Entry | None:
        """Choose a contender of a semaphore."""
        prefix = self._pool()
        contenders = [one for one in self._world.cluster.under(f"{prefix}/") if one.session] if prefix else []
        return self._rng.choice(contenders) if contenders else None

    def _overwrite_contender(self) -> None:
        if self._rwlocks:
            self._overwrite_place()
        elif (entry := self._slot()) is not None:
            self._note(f"operator writes {entry.key}")
            self._world.judge.pools[entry.key.rpartition("/")[0]].was_written(entry.session)
            self._world.cluster.overwrite(entry.key, b"a note")

    def _overwrite_place(self) -> None:
        """Write a contender of a read-write lock."""
        directory = self._rng.choice(list(self._rwlocks))
        contenders = [one for one in self._world.cluster.under(directory) if one.session]
        if contenders:
            entry = self._rng.choice(contenders)
            self._note(f"operator writes {entry.key}")
            self._world.judge.rules[self._rwlocks[directory]].overwritten()
            self._world.cluster.overwrite(entry.key, entry.value + b", noted")  # it begins with the mode

    def _release_contender(self) -> None:
        if (entry := self._slot()) is not None:
            self._note(f"operator releases {entry.key}")
            rules = self._world.judge.pools[entry.key.rpartition("/")[0]]
            rules.forced(entry.session)
            rules.was_written(entry.session)
            self._world.cluster.release(entry.key)

    def _delete_record(self) -> None:
        prefix = self._pool()
        if prefix and self._world.cluster.entry(f"{prefix}/.lock") is not None:
            self._note(f"operator deletes {prefix}/.lock")
            self._world.judge.rules[prefix].forced()
            self._world.cluster.delete(f"{prefix}/.lock")

    def _rewrite_record(self) -> None:
        prefix = self._pool()
        if prefix and (fields := self._world.judge.pools[prefix].standing().fields):
            self._note(f"operator rewrites {prefix}/.lock")
            self._world.judge.see("record rewritten")
            changed = self._rng.choice(({"Limit": self._rng.choice((1, 2, 3))}, {"Note": "by hand"}))
            value = json.dumps({**fields, "Holders": dict.fromkeys(fields["Holders"], True), **changed})
            self._world.cluster.overwrite(f"{prefix}/.lock", value.encode())
            self._world.judge.pools[prefix].rewritten()

    def _damage_record(self) -> None:
        prefix = self._pool()
        if not prefix or self._world.plan.foreign or self._world.cluster.entry(f"{prefix}/.lock") is None:
            return  # who is foreign may well write whatever he takes it for
        cluster, rules = self._world.cluster, self._world.judge.rules[prefix]
        rules.forced()
        cluster.overwrite(f"{prefix}/.lock", GARBAGE)
        seconds = self._later(0.1, 4.0, lambda: self.repair(prefix))
        self._note(f"operator damages {prefix}/.lock", seconds=seconds)

    def repair(self, prefix: str) -> None:
        """Delete a record that can't be read."""
        cluster = self._world.cluster
        entry = cluster.entry(f"{prefix}/.lock")
        if entry is not None and entry.value == GARBAGE and not cluster.down:
            cluster.delete(entry.key)

    def _restore(self) -> None:
        cluster = self._world.cluster
        if not cluster.state.leader:
            return
        if self._rng.chance(0.5):
            self._note("snapshot taken")
            cluster.take_snapshot()
        elif cluster.restore():
            self._note("snapshot restored, and its sessions destroyed")
            self._world.judge.restored()
