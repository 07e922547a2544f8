"""One trial, from the first start to the verdict.

1. The cluster and the members start, each member behind a proxy of its own. Every partition gets the owner
   that is due.
2. For the plan's seconds, members are killed, stopped and cut off, several at a time. A server is killed or
   restarted now and then, the leader as often as not, never two of them at once.
3. All is healed, until every partition is with the member that is due. Then the looks of all are judged.

Rules
- A member that is killed starts again under its name: at once, as a supervisor would start it, or later.
- At most a third of the members are hurt at a time, each in one way.
- A server has a while between two harms, because servers that restart one after the other from a snapshot
  forget lock-delays. This is not promised.
"""

from __future__ import annotations

import contextlib
import heapq
import http.client
import itertools
import json
import random
import signal
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from consul_coord import failover_bound
from consul_coord.recipes.partition.rendezvous import Rendezvous
from consul_coord.testing.agent import AgentError
from proof.chaos.proxy import Harm as Trouble
from proof.chaos.proxy import Proxies, Proxy
from proof.cluster import RealCluster
from proof.partitions.judge import EVERYBODY, KILLED, NO_ANSWER, NO_LEADER, TICK, Harm, Spans, Verdict, judge
from proof.partitions.member import Setting, last_look, looks

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType
    from typing import Self

CLIENTS: Final = 2
SETTLING: Final = 1.0
"""Seconds that a view of the group, its settling and a look may take besides the failover."""
_CONFIG: Final = {
    "limits": {"http_max_conns_per_client": 0},
    "leave_on_terminate": False,
    "autopilot": {"cleanup_dead_servers": False},
}
"""A restart is no departure of a server."""
_START: Final = 60.0
_RESTART: Final = 3.0
"""Seconds that a server has to end when it is asked to."""
_POLL: Final = 0.1
_LONG: Final = 1.0
"""Seconds without an answer that are noted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One trial: for how many seconds members are hurt, by which seed, and which members."""

    seconds: float = 60.0
    seed: int = 1
    members: int = 30
    partitions: int = 64
    ttl: float = 10.0
    """Seconds; the lock-delay is as long."""
    pace: float = 6.0
    """Mean seconds between two harms to members."""
    server_pace: float = 60.0
    """Seconds between two harms to servers."""
    server_down: float = 6.0
    """Seconds that a killed server stays away, at most."""
    tick: float = 0.1

    def duration(self, chance: random.Random) -> float:
        """Draw how long a member is hurt: half of the times for too short a time to lose anything."""
        return self.ttl * chance.choice((chance.uniform(0, 0.5), chance.uniform(0.5, 5)))

    @property
    def lives(self) -> float:
        """The seconds after which the session of a member that is not heard from has ended."""
        return self.bound - self.ttl

    @property
    def names(self) -> tuple[str, ...]:
        """The members."""
        return tuple(f"m{number}" for number in range(self.members))

    def setting(self, address: str) -> Setting:
        """Return what the members behind an address are started with."""
        return Setting(
            address=address, prefix="trial", partitions=self.partitions, ttl=self.ttl, tick=self.tick
        )

    @property
    def bound(self) -> float:
        """The seconds for which a partition may have no owner."""
        return failover_bound(self.setting("").spec) + SETTLING

    @property
    def endures(self) -> float:
        """The seconds without an answer that cost nobody a lease: the half of a lease is always left."""
        return self.ttl / 2


@dataclass(slots=True, eq=False)
class Place:
    """One member, and the lives that it has had."""

    name: str
    proxy: Proxy
    process: subprocess.Popen[bytes] | None = None
    life: int = 0


@dataclass(slots=True)
class Outcome:
    """What a trial has come to."""

    verdict: Verdict
    harms: tuple[Harm, ...]
    servers: dict[str, int]
    """How often each kind of harm was done to a server."""
    bound: float
    died: list[str] = field(default_factory=list[str])
    """Members that ended by themselves."""

    @property
    def findings(self) -> list[str]:
        """All that must not be."""
        return [*self.verdict.findings, *self.died]

    def __str__(self) -> str:
        verdict = self.verdict
        kinds = Counter(harm.kind for harm in self.harms if harm.member != EVERYBODY)
        led = [harm.over - harm.began for harm in self.harms if harm.kind == NO_LEADER]
        answered = [harm.over - harm.began for harm in self.harms if harm.kind == NO_ANSWER]
        return "\n".join(
            (
                f"{kinds.total()} harms to members ({_counted(kinds)}), to servers: {_counted(self.servers)}",
                f"{len(led)} times without a leader, {max(led, default=0.0):.1f} s at most",
                f"{len(answered)} other times without an answer, {max(answered, default=0.0):.1f} s at most",
                f"{verdict.spans} times of owning a partition, {verdict.moves} moves",
                f"{verdict.longest_gap:.1f} s without an owner at most, {self.bound:.1f} s are allowed",
                *self.findings,
                f"findings: {len(self.findings)}",
            )
        )


def _counted(kinds: dict[str, int]) -> str:
    return ", ".join(f"{kind} {number}" for kind, number in sorted(kinds.items())) or "none"


class Bed:
    """Everything that a trial has started; a context manager."""

    def __init__(self, plan: Plan, folder: Path, binary: Path | None) -> None:
        self.plan, self.folder = plan, folder
        self.cluster = RealCluster(clients=CLIENTS, config=_CONFIG, start_timeout=_START, binary=binary)
        self.proxies = Proxies()
        self.places: dict[str, Place] = {}
        self.died: list[str] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.cluster)
            stack.enter_context(self.proxies)
            stack.callback(self._end)
            for name, agent in zip(self.plan.names, itertools.cycle(self.cluster.clients), strict=False):
                self.places[name] = Place(name, self.proxies.before(agent.address))
                self.start(name)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _file(self, place: Place) -> Path:
        return self.folder / f"{place.name}-{place.life}.looks"

    def start(self, name: str) -> None:
        """Start a member, in a new life."""
        place = self.places[name]
        place.life += 1
        place.process = self.plan.setting(place.proxy.address).start(name, self._file(place))

    def kill(self, name: str) -> None:
        """Kill a member as a crash would."""
        place = self.places[name]
        if place.process is not None:
            if place.process.poll() is not None:
                self.died.append(f"{name} ended by itself in its life {place.life}")
            place.process.kill()
            place.process.wait()
            place.process = None

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a member."""
        if (process := self.places[name].process) is not None:
            process.send_signal(number)

    def settle(self, timeout: float) -> None:
        """Wait until every partition is with the member that is due. ``AgentError`` after ``timeout`` s."""
        owners = Rendezvous([str(number) for number in range(self.plan.partitions)])
        due = owners.owners(dict.fromkeys(self.plan.names, 1.0))
        deadline = time.monotonic() + timeout
        while (found := self._owners()) != due:
            if time.monotonic() > deadline:
                wrong = sorted(set(due.items()) - set(found.items()))
                raise AgentError(f"these partitions are not with the owner that is due: {wrong}")
            time.sleep(_POLL)

    def _owners(self) -> dict[str, str]:
        """Return who has lately found itself the owner of what."""
        now, found = time.monotonic(), dict[str, str]()
        for place in self.places.values():
            look = last_look(self._file(place))
            if look is not None and look.before > now - 2 * TICK:
                found |= dict.fromkeys(look.fences, place.name)
        return found

    def spans(self) -> Spans:
        """Return all that the members have written down."""
        spans = Spans()
        for file in self.folder.glob("*.looks"):
            for look in looks(file):
                spans.add(file.stem.rpartition("-")[0], look)
        return spans

    def _end(self) -> None:
        for name in self.places:
            self.signal(name, signal.SIGCONT)
            self.kill(name)


class _Harms:
    """What is hurt at present, until when, and how it is taken back."""

    def __init__(self, bed: Bed, chance: random.Random) -> None:
        self.done: list[Harm] = []
        self.servers: Counter[str] = Counter()
        self._bed, self._chance = bed, chance
        self._hurt: set[str] = set()
        self._order = itertools.count()
        self._due: list[tuple[float, int, Callable[[], object]]] = []

    @property
    def next_end(self) -> float:
        """When the next harm is to be taken back."""
        return self._due[0][0] if self._due else float("inf")

    def end(self, now: float) -> None:
        """Take back what is due."""
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()

    def _until(self, end: float, undo: Callable[[], object]) -> None:
        heapq.heappush(self._due, (end, next(self._order), undo))

    # -- members

    def hurt_a_member(self) -> None:
        """Kill, stop or cut off a member."""
        bed, chance = self._bed, self._chance
        whole = [name for name in bed.places if name not in self._hurt]
        if len(self._hurt) >= len(bed.places) / 3:
            return
        name, began = chance.choice(whole), time.monotonic()
        kind = chance.choice((KILLED, "stopped", "cut off", "delivered late"))
        undo: Callable[[], object]
        if kind == KILLED:
            bed.kill(name)
            undo = partial(bed.start, name)
        elif kind == "stopped":
            bed.signal(name, signal.SIGSTOP)
            undo = partial(bed.signal, name, signal.SIGCONT)
        else:
            proxy = bed.places[name].proxy
            bed.proxies.set(proxy, Trouble.SWALLOW if kind == "cut off" else Trouble.HOLD)
            undo = partial(bed.proxies.set, proxy, Trouble.NONE)
        self._hurt.add(name)

        def over() -> None:
            undo()
            self._hurt.discard(name)
            self.done.append(Harm(name, kind, began, time.monotonic()))

        self._until(began + bed.plan.duration(chance), over)

    # -- servers

    def hurt_a_server(self) -> None:
        """Kill or restart a server."""
        cluster, chance = self._bed.cluster, self._chance
        leader = cluster.wait_for_leader()
        chosen = leader if chance.random() < 1 / 2 else chance.randrange(len(cluster.agents))
        server, began = cluster.agents[chosen], time.monotonic()
        killed = chance.random() < 1 / 2
        if killed:
            server.kill()
        else:
            server.terminate(timeout=_RESTART)
        who = "leader" if chosen == leader else "follower"
        self.servers[f"{who} {'killed' if killed else 'restarted'}"] += 1
        if killed:
            self._until(began + chance.uniform(0, self._bed.plan.server_down), server.launch)
        else:
            server.launch()


class Outages:
    """Notes when the servers answer nobody, and when they elect a leader; a context manager.

    Every election counts, since each begins the time of all sessions again: those of the trial's own making,
    and those of a machine that stands still. It shows in Raft's term.
    """

    def __init__(self, cluster: RealCluster) -> None:
        self.found: list[Harm] = []
        self._cluster = cluster
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="outages", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        answered, known = time.monotonic(), self._term()
        while not self._over.wait(_POLL):
            if not self._is_answered():
                continue
            now, term = time.monotonic(), self._term()
            if term > known or now - answered > _LONG:
                self.found.append(Harm(EVERYBODY, NO_LEADER if term > known else NO_ANSWER, answered, now))
            answered, known = now, max(term, known)

    def _is_answered(self) -> bool:
        """Return whether a write through a client agent is answered."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            status, _ = self._cluster.clients[0].request("PUT", "/v1/kv/trial-answer", b"", timeout=_LONG)
            return status == http.HTTPStatus.OK
        return False

    def _term(self) -> int:
        """Return the highest term that a server knows; 0 when none answers."""
        terms = [0]
        for server in self._cluster.agents:
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError, KeyError):
                _, body = server.request("GET", "/v1/agent/self", timeout=_LONG)
                terms.append(int(json.loads(body)["Stats"]["raft"]["term"]))
        return max(terms)


def play(
    plan: Plan,
    folder: Path,
    *,
    binary: Path | None = None,
    over: threading.Event | None = None,
    tell: Callable[[str], object] = lambda _: None,
) -> Outcome:
    """Run a plan in an empty folder, which then has all looks and harms, and return what it has come to.

    ``over`` ends the harm early; what was seen until then is judged. ``tell`` gets a line now and then.
    Raises ``AgentError`` when the cluster can't be started, or the members don't recover once it is healed.
    """
    over = over or threading.Event()
    with Bed(plan, folder, binary) as bed:
        bed.settle(_START + 2 * plan.bound)
        since = time.monotonic()
        tell(f"{plan.members} members share {plan.partitions} partitions")
        with Outages(bed.cluster) as outages:
            harms = _hurt(bed, plan, over, tell)
            bed.cluster.heal()
            bed.settle(_START + 2 * plan.bound)
        harms.done += outages.found
        bed.died += [
            f"{place.name} ended by itself in its life {place.life}"
            for place in bed.places.values()
            if place.process is None or place.process.poll() is not None
        ]
    (folder / "harms.json").write_text(json.dumps([asdict(harm) for harm in harms.done]), encoding="utf-8")
    verdict = judge(
        bed.spans(),
        harms.done,
        members=plan.names,
        bound=plan.bound,
        lives=plan.lives,
        endures=plan.endures,
        since=since,
    )
    return Outcome(verdict, tuple(harms.done), dict(harms.servers), plan.bound, bed.died)


def _hurt(bed: Bed, plan: Plan, over: threading.Event, tell: Callable[[str], object]) -> _Harms:
    """Do harm for as long as the plan says, and take all of it back."""
    chance = random.Random(plan.seed)  # noqa: S311 - the harm of a test
    harms = _Harms(bed, chance)
    began = now = time.monotonic()
    member_at, server_at, told_at = began, began + plan.server_pace / 2, began + _TOLD
    while not over.is_set() and (now := time.monotonic()) < began + plan.seconds:
        harms.end(now)
        if now >= member_at:
            member_at = now + chance.expovariate(1 / plan.pace)
            harms.hurt_a_member()
        if now >= server_at:
            server_at = now + plan.server_pace
            harms.hurt_a_server()
        if now >= told_at:
            told_at += _TOLD
            tell(f"after {now - began:.0f} s: {len(harms.done)} harms are over")
        due = min(member_at, server_at, told_at, harms.next_end, began + plan.seconds)
        over.wait(max(0.0, due - time.monotonic()))
    harms.end(float("inf"))
    return harms


_TOLD: Final = 60.0
"""Seconds between two lines."""
