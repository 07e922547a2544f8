"""Faults planted into the recipes, one at a time, each of which the simulator must find.

Rules
- A mutation is a row: which function, which text of it, and what stands there instead. A row whose text does
  not occur exactly once fails, so that no mutation is lost when the recipes change.
- Only the function is replaced, for as long as the block lasts; everything else is what ships.
"""

from __future__ import annotations
import __future__

import inspect
import sys
import textwrap
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from consul_coord.http import retry, update
from consul_coord.http.agents import Agent, Agents
from consul_coord.http.endpoints import _json
from consul_coord.http.retry import Failures
from consul_coord.http.transport import pool
from consul_coord.http.transport.exchange import Engine
from consul_coord.io import Contact
from consul_coord.models import session as session_model
from consul_coord.recipes import client as coordinator
from consul_coord.recipes.cleanup.reaper import Reaper
from consul_coord.recipes.cleanup.tasks import RemoveKey
from consul_coord.recipes.cleanup.unlock import Locked
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.contend import attempt
from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.contend.attempt import Attempt
from consul_coord.recipes.contend.pooled import PooledAttempt
from consul_coord.recipes.contend.tickets import Tickets
from consul_coord.recipes.election import asking as election_calls
from consul_coord.recipes.election import candidate, heirs, leader
from consul_coord.recipes.election.candidacy import Candidacy, ElectionPlan
from consul_coord.recipes.election.candidate import Candidate
from consul_coord.recipes.election.following import Following
from consul_coord.recipes.election.leader import LeaderFollower
from consul_coord.recipes.election.leadership import LeadershipView
from consul_coord.recipes.election.sight import Sight
from consul_coord.recipes.election.term import Term
from consul_coord.recipes.group import members
from consul_coord.recipes.group.follow import MembersFollower
from consul_coord.recipes.group.membership import MemberAttempt, Membership
from consul_coord.recipes.hold import asking, evidence, holds
from consul_coord.recipes.hold.grant import Grant
from consul_coord.recipes.hold.holds import Holds
from consul_coord.recipes.hold.limits import Limits
from consul_coord.recipes.lock import attempt as contend
from consul_coord.recipes.lock import keys as lock_keys
from consul_coord.recipes.lock import lock
from consul_coord.recipes.lock.attempt import LockAttempt
from consul_coord.recipes.lock.keys import MultiLockKind
from consul_coord.recipes.lock.multi import MultiLockAttempt
from consul_coord.recipes.once import once, record
from consul_coord.recipes.partition.part import Part
from consul_coord.recipes.partition.partitioning import Partitioning
from consul_coord.recipes.partition.rendezvous import Rendezvous
from consul_coord.recipes.rwlock import lock as rwlock
from consul_coord.recipes.rwlock import queue as rwqueue
from consul_coord.recipes.rwlock.attempt import RwAttempt
from consul_coord.recipes.rwlock.kind import RwKind
from consul_coord.recipes.semaphore import slots
from consul_coord.recipes.semaphore.attempt import PermitAttempt
from consul_coord.recipes.semaphore.kind import Memory, PermitKind
from consul_coord.recipes.session import handling
from consul_coord.recipes.session import keeping as session
from consul_coord.recipes.session.keeping import KeptSession, Sessions, SessionSource
from consul_coord.recipes.session.lease import Lease
from consul_coord.recipes.session.pool import SessionPool
from consul_coord.recipes.watch import shared_queries
from consul_coord.recipes.watch.engine import Watches
from consul_coord.recipes.watch.follow import Follower
from consul_coord.recipes.watch.together import Together
from consul_coord.testing.simulation import calls, workload
from consul_coord.testing.simulation.dice import Dice
from consul_coord.testing.simulation.plan import ENOUGH, Pool
from consul_coord.testing.simulation.promises import Promises
from consul_coord.testing.simulation.sharing import Sharing
from consul_coord.testing.simulation.worlds import (
    LONG,
    NOTES,
    RECIPES,
    SCENES,
    draw,
    draw_calm,
    draw_hiccups,
    draw_keepers,
    draw_mixed,
    draw_patient,
    draw_strike,
    draw_with_agents,
    draw_with_callers,
    draw_with_crowds,
    draw_with_limit,
    draw_with_members,
    draw_with_rwlocks,
    draw_with_threads,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from consul_coord.testing.simulation.judge import Rule
    from consul_coord.testing.simulation.plan import Plan


@dataclass(frozen=True, slots=True)
class Mutation:
    """One planted fault."""

    name: str
    home: Any
    """The module or class that the function belongs to."""
    function: str
    was: str
    becomes: str
    rare: bool = False
    """Whether it takes many seeds to be found."""
    breaks: Rule | None = None
    """The rule that must be found broken; None for whichever is."""
    also: Mutation | None = None
    """The other place that the fault is in."""
    within: int = 2_000
    """Of so many seeds one must find it."""
    drawn: Callable[[int], Plan] = draw_mixed
    """What a seed stands for."""

    def mutated(self) -> Any:
        """Return the function with the fault in it."""
        found = getattr(self.home, self.function)
        function: Any = found.fget if isinstance(found, property) else found
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(self.was) == 1, (
            f"{self.name}: {self.was!r} is not in {self.function} exactly once"
        )
        module = sys.modules[function.__module__]
        source = source.replace(self.was, self.becomes)
        code = compile(
            # Outside its class, ``super()`` does not know which that is.
            source.replace("super()", f"super({getattr(self.home, '__name__', '')}, self)"),
            str(module.__file__),  # threads stand still at the lines of the recipes
            "exec",
            flags=__future__.annotations.compiler_flag,
            dont_inherit=True,
        )
        made: dict[str, Any] = {}
        exec(code, vars(module), made)
        return made[self.function]

    @contextmanager
    def planted(self) -> Generator[None]:
        """Have the fault in place."""
        was = getattr(self.home, self.function)
        setattr(self.home, self.function, self.mutated())
        try:
            with nullcontext() if self.also is None else self.also.planted():
                yield
        finally:
            setattr(self.home, self.function, was)


def _sharing(seed: int) -> Plan:
    """Return a run with partitions, as the worlds mix them."""
    return next(plan for plan in map(draw, count(40 * seed)) if plan.sharing is not None)


def _beside_an_old_leader(seed: int) -> Plan:
    """Return a run in which operators act while an old leader answers."""
    return replace(draw_hiccups(seed), chaos={"old leader": 1.5, "release key": 3.0})


def _handing_over(seed: int) -> Plan:
    """Return a run whose users hand the sessions of their locks over."""
    return replace(draw_mixed(seed), keys=("jobs/a",), several=False, keeping=True)


def _closing(seed: int) -> Plan:
    """Return a run in which clients are closed amid their users' calls."""
    return replace(draw_mixed(seed), fates={}, chaos={"close": 3.0})


def _strangers_alone(seed: int) -> Plan:
    """Return a run with groups that only strangers are members of."""
    plans = map(draw, count(500 * seed))
    return next(plan for plan in plans if plan.strangers and not (plan.sharing or plan.guests))


def _closing_in_silence(seed: int) -> Plan:
    """Return such a run in which links are often cut for long."""
    plan = _handing_over(seed)
    return replace(plan, chaos={**plan.chaos, "cut": 3.0}, spec=replace(plan.spec, ttl=8.0))


def _overwritten(seed: int) -> Plan:
    """Return a run in which operators write to keys that are held together."""
    keys = ("jobs/a", "jobs/b")
    return replace(draw_mixed(seed), keys=keys, several=True, fates={}, chaos={"overwrite": 2.0})


def _taking_several(seed: int) -> Plan:
    """Return a plan in which some take several slots at once, if it has a semaphore."""
    return replace(draw_mixed(seed), permits=True)


def _standing_still(seed: int) -> Plan:
    """Return a run with a lock in which processes stand still amid renewals."""
    plan = replace(draw_mixed(seed), keys=("jobs/a",), several=False, pools=(), elections=())
    return replace(plan, still=0.1, fates={}, chaos={}, lingering=LONG, spec=replace(plan.spec, ttl=2.0))


def _several_slots_overwritten(seed: int) -> Plan:
    """Return a run in which some take several slots at once, and operators write to these."""
    plan = replace(draw_mixed(seed), keys=(), several=False, elections=(), jobs=())
    plan = replace(plan, pools=(Pool("pool/a", 2),), permits=True)
    return replace(plan, fates={}, chaos={"overwrite contender": 1.0}, threads=0.0)


def _failing_twice(seed: int) -> Plan:
    """Return a run in which each request fails, and the next one of its kind can't be sent."""
    return replace(draw_hiccups(seed), twice=True)


def _one_lock(seed: int) -> Plan:
    """Return a run with a lock and nothing else, in which nothing goes wrong."""
    plan = replace(draw_mixed(seed), keys=("jobs/a",), several=False, pools=(), elections=(), jobs=())
    return replace(plan, fates={}, hot=frozenset(), chaos={}, amid=0.0, chaos_seconds=30.0)


def _stuck_keepers(seed: int) -> Plan:
    """Return a run with a lock in which users keep sessions, and holders get stuck."""
    plan = replace(draw_mixed(seed), keys=("jobs/a",), several=False, pools=(), elections=(), jobs=())
    plan = replace(plan, keeping=True, stuck=0.4, fates={}, hot=frozenset(), amid=0.0, threads=0.0)
    return replace(plan, chaos={"destroy session": 6.0}, chaos_seconds=30.0)


def _kept_on_long_leases(seed: int) -> Plan:
    """Return the same without stuck holders; the TTL is longer than the lock-delay."""
    plan = _stuck_keepers(seed)
    return replace(plan, stuck=0.0, spec=replace(plan.spec, ttl=8.0, lock_delay=3.0, node_checks=()))


def _rwlocks_overwritten(seed: int) -> Plan:
    """Return a run with a read-write lock in whose queue operators write, where deletions fail."""
    plan = draw_with_rwlocks(seed)
    fates = dict.fromkeys(("request lost", "request cut off", "no leader"), 0.0)
    plan = replace(plan, fates=fates, hot=frozenset({"delete"}), hot_probability=0.5)
    return replace(plan, chaos={**plan.chaos, "overwrite contender": 2.0})


def _late_notes(seed: int) -> Plan:
    """Return a run with an election in which what leaders tell comes late."""
    plan = replace(draw_mixed(seed), keys=(), several=False, pools=(), elections=("lead/a",), jobs=())
    plan = replace(
        plan, processes=2, fates=dict.fromkeys(("late", "late and cut off"), 0.0), chaos={}, office=""
    )
    return replace(plan, hot=NOTES, hot_probability=0.6, latest=8.0, chaos_seconds=30.0, lingering=0.0)


def _in_outages(seed: int) -> Plan:
    """Return a run with a lock whose agent is away for seconds."""
    plan = replace(draw_mixed(seed), keys=("jobs/a",), several=False, pools=(), elections=(), jobs=())
    plan = replace(plan, fates={}, hot=frozenset(), chaos={"outage": 6.0}, chaos_seconds=20.0)
    return replace(plan, lingering=LONG, spec=replace(plan.spec, ttl=8.0, lock_delay=8.0, node_checks=()))


def _crowds_at_a_semaphore(seed: int) -> Plan:
    """Return a run with many watches, in which many threads wait for slots."""
    return replace(draw_with_crowds(seed), keys=(), several=False, elections=(), pools=(Pool("pool/a", 2),))


def _watching(seed: int) -> Plan:
    """Return a plan with a lock whose watches fail once."""
    plan = replace(draw_mixed(seed), keys=("jobs/a",), several=False, pools=(), elections=())
    return replace(plan, **SCENES[0](Dice(seed, "watching"), plan))


def _in_short_offices(seed: int) -> Plan:
    """Return a run with leaderships that last for a moment."""
    plan = draw_mixed(seed)
    return replace(plan, **SCENES[4](Dice(seed, "short offices"), plan))


def _renewing_slowly(seed: int) -> Plan:
    """Return a scene in which creates and renewals take seconds."""
    plan = draw_mixed(seed)
    return replace(plan, **SCENES[2](Dice(seed, "slow"), plan))


def _in_a_calm_semaphore(seed: int) -> Plan:
    """Return a calm run with a semaphore and nothing else."""
    plan = draw_calm(seed)
    return replace(
        plan,
        keys=(),
        several=False,
        elections=(),
        jobs=(),
        rwlocks=(),
        sharing=None,
        pools=(Pool("pool/a", 1 + seed % 2),),
    )


def _elections(seed: int) -> Plan:
    """Return a run with an election and nothing else, in which one thing goes wrong."""
    return draw_strike(len(RECIPES) * seed + RECIPES.index("election"))


def _kept_elections(seed: int) -> Plan:
    """Return a run with an election and nothing else, in which leaders lead for long."""
    return draw_keepers(len(RECIPES) * seed + RECIPES.index("election"))


def _kept_rwlocks(seed: int) -> Plan:
    """Return a calm run with a read-write lock and nothing else, which is kept for long."""
    return replace(draw_patient(seed), keys=(), elections=(), pools=(), rwlocks=("jobs/rw",))


def _refused_elections(seed: int) -> Plan:
    """Return a run with an election and nothing else, in which permissions are revoked for a while."""
    plan = replace(draw_mixed(seed), keys=(), several=False, pools=(), elections=("lead/a",), office="")
    return replace(plan, fates={}, chaos={"permission revoked": 4.0}, chaos_seconds=20.0)


def _refused_members(seed: int) -> Plan:
    """Return a run with a group in which permissions are revoked for a while, and sessions end."""
    chaos = {"permission revoked": 4.0, "destroy session": 5.0}
    return replace(draw_with_members(seed), fates={}, chaos=chaos, chaos_seconds=25.0, lingering=LONG)


def _elections_by_short_sessions(seed: int) -> Plan:
    """Return a run with an election in which some candidates have shorter sessions than others."""
    plan = replace(draw_mixed(seed), keys=(), several=False, pools=(), elections=("lead/a",), office="")
    return replace(plan, fates={}, chaos={}, own_ttl=0.25, spec=replace(plan.spec, ttl=8.0))


def _calm_over_connections(seed: int) -> Plan:
    """Return a calm run with connections, as many as anybody wants."""
    return replace(draw_calm(seed), connections=ENOUGH)


def _heirs(seed: int) -> Plan:
    """Return a run with leaders that hand over to candidates at each place in the queue."""
    plan = draw_mixed(seed)
    return replace(plan, **SCENES[3](Dice(seed, "heirs"), plan))


def _calm_elections(seed: int) -> Plan:
    """Return a calm run with an election and nothing else, in which leaders lead for long."""
    return replace(
        _in_a_calm_semaphore(seed), pools=(), elections=("lead/a",), lingering=LONG, chaos_seconds=40.0
    )


def _sharing_unevenly(seed: int) -> Plan:
    """Return a run whose members have weights, and a bound now and then."""
    sharing = Sharing("group/a", ("0", "1", "2"), weighing=True, bound=1.25 if seed % 2 else None)
    return replace(draw_with_members(seed), sharing=sharing)


def _with_guests(seed: int) -> Plan:
    """Return a run with a group whose ids several want."""
    return replace(draw_with_members(seed), guests=Sharing("group/guests", ()), sharing=None)


def _in_a_large_group(seed: int) -> Plan:
    """Return a run in which users watch a large group, beside an old leader."""
    chaos = {"strangers": 1.0, "old leader": 3.0}
    return replace(draw_with_members(seed), strangers=("group/b",), large="group/b", chaos=chaos)


def _restarting(seed: int) -> Plan:
    """Return a plan in which nothing goes wrong except that the agent restarts."""
    return replace(draw_mixed(seed), chaos={"agent restart": 2.0}, fates={})


def _many_slots_at_the_limit(seed: int) -> Plan:
    """Return a plan with more sessions in each process, of shorter leases, than take turns."""
    pools = (Pool("pool/a", 2, 1.0), Pool("pool/ab", 3, 1.0))
    return replace(draw_with_limit(seed), keys=(), several=False, pools=pools, permits=True, users=2)


def _with_a_job(seed: int) -> Plan:
    """Return a calm run with a job and nothing else, whose record an operator damages now and then."""
    plan = replace(_in_a_calm_semaphore(seed), pools=(), stuck=0.0, users=1)
    return replace(plan, jobs=("job/a",), chaos={"damage job": 3.0})


_NOBODY_TIMES_LEASES = Mutation(
    "nobody times leases", Promises, "look_at", 'judge.convict("lease", ', "str.format("
)
_AT_RENEWALS = Mutation(
    "the same at renewals", session, "horizon", "min(ttl, lock_delay, LONGEST_LOCK_DELAY)", "ttl"
)
_TTL_ALONE = Mutation(
    "a lease of the TTL alone",
    session_model,
    "horizon",
    "min(ttl, lock_delay, LONGEST_LOCK_DELAY)",
    "ttl",
    breaks="lease",
    also=_AT_RENEWALS,
    within=200,
)
MUTATIONS = (
    Mutation(
        "deadline counted from the receipt",
        session,
        "renew",
        "sent_at=sent_at, horizon=granted",
        "sent_at=io.now(), horizon=granted",
        rare=True,
    ),
    Mutation(
        "lease of twice the TTL",
        Lease,
        "confirm",
        "(1 - self._drift) * horizon",
        "2 * horizon",
        breaks="lease",
    ),
    Mutation(
        "no allowance for drift",
        Lease,
        "confirm",
        "(1 - self._drift) * horizon",
        "horizon",
        breaks="lease",
    ),
    _TTL_ALONE,
    # Each rule by itself finds it: here without the one that judges leases by their traffic.
    replace(
        _TTL_ALONE,
        name="a lease of the TTL alone, and nobody times leases",
        breaks="exclusion",
        also=replace(_AT_RENEWALS, also=_NOBODY_TIMES_LEASES),
    ),
    Mutation(
        "renewal takes 404 for success",
        session,
        "renew",
        "sessions.end(kept, LossReason.SESSION_GONE)\n        raise",
        "kept.lease.confirm(sent_at=io.now(), horizon=kept.spec.lease_horizon)\n        return",
        rare=True,
    ),
    Mutation(
        "expiry not told",
        session,
        "keep",
        "sessions.end(kept, LossReason.EXPIRED)",
        "await io.sleep(1.0)",
    ),
    Mutation(
        "giving up cleans nothing",
        LockAttempt,
        "_withdraw",
        "if not self.asked:",
        "if True:",
    ),
    Mutation(
        "no sweep",
        LockAttempt,
        "_sweep_unanswered",
        "in sorted(self.unanswered):",
        "in ():",
    ),
    Mutation("a lost grant is not adopted", contend, "judge", "return Adopt()", "pass"),
    Mutation(
        "the order is that of the ids",
        waitqueue,
        "_place",
        "pair.create_index, pair.key",
        "pair.key, pair.key",
        breaks="order",
    ),
    Mutation(
        "everybody is the head", contend, "judge", "if position > 0:", "if position > 99:", breaks="order"
    ),
    Mutation(
        "the last contender is followed",
        contend,
        "judge",
        "look.live[position - 1]",
        "look.live[(position + 1) % len(look.live)]",
    ),
    Mutation(
        "dead contenders stay",
        RemoveKey,
        "step",
        "await perform(io, kv.delete(self.key, cas=self.index), deadline=deadline)",
        "pass",
        breaks="nothing left",
    ),
    Mutation(
        "a grant is believed without a lease",
        LockAttempt,
        "_granted",
        "or not is_valid",
        "",
        rare=True,
        breaks="granted",
    ),
    Mutation(
        "unlock without check-index",
        Locked,
        "unlocking",
        "TxnOp.check_index(self.key, self.index)",
        "TxnOp.get_tree(self.key + '/none')",
        rare=True,
    ),
    Mutation(
        "an unanswered unlock is taken for done",
        holds,
        "give_back",
        "if ending.outcome is ReleaseOutcome.UNKNOWN:",
        "if hold.key == '':",
    ),
    Mutation(
        "threads do not queue",
        Tickets,
        "_tell_first",
        "[*self._queues.get(key, ())][:1]",
        "[*self._queues.get(key, ())]",
        breaks="exclusion",
    ),
    Mutation(
        "guard by the session alone",
        Grant,
        "guard",
        "TxnOp.check_index(self.key, self.last_index),",
        "",
        breaks="guard",
    ),
    Mutation("a forgotten hold is kept", Holds, "abandoned", "hold.kind.abandon(hold)", "pass"),
    Mutation(
        "closing destroys no session", coordinator, "close_late", "if kept.ours_to_destroy:", "if False:"
    ),
    Mutation(
        "an ended session is used again",
        SessionSource,
        "live",
        "if kept is not None and kept.lease.is_fit(now):",
        "if kept is not None:",
    ),
    Mutation(
        "a fork keeps what it inherited",
        ClientState,
        "forked",
        "self.sessions.end(kept, LossReason.FORKED)",
        "pass",
        breaks="fork",
    ),
    Mutation(
        "the limit is not compared",
        slots,
        "_judge_place",
        "if wanted_before + len(ours) <= record.limit - len(kept):",
        "if rank < 99:",
        breaks="limit",
    ),
    Mutation(
        "a small take passes a large one",
        slots,
        "_judge_place",
        "sum(map(wanted_by, waiters[:rank]))",
        "rank",
        breaks="order",
        drawn=_taking_several,
    ),
    Mutation(
        "a take of several slots locks one key",
        PermitAttempt,
        "_take_ops",
        "for pooled in self.mine]",
        "for pooled in self.mine[:1]]",
        breaks="all or none",
        drawn=_taking_several,
    ),
    Mutation(
        "several slots for as long as the first session lasts",
        Grant,
        "__init__",
        "AllOf(each.lease for each in self.all_kept) if others else kept.lease",
        "kept.lease",
        breaks="lease",
        drawn=_taking_several,
    ),
    Mutation(
        "a take does not name the record's index",
        PermitAttempt,
        "_write_record",
        "TxnOp.cas(self.memory.record_key, record.encode(), record.index, flags=record.flags)",
        "TxnOp.set(self.memory.record_key, record.encode(), flags=record.flags)",
    ),
    Mutation(
        "a refused take is repeated at the record's new index",
        PermitAttempt,
        "_write",
        "self._options = CONSISTENT  # an old leader would show the same again\n        return None",
        """again = record.at((await self._list()).record.index)
        try:
            result = await self._ask(check, *self._take_ops(again))
        except TxnFailed:
            return None""",
    ),
    Mutation(
        "lists by the prefix without its slash",
        PermitAttempt,
        "_list",
        "self.memory.directory",
        "self.plan.prefix",
        also=Mutation(
            "names without their directory",
            slots,
            "read",
            "pair.key.removeprefix(directory(prefix))",
            'pair.key.rpartition("/")[2]',
        ),
    ),
    Mutation(
        "two permits with one session",
        SessionPool,
        "get",
        "return session\n",
        "self._fit.append(session)\n            return session\n",
    ),
    Mutation(
        "dead holders count for ever",
        slots,
        "_judge_place",
        "for one in listing.dead if one not in refused",
        "for one in ()",
        breaks="progress",
    ),
    Mutation(
        "a dead holder's slot is taken without asking for its lock-delay",
        slots,
        "removal",
        "for key in keys for",
        "for key in () for",
        breaks="limit",
    ),
    Mutation(
        "the front watches the record alone",
        PermitAttempt,
        "_wait_at_the_front",
        "self.memory.directory",
        "self.memory.record_key",
    ),
    Mutation(
        "a session is used again while the record names it",
        SessionPool,
        "put_back",
        "(self._resting if session.taken_at else self._fit)",
        "self._fit",
        rare=True,
    ),
    Mutation(
        "a session with unanswered requests is used again",
        SessionPool,
        "put_back",
        "not session.settled or",
        "",
    ),
    Mutation(
        "giving up a slot's queue destroys no session",
        PooledAttempt,
        "_drop_session",
        "pooled.abandon()",
        "pass",
    ),
    Mutation(
        "an unlock forgets the flags",
        LockAttempt,
        "_granted",
        "flags=self.plan.flags,\n        kind=",
        "flags=0,\n        kind=",
        breaks="no bugs",
    ),
    Mutation(
        "the record forgets what it does not know",
        slots.Record,
        "encode",
        ", **self.unknown",
        "",
        breaks="record",
    ),
    Mutation(
        "a leader goes on when told to stop",
        Candidacy,
        "_lead",
        "if self._must_stand_aside():\n                await release(io, self.client.holds, hold)\n"
        "            elif",
        "if",
        breaks="progress",
    ),
    Mutation(
        "the heir's note is not deleted",
        candidate,
        "electing",
        "TxnOp.delete(note),",
        "",
    ),
    Mutation(
        "the end of a leadership is told twice",
        Candidacy,
        "_begin",
        "hold.over.subscribe(partial(self._ended, hold, Once(), called))",
        "for _ in range(2):\n        hold.over.subscribe(partial(self._ended, hold, Once(), Once()))",
    ),
    Mutation(
        "a lost hold is said to be held while its lease lasts",
        Grant,
        "is_held",
        "self.look(now)[1] is None and not self._end",
        "self.lease.is_valid(now)",
        breaks="lost for good",
    ),
    Mutation(
        "a release without an answer is said to be one",
        lock_keys,
        "unlock",
        "await failures.pause(error)",
        "return Unlocked(ours=True)",
        breaks="released",
    ),
    Mutation(
        "verify relies on what the client knows",
        asking,
        "verify",
        "if watch.loss(pair) is not None:",
        "if False:",
        breaks="answers",
        also=Mutation(
            "a watch ends at its failure",
            Watches,
            "_follow",
            "await follower.pause(io, until=stop)",
            "return",
        ),
        drawn=_watching,
    ),
    Mutation(
        "what has failed is asked again at once",
        Failures,
        "pause",
        "await self._io.sleep(pause)",
        "pass",
        breaks="pace",
        drawn=_restarting,
    ),
    Mutation(
        "a candidate that has stopped is not forgotten",
        Candidacy,
        "run",
        "self.client.standing.pop(self, None)",
        "pass",
        breaks="rest",
    ),
    Mutation(
        "a task stays behind each candidate",
        Following,
        "_watch_leader",
        "while not self._is_over:",
        "while not await io.wait(type(self._stopping)()):",
        breaks="rest",
    ),
    Mutation(
        "a wait for the leadership has no end",
        election_calls,
        "wait_for_leadership",
        "raise _timeout(candidacy, seen, waited=io.now() - began)",
        "deadline += 60.0",
        breaks="in time",
    ),
    Mutation(
        "a release waits for its answer without an end",
        holds,
        "give_back",
        "io.shield(budget)",
        "io.shield(60.0)",
        breaks="in time",
    ),
    Mutation(
        "on_change reports the first leader alone",
        Following,
        "_tell_change",
        "not self._told or not _same(leader, self._told[0])",
        "not self._told",
        breaks="sight",
    ),
    Mutation(
        "closing gives each clean-up its own time",
        Reaper,
        "finish",
        "until=deadline",
        "until=math.inf",
        breaks="in time",
    ),
    Mutation(
        "a leader whose on_elected has failed leads on",
        Candidacy,
        "work_failed",
        "self.client.host.spawn(",
        "(lambda *_, **__: None)(",
        breaks="in time",
    ),
    Mutation(
        "a loss is told twice",
        Holds,
        "call_back",
        "in hold.take_lost_callbacks():",
        "in hold.take_lost_callbacks() * 2:",
    ),
    Mutation(
        "a loss is not told",
        Holds,
        "call_back",
        "in hold.take_lost_callbacks():",
        "in ():",
        breaks="told",
    ),
    Mutation(
        "a fence is one too low",
        Holds,
        "grant",
        "granted.modify_index if fence is None",
        "granted.modify_index - 1 if fence is None",
        breaks="fences",
    ),
    Mutation(
        "the end of a leadership is not told",
        Candidacy,
        "_begin",
        "hold.over.subscribe(partial(self._ended, hold, Once(), called))",
        "pass",
        breaks="callbacks",
    ),
    Mutation(
        "a fair lock barges",
        LockAttempt,
        "_way_past_the_queue",
        "self.may_barge and",
        "(self.may_barge or self.plan.fair) and",
        breaks="fairness",
    ),
    Mutation(
        "a fair semaphore takes at once",
        PermitAttempt,
        "_take_at_once",
        "self.plan.fair or ",
        "",
        breaks="fairness",
    ),
    Mutation(
        "the term is the key's LockIndex",
        Holds,
        "grant",
        "granted.modify_index if fence is None",
        "granted.lock_index if fence is None",
    ),
    Mutation(
        "a key watch ends at its first failure",
        Watches,
        "_follow",
        "await follower.pause(io, until=stop)",
        "return",
        breaks="noticed",
    ),
    Mutation(
        "a create's lease counts from its reply",
        Sessions,
        "_create_once",
        "sent_at=sent_at, horizon",
        "sent_at=io.now(), horizon",
        breaks="lease",
    ),
    Mutation(
        "an heir behind others is not woken",
        heirs,
        "name",
        "if position > 0:",
        "if position > 99:",
        breaks="progress",
    ),
    Mutation(
        "an heir is woken by a write that changes nothing",
        heirs,
        "name",
        'ahead.value + b"\\n"',
        "ahead.value",
        breaks="progress",
    ),
    Mutation(
        "an heir is honoured for ever",
        Candidate,
        "_read",
        "self.io.now() + notes.HONOURED",
        "self.io.now() + 3600.0",
        breaks="progress",
    ),
    Mutation(
        "an heir is not honoured",
        Candidate,
        "_follow_up",
        "heir is not None and self.io.now() < self._heir_until",
        "heir is not None and self.io.now() < 0",
        breaks="order",
    ),
    Mutation(
        "the end of a leadership is told before its beginning",
        Candidacy,
        "_begin",
        "called: Once[Grant] = Once()",
        "called = Once(); hold.over.subscribe(partial(self._ended, hold, Once(), Once()))",
        breaks="callbacks",
    ),
    Mutation(
        "a short leadership within the delay is overlooked",
        Candidacy,
        "_next_vacancy",
        "if now.value == seen.value:",
        "if now.value is None or now.value.session is None:",
        breaks="order",
        within=600,
        drawn=_in_short_offices,
    ),
    Mutation(
        "a stuck holder's key is given back at once",
        Limits,
        "owe",
        "self._host.now() + hold.kept.lock_delay",
        "self._host.now()",
        breaks="stuck",
    ),
    Mutation(
        "a stuck holder's key is left to others at once",
        Holds,
        "ended",
        "if reason in OVERDUE:",
        "if False:",
        breaks="stuck",
    ),
    Mutation(
        "a stuck holder's key is never given back",
        Limits,
        "_give_back",
        "self._owed.pop(hold, None) is None",
        "True",
        breaks="progress",
    ),
    Mutation(
        "nobody looks whether a hold has lasted too long",
        Limits,
        "watch",
        "self._limited[hold] = None",
        "pass",
        breaks="told",
    ),
    Mutation(
        "giving up waits for an answer",
        Attempt,
        "_give_up",
        "self.io.shield(GIVE_UP_BUDGET)",
        "self.io.shield(10.0)",
        breaks="in time",
    ),
    Mutation(
        "a time limit starts afresh at each move",
        Attempt,
        "run",
        "handle = await self._move()",
        "handle = await self._move(); self.deadline += 0.1",
        breaks="in time",
    ),
    Mutation(
        "of several keys only the first is watched",
        MultiLockKind,
        "watches",
        "return (own, *(KeyWatch(other.key, other.index, own.loss) for other in self._others))",
        "return (own,)",
        breaks="noticed",
    ),
    Mutation(
        "what is still locked of several keys stays so after the loss of one",
        MultiLockKind,
        "lost",
        "self._keys.give_back(hold.session)",
        "self._keys.leave()",
    ),
    Mutation(
        "a release of several keys unlocks the first",
        MultiLockKind,
        "give_back",
        "(self._own(hold), *self._others)",
        "(self._own(hold),)",
    ),
    Mutation(
        "an unanswered try for several keys is forgotten",
        MultiLockAttempt,
        "_give_up_tickets",
        "if self.asked:",
        "if False:",
    ),
    Mutation(
        "a job's record is not read again in the grant",
        once,
        "begin",
        "verdict = judge(ask, read(seen.get(once.record) or await _alone(attempt, once, handle.grant)))",
        "pass",
        breaks="once",
    ),
    Mutation(
        "a job's record is written without the guard",
        once,
        "_record",
        "*hold.guard(), write",
        "write",
        breaks="once",
        rare=True,
    ),
    Mutation(
        "a slot that is not the recorded one runs",
        once,
        "judge",
        "rank(slot) > rank(record.slot)",
        "slot != record.slot",
        breaks="once",
    ),
    Mutation(
        "an agent is used without a look at its servers",
        Agents,
        "_check",
        "same = self._known is None or servers.are_those_of(self._known)",
        "same = True",
        breaks="one cluster",
        within=10,
        drawn=draw_with_agents,
    ),
    Mutation(
        "an agent that does not answer is never left",
        Agents,
        "_ask",
        "if patient or not isinstance(error, RequestTimeout):",
        "if False:",
        breaks="ways in",
        within=10,
        drawn=draw_with_agents,
    ),
    Mutation(
        "a partition is given away before its owner is told",
        Part,
        "_own",
        "self._tell_end(owned)\n    if not hold.ended:",
        "await release(io, self.client.holds, hold)\n    self._tell_end(owned)\n    if not hold.ended:",
        breaks="sharing",
        within=10,
        drawn=draw_with_members,
    ),
    Mutation(
        "a partition is kept that another member is to own",
        Partitioning,
        "_share_out",
        "part.leave()",
        "pass",
        within=10,
        drawn=draw_with_members,
    ),
    Mutation(
        "a member knows the group as it was at first",
        Partitioning,
        "_follow",
        "if seen is not None:",
        "if seen is not None and self._members is None:",
        within=10,
        drawn=draw_with_members,
    ),
    Mutation(
        "a member does not join again",
        Membership,
        "_stay",
        "await self._join_again(io)",
        "await io.wait(self.stopping)",
        within=10,
        drawn=draw_with_members,
    ),
    Mutation(
        "who owned a partition is not told of its loss",
        Part,
        "_tell_end",
        "if not owned.told:",
        "if not (owned.told or owned.handle.grant.lost.is_set()):",
        breaks="sharing",
        within=20,
        drawn=draw_with_members,
    ),
    Mutation(
        "a change among the members is noticed only as a change of their folder",
        Together,
        "_take",
        "if seen == cover.looked_at:",
        "if cover.looked_at[0]:",
        within=10,
        drawn=draw_with_members,
    ),
    Mutation(
        "a reader enters beside a writer",
        rwqueue,
        "judge",
        'mode == "write" or mode_of(pair) == "write"',
        'mode == "write"',
        breaks="exclusion",
        within=10,
        drawn=draw_with_rwlocks,
    ),
    Mutation(
        "a reader waits for the reader before it",
        rwqueue,
        "judge",
        "in_the_way[-1], position",
        "before[-1], position",
        breaks="progress",
        within=200,
        drawn=_kept_rwlocks,
    ),
    Mutation(
        "on_elected is awaited beyond the end of its leadership",
        Candidacy,
        "_begin",
        "until=hold.over",
        "until=self.stopping",
        breaks="callbacks",
        within=300,
        drawn=draw,
    ),
    Mutation(
        "the dead of a read-write lock count as gone",
        rwqueue,
        "judge",
        "before = look.places[: look.places.index(own)]",
        "before = look.live[: look.live.index(own)]",
        breaks="exclusion",
        within=50,
        drawn=draw_with_rwlocks,
    ),
    Mutation(
        "a read-write lock's fence is no index of its contender",
        RwAttempt,
        "_granted",
        "fence=own.create_index",
        "fence=own.create_index + 1",
        breaks="fences",
        within=10,
        drawn=draw_with_rwlocks,
    ),
    Mutation(
        "a session is used again although a join of it had no answer",
        RwKind,
        "give_back",
        "self._pooled.settled and not failures.doubt",
        "not failures.doubt",
        breaks="nothing left",
        within=400,
        drawn=draw_with_rwlocks,
    ),
    Mutation(
        "a dead writer is never removed",
        RwAttempt,
        "_move",
        "await self._remove(blocker, pooled.id)",
        "await self.io.sleep(1.0)",
        breaks="progress",
        within=20,
        drawn=draw_with_rwlocks,
    ),
    Mutation(
        "a renewal opens a connection of its own",
        Engine,
        "_exchange",
        "None if only_new else",
        "None if only_new or attempt.request.urgent else",
        breaks="limit of connections",
        within=40,
        drawn=draw_with_limit,
    ),
    Mutation(
        "the connection of a cancelled request is closed",
        Engine,
        "_put_away",
        "if intact and",
        "if not intact and",
        breaks="limit of connections",
        within=40,
        drawn=draw_with_limit,
    ),
    Mutation(
        "at the limit a connection is closed while a reply is due",
        pool.Pool,
        "sweep",
        "needed_until = link.back_by + LATE",
        "needed_until = link.back_by",
        breaks="limit of connections",
        within=400,
        drawn=draw_with_limit,
    ),
    Mutation(
        "blocking queries do not let other requests go first",
        Engine,
        "_exchange",
        "if attempt.request.hold_open and pool.waiting:",
        "if False:",
        breaks="limit of connections",
        within=200,
        drawn=draw_with_limit,
    ),
    Mutation(
        "a session without holds closes the connection of those with holds",
        pool.Pool,
        "take",
        "max(parked.kept_until, now + KEEP)",
        "now",
        breaks="limit of connections",
        within=100,
        drawn=_many_slots_at_the_limit,
    ),
    Mutation(
        "blocking queries last longer than renewals can wait",
        Watches,
        "longest",
        "LONGEST_WHEN_CROWDED, self._sessions.patience",
        "LONGEST_WHEN_CROWDED",
        breaks="limit of connections",
        within=100,
        drawn=_many_slots_at_the_limit,
    ),
    Mutation(
        "one renewal may take the time of the whole lease",
        session,
        "keep",
        "deadline=min(over, now + lease.longest / TRIES_PER_LEASE)",
        "deadline=over",
        breaks="cause",
        within=1000,
        drawn=draw_keepers,
    ),
    Mutation(
        "a query goes on while a renewal is due",
        Sessions,
        "give_way",
        "min(kept.due for kept in kept_now) - io.now()",
        "math.inf",
        breaks="connections",
        within=300,
        drawn=draw_keepers,
    ),
    Mutation(
        "a hold is asked for as often, however long it is watched",
        Watches,
        "_longest_for_hold",
        "io.now() - began",
        "0.0",
        breaks="pace",
        within=100,
        drawn=draw_keepers,
    ),
    Mutation(
        "an ill candidate goes on queueing",
        Candidacy,
        "_contend",
        "task.cancel()",
        "task.done.is_set()",
        breaks="order",
        within=200,
        drawn=draw,
    ),
    Mutation(
        "the note of a term is never deleted",
        Candidacy,
        "_ended",
        "if reason is not LossReason.FORKED:",
        "if False:",
        breaks="nothing left",
        within=40,
        drawn=draw,
    ),
    Mutation(
        "who leads no more names an heir",
        heirs,
        "name",
        "TxnOp.check_session(key, hold.session),",
        "",
        breaks="order",
        within=500,
        drawn=draw,
    ),
    Mutation(
        "nobody looks for late requests after an acquire",
        LockAttempt,
        "_granted",
        "self._sweep_unanswered()",
        "self.unanswered.clear()",
        breaks="nothing left",
        within=500,
        drawn=draw,
    ),
    Mutation(
        "nobody looks for late requests after giving up",
        LockAttempt,
        "_settle",
        "self._sweep_unanswered()",
        "self.unanswered.clear()",
        breaks="told",
        within=1_000,
        drawn=draw,
    ),
    Mutation(
        "the write of somebody else is reported again and again",
        evidence,
        "_note_write",
        "hold.overwritten_at = pair.modify_index",
        "hold.overwritten_at = 0",
        breaks="told",
        within=200,
        drawn=draw,
    ),
    Mutation(
        "connections that lie idle are never closed",
        pool.Pool,
        "sweep",
        "link.kept_until <= now and not is_needed",
        "False",
        breaks="connections",
        within=10,
        drawn=draw_with_limit,
    ),
    Mutation(
        "a lease is given up at the first renewal that fails",
        session,
        "keep",
        "failures += 1",
        "failures += 1; sessions.end(kept, LossReason.EXPIRED)",
        breaks="cause",
        within=20,
    ),
    Mutation(
        "a renewal that is under way is taken for an outage",
        session,
        "keep",
        "kept.begin_renewal()",
        'kept.begin_renewal(); _report_failure(io, sessions, kept, ConsulCoordError("none"))',
        breaks="cause",
        within=20,
        drawn=draw_calm,
    ),
    Mutation(
        "half of a time limit is enough",
        attempt,
        "deadline_of",
        "_validate.patience(timeout)",
        "_validate.patience(timeout) / 2",
        breaks="answers",
        within=20,
    ),
    Mutation(
        "a loss is no event",
        Holds,
        "ended",
        "self._host.emit(self._news_of(hold, reason))",
        "pass",
        breaks="told",
        within=20,
    ),
    Mutation(
        "the later of two limits counts",
        Grant,
        "limited_until",
        "min(list(self._limits.values())",
        "max(list(self._limits.values())",
        breaks="told",
        within=40,
        drawn=draw_calm,
    ),
    Mutation(
        "a holder is asked about thrice",
        asking,
        "verify",
        "in hold.kind.watches(hold):",
        "in (*hold.kind.watches(hold),) * 3:",
        breaks="cost",
        within=20,
        drawn=draw_calm,
    ),
    Mutation(
        "a release is no event",
        holds,
        "give_back",
        "io.emit(Released(",
        "str((",
        breaks="told",
        within=5,
        drawn=draw_calm,
    ),
    Mutation(
        "an outage is counted from its first failure",
        session,
        "_report_failure",
        "now, sent_at = io.now(), kept.lease.sent_at",
        "now, sent_at = io.now(), io.now()",
        breaks="told",
        within=20,
    ),
    Mutation(
        "the time before a hold is not counted",
        Holds,
        "grant",
        "hold.granted_at - began))",
        "0.0))",
        breaks="told",
        within=5,
        drawn=draw_calm,
    ),
    Mutation(
        "a limit of a hold makes it longer",
        Grant,
        "valid_until",
        "return min(",
        "return max(",
        breaks="told",
        within=20,
        drawn=draw_calm,
    ),
    Mutation(
        "the last of a queue is named first",
        waitqueue,
        "shown",
        "enumerate(waiters, 1)",
        "enumerate(reversed(list(waiters)), 1)",
        breaks="answers",
        within=20,
        drawn=draw_calm,
    ),
    Mutation(
        "renewals come late",
        Lease,
        "renew_at",
        "(RENEW_FRACTION +",
        "(0.7 +",
        breaks="renewals",
        within=10,
    ),
    Mutation(
        "renewals have no jitter",
        Lease,
        "renew_at",
        "SPREAD_FRACTION * spread",
        "SPREAD_FRACTION * 0.5",
        breaks="renewals",
        within=40,
        drawn=draw_keepers,
    ),
    Mutation(
        "one renewal may take the whole lease",
        session,
        "keep",
        "min(over, now + lease.longest / TRIES_PER_LEASE)",
        "over",
        breaks="renewals",
        within=40,
    ),
    Mutation(
        "the outage of a session that has ended goes on",
        Sessions,
        "settle_end",
        "self.outages.forget(kept.id)",
        "pass",
        breaks="told",
        within=40,
    ),
    Mutation(
        "a renewal is no event",
        session,
        "renew",
        "io.emit(Renewed(",
        "str((",
        breaks="told",
        within=10,
    ),
    Mutation(
        "a renewal that fails is tried again at once",
        session,
        "keep",
        "most=max(0.05, lease.longest / 20)",
        "most=0.02",
        breaks="pace",
        within=100,
    ),
    Mutation(
        "a loss does not set the event",
        Grant,
        "wake",
        "self.lost.set()",
        "pass",
        breaks="told",
        within=10,
    ),
    Mutation(
        "each look at what is in the way is reported",
        Attempt,
        "_block",
        "if self._reported != (kind, position):",
        "if True:",
        breaks="told",
        within=20,
    ),
    Mutation(
        "places in a queue are counted from 0",
        LockAttempt,
        "_follow_up",
        "position=verdict.position + 1",
        "position=verdict.position",
        breaks="answers",
        within=100,
    ),
    Mutation(
        "a reading without a time limit",
        Watches,
        "_look_along",
        "deadline=io.now() + self._timeout",
        "deadline=1e9",
        breaks="in time",
        within=400,
    ),
    Mutation(
        "a task queues behind itself",
        Tickets,
        "join",
        "raise AlreadyHeld(message, key=ticket.key)",
        "pass",
        breaks="answers",
        within=20,
        drawn=draw_calm,
    ),
    Mutation(
        "a sequencer names the last write",
        Grant,
        "written",
        "self.lock_index = pair.lock_index",
        "self.lock_index = pair.modify_index",
        breaks="answers",
        within=20,
        drawn=draw_calm,
    ),
    Mutation(
        "a wait for a loss ends at once",
        asking,
        "wait_for_loss",
        "and io.now() < deadline",
        "and io.now() >= deadline",
        breaks="answers",
        within=10,
        drawn=draw_calm,
    ),
    Mutation(
        "the second of two releases does not wait for the first",
        holds,
        "release",
        "await io.wait(hold.settled, deadline=deadline)",
        "pass",
        breaks="answers",
        within=40,
        drawn=draw_calm,
    ),
    Mutation(
        "a client that closes destroys its sessions without a release",
        coordinator,
        "close",
        "await give_back(io, client.holds, hold, budget=max(0.0, deadline - io.now()))",
        "pass",
        breaks="released",
        within=100,
        drawn=draw_strike,
    ),
    Mutation(
        "a join does not note who else queues",
        LockAttempt,
        "_join",
        "self._note_waiters(look)",
        "pass",
        breaks="fairness",
        within=40,
        drawn=draw_calm,
    ),
    Mutation(
        "an owner that has lost its partition sleeps on",
        Part,
        "_tell_end",
        "owned.ending.set()\n",
        "pass\n",
        breaks="progress",
        within=100,
        drawn=_sharing,
    ),
    Mutation(
        "a join has no end",
        Membership,
        "_try",
        "attempt = self._attempt(io, timeout=timeout)",
        "attempt = self._attempt(io, timeout=1e9)",
        breaks="in time",
        within=100,
        drawn=draw_with_members,
    ),
    Mutation(
        "a member that came back is no news",
        members,
        "_identity",
        "member.id, member.session, member.since_index",
        'member.id, "", 0',
        breaks="sight",
        within=200,
        drawn=draw_with_members,
    ),
    Mutation(
        "a leader counts for two TTLs without contact",
        Sight,
        "good_until",
        "self.seen_at + self.ttl",
        "self.seen_at + 2 * self.ttl",
        rare=True,
        breaks="sight",
        drawn=draw,
    ),
    Mutation(
        "a stop does not wait",
        election_calls,
        "stop",
        "await io.wait(candidacy.task.done, deadline=deadline)",
        "pass",
        breaks="released",
        within=200,
    ),
    Mutation(
        "those outside of a read-write lock are not told from those inside",
        rwlock,
        "contenders",
        "if pair not in inside",
        "if True",
        breaks="answers",
        within=200,
        drawn=draw_with_rwlocks,
    ),
    Mutation(
        "a failed run is not repeated",
        once,
        "judge",
        "record.failed and ask.retry_failed",
        "False",
        breaks="once",
        within=100,
        drawn=_with_a_job,
    ),
    Mutation(
        "on_change reports the leader at each look",
        Following,
        "_tell_change",
        "not self._told or not _same(leader, self._told[0])",
        "True",
        breaks="sight",
        within=50,
        drawn=draw,
    ),
    Mutation(
        "a leadership that is over is still shown",
        Following,
        "leader",
        "None if ours or (hold is not None and self._is_before(hold, seen)) else seen",
        "seen",
        breaks="sight",
        within=200,
        drawn=draw,
    ),
    Mutation(
        "an owner gets no time to finish",
        Part,
        "_own",
        "await io.wait(owned.finished, deadline=io.now() + self._told.handover)",
        "pass",
        breaks="sharing",
        within=200,
        drawn=draw_with_members,
    ),
    Mutation(
        "a leader whose health function fails resigns",
        Candidacy,
        "_watch_health",
        "hold.lose(LossReason.STALLED)",
        "pass",
        breaks="stuck",
        within=100,
        drawn=_elections,
    ),
    Mutation(
        "a wait for the end of a leadership is not woken",
        election_calls,
        "wait_for_loss",
        "await io.wait(hold.over, deadline=min(deadline, hold.valid_until))",
        "await io.sleep(min(1.0, deadline - io.now()))",
        breaks="in time",
        within=100,
        drawn=_elections,
    ),
    Mutation(
        "a partition is kept whose owner could not begin",
        Part,
        "_failed",
        "owned.ending.set()",
        "pass",
        breaks="sharing",
        within=100,
        drawn=draw_with_members,
    ),
    Mutation(
        "an agent's answers are no sign of life",
        Agents,
        "_ask",
        "agent.hear(way.now())",
        "agent.heard_at = way.now()",
        breaks="ways in",
        within=50,
        drawn=draw_with_agents,
    ),
    Mutation(
        "a change in a folder is looked for in its first group alone",
        Together,
        "_take",
        "[folder for folder in folders if folder.path != cover.path]",
        "[]",
        breaks="sight",
        within=50,
        drawn=draw_with_members,
    ),
    Mutation(
        "an agent is tried out of order",
        Agents,
        "_in_order",
        "places.get(agent, -1)\n",
        "-places.get(agent, -1)\n",
        breaks="told",
        within=50,
        drawn=draw_with_agents,
    ),
    Mutation(
        "a change of the agent is not reported",
        Agents,
        "_use",
        "self.on_move(before.address, agent.address)",
        "pass",
        breaks="told",
        within=50,
        drawn=draw_with_agents,
    ),
    Mutation(
        "an agent that was left is used without another check",
        Agent,
        "leave",
        "now, -math.inf\n",
        "now, self.checked_at\n",
        breaks="ways in",
        within=800,
        drawn=draw_with_agents,
    ),
    Mutation(
        "a slow answer is no reason to wait",
        Agents,
        "look_for_life",
        "agent.asked_at + SILENT_AFTER",
        "agent.asked_at",
        breaks="ways in",
        within=50,
        drawn=draw_with_agents,
    ),
    Mutation(
        "what is under way at an agent that was left goes on",
        Agents,
        "_use",
        "other.cut()",
        "pass",
        breaks="ways in",
        within=200,
        drawn=draw_with_agents,
    ),
    Mutation(
        "an unlock forgets that an earlier one got no answer",
        lock_keys,
        "unlock",
        "uncertain or failures.doubt",
        "uncertain",
        breaks="answers",
        within=200,
        drawn=draw_hiccups,
    ),
    Mutation(
        "a late reply moves a lease back",
        Lease,
        "confirm",
        "max(self.sent_at, sent_at)",
        "sent_at",
        breaks="lease",
        within=100,
        drawn=_renewing_slowly,
    ),
    Mutation(
        "an acquire forgets its max_hold",
        workload,
        "acquire",
        "program if max_hold is None else",
        "program if True else",
        breaks="told",
        within=100,
        drawn=draw_calm,
    ),
    Mutation(
        "the key of a stuck holder that has left stays locked",
        Limits,
        "holder_left",
        "if hold.left:",
        "if False:",
        breaks="nothing left",
        within=200,
        drawn=draw_calm,
    ),
    Mutation(
        "a semaphore is remembered as if nobody waited",
        Memory,
        "left",
        "[] if listing.wanted() else [listing.record]",
        "[listing.record]",
        breaks="fairness",
        within=200,
        drawn=_in_a_calm_semaphore,
    ),
    Mutation(
        "one lease that lasts is enough to be healthy",
        Holds,
        "healthy",
        "return all(",
        "return any(",
        breaks="answers",
        within=100,
        drawn=draw_calm,
    ),
    Mutation(
        "a client does without a queue that it may use",
        LockAttempt,
        "_join",
        "look.position(self.session) is None",
        "True",
        breaks="order",
        within=20,
        drawn=draw_calm,
    ),
    Mutation(
        "what stands in the way of an attempt is kept with its frames",
        Attempt,
        "_block",
        "cause and bare(cause)",
        "cause",
        breaks="nothing left",
        within=120,
    ),
    Mutation(
        "an own write is taken for a stranger's",
        evidence,
        "_note_write",
        "hold.may_have_written(pair.value)",
        "False",
        breaks="told",
        within=40,
        drawn=draw_calm,
    ),
    Mutation(
        "renewals come early",
        Lease,
        "renew_at",
        "RENEW_FRACTION + SPREAD",
        "RENEW_FRACTION - SPREAD",
        breaks="renewals",
        within=40,
        drawn=draw_mixed,
    ),
    Mutation(
        "a callback that comes after the loss is not called",
        Holds,
        "on_lost",
        "if hold.look(self._host.now())[1] is not None:",
        "if False:",
        breaks="told",
        within=100,
        drawn=draw_calm,
    ),
    Mutation(
        "each hold seems to restart the fences",
        LockAttempt,
        "_granted",
        "if pair.modify_index < before",
        "if pair.create_index < before",
        breaks="told",
        within=40,
        drawn=draw_calm,
    ),
    Mutation(
        "the error of a health function is not reported",
        Candidacy,
        "_watch_health",
        "if answer.error is not None and not raises:",
        "if False:",
        breaks="told",
        within=100,
        drawn=_elections,
    ),
    Mutation(
        "weights do not count",
        Partitioning,
        "_weights",
        "if weight is None:",
        "if True:",
        breaks="sharing",
        within=100,
        drawn=_sharing_unevenly,
    ),
    Mutation(
        "a bound does not count",
        Rendezvous,
        "owners",
        "if self._bound is None",
        "if True",
        breaks="sharing",
        within=200,
        drawn=_sharing_unevenly,
    ),
    Mutation(
        "a wrong weight is not reported",
        Partitioning,
        "_weight",
        'self.report(f"weight of the member {name!r}", answer.error)',
        "pass",
        breaks="told",
        within=50,
        drawn=_sharing_unevenly,
    ),
    Mutation(
        "a partitioner looks whether it is over before it watches",
        Partitioning,
        "_has_to_act",
        """\
    while True:
        with self.changes.watching() as changed:
            if self.is_over:
                return False
""",
        """\
    while not self.is_over:
        with self.changes.watching() as changed:
""",
        rare=True,
        drawn=draw_with_threads,
    ),
    Mutation(
        "what its user released as the client closed counts as given back",
        Holds,
        "ended",
        "if not hold.given_back:",
        "if hold.outcome.value is None:",
        rare=True,
        drawn=draw_with_threads,
    ),
    Mutation(
        "a reaper waits for what another thread has taken out",
        Reaper,
        "_run",
        "if entries and not due:",
        "if not due:",
        rare=True,
        breaks="no bugs",
        drawn=draw_with_threads,
    ),
    Mutation(
        "partitions move before the group is quiet",
        Partitioning,
        "_settle",
        "while io.now() < latest:",
        "while False:",
        breaks="sharing",
        within=50,
        drawn=draw_with_members,
    ),
    Mutation(
        "what could not begin is taken again at once",
        Part,
        "run",
        "await io.wait(self.leaving, deadline=io.now() + pause)",
        "pass",
        breaks="pace",
        within=200,
        drawn=draw_with_members,
    ),
    Mutation(
        "a value given amid a join is not joined with",
        MemberAttempt,
        "_barge",
        "if value != self.value:",
        "if False:",
        breaks="sharing",
        within=200,
        drawn=_with_guests,
    ),
    Mutation(
        "a leave does not end a join",
        Membership,
        "end",
        "self.cancel(self.client)",
        "pass",
        breaks="in time",
        within=50,
        drawn=_with_guests,
    ),
    Mutation(
        "a join beside another one says that it has not waited",
        Membership,
        "_timed_out",
        'Blocker("queued"), None, waited=waited',
        'Blocker("queued"), None, waited=0.0',
        breaks="answers",
        within=200,
        drawn=_with_guests,
    ),
    Mutation(
        "what has changed in a part of a large group is not read",
        MembersFollower,
        "_read_buckets",
        "if look.index > self._read_at[bucket]:",
        "if False:",
        breaks="sight",
        within=200,
        drawn=_in_a_large_group,
    ),
    Mutation(
        "a leadership's own callback is forgotten",
        LeadershipView,
        "on_lost",
        "hold.over.subscribe(tell)",
        "pass",
        breaks="told",
        within=50,
        drawn=_elections,
    ),
    Mutation(
        "a hand-over to one that does not queue is said to be done",
        heirs,
        "name",
        "raise SessionNotFound(message, session=heir)",
        "return",
        breaks="answers",
        within=50,
        drawn=_heirs,
    ),
    Mutation(
        "a candidate of low priority queues behind a leader",
        Candidacy,
        "_attempt",
        "if self.plan.priority_delay else None",
        "if False else None",
        breaks="order",
        within=200,
        drawn=_kept_elections,
    ),
    Mutation(
        "a candidate of low priority never stands",
        Candidacy,
        "_next_vacancy",
        "if now.value == seen.value:",
        "if False:",
        breaks="progress",
        within=100,
        drawn=_in_short_offices,
    ),
    Mutation(
        "a leader keeps the problem of a candidate",
        Candidacy,
        "_begin",
        "self.refusal, self._refusals = None, 0",
        "self._refusals = 0",
        breaks="sight",
        within=100,
        drawn=_refused_elections,
    ),
    Mutation(
        "a term's note is looked for as the election wrote it",
        Term,
        "remove",
        "self._sent == hold.fence",
        "False",
        breaks="nothing left",
        within=100,
        drawn=draw_calm,
    ),
    Mutation(
        "a leader is not confirmed within its TTL",
        LeaderFollower,
        "_take_session",
        "min(self._wait",
        "max(self._wait",
        breaks="sight",
        within=200,
        drawn=_calm_elections,
    ),
    Mutation(
        "a reading is not tried again",
        retry,
        "perform",
        "if not may_repeat(call.request, error):",
        "if True:",
        breaks="answers",
        within=300,
        drawn=draw_with_members,
    ),
    Mutation(
        "a candidate that times out names nobody",
        election_calls,
        "_who_leads",
        "return (Holder(info.session, node=info.node, value=info.value, fence=info.term),)",
        "return ()",
        breaks="answers",
        within=200,
        drawn=_calm_elections,
    ),
    Mutation(
        "a wrong setting is accepted",
        ElectionPlan,
        "__post_init__",
        "if shortest > longest:",
        "if False:",
        breaks="answers",
        within=100,
        drawn=_elections,
    ),
    Mutation(
        "a candidate does not rest after a leadership",
        Candidacy,
        "rest",
        "shortest + (longest - shortest)",
        "0.0 * (longest - shortest)",
        breaks="order",
        within=200,
        drawn=_calm_elections,
    ),
    Mutation(
        "a leader's node is not read",
        leader,
        "_read",
        "return replace(info, node=session.node)",
        "pass",
        breaks="answers",
        within=100,
        drawn=_calm_elections,
    ),
    Mutation(
        "a call gives up at its first failure",
        retry,
        "perform",
        "if not may_repeat(call.request, error):",
        "if True:",
        breaks="answers",
        within=40,
        drawn=draw_with_callers,
    ),
    Mutation(
        "a write that may have been applied is repeated",
        retry,
        "may_repeat",
        "or not outcome_unknown(error)",
        "or True",
        breaks="answers",
        within=60,
        drawn=draw_with_callers,
    ),
    Mutation(
        "a refusal for lack of room hides that a write may have been applied",
        retry,
        "_with_doubt",
        "    doubt.add_note",
        "    return error\n    doubt.add_note",
        breaks="answers",
        within=500,
        drawn=draw_with_callers,
    ),
    Mutation(
        "what has failed is sent again at once",
        retry,
        "perform",
        "await io.sleep(first_pause)",
        "pass",
        breaks="answers",
        within=40,
        drawn=draw_with_callers,
    ),
    Mutation(
        "the missing leader is not named",
        retry,
        "_name_missing_leader",
        "if leader is None:",
        "if False:",
        breaks="answers",
        within=60,
        drawn=draw_with_callers,
    ),
    Mutation(
        "an update whose first write may have been applied counts again",
        update,
        "_write",
        "if doubt is not None:\n                raise _in_doubt(key, doubt) from error",
        "if False:\n                pass",
        breaks="answers",
        within=200,
        drawn=draw_with_callers,
    ),
    Mutation(
        "an unknown datacenter is out of reach",
        retry,
        "_refuse_unknown_datacenter",
        "if wanted not in names:",
        "if False:",
        breaks="answers",
        within=40,
        drawn=draw_with_callers,
    ),
    Mutation(
        "true is read as a number",
        _json,
        "integer",
        " and not isinstance(value, bool)",
        "",
        breaks="answers",
        within=100,
        drawn=draw_with_callers,
    ),
    Mutation(
        "a contact that is lost is not missed",
        Contact,
        "is_missing",
        "return self.missing_for >= PATIENCE",
        "return False",
        breaks="answers",
        within=60,
        drawn=draw_with_callers,
    ),
    Mutation(
        "a watch ends when it makes room",
        Follower,
        "_read",
        "answer = await self._look(io, until)\n    return",
        "pass\n    return",
        breaks="sight",
        within=20,
        drawn=draw_with_crowds,
    ),
    Mutation(
        "each watch that finds no room ends all others",
        Watches,
        "query",
        "not self._are_many(now) and ",
        "",
        breaks="pace",
        within=20,
        drawn=draw_with_crowds,
    ),
    Mutation(
        "what is due again counts from the beginning of a period",
        once,
        "judge",
        "record.at + (ask.period or 0)",
        "record.at",
        breaks="once",
        within=40,
        drawn=_with_a_job,
    ),
    Mutation(
        "nobody is warned of a slot in the future",
        once,
        "_told",
        "if ahead:",
        "if False:",
        breaks="once",
        within=100,
        drawn=_with_a_job,
    ),
    Mutation(
        "a damaged record counts",
        record,
        "_decode",
        "and 1 <= len(slot) <= LONGEST_SLOT",
        "",
        breaks="once",
        within=400,
        drawn=_with_a_job,
    ),
    Mutation(
        "a record is forgotten in words only",
        once,
        "forget",
        "return pair is not None and await",
        "return pair is not None or await",
        breaks="once",
        within=100,
        drawn=_with_a_job,
    ),
    Mutation(
        "a session that is handed over is destroyed when it is closed",
        handling,
        "export",
        "kept.exported = True",
        "kept.exported = False",
        breaks="released",
        within=100,
        drawn=_handing_over,
    ),
    Mutation(
        "an update that may try once goes on",
        calls,
        "update",
        "raise _outrun(key, lost, timeout)",
        "pass",
        breaks="answers",
        within=100,
        drawn=draw_with_callers,
    ),
    Mutation(
        "a client that is looked at does not ask",
        ClientState,
        "_keep_asking",
        "left = QUIET - contact.age",
        "left = QUIET",
        breaks="answers",
        within=100,
        drawn=draw_with_callers,
    ),
    Mutation(
        "verify asks whoever takes itself for the leader",
        asking,
        "verify",
        "options=CONSISTENT",
        "options=None",
        breaks="answers",
        within=200,
        drawn=_beside_an_old_leader,
    ),
    Mutation(
        "the guard of several keys checks their session alone",
        MultiLockKind,
        "guard",
        "TxnOp.check_index(other.key, other.index),",
        "",
        breaks="guard",
        within=100,
        drawn=_overwritten,
    ),
    Mutation(
        "closing a session waits for its answer for a minute",
        coordinator,
        "_close_session",
        "io.shield(BUDGET) as deadline:\n                with suppress",
        "io.shield(60.0) as deadline:\n                with suppress",
        breaks="in time",
        within=200,
        drawn=_closing_in_silence,
    ),
    Mutation(
        "a leader of a shorter TTL is confirmed no more often",
        LeaderFollower,
        "_take_session",
        "min(self._wait, session.ttl / 2)",
        "max(self._wait, session.ttl / 2)",
        breaks="sight",
        within=100,
        drawn=_elections_by_short_sessions,
    ),
    Mutation(
        "the shortest of the requests with a value bounds it",
        lock,
        "check_value",
        "max((_size",
        "min((_size",
        breaks="answers",
        within=100,
    ),
    Mutation(
        "a candidate keeps it to itself why it was refused",
        Candidacy,
        "_refused",
        'self.report("candidacy", error)',
        "pass",
        breaks="told",
        within=100,
        drawn=_refused_elections,
    ),
    Mutation(
        "a member that is refused tries again without a pause",
        Membership,
        "_stay",
        "not (hold.ended and await self._join_again(io))",
        "hold.ended and await self._join_again(io)",
        breaks="pace",
        within=100,
        drawn=_refused_members,
    ),
    Mutation(
        "each query that begins hastens a renewal that has failed",
        session,
        "_renew_first",
        "if kept.lease.in_contact:",
        "if True:",
        breaks="pace",
        within=100,
        drawn=_refused_members,
    ),
    Mutation(
        "a connection is closed whenever there is another one",
        Engine,
        "_use",
        "near and self.pool.has_another()",
        "self.pool.has_another()",
        breaks="connections",
        within=100,
        drawn=_calm_over_connections,
    ),
    Mutation(
        "a session that its user closes is left to its TTL",
        coordinator,
        "_close_session",
        "await perform(io, call, deadline=deadline, attempt=client.timeout)",
        "pass",
        breaks="nothing left",
        within=200,
        drawn=_handing_over,
    ),
    Mutation(
        "a group is looked at where an old leader may answer",
        Together,
        "_look_into",
        "options=CONSISTENT",
        "options=None",
        breaks="sight",
        within=50,
        drawn=_strangers_alone,
    ),
    Mutation(
        "two who wait for one key have a query each",
        shared_queries._Query,
        "serves",
        "other.due + ABOUT_THEN",
        "other.due - ABOUT_THEN",
        breaks="rest",
        within=100,
    ),
    Mutation(
        "a member is kept by one more program after each loss",
        Membership,
        "_stay",
        "self._staying = True",
        "self._staying = False",
        breaks="rest",
        within=100,
        drawn=draw_with_members,
    ),
    Mutation(
        "a leave waits for the end of a join as long as it takes",
        Membership,
        "end",
        "io.shield(timeout)",
        "io.shield(60.0)",
        breaks="in time",
        within=100,
        drawn=draw_with_members,
    ),
    Mutation(
        "the background cleans up beside a closing",
        Reaper,
        "_has_work",
        " and not self._closing.is_set()",
        "",
        breaks="cost",
        within=50,
    ),
    Mutation(
        "a closing that goes on gives back once more what it has given back",
        coordinator,
        "give_back",
        "holds.given_back(hold)",
        "pass",
        breaks="told",
        within=200,
        drawn=_closing,
    ),
    Mutation(
        "the end of a session wakes nobody who waits",
        KeptSession,
        "finish",
        "self.over.set()",
        "pass",
        breaks="progress",
        within=20,
        drawn=draw_patient,
    ),
    Mutation(
        "a leader whose health function hangs resigns",
        Candidacy,
        "_watch_health",
        " or not answer.given.is_set()",
        "",
        breaks="stuck",
        within=100,
    ),
    Mutation(
        "a renewal counts however late its reply is read",
        session,
        "renew",
        "_horizon(kept, session), kept.lease.valid_until",
        "_horizon(kept, session), float('inf')",
        breaks="lost for good",
        within=60,
        drawn=_standing_still,
    ),
    Mutation(
        "a release by the end of several sessions spares the first slot alone",
        PermitKind,
        "_destroy",
        ", *(pair.key for pair in self._further)",
        "",
        breaks="released",
        within=20,
        drawn=_several_slots_overwritten,
    ),
    Mutation(
        "a refused connection clears the doubt of an earlier try",
        Failures,
        "pause",
        """if self._doubt is None and outcome_unknown(error):
        self._doubt = error""",
        "self._doubt = error if outcome_unknown(error) else None",
        breaks="answers",
        within=60,
        drawn=_failing_twice,
    ),
    Mutation(
        "where few are left, holds meet the waits that have just ended",
        Watches,
        "_part",
        "self.waits.pop(wait, None)",
        "pass",
        breaks="pace",
        within=60,
        drawn=_crowds_at_a_semaphore,
    ),
    Mutation(
        "another program's session counts as one with the usual lock-delay",
        session,
        "renew",
        "kept.lock_delay = session.lock_delay",
        "pass",
        breaks="nothing left",
        within=60,
        drawn=_stuck_keepers,
    ),
    Mutation(
        "a session that is resumed counts as one on the coordination node of its spec",
        session,
        "_horizon",
        "lasting=is_lasting(spec, session)",
        "lasting=spec.register_node",
        breaks="lease",
        within=60,
        drawn=_kept_on_long_leases,
    ),
    Mutation(
        "the value of a hold is written under a later one of its session",
        asking,
        "_write",
        """            check(hold, io.now())
            if failures.doubt""",
        "            if failures.doubt",
        within=60,
        drawn=_one_lock,
    ),
    Mutation(
        "one answer of an agent stands for all that are waited for",
        Agent,
        "wait_from",
        "now if self.waiting else math.inf",
        "math.inf",
        breaks="ways in",
        within=40,
        drawn=draw_with_agents,
    ),
    Mutation(
        "a renewal that fails again and again has long pauses",
        session,
        "keep",
        "most=max(0.05, lease.longest / 20)",
        "most=15.0",
        breaks="renewals",
        within=20,
        drawn=_in_outages,
    ),
    Mutation(
        "a place that somebody has written is given back without its session",
        RwKind,
        "_end",
        "await self._pooled.destroy(io, deadline=deadline)",
        "self._pool.put_back(self._pooled)",
        breaks="released",
        within=60,
        drawn=_rwlocks_overwritten,
    ),
    Mutation(
        "the note of a term has no guard",
        Term,
        "note",
        "kv.txn(*hold.guard(), note,",
        "kv.txn(note,",
        breaks="sight",
        within=40,
        drawn=_late_notes,
    ),
)
