"""The worlds that a seed is drawn from: mixes of recipes and faults, and worlds that can promise more.

Rules
- Everything is drawn from the seed, and from nothing else.
- Swarm testing: each run has only some kinds of faults, of its own frequency each, and often aims them at a
  few kinds of requests. Runs with everything at once would reach few states that need some luck.
- Where little goes wrong, more is promised: worlds of one recipe, of one fault, or without any, are judged
  by stricter rules.

Source: Groce et al., "Swarm Testing" (2012).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from consul_coord.models import SessionSpec
from consul_coord.models.session import SERF_HEALTH
from consul_coord.testing.simulation.dice import Dice
from consul_coord.testing.simulation.plan import (
    ACTS_BESIDE,
    AGENT_CHAOS,
    CHAOS,
    ENOUGH,
    FATES,
    LATEST,
    MORE_CHAOS,
    ODD_FATES,
    SAFE_SKEW,
    Plan,
    Pool,
)
from consul_coord.testing.simulation.shapes import RECORD, SHAPES
from consul_coord.testing.simulation.sharing import Sharing

if TYPE_CHECKING:
    from collections.abc import Callable

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
    """Return what a seed stands for: a run of one of all worlds."""
    rng = Dice(seed, "calls and crowds")
    plan = (rng.choice(OTHERS) if rng.chance(OTHERS_SHARE) else Dice(seed, "world").choice(_DRAWN))(seed)
    for name, draw_it, share in (
        ("scenes", draw_scene, MORE_SCENES_SHARE),
        ("patience", draw_patient, PATIENT_SHARE),
    ):
        if Dice(seed, name).chance(share):
            plan = draw_it(seed)
    if (plan.rwlocks or plan.sharing is not None) and not _is_strict(plan):
        plan = _with_more_chaos(plan)
    # A crowd opens and closes more connections at once than are enough for others; threads share none.
    if (
        not (plan.connections or plan.crowd or plan.threads)
        and plan.agents == 1
        and Dice(seed, "connected").chance(CONNECTED_SHARE)
    ):
        plan = replace(plan, connections=ENOUGH)
    if plan.sharing is not None:
        plan = replace(plan, **_group(Dice(seed, "group"), plan.sharing))
    if plan.strangers and Dice(seed, "crowd").chance(CROWD_SHARE):
        plan = replace(plan, **_large(Dice(seed, "in a crowd"), plan))
    plan = _keeping(plan)
    longer = (plan.spec.ttl or 0.0) / LEAST_TTL
    if longer > 1 and plan.connections in {0, ENOUGH} and Dice(seed, "own ttl").chance(OWN_TTL_SHARE):
        plan = replace(plan, own_ttl=Dice(seed, "which ttl").choice((0.5, 1 / longer)))
    may_be = plan.several and plan.chaos and plan.agents == 1 and not plan.calm
    if may_be and Dice(seed, "overwritten").chance(OVERWRITTEN_SHARE):
        plan = replace(plan, chaos={"overwrite": 2.0, **plan.chaos})
    plan = _with_late_beginnings(_with_late_notes(plan))
    plan = _refused(_threaded(_still(_amid(_with_hiccups(_behind(_unanswered_endings(_with_acts(plan))))))))
    plan = _alone(plan)
    if ("old leader" in plan.chaos or plan.strike) and Dice(seed, "of two leaders").chance(OF_TWO_SHARE):
        plan = replace(plan, behind=0.5)
    return plan


def _keeping(plan: Plan) -> Plan:
    """Let users of locks keep sessions of their own, in a part of the runs."""
    seed = plan.seed
    if not plan.keys or plan.calm or not Dice(seed, "keeping").chance(KEEPING_SHARE):
        return plan
    plan = replace(plan, keeping=True)
    if not _is_strict(plan) and Dice(seed, "kept and stuck").chance(STUCK_KEEPERS_SHARE):
        # The run outlasts a lock-delay. All requests are answered, so it shows what goes on after the delay.
        plan = replace(plan, stuck=STUCK, chaos_seconds=plan.chaos_seconds + STUCK_KEEPERS_FOR)
        return replace(plan, fates={}, hot=frozenset(), chaos={"destroy session": 6.0, "old leader": 6.0})
    silent = plan.agents == 1 and not plan.gentle and Dice(seed, "silence").chance(SILENCE_SHARE)
    if plan.fates and plan.chaos and silent:
        plan = replace(plan, chaos={**plan.chaos, "cut": 3.0}, spec=replace(plan.spec, ttl=8.0))
    if not _is_strict(plan) and Dice(seed, "unheard").chance(UNHEARD_SHARE):
        # What a request without an answer has done is looked for later: the session may be another's then.
        fates = {**plan.fates, "reply lost": 0.003, "late": 0.003}
        plan = replace(plan, fates=fates, hot=TAKES, hot_probability=0.3, latest=8.0)
    return plan


def _with_late_beginnings(plan: Plan) -> Plan:
    """Let what takes something come late, in a part of the runs: its call may have got that otherwise."""
    rng = Dice(plan.seed, "beginnings")
    is_fit = plan.keys or plan.pools or plan.rwlocks
    if not is_fit or _is_strict(plan) or not rng.chance(BEGINNINGS_SHARE):
        return plan
    return replace(
        plan,
        fates=dict.fromkeys(("late", "late and cut off"), 0.0),
        hot=BEGINNINGS,
        hot_probability=rng.uniform(0.2, 0.5),
        latest=8.0,
        chaos={"release key": 4.0} if rng.chance(0.3) else {},
        chaos_seconds=15.0 + plan.chaos_seconds,
    )


def _with_late_notes(plan: Plan) -> Plan:
    """Let what leaders tell come late, in a part of the runs with elections: amid a later leadership."""
    if not plan.elections or _is_strict(plan) or not Dice(plan.seed, "late notes").chance(LATE_NOTES_SHARE):
        return plan
    return replace(
        plan,
        processes=2,  # so that who has resigned is elected again soon
        fates=dict.fromkeys(("late", "late and cut off"), 0.0),
        hot=NOTES,
        hot_probability=0.6,
        latest=8.0,
        chaos_seconds=2 * plan.chaos_seconds,
    )


def _still(plan: Plan) -> Plan:
    """Let processes stand still amid what they ask for, in a part of the runs with any faults."""
    if plan.callers or _is_strict(plan) or not Dice(plan.seed, "still").chance(STILL_SHARE):
        return plan
    return replace(plan, still=STILL)


def _threaded(plan: Plan) -> Plan:
    """Let threads stand still amid their programs, in a part of the runs with any faults."""
    rng = Dice(plan.seed, "threads")
    is_fit = not (plan.callers or plan.connections or plan.threads or _is_strict(plan))
    if not (is_fit and rng.chance(THREADS_SHARE)):
        return plan
    return replace(plan, threads=rng.choice(THREADS))


def _amid(plan: Plan) -> Plan:
    """Let some of the acts of operators come amid requests, in a part of the runs that have them."""
    rng = Dice(plan.seed, "amid")
    if plan.chaos.keys() & set(ACTS_BESIDE) and rng.chance(AMID_SHARE):
        plan = replace(plan, amid=rng.choice((0.05, 0.05 if plan.calm else 0.2)))
    return plan


def _with_acts(plan: Plan) -> Plan:
    """Let operators act, or an old leader answer, in a part of the runs that would not have it."""
    seed = plan.seed
    if plan.jobs and not _is_strict(plan) and Dice(seed, "jobs overwritten").chance(OVERWRITTEN_SHARE):
        plan = replace(plan, chaos={"overwrite": 3.0, **plan.chaos})
    several_slots = plan.pools and plan.permits and not _is_strict(plan)
    if several_slots and Dice(seed, "slots overwritten").chance(OVERWRITTEN_SHARE):
        plan = replace(plan, chaos={"overwrite contender": 2.0, **plan.chaos})
    if plan.office == "heirs" and not plan.fates and Dice(seed, "heirs behind").chance(HEIRS_BEHIND):
        plan = replace(plan, chaos={**plan.chaos, "old leader": 1.5})
    if plan.strike is not None and plan.lingering == KEPT_FOR and Dice(seed, "kept").chance(ACTS_SHARE):
        # Whether what is held is still watched after a failure shows when somebody takes it away.
        acts = {"release key": 6.0} if plan.all_keys else {"release contender": 6.0} if plan.pools else {}
        plan = replace(plan, chaos=acts)
    return plan


def _unanswered_endings(plan: Plan) -> Plan:
    """Let what gives something back get no answer soon, in a part of the runs: all ends in its time."""
    rng = Dice(plan.seed, "endings")
    if _is_strict(plan) or plan.callers or not rng.chance(ENDINGS_SHARE):
        return plan
    fates = rng.choice((("request lost", "reply lost", "slow"), ("late", "late and cut off", "reply lost")))
    return replace(
        plan,
        fates=dict.fromkeys(fates, 0.003),
        hot=ENDINGS,
        hot_probability=rng.uniform(0.4, 1.0),
        chaos={"close": 8.0} if rng.chance(0.5) else {},
    )


def _refused(plan: Plan) -> Plan:
    """Let nothing go wrong but that permissions are missing, and that sessions end, in a part of the runs."""
    asks_alone = plan.elections or plan.sharing is not None or plan.guests is not None
    share = REFUSED_SHARE if asks_alone else REFUSED_SHARE / 4
    if _is_strict(plan) or plan.callers or not Dice(plan.seed, "refused").chance(share):
        return plan
    chaos = {"permission revoked": 4.0, "destroy session": 5.0}
    return replace(
        plan, fates={}, chaos=chaos, amid=0.0, still=0.0, chaos_seconds=REFUSED_FOR, lingering=LONG
    )


def _is_strict(plan: Plan) -> bool:
    """Return whether a world promises more than that nothing bad happens, so that no faults are added."""
    is_limited = plan.connections not in {0, ENOUGH}
    is_strict = plan.calm or plan.gentle or plan.once or plan.has_only_acts or plan.strike is not None
    return is_strict or is_limited or plan.agents > 1 or bool(plan.crowd)


def _with_hiccups(plan: Plan) -> Plan:
    """Let each request fail once in a part of the runs with crowds, and add other groups where that is so."""
    if plan.crowd and Dice(plan.seed, "hiccups in a crowd").chance(CROWD_HICCUPS_SHARE):
        fates = dict.fromkeys(Dice(plan.seed, "broken").sample(BROKEN, 2), 0.0)
        return replace(plan, calm=False, fates=fates, hot=frozenset(SHAPES), once=True, lingering=0.0)
    if plan.once and plan.sharing is not None:
        others = Dice(plan.seed, "strangers").choice(STRANGERS)
        chaos = {**plan.chaos, "strangers": 1.0} if others else plan.chaos
        return replace(plan, strangers=others, chaos=chaos)
    return plan


def _behind(plan: Plan) -> Plan:
    """Let an old leader answer in more of the runs in which anything may go wrong."""
    may_be = plan.chaos and plan.hot != ENDINGS and "old leader" not in plan.chaos
    if may_be and not _is_strict(plan) and Dice(plan.seed, "behind").chance(BEHIND_SHARE):
        plan = replace(plan, chaos={**plan.chaos, "old leader": 2.5})
    return plan


def _alone(plan: Plan) -> Plan:
    """Let nothing happen near the groups of strangers, in a part of the runs that have some.

    No other change brings to light then that one was missed.
    """
    if not (plan.strangers and Dice(plan.seed, "strangers alone").chance(ALONE_SHARE)) or plan.once:
        return plan
    return replace(
        plan,
        sharing=None,
        guests=None,
        strangers=("group/a/b", "group/b"),
        large="",
        chaos={"strangers": 4.0, "old leader": 2.0},
        chaos_seconds=50.0,
        fates={},
    )


def _large(rng: Dice, plan: Plan) -> dict[str, Any]:
    """Let one of the other groups be large, also beside an old leader."""
    old = {"old leader": 3.0} if rng.chance(0.5) else {}
    return {"large": plan.strangers[0], "chaos": {**plan.chaos, **old}}


def _group(rng: Dice, sharing: Sharing) -> dict[str, Any]:
    """Let some groups have members of several weights, or with a bound, or those whose ids several want."""
    if rng.chance(GUESTS_SHARE):
        return {"guests": Sharing("group/guests", ()), "sharing": None}
    weighing = rng.chance(0.5)
    bound = rng.choice((1.0, 1.25, 2.0)) if rng.chance(0.4) else None
    return {"sharing": replace(sharing, weighing=weighing, bound=bound)}


def draw_with_threads(seed: int) -> Plan:
    """Return a run of few clients with many threads, which stand still, while clients close."""
    rng = Dice(seed, "many threads")
    plan = draw_with_members(seed) if rng.chance(0.25) else draw_mixed(seed)
    acts = rng.sample(
        ("destroy session", "release key", "delete key", "permission revoked"), rng.choice((0, 1, 2))
    )
    return replace(
        plan,
        threads=rng.choice(THREADS[1:]),
        processes=rng.choice((1, 1, 2)),
        users=3,
        foreign=0,
        fates={},
        hot=frozenset(),
        jobs=(),
        chaos={"close": rng.choice((1.5, 4.0)), **dict.fromkeys(acts, 3.0)},
    )


def draw_mixed(seed: int) -> Plan:
    """Return a run of locks, semaphores and elections in which anything goes wrong."""
    rng = Dice(seed, "plan")
    plan = _mixed(seed, rng)
    if rng.chance(SCENES_SHARE):
        plan = _in_a_scene(plan, rng)
    elif Dice(seed, "stuck").chance(STUCK_SHARE):
        plan = replace(plan, stuck=STUCK)
    return _with_jobs(_with_more_chaos(plan), Dice(seed, "jobs"))


def draw_scene(seed: int) -> Plan:
    """Return a run in which one thing goes wrong, so that what is promised then can be judged."""
    return _in_a_scene(_mixed(seed, Dice(seed, "plan")), Dice(seed, "scene"))


def _in_a_scene(plan: Plan, rng: Dice) -> Plan:
    plan = replace(plan, **rng.choice(SCENES)(rng, plan))
    if plan.office == "heirs" and Dice(plan.seed, "late namings").chance(LATE_NAMINGS):
        plan = replace(plan, fates={"slow": 0.0}, hot=frozenset({"name-heir"}), hot_probability=0.5)
    return plan


def _with_more_chaos(plan: Plan) -> Plan:
    """Add some faults to a part of the plans each, and leave the others."""
    for name in () if plan.gentle else MORE_CHAOS:
        rng = Dice(plan.seed, name)
        if rng.chance(MORE_CHAOS_SHARE):
            plan = replace(plan, chaos={**plan.chaos, name: rng.uniform(3.0, 6.0)})
    if "outage" in plan.chaos and (plan.spec.lock_delay or 0.0) < LONG_LEASE:
        # Leases of seconds, in which renewals fail again and again.
        spec = replace(plan.spec, ttl=LONG_LEASE, lock_delay=LONG_LEASE)
        plan = replace(plan, spec=spec, lingering=LONG)
    rng = Dice(plan.seed, "slow watches")
    if "old leader" in plan.chaos and rng.chance(SLOW_WATCHES_SHARE):
        # What a watch has not told yet, only what is asked then can tell: of a leader that may be old.
        acts = dict.fromkeys(("release key", "delete key", "delete contender", "destroy session"), 4.0)
        slow: dict[str, Any] = {
            "fates": {"slow": 0.0},
            "hot": frozenset({"watch", "watch-session"}),
            "hot_probability": 0.5,
        }
        plan = replace(plan, chaos={**acts, **plan.chaos}, curious=True, **slow)
    return plan


def _with_jobs(plan: Plan, rng: Dice) -> Plan:
    """Add a job to a part of the plans that do not promise who is served when, and leave the others."""
    if plan.gentle or not rng.chance(JOBS_SHARE):
        return plan
    damage = {} if "restore" in plan.chaos or rng.chance(0.6) else {"damage job": 4.0}
    plan = replace(plan, jobs=("job/a",), chaos={**plan.chaos, **damage})
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
    rng, slow = Dice(seed, "agents"), Dice(seed, "slow readings").chance(0.4)
    return replace(
        _mixed(seed, Dice(seed, "plan")),
        agents=rng.choice((2, 3)),
        # Some readings are slow, which is no reason to leave an agent.
        fates={"slow": 0.0} if slow else {},
        hot=frozenset({"list", "look", "read", "glance"} if slow else ()),
        hot_probability=0.1,
        chaos={name: rng.uniform(4.0, 10.0) for name in AGENT_CHAOS},
        chaos_seconds=rng.uniform(30.0, 45.0),
        spec=SessionSpec(ttl=8.0, lock_delay=8.0),
        ttl_factor=1.0,
        lingering=LONG * rng.chance(0.5),
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
        lingering=LONG * rng.chance(0.5),
        foreign=0,
        skew=rng.choice((0.0, SAFE_SKEW)),
    )


def draw_with_members(seed: int) -> Plan:
    """Return a run whose processes are members of a group that share partitions, and do nothing else."""
    rng, others = Dice(seed, "members"), Dice(seed, "strangers").choice(STRANGERS)
    plan = _mixed(seed, Dice(seed, "plan"))
    if rng.chance(0.5):
        # Who is told of each change can be expected to act at once.
        plan = replace(plan, fates={}, hot=frozenset(), chaos=ACTS, spec=SessionSpec(ttl=8.0, lock_delay=1.0))
    return replace(
        plan,
        sharing=Sharing("group/a", ("0", "1", "2", "3")[: rng.choice((1, 2, 4))]),
        strangers=others,
        curious=True,
        keys=(),
        several=False,
        pools=(),
        elections=(),
        foreign=0,
        processes=rng.choice((2, 3, 3, 4)),
        chaos_seconds=rng.uniform(8.0, 16.0),
        chaos={
            **{name: mean for name, mean in plan.chaos.items() if name not in _OF_SLOTS},
            **({"remove member": 5.0} if Dice(seed, "removed").chance(0.5) else {}),
            **({"strangers": 1.0} if others else {}),
            **({"old leader": 3.0} if Dice(seed, "an old leader").chance(OLD_LEADERS_OF_GROUPS) else {}),
        },
    )


def draw_with_callers(seed: int) -> Plan:
    """Return a run whose users read and write keys and make sessions by plain calls, and watch all that."""
    rng = Dice(seed, "callers")
    kind = rng.choice(
        ("calm", "faults", "faults", "failing", "failing", "odd", "odd", "no leader", "out of reach")
    )
    plan = replace(
        _mixed(seed, Dice(seed, "plan")),
        callers=rng.choice((1, 2)),
        keys=(),
        several=False,
        pools=(),
        elections=(),
        foreign=0,
        processes=2,
        spec=SessionSpec(ttl=8.0, lock_delay=8.0),
        timeout=10.0,
        chaos_seconds=rng.uniform(10.0, 20.0),
        skew=rng.choice((0.0, SAFE_SKEW)),
    )
    hot = frozenset(rng.sample(CALLED, 3))
    match kind:
        case "faults":
            # What a proxy applies twice is counted twice, which nobody can help.
            fates = {name: 0.1 * rng.random() ** 2 for name in rng.sample([*FATES], 5) if name != "twice"}
            chaos = {name: rng.uniform(5.0, 12.0) for name in rng.sample(CALL_FAULTS, 2)}
            return replace(plan, fates=fates, hot=hot, chaos=chaos)
        case "failing":
            # Calls meet one failure after the other, until their time is over.
            fates, chaos = (
                dict.fromkeys(rng.sample(FAILURES, 2), 0.01),
                {"pause": 12.0} if rng.chance(0.3) else {},
            )
            often = rng.choice((0.8, 0.97))
            return replace(plan, fates=fates, hot=frozenset(SHAPES), chaos=chaos, hot_probability=often)
        case "odd":
            fates = dict.fromkeys(rng.sample([*ODD_FATES], 4), 0.03)
            return replace(plan, fates={**fates, "garbled": 0.15}, hot=hot, chaos={}, hot_probability=0.3)
        case "no leader":
            return replace(plan, fates={}, hot=frozenset(), chaos={"leaderless": 6.0}, chaos_seconds=30.0)
        case "out of reach":
            return replace(
                plan, fates={}, hot=frozenset(), chaos={"cut": 9.0, "outage": 15.0}, chaos_seconds=40.0
            )
        case _:
            return replace(plan, calm=True, fates={}, hot=frozenset(), chaos={}, spurious=False)


def draw_with_crowds(seed: int) -> Plan:
    """Return a run in which each client watches more keys than have a query each, and little goes wrong."""
    rng = Dice(seed, "crowds")
    faults = {"cut": 8.0, "agent restart": 8.0} if rng.chance(0.4) else {}
    going = Dice(seed, "the crowd goes")
    goes = going.chance(0.4)
    recipe, others = rng.choice(("lock", "several locks", "election", "")), Dice(seed, "told by their own")
    if others.chance(OWN_WAITERS_SHARE):
        recipe = others.choice(("semaphore", "read-write lock"))
    plan = _one_recipe(_mixed(seed, Dice(seed, "plan")), recipe)
    return replace(
        plan,
        crowd=rng.choice((20, 34, 44)),
        crowd_for=going.uniform(2.0, 6.0) if goes else math.inf,
        calm=not faults,
        processes=2,
        users=rng.choice((2, 4)),
        fates={},
        hot=frozenset(),
        chaos={
            "write": 0.3,
            **faults,
            **({"release key": 2.0 if goes else 3.0} if rng.chance(0.5) or goes else {}),
            **({"release contender": 3.0, "delete record": 5.0} if plan.pools else {}),
        },
        chaos_seconds=rng.uniform(8.0, 15.0) + 10.0 * goes,
        spec=SessionSpec(ttl=8.0, lock_delay=8.0),
        timeout=10.0,
        ttl_factor=1.0,
        lingering=LONG * (rng.chance(0.5) or goes),
        foreign=0,
        skew=0.0,
    )


def draw_with_rwlocks(seed: int) -> Plan:
    """Return a run with a read-write lock, and nothing else."""
    plan = _mixed(seed, Dice(seed, "plan"))
    overwritten = Dice(seed, "rw overwritten")
    acts = {"overwrite contender": 2.0} if overwritten.chance(OVERWRITTEN_SHARE) else {}
    if acts and overwritten.chance(0.5):
        # A contender that somebody has written is deleted as it is, which may fail.
        fates = dict.fromkeys(("request lost", "request cut off", "no leader"), 0.0)
        plan = replace(plan, fates=fates, hot=frozenset({"delete"}), hot_probability=0.5)
    return replace(
        plan,
        rwlocks=("jobs/rw",),
        curious=True,
        keys=(),
        several=False,
        pools=(),
        elections=(),
        foreign=0,
        users=max(2, plan.users),
        chaos={
            **{name: mean for name, mean in plan.chaos.items() if name not in _OF_SLOTS},
            **acts,
        },
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
        curious=True,
        calm=True,
        stuck=rng.choice((0.0, 0.0, STUCK)),
        fates={},
        hot=frozenset(),
        chaos=acts,
        chaos_seconds=rng.uniform(10.0, 20.0),
        spec=spec,
        ttl_factor=1.0,
        lingering=LONG * rng.chance(0.3),
        spurious=False,
        skew=rng.choice((0.0, SAFE_SKEW)),
    )


def draw_patient(seed: int) -> Plan:
    """Return a calm run in which one thing is kept for long, and operators destroy sessions meanwhile."""
    other = Dice(seed, "patient otherwise").chance(PATIENT_OTHERS)
    recipes = ("read-write lock", "several slots") if other else ("lock", "lock", "election")
    return replace(
        _one_recipe(draw_calm(seed), Dice(seed, "patient").choice(recipes)),
        processes=3,
        users=2,
        chaos={"destroy session": 3.0},
        chaos_seconds=30.0,
        lingering=KEPT_FOR,
    )


def draw_hiccups(seed: int) -> Plan:
    """Return a run with several recipes, in which each request fails once, and operators act at most."""
    rng = Dice(seed, "hiccups")
    plan = _several_recipes(seed, rng)
    slots = {"delete contender": 3.0, "delete record": 8.0} if plan.pools else {}
    acts = {"release key": 3.0, "delete key": 5.0, **slots} if Dice(seed, "operators").chance(0.5) else {}
    return replace(
        plan,
        curious=True,
        fates=dict.fromkeys(rng.sample(BROKEN, 2), 0.0),
        hot=frozenset(SHAPES),
        once=True,
        twice=Dice(seed, "fails twice").chance(TWICE_SHARE),
        lingering=LONG,
        chaos={**acts, **({"old leader": 1.5} if rng.chance(0.5) else {})},
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
        curious=True,
        calm=fault in _CALM_STRIKES,
        strike=(1 + seed % STRUCK, fault),
        stuck=STUCK * Dice(seed, "stuck").chance(STUCK_SHARE),
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


def draw_keepers(seed: int) -> Plan:
    """Return a run with one recipe in which holds last long, and one thing goes wrong meanwhile."""
    rng = Dice(seed, "keepers")
    plan = draw_strike(seed)
    return replace(
        plan,
        strike=(1 + seed % KEPT, STRIKES[seed % len(STRIKES)]),
        users=1,
        lingering=KEPT_FOR,
        chaos_seconds=rng.uniform(20.0, 40.0),
        connections=ENOUGH * rng.chance(0.5),
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
        "lingering": LONG,
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
        "lingering": LONG * rng.chance(0.5),
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
        "chaos": rng.choice(({}, {"pause": 5.0}, {"idle candidate": 8.0}, {"release key": 1.0})),
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
OLD_LEADERS_OF_GROUPS = 0.3
"""The part of the runs with groups in which old leaders answer."""
SLOW_WATCHES_SHARE = 0.4
"""The part of the runs with old leaders and any faults in which watches are slow, and operators act."""
STILL, STILL_SHARE = 0.03, 0.25
"""The part of the requests amid which their sender stands still, and of the runs in which that is so."""
THREADS, THREADS_SHARE = (0.01, 0.05, 0.3), 0.5
"""The part of the steps amid which a thread stands still, and of the runs in which that may be so."""
AMID_SHARE = 0.5
"""The part of the runs with acts of operators in which these come between a client's look and its write."""
BROKEN = ("request lost", "reply lost", "request cut off", "reply cut off", "no leader", "unavailable")
"""Two of them are what each request meets once, where each fails once."""
TWICE_SHARE = 0.3
"""The part of the runs in which each request fails once where the next one of its kind can't be sent."""
CROWD_HICCUPS_SHARE = 0.3
"""The part of the runs with crowds of watches in which each request fails once."""
OWN_WAITERS_SHARE = 0.35
"""The part of them in which clients have sessions for each wait, and wake their own waiters."""
CROWD_SHARE = 0.35
"""The part of the runs with groups of strangers in which one of these is large."""
ALONE_SHARE = 0.3
"""The part of the runs with groups of strangers in which there are no other groups, beside an old leader."""
GUESTS_SHARE = 0.35
"""The part of the runs with groups in which several want the same ids, and nobody shares anything."""
LATE_NAMINGS = 0.4
"""The part of the runs with heirs in which an heir may be named late, and have left the queue."""
PERMITS_SHARE = 0.25
"""The part of the runs with semaphores in which some take several slots at once."""
KEEPING_SHARE = 0.2
"""The part of the runs with locks in which users keep sessions of their own."""
STUCK_KEEPERS_SHARE, STUCK_KEEPERS_FOR = 0.3, 20.0
"""The part of the runs with such users in which holders get stuck and little else goes wrong, and by how many
seconds these are longer."""
TAKES = frozenset({"barge", "join", "take", "several"})
UNHEARD_SHARE = 0.4
"""The requests that lock a key, and the part of the runs with such users in which many get no answer."""
SILENCE_SHARE = 0.5
"""The part of the runs with such users and faults of all kinds in which links are often cut for long."""
BEGINNINGS = frozenset({*TAKES, "locking", "slot-take", "slot-take-at-once", "adopt"})
BEGINNINGS_SHARE = 0.08
"""The requests that take something, and the part of the runs with locks or slots in which many come late."""
ENDINGS = frozenset({"withdraw", "slot-withdraw", "slot-leave", "unlock", "delete", "destroy"})
ENDINGS_SHARE = 0.08
"""The requests that give something back, and the part of the runs in which most of these get no answer."""
REFUSED_SHARE = 0.12
REFUSED_FOR = 25.0
"""The part of the runs with candidates or members in which permissions are missing, for so many seconds."""
NOTES = frozenset({"note", "name-heir", "other"})
LATE_NOTES_SHARE = 0.15
"""The requests by which leaders tell something, and the part of the runs with elections with late ones."""
BEHIND_SHARE = 0.3
"""The part of the other runs with any faults in which an old leader answers now and then."""
OF_TWO_SHARE = 0.5
"""The part of the runs with old leaders in which the new one answers as many readings."""
ACTS_SHARE = 0.6
"""The part of the runs of keepers in which operators take away what is held."""
HEIRS_BEHIND = 0.5
"""The part of those with heirs, where nothing else goes wrong."""
LEAST_TTL = 2.0
OWN_TTL_SHARE = 0.35
"""Seconds of a TTL at least, and the part of the runs with longer ones where some sessions have less."""
OVERWRITTEN_SHARE = 0.5
"""The part of the runs with locks of several keys, several slots or jobs, and any faults, in which operators
write to these."""
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
CONNECTED_SHARE = 0.4
"""The part of all runs that have connections, but no limit that anybody meets."""
STRUCK = 61
"""How many requests of a run are struck; no two of these three numbers have a common divisor."""
KEPT = 149
"""Likewise, where what is got is kept for long."""
CALLED = (
    *("read", "list", "watch", "put-cas", "delete", "create", "destroy", "renew", "acquire"),
    *("release", "look", "glance", "other"),
)
"""The kinds of requests of plain calls that faults are aimed at."""
FAILURES = (
    "connection refused",
    "reply cut off",
    "reply lost",
    "rate limited",
    "unavailable",
    "failed after",
)
"""The fates that some calls meet again and again."""
CALL_FAULTS = ("pause", "crash", "cut", "leader change", "agent restart", "old leader", "close")
LONG_LEASE = 8.0
"""Seconds of a TTL and a lock-delay for which renewals fail, where an agent refuses connections for long."""
LONG = 12.0
KEPT_FOR = 30.0
"""Seconds for which most of what is got is kept at most, where that is long, and where it is very long."""
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


STRANGERS = (
    (),
    (),
    ("group/b",),
    ("other/c",),
    ("group/a/b", "group/b", "other/c", "wide/d"),
)
"""The other groups that are watched: below one folder, in another one, and everywhere."""
ACTS = {"release key": 3.0, "delete key": 6.0, "destroy session": 15.0, "crash": 20.0}
"""The faults of groups where nobody is held up by one."""
SHARES = {
    draw_mixed: 11,
    draw_strike: 12,
    draw_keepers: 3,
    draw_hiccups: 4,
    draw_calm: 2,
    draw_with_rwlocks: 2,
    draw_with_members: 3,
    draw_with_agents: 2,
    draw_with_limit: 1,
}
"""How many of 40 seeds, on average, are drawn from which world, of those that are from none of the others."""
_DRAWN = tuple(world for world, share in SHARES.items() for _ in range(share))
MORE_SCENES_SHARE = 0.08
"""The part of all seeds that stands for a scene, besides those of mixed runs."""
PATIENT_SHARE = 0.04
"""The part of all seeds that stands for a run in which one thing is kept for long."""
PATIENT_OTHERS = 0.4
"""The part of these in which the thing is a read-write lock or several slots."""
OTHERS_SHARE = 0.2
OTHERS = draw_with_callers, draw_with_callers, draw_with_crowds, draw_with_threads
"""The worlds of the others, drawn apart so that most seeds stand for what they did before."""
