"""The plan of one seed: the participants, their sessions, and the possible faults.

Rules
- Everything is drawn from the seed, and from nothing else.
- Swarm testing: each run has only some kinds of faults, of its own frequency each, and often aims them at a
  few kinds of requests. Runs with everything at once would reach few states that need some luck.

Source: Groce et al., "Swarm Testing" (2012).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from consul_coord.models import SessionSpec
from consul_coord.models.session import SERF_HEALTH
from consul_coord.testing.simulation.dice import Dice
from consul_coord.testing.simulation.shapes import RECORD, SHAPES
from consul_coord.testing.simulation.sharing import Sharing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FATES = {
    "request lost": "never arrives; the client hears nothing",
    "request cut off": "never arrives; the connection breaks",
    "connection refused": "never sent",
    "reply lost": "applied; the client hears nothing",
    "reply cut off": "applied; the connection breaks",
    "late": "applied up to 40 s later, when the client has given up; it hears nothing",
    "late and cut off": "applied up to 40 s later; the connection breaks at once",
    "twice": "applied twice, as by a proxy that tries again; the second reply arrives",
    "slow": "up to 3 s each way",
    "fading": "a slow reply, and then nothing passes for a while",
    "no leader": "refused: 500, no cluster leader",
    "rate limited": "refused: 429",
    "unavailable": "refused: 503",
    "failed after": "applied, and then 500: the leader went away",
    "index back": "answered with the index 1",
}
"""The possible fates of one request, except being served."""

CHAOS = {
    "pause": "a process stands still, and its clock goes on",
    "suspend": "a process stands still with its timers, as its machine sleeps; its clock goes on",
    "crash": "a process is gone at once, and after a while another one begins",
    "cut": "nothing passes between a process and the agent",
    "leader change": "a moment without a leader; all TTLs start again",
    "leaderless": "no leader for longer than requests wait for one",
    "agent restart": "connections break, and are refused for a while",
    "destroy session": "an operator destroys a session",
    "deregister node": "the agent's node leaves the catalog for a while, and all sessions end",
    "release key": "an operator releases the key from its session",
    "delete key": "an operator deletes the key",
    "delete contender": "an operator deletes a contender",
    "overwrite": "an operator writes the key's value",
    "delete record": "an operator deletes a semaphore's record",
    "rewrite record": "an operator changes a semaphore's limit by hand, or adds a field",
    "damage record": "an operator makes a semaphore's record unreadable, and deletes it after a while",
    "overwrite contender": "an operator writes the value of a semaphore's contender",
    "release contender": "an operator releases a semaphore's contender from its session",
    "restore": "an operator restores a snapshot, and destroys the sessions in it, as he should",
    "check critical": "the node's health check fails for a moment",
    "check flapping": "it fails and recovers several times in a row",
    "permission revoked": "some requests are refused for want of permission, for a while",
    "idle candidate": "a candidate queues, lives for a while, and never does anything",
    "double": "a process forks, and its child goes on with a copy of the client",
}
"""The faults that may come at any time, apart from requests."""


MORE_CHAOS = {
    "old leader": "for a moment an old leader answers readings that allow it, with what it knew",
    "close": "a client is closed amid its users' calls, in little time",
}
"""The faults that each a part of the runs has, besides those that are drawn."""
AGENT_CHAOS = {
    "agent death": "one of several agents is gone for a while",
    "agent silence": "one of several agents takes requests and answers nothing, and goes on after a while",
}
"""The further faults where there are several agents."""


CROWD_CHAOS = {"crowd": "other programs of the host take all of the agent's connections for a while"}
"""The further faults where an agent has a limit on connections."""


@dataclass(frozen=True, slots=True)
class Pool:
    """A semaphore."""

    prefix: str
    limit: int
    lock_delay: float = 0.0
    """That of its own sessions, which have checks; 0 where its sessions are as all others are."""

    @property
    def own_sessions(self) -> str:
        """The kind of its sessions, in words, where they are its own."""
        return f", checks and a lock-delay of {self.lock_delay:g} s" if self.lock_delay else ""


@dataclass(frozen=True, slots=True)
class Plan:
    """The drawn plan."""

    seed: int
    processes: int
    users: int
    """Users of locks and semaphores in each process."""
    keys: tuple[str, ...]
    """Locks."""
    pools: tuple[Pool, ...]
    elections: tuple[str, ...]
    """Keys that each process has a candidate for."""
    foreign: int
    """Clients that contend for all these and know of no queue, as Go's do: for each kind as many."""
    spec: SessionSpec
    timeout: float
    ttl_factor: float
    skew: float
    """By which part at most the processes' clocks run faster or slower than the server's."""
    chaos_seconds: float
    fates: Mapping[str, float]
    """Each with its probability, for any request."""
    hot: frozenset[str]
    """Kinds of requests that faults are aimed at."""
    hot_probability: float
    latest: float
    """Seconds after which a request is applied at the latest."""
    chaos: Mapping[str, float]
    """Each with the seconds between two of them, on average."""
    patient: bool
    """Whether the end waits for the last look of every clean-up, a minute later."""
    spurious: bool
    """Whether watches of absent keys answer early."""
    once: bool = False
    """Whether each thing asked for in a hot way fails once, at its first request, and nothing else does."""
    strike: tuple[int, str] | None = None
    """The number of the request that one fault is aimed at, and the fault: a fate, or one of the others."""
    several: bool = False
    """Whether some users of locks take all keys at once."""
    permits: bool = False
    """Whether some take several slots of a semaphore at once."""
    lingering: bool = False
    """Whether what is got is kept for long."""
    stuck: float = 0.0
    """Of so many holds the end is given in advance, by ``max_hold`` or a beat that does not come."""
    jobs: tuple[str, ...] = ()
    """Keys of jobs that each process tries to run."""
    rwlocks: tuple[str, ...] = ()
    """Read-write locks."""
    sharing: Sharing | None = None
    """The partitions that the processes share as members of a group."""
    agents: int = 1
    """Ways to the servers, of which one at a time is gone or silent; with a stray one among several."""
    connections: int = 0
    """The agent's limit on connections from the processes, which are one address; 0 for no limit."""
    calm: bool = False
    """Whether nothing goes wrong but what operators do: all is as quick and as cheap as documented then."""
    office: Literal["", "heirs", "short"] = ""
    """The kind of leaders: all hand over, or all lead for a moment, with many of low priority."""

    @property
    def all_keys(self) -> tuple[str, ...]:
        """The keys that one at a time may hold."""
        partitions = () if self.sharing is None else self.sharing.keys
        return (*self.keys, *self.elections, *self.jobs, *partitions)

    @property
    def gentle(self) -> bool:
        """Whether so little goes wrong that who could be served must be, also while it does."""
        struck = self.strike is not None and self.strike[1] in _NOTICED_STRIKES
        return bool(self.office) or struck or (self.once and self.lingering)

    @property
    def bounded(self) -> bool:
        """Whether no clock runs beyond the stated bound."""
        return self.skew <= SAFE_SKEW

    @property
    def stretch(self) -> float:
        """By how much the slowest clock makes waits longer."""
        return 1 / (1 - self.skew)

    def describe(self) -> str:
        """Return it as a few lines of text."""
        pools = ", ".join(f"{p.prefix} ({p.limit} slots{p.own_sessions})" for p in self.pools)
        pools += ", several at once" * (self.permits and bool(pools))
        spec, checks = self.spec, list(self.spec.node_checks)
        fates = ", ".join(f"{name} {part:.1%}" for name, part in self.fates.items())
        chaos = ", ".join(f"{name} every {mean:.0f} s" for name, mean in self.chaos.items())
        groups = () if self.sharing is None else self.sharing.keys
        kinds = (("jobs", self.jobs), ("partitions", groups), ("read-write locks", self.rwlocks))
        others = "".join(f"; {kind}: {', '.join(names)}" for kind, names in kinds if names)
        rows = (
            f"seed {self.seed}: {self.processes} processes with {self.users} users each",
            f"locks: {', '.join(self.keys) or 'none'}{', and all together' * self.several}",
            f"foreign clients of each kind: {self.foreign}",
            f"semaphores: {pools or 'none'}; elections: {', '.join(self.elections) or 'none'}{others}",
            f"sessions: TTL {spec.ttl} s (ends after {self.ttl_factor:g} x), lock-delay {spec.lock_delay} s",
            f"sessions: {spec.behavior}, checks {checks}; clocks {self.skew:.1%} off at most",
            f"faults for {self.chaos_seconds:.0f} s: {fates or 'none'}",
            f"aimed at: {', '.join(sorted(self.hot)) or 'nothing'} ({self.hot_probability:.0%})",
            f"and: {chaos or 'nothing else'}; stuck holders: {self.stuck:.0%}",
            *([f"the agent takes {self.connections} connections"] if self.connections else ()),
            *([f"at request {self.strike[0]}: {self.strike[1]}"] if self.strike else ()),
        )
        return "\n".join(rows)


LATEST = 40.0
"""Seconds: clean-up looks for what comes late for more than that."""
SAFE_SKEW = 0.045
"""Less than a session's own allowance for drift."""
_WILD_SKEW = 0.3
"""Far beyond that."""


_SHORT = SessionSpec(ttl=2.0, lock_delay=0.0, allow_unbounded=True)
"""Leases as long as the server waits at least."""
_ON_THE_DELAY = SessionSpec(ttl=8.0, lock_delay=1.0)
"""Leases that rest on the lock-delay alone."""


@dataclass(frozen=True, slots=True)
class Aim:
    """The aim of a part of the runs: some faults that are sure to be there, on some requests."""

    fates: tuple[str, ...] = ()
    chaos: tuple[str, ...] = ()
    hot: tuple[str, ...] = ()
    """One of these kinds of requests is hit by them."""
    spec: SessionSpec | None = None
    """The kind of sessions; drawn without it."""
    patience: float = 1.0
    """How much longer than others it takes: what comes late has to meet a later attempt."""


AIMS = (
    Aim(),
    Aim(),
    Aim(
        fates=("late", "late and cut off"),
        hot=("barge", "join", "take", "unlock", "put", "guarded"),
        patience=2.5,
    ),
    Aim(fates=("late and cut off", "no leader"), hot=("barge", "take", "unlock"), patience=2.5),
    *(Aim(fates=("slow",), chaos=("deregister node",), spec=_ON_THE_DELAY),) * 2,
    *(Aim(fates=("fading", "reply lost"), chaos=("cut",), hot=("renew",), spec=_SHORT),) * 2,
    Aim(fates=("reply lost", "reply cut off"), hot=("barge", "join", "take", "unlock", "create")),
)
"""One of them for each run with locks."""
SLOT_AIMS = (
    Aim(),
    Aim(fates=("late", "late and cut off"), hot=("join", "slot-take", "slot-take-at-once", "slot-leave")),
    Aim(fates=("reply lost", "reply cut off"), hot=("join", "slot-take", "slot-take-at-once", "withdraw")),
    Aim(chaos=("delete contender", "destroy session"), fates=("slow",), hot=("slot-take", "join")),
    Aim(chaos=("delete record", "rewrite record"), fates=("late and cut off",), hot=("slot-take", "join")),
)
"""Likewise, of each run with semaphores alone."""
_OF_SLOTS = frozenset(
    {"delete record", "rewrite record", "damage record", "overwrite contender", "release contender"}
)
CHECKS_CHAOS = {"check flapping": 3.0, "cut": 4.0}
"""The reason for lock-delays: sessions that end at once, and holders that do not hear of it."""
MIXES = (
    *("locks",) * 6,
    *("semaphores",) * 3,
    "elections",
    "locks and elections",
    "locks and semaphores",
    "semaphores and elections",
)
"""Which recipes there are, one of them for each run."""


def draw(seed: int) -> Plan:
    """Return what a seed stands for."""
    rng = Dice(seed, "plan")
    plan = _mixed(seed, rng)
    if rng.chance(SCENES_SHARE):
        plan = replace(plan, **rng.choice(SCENES)(rng, plan))
    elif Dice(seed, "stuck").chance(STUCK_SHARE):
        plan = replace(plan, stuck=STUCK)
    return _with_jobs(_with_more_chaos(plan), Dice(seed, "jobs"))


def _with_more_chaos(plan: Plan) -> Plan:
    """Add some faults to a part of the plans each, and leave the others."""
    for name in () if plan.gentle else MORE_CHAOS:
        rng = Dice(plan.seed, name)
        if rng.chance(MORE_CHAOS_SHARE):
            plan = replace(plan, chaos={**plan.chaos, name: rng.uniform(3.0, 6.0)})
    return plan


def _with_jobs(plan: Plan, rng: Dice) -> Plan:
    """Add a job to a part of the plans that do not promise who is served when, and leave the others."""
    if plan.gentle or not rng.chance(JOBS_SHARE):
        return plan
    plan = replace(plan, jobs=("job/a",))
    if rng.chance(0.5):
        return plan
    # A late record has to meet a later run of its slot.
    fates = {**plan.fates, **dict.fromkeys(rng.choice((("late",), ("late and cut off", "reply lost"))), 0.01)}
    hot = frozenset({RECORD, rng.choice((RECORD, "barge", "take", "adopt"))})
    return replace(plan, fates=fates, hot=hot, hot_probability=0.5, chaos_seconds=2 * plan.chaos_seconds)


def _mixed(seed: int, rng: Dice) -> Plan:
    mix = rng.choice(MIXES)
    aim = rng.choice(AIMS if "locks" in mix or mix == "elections" else SLOT_AIMS)
    likely = {name: 1.0 if name in aim.fates else 0.05 if "late" in name else 0.35 for name in FATES}
    fates = {name: 10 ** rng.uniform(-2.2, -1.0) for name, part in likely.items() if rng.chance(part)}
    any_kind = rng.sample(SHAPES, rng.choice((0, 1, 2)))
    chaos = {
        name: rng.uniform(1.5, 4.0) if name in aim.chaos else rng.uniform(3.0, 15.0)
        for name in CHAOS
        if name in aim.chaos or rng.chance(0.2)
    }
    spec = aim.spec or _spec(rng)
    several = "locks" in mix and Dice(seed, "several").chance(SEVERAL_SHARE)
    pools = _pools(rng) if "semaphores" in mix else ()
    if any(pool.lock_delay for pool in pools):
        chaos = CHECKS_CHAOS | chaos
    return Plan(
        seed=seed,
        processes=rng.choice((2, 2, 2, 3, 3, 4)),
        users=rng.choice((1, 1, 1, 2, 2, 3)),
        keys=_TWO_KEYS if several else _keys(rng) if "locks" in mix else (),
        several=several,
        permits="semaphores" in mix and Dice(seed, "permits").chance(PERMITS_SHARE),
        pools=pools,
        elections=("lead/a",) if "elections" in mix else (),
        # A foreign client asks for no lock-delay, and knows of no fields but its own.
        foreign=int(rng.chance(0.25)),
        spec=spec,
        timeout=rng.choice((2.0, 5.0, 10.0)),
        ttl_factor=1.0 if spec is _SHORT else rng.choice((1.0, 2.0)),
        skew=_WILD_SKEW if rng.chance(0.06) else rng.choice((0.0, SAFE_SKEW)),
        chaos_seconds=rng.uniform(4.0, 10.0) * aim.patience,
        fates=fates,
        hot=frozenset(rng.sample(aim.hot, 1) if aim.hot else any_kind),
        hot_probability=rng.uniform(0.1, 0.5),
        latest=rng.choice((8.0, 8.0, 8.0, LATEST)),
        chaos=chaos,
        patient=rng.chance(0.04),
        spurious=rng.chance(0.2),
    )


def draw_with_agents(seed: int) -> Plan:
    """Return a run with several agents, which fail one at a time, and where nothing else goes wrong."""
    rng = Dice(seed, "agents")
    return replace(
        _mixed(seed, Dice(seed, "plan")),
        agents=rng.choice((2, 3)),
        fates={},
        hot=frozenset(),
        chaos={name: rng.uniform(4.0, 10.0) for name in AGENT_CHAOS},
        chaos_seconds=rng.uniform(40.0, 60.0),
        spec=SessionSpec(ttl=8.0, lock_delay=8.0),
        ttl_factor=1.0,
        lingering=rng.chance(0.5),
        foreign=0,
        skew=0.0,
    )


def draw_with_limit(seed: int) -> Plan:
    """Return a run with more processes than the agent takes connections, where little else goes wrong."""
    rng = Dice(seed, "limit")
    limit = rng.choice((2, 2, 3, 4))
    ttl = rng.choice((4.0, 8.0, 16.0))
    plan = _mixed(seed, Dice(seed, "plan"))
    return replace(
        plan,
        # All sessions have the same lease: a shorter one may end while a query lasts that began before it.
        pools=tuple(replace(pool, lock_delay=ttl if pool.lock_delay else 0.0) for pool in plan.pools),
        connections=limit,
        processes=limit + rng.choice((1, 2)),
        users=rng.choice((1, 1, 2)),
        fates={},
        hot=frozenset(),
        chaos={
            "crowd": rng.uniform(3.0, 8.0),
            **({"crash": rng.uniform(10.0, 20.0)} if rng.chance(0.3) else {}),
        },
        chaos_seconds=rng.uniform(10.0, 18.0),
        spec=SessionSpec(ttl=ttl, lock_delay=ttl),
        timeout=10.0,
        ttl_factor=1.0,
        lingering=rng.chance(0.5),
        foreign=0,
        skew=rng.choice((0.0, SAFE_SKEW)),
    )


def draw_with_members(seed: int) -> Plan:
    """Return a run whose processes are members of a group that share partitions, and do nothing else."""
    rng = Dice(seed, "members")
    plan = _mixed(seed, Dice(seed, "plan"))
    return replace(
        plan,
        sharing=Sharing("group/a", ("0", "1", "2", "3")[: rng.choice((1, 2, 4))]),
        keys=(),
        several=False,
        pools=(),
        elections=(),
        foreign=0,
        processes=rng.choice((2, 3, 3, 4)),
        chaos_seconds=rng.uniform(10.0, 30.0),
        chaos={name: mean for name, mean in plan.chaos.items() if name not in _OF_SLOTS},
    )


def draw_with_rwlocks(seed: int) -> Plan:
    """Return a run with a read-write lock, and nothing else."""
    plan = _mixed(seed, Dice(seed, "plan"))
    return replace(
        plan,
        rwlocks=("jobs/rw",),
        keys=(),
        several=False,
        pools=(),
        elections=(),
        foreign=0,
        users=max(2, plan.users),
        chaos={name: mean for name, mean in plan.chaos.items() if name not in _OF_SLOTS},
    )


def draw_calm(seed: int) -> Plan:
    """Return a run with several recipes at once, in which nothing goes wrong but what operators do."""
    rng = Dice(seed, "calm")
    acts = rng.choice(({}, {}, {"release key": 4.0, "delete key": 6.0}, {"destroy session": 5.0}))
    spec = SessionSpec(ttl=8.0, lock_delay=8.0)
    if rng.chance(0.4):
        # Its sessions go on when the agent's own node leaves.
        spec = SessionSpec(ttl=8.0, node="locks", register_node=True)
        acts = {**acts, "deregister node": 6.0}
    return replace(
        _several_recipes(seed, rng),
        calm=True,
        stuck=rng.choice((0.0, 0.0, STUCK)),
        fates={},
        hot=frozenset(),
        chaos=acts,
        chaos_seconds=rng.uniform(10.0, 20.0),
        spec=spec,
        ttl_factor=1.0,
        lingering=rng.chance(0.3),
        spurious=False,
        skew=rng.choice((0.0, SAFE_SKEW)),
    )


def draw_hiccups(seed: int) -> Plan:
    """Return a run with several recipes at once, in which each request fails once, and nothing else does."""
    rng = Dice(seed, "hiccups")
    broken = ("request lost", "reply lost", "request cut off", "reply cut off", "no leader", "unavailable")
    return replace(
        _several_recipes(seed, rng),
        fates=dict.fromkeys(rng.sample(broken, 2), 0.0),
        hot=frozenset(SHAPES),
        once=True,
        lingering=True,
        chaos={"old leader": 1.5} if rng.chance(0.5) else {},
        chaos_seconds=rng.uniform(10.0, 20.0),
        spec=SessionSpec(ttl=8.0, lock_delay=8.0),
        ttl_factor=1.0,
        spurious=False,
        skew=0.0,
    )


def draw_strike(seed: int) -> Plan:
    """Return a run with one recipe in which one thing goes wrong, at one request.

    Of as many runs in a row as there are recipes, faults and requests, each meets another three of them.
    """
    rng = Dice(seed, "strike")
    recipe, fault = RECIPES[seed % len(RECIPES)], STRIKES[seed % len(STRIKES)]
    return replace(
        _one_recipe(_mixed(seed, Dice(seed, "plan")), recipe),
        calm=fault in _CALM_STRIKES,
        strike=(1 + seed % STRUCK, fault),
        processes=rng.choice((2, 2, 3)),
        users=rng.choice((1, 2)),
        fates={fault: 0.0} if fault in FATES else {},
        hot=frozenset(),
        chaos={},
        chaos_seconds=rng.uniform(3.0, 6.0),
        spec=SessionSpec(ttl=8.0, lock_delay=8.0),
        timeout=10.0,
        ttl_factor=1.0,
        latest=8.0,
        foreign=0,
        spurious=False,
        skew=0.0,
    )


def _one_recipe(plan: Plan, recipe: str) -> Plan:
    return replace(
        plan,
        keys={"lock": _TWO_KEYS[:1], "several locks": _TWO_KEYS}.get(recipe, ()),
        several=recipe == "several locks",
        pools=(Pool("pool/a", 2),) if recipe in {"semaphore", "several slots"} else (),
        permits=recipe == "several slots",
        elections=("lead/a",) if recipe == "election" else (),
        jobs=("job/a",) if recipe == "job" else (),
        rwlocks=("jobs/rw",) if recipe == "read-write lock" else (),
        sharing=Sharing("group/a", ("0", "1")) if recipe == "group" else None,
    )


def _several_recipes(seed: int, rng: Dice) -> Plan:
    """Return a plan with two kinds of recipes and few participants."""
    kinds = rng.sample(("locks", "semaphore", "election", "job", "read-write lock", "group"), 2)
    several = "locks" in kinds and rng.chance(0.3)
    return replace(
        _mixed(seed, Dice(seed, "plan")),
        processes=rng.choice((2, 2, 3)),
        users=2,
        keys=_TWO_KEYS[: 1 + several] if "locks" in kinds else (),
        several=several,
        pools=(Pool("pool/a", rng.choice((1, 2))),) if "semaphore" in kinds else (),
        permits=rng.chance(0.5),
        elections=("lead/a",) if "election" in kinds else (),
        jobs=("job/a",) if "job" in kinds else (),
        rwlocks=("jobs/rw",) if "read-write lock" in kinds else (),
        sharing=Sharing("group/a", ("0", "1")) if "group" in kinds else None,
        foreign=0,
        timeout=10.0,
    )


# -- scenes: worlds where one thing goes wrong, so that what is promised then can be judged


def _watches_fail_once(rng: Dice, plan: Plan) -> dict[str, Any]:
    """Let every watch fail once, at its beginning, and let operators act so that only a watch can notice."""
    broken = ("request cut off", "reply cut off", "no leader", "rate limited", "unavailable", "failed after")
    keys = {"release key": rng.uniform(2.0, 5.0), "delete key": rng.uniform(2.0, 5.0)}
    slots = {"delete record": rng.uniform(3.0, 8.0), "delete contender": rng.uniform(2.0, 5.0)}
    acts = {**(keys if plan.keys or plan.elections else {}), **(slots if plan.pools else {})}
    return {
        "fates": dict.fromkeys(rng.sample(broken, 2), 0.0),
        "hot": frozenset({"watch", "watch-session", "list"}),
        "once": True,
        "lingering": True,
        "chaos": {**acts, "destroy session": rng.uniform(4.0, 10.0)},
        "chaos_seconds": rng.uniform(15.0, 25.0),
        "spec": _long(plan),
        "foreign": 0,
        "skew": 0.0,
    }


def _slow_sessions(rng: Dice, plan: Plan) -> dict[str, Any]:
    """Let creates and renewals take seconds."""
    return {
        "fates": dict.fromkeys(("slow",), 0.02),
        "hot": frozenset({"create", "renew"}),
        "hot_probability": rng.uniform(0.4, 0.9),
        "lingering": rng.chance(0.5),
        "chaos": {"cut": rng.uniform(6.0, 12.0), "destroy session": rng.uniform(6.0, 12.0)},
        "chaos_seconds": rng.uniform(10.0, 20.0),
        "spec": _long(plan),
    }


def _heirs(rng: Dice, plan: Plan) -> dict[str, Any]:
    """Let leaders hand over to candidates at any place in the queue, some of whom stand still."""
    return {
        "keys": (),
        "several": False,
        "pools": (),
        "elections": ("lead/a",),
        "office": "heirs",
        "processes": rng.choice((3, 4, 5)),
        "fates": {},
        "chaos": rng.choice(({}, {"pause": 5.0}, {"idle candidate": 8.0})),
        "chaos_seconds": rng.uniform(15.0, 30.0),
        "spec": _long(plan),
        "foreign": 0,
    }


def _short_offices(rng: Dice, plan: Plan) -> dict[str, Any]:
    """Let leaderships last for a moment, also within the delay of candidates of low priority."""
    return {**_heirs(rng, plan), "office": "short", "chaos": {}, "processes": rng.choice((2, 3))}


def _unanswered_withdrawals(rng: Dice, plan: Plan) -> dict[str, Any]:
    """Let giving up get no answer for longer than it may take."""
    return {
        "fates": dict.fromkeys(("request lost", "reply lost", "slow"), 0.01),
        "hot": frozenset({"withdraw", "slot-withdraw", "delete"}),
        "hot_probability": rng.uniform(0.5, 1.0),
        "chaos": {},
        "chaos_seconds": rng.uniform(10.0, 20.0),
        "spec": _long(plan),
        "users": 3,
    }


def _long(plan: Plan) -> SessionSpec:
    """Return sessions that end by themselves late: what is to be noticed before is."""
    return replace(plan.spec, ttl=8.0)


SCENES: tuple[Callable[[Dice, Plan], dict[str, Any]], ...] = (
    _watches_fail_once,
    _watches_fail_once,
    _slow_sessions,
    _heirs,
    _short_offices,
    _unanswered_withdrawals,
)
PERMITS_SHARE = 0.25
"""The part of the runs with semaphores in which some take several slots at once."""
SEVERAL_SHARE = 0.15
"""The part of the runs with locks in which some take several at once."""
RECIPES = (
    "lock",
    "several locks",
    "semaphore",
    "several slots",
    "election",
    "read-write lock",
    "group",
    "job",
)
STRIKES = (
    "request lost",
    "reply lost",
    "reply cut off",
    "late and cut off",
    "slow",
    "no leader",
    "index back",
    "old leader",
    "pause",
    "crash",
    "close",
    "destroy session",
    "release key",
)
_CALM_STRIKES = frozenset({*STRIKES[:3], "slow", "no leader", "index back"})
"""Those after which the others need no more requests, and no more time."""
_NOTICED_STRIKES = frozenset(
    {"reply cut off", "no leader", "index back", "old leader", "release key", "destroy session"}
)
"""Those that nobody is held up by, as he hears of them, or can go on."""
STRUCK = 61
"""How many requests of a run are struck; no two of these three numbers have a common divisor."""
_TWO_KEYS = ("jobs/a", "jobs/b")
STUCK = 0.4
STUCK_SHARE = 0.2
"""The part of the other runs where holders get stuck."""
MORE_CHAOS_SHARE = 0.2
"""The part of all runs with each of those faults."""
JOBS_SHARE = 0.15
"""The part of all runs in which there is a job besides."""
SCENES_SHARE = 0.3
"""The part of all runs that are one of these."""


def _keys(rng: Dice) -> tuple[str, ...]:
    return _TWO_KEYS[:1] if rng.chance(0.8) else _TWO_KEYS


def _pools(rng: Dice) -> tuple[Pool, ...]:
    # The name of one begins with the other's: they must not be taken for each other.
    names = ("pool/a",) if rng.chance(0.7) else ("pool/a", "pool/ab")
    lock_delay = rng.choice((1.0, 3.0)) if rng.chance(0.15) else 0.0
    return tuple(Pool(name, rng.choice((1, 2, 2, 3)), lock_delay) for name in names)


def _spec(rng: Dice) -> SessionSpec:
    checked = rng.chance(0.15)
    lock_delay = rng.choice((2.0, 4.0)) if checked else rng.choice((0.0, 1.0, 1.0, 3.0, 6.0))
    return SessionSpec(
        ttl=rng.choice((2.0, 4.0, 8.0)),
        lock_delay=lock_delay,
        allow_unbounded=not lock_delay,
        behavior="delete" if rng.chance(0.25) else "release",
        node_checks=(SERF_HEALTH,) if checked else (),
    )
