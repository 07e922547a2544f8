"""The plan of one run: the participants, their sessions, and the possible faults. ``worlds`` draws them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from consul_coord.models import SessionSpec
    from consul_coord.testing.simulation.sharing import Sharing

IDS = "one", "two"
"""The ids of members that several want."""
ENOUGH = 100
"""Connections that no run needs: where there is a limit, the clients' own pool carries the requests."""
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
ODD_FATES = {
    "index of 0": "answered with the index 0",
    "no index": "answered without an index",
    "garbled": "one value of the answer becomes one of a wrong kind, or the answer is cut short",
    **{
        f"{status} by a proxy": f"answered by something in between: {status}"
        for status in (200, 301, 401, 404, 413, 418, 502)
    },
}
"""The further fates of the requests of plain calls, which no recipe is to be bothered with."""
MORE_CHAOS = {
    "old leader": "for a moment an old leader answers readings that allow it, with what it knew",
    "close": "a client is closed amid its users' calls, in little time",
    "outage": "the agent refuses connections, for longer than a lease lasts",
}
"""The faults that each a part of the runs has, besides those that are drawn."""
AGENT_CHAOS = {
    "agent death": "one of several agents is gone for a while",
    "agent silence": "one of several agents takes requests and answers nothing, and goes on after a while",
}
"""The further faults where there are several agents."""
MEMBER_CHAOS = {
    "remove member": "an operator deletes a member's key, or releases it from its session",
    "strangers": "a member of another group comes, shows another value, or goes",
}
"""The further faults where processes are members of a group."""
CROWD_CHAOS = {"crowd": "other programs of the host take all of the agent's connections for a while"}
"""The further faults where an agent has a limit on connections."""
ACTS_BESIDE = (
    "destroy session",
    "deregister node",
    "release key",
    "delete key",
    "delete contender",
    "overwrite",
    "delete record",
    "release contender",
    "remove member",
)
"""The acts of operators that may come just beside something: of which an old leader does not know, or between
a client's look and its write."""
ACTS_AMID_LOOKS = ("strangers",)
"""Those that may come amid a look: a reading of several parts is to show one state all the same."""
_ACTS = {"release key", "delete key", "destroy session", "crash", *MEMBER_CHAOS}
LATEST = 40.0
"""Seconds: clean-up looks for what comes late for more than that."""
SAFE_SKEW = 0.045
"""Less than a session's own allowance for drift."""
NOTICED_STRIKES = frozenset(
    {"reply cut off", "no leader", "index back", "old leader", "release key", "destroy session"}
)
"""Those that nobody is held up by, as he hears of them, or can go on."""


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
    """The sessions of the clients, and of all that has none of its own."""
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
    twice: bool = False
    """Whether the request after that one can't be sent."""
    strike: tuple[int, str] | None = None
    """The number of the request that one fault is aimed at, and the fault: a fate, or one of the others."""
    amid: float = 0.0
    """Of so many requests that write something each meets an operator's act on its way."""
    behind: float = 1.0
    """The part of the readings that allow it which an old leader answers, while there is one."""
    still: float = 0.0
    """Of so many requests the sender stands still just then, for about a lease."""
    threads: float = 0.0
    """Of so many steps of a program its thread stands still amid, while other threads go on."""
    own_ttl: float = 1.0
    """The part of the clients' TTL that sessions have which some locks and candidates have for themselves."""
    several: bool = False
    """Whether some users of locks take all keys at once."""
    keeping: bool = False
    """Whether users of locks keep sessions of their own, hand them over and resume them."""
    permits: bool = False
    """Whether some take several slots of a semaphore at once."""
    lingering: float = 0.0
    """Seconds for which most of what is got is kept at most; 0 for moments and short times."""
    stuck: float = 0.0
    """Of so many holds the end is given in advance, by ``max_hold`` or a beat that does not come."""
    jobs: tuple[str, ...] = ()
    """Keys of jobs that each process tries to run."""
    rwlocks: tuple[str, ...] = ()
    """Read-write locks."""
    guests: Sharing | None = None
    """The group whose members have ids that several want."""
    sharing: Sharing | None = None
    """The partitions that the processes share as members of a group."""
    strangers: tuple[str, ...] = ()
    """Other groups, whose members are strangers, and which users watch."""
    large: str = ""
    """One of these, which is large from the beginning."""
    callers: int = 0
    """Users in each process that read and write keys, and make sessions, by plain calls."""
    crowd: int = 0
    """Watches of keys in each process."""
    crowd_for: float = math.inf
    """Seconds after which these end, one after the other, and what else is watched has room again."""
    agents: int = 1
    """Ways to the servers, of which one at a time is gone or silent; with a stray one among several."""
    connections: int = 0
    """The agent's limit on connections from the processes, which are one address; 0 for no limit."""
    calm: bool = False
    """Whether nothing goes wrong but what operators do: all is as quick and as cheap as documented then."""
    curious: bool = False
    """Whether users ask who else holds and waits."""
    office: Literal["", "heirs", "short"] = ""
    """The kind of leaders: all hand over, or all lead for a moment, with many of low priority."""

    @property
    def own_spec(self) -> SessionSpec:
        """The sessions that some locks and candidates have for themselves."""
        return replace(self.spec, ttl=(self.spec.ttl or 0.0) * self.own_ttl)

    @property
    def all_keys(self) -> tuple[str, ...]:
        """The keys that one at a time may hold."""
        partitions = () if self.sharing is None else self.sharing.keys
        return (*self.keys, *self.elections, *self.jobs, *partitions, *self.ids)

    @property
    def removed_keys(self) -> tuple[str, ...]:
        """Those of them that are deleted when they are given back."""
        return (*(() if self.sharing is None else self.sharing.keys), *self.ids)

    @property
    def ids(self) -> tuple[str, ...]:
        """The keys of the members whose ids several want."""
        return () if self.guests is None else tuple(map(self.guests.group.key, IDS))

    @property
    def crowd_keys(self) -> tuple[str, ...]:
        """The keys that crowds of watches are about."""
        return tuple(f"crowd/{number}" for number in range(self.crowd))

    @property
    def group_folders(self) -> set[str]:
        """The top-level folders of the groups that there are."""
        own = (group.prefix for group in (self.sharing, self.guests) if group is not None)
        return {prefix.partition("/")[0] for prefix in (*own, *self.strangers)}

    @property
    def has_only_acts(self) -> bool:
        """Whether there are groups, and nothing goes wrong but what operators do, and crashes."""
        acts = self.strike is None and not self.fates and self.chaos.keys() <= _ACTS
        return (self.sharing is not None or self.guests is not None) and acts

    @property
    def has_old_leader(self) -> bool:
        """Whether an old leader of the servers may answer."""
        return "old leader" in (*self.chaos, *(self.strike or ()))

    @property
    def gentle(self) -> bool:
        """Whether so little goes wrong that who could be served must be, also while it does."""
        struck = self.strike is not None and self.strike[1] in NOTICED_STRIKES
        return bool(self.office or struck or (self.once and self.lingering and not self.twice))

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
        spec, checks, own = self.spec, list(self.spec.node_checks), self.own_spec.ttl
        fates = ", ".join(f"{name} {part:.1%}" for name, part in self.fates.items())
        chaos = ", ".join(f"{name} every {mean:.0f} s" for name, mean in self.chaos.items())
        groups = () if self.sharing is None else self.sharing.keys
        kinds = (
            ("jobs", self.jobs),
            ("ids", self.ids),
            ("partitions", groups),
            ("read-write locks", self.rwlocks),
        )
        ways = ", and all together" * self.several
        others = "".join(f"; {kind}: {', '.join(names)}" for kind, names in kinds if names)
        rows = (
            f"seed {self.seed}: {self.processes} processes with {self.users} users each",
            f"locks: {', '.join(self.keys) or 'none'}{ways}",
            *(["the request after one that fails can't be sent"] if self.twice else ()),
            *(["users of locks hand their sessions over"] if self.keeping else ()),
            f"foreign clients of each kind: {self.foreign}",
            f"semaphores: {pools or 'none'}; elections: {', '.join(self.elections) or 'none'}{others}",
            f"sessions: TTL {spec.ttl} s, own ones {own} s; they end after {self.ttl_factor:g} x of it",
            f"sessions: lock-delay {spec.lock_delay} s, {spec.behavior}, checks {checks}",
            f"clocks: {self.skew:.1%} off at most",
            f"faults for {self.chaos_seconds:.0f} s: {fates or 'none'}",
            f"aimed at: {', '.join(sorted(self.hot)) or 'nothing'} ({self.hot_probability:.0%})",
            f"and: {chaos or 'nothing else'}; stuck holders: {self.stuck:.0%}; acts amid: {self.amid:.0%}",
            *([f"of two leaders the old one answers {self.behind:.0%}"] if self.behind < 1.0 else ()),
            *(
                [f"of {self.still:.0%} of the requests the sender stands still meanwhile"]
                if self.still
                else ()
            ),
            *([f"amid {self.threads:.0%} of the steps a thread stands still"] if self.threads else ()),
            *([f"{self.callers} users of plain calls each"] if self.callers else ()),
            *([f"{self.crowd} watches each"] if self.crowd else ()),
            *([f"which go after {self.crowd_for:.1f} s"] if math.isfinite(self.crowd_for) else ()),
            *([f"the agent takes {self.connections} connections"] if self.connections else ()),
            *([f"at request {self.strike[0]}: {self.strike[1]}"] if self.strike else ()),
        )
        return "\n".join(rows)
