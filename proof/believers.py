"""End sessions on a real cluster in every way there is, and measure for how long two clients believe.

Rules
- In each round, all recipes hold something with each of several specs, side by side, through one agent. That
  agent, its node or its sessions are then hurt, mostly so that the holders can't hear of it. Others wait at a
  client agent and at a server that live.
- Rounds that don't disturb each other are played together in one cluster, each with an agent of its own.
- Whoever gets something counts, at that moment, how many of those that have or had it still consider
  themselves holders. More than there is room for is an overlap, which is timed until it ends.
- Times are those of the specs, times ``scale``: a tenth makes seconds of what takes minutes.

``python -m proof.believers --times 3`` prints a line for each act and each overlap. The exit code is 0
if there was no overlap and everything was taken over, otherwise 1.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import logging
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from consul_coord import (
    Client,
    ConsulCoordError,
    LeaderElection,
    Lock,
    MultiLock,
    ReadWriteLock,
    Semaphore,
    SessionSpec,
    failover_bound,
)
from consul_coord.models.session import DEFAULT_TTL, SERF_HEALTH, effective_lock_delay
from consul_coord.testing.agent import AgentError
from consul_coord.testing.binary import find_consul
from proof.cluster import RealCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from consul_coord.testing.agent import RealAgent

SPECS: Final[Mapping[str, SessionSpec]] = {
    "defaults": SessionSpec(),
    "nightly": SessionSpec(ttl=60, lock_delay=60),
    "quick": SessionSpec(ttl=10, lock_delay=10),
    "liveness": SessionSpec.liveness(ttl=10, lock_delay=10),
    "long TTL alone": SessionSpec(ttl=60),
    "short delay": SessionSpec(ttl=20, lock_delay=5),
    "coordination": SessionSpec.coordination(),
}
"""The defaults, those that the docs recommend, and two whose lock-delay is shorter than the TTL."""
PATIENCE: Final = 30.0
_POLL: Final = 0.005
_SETTLE: Final = 2.0
_PACE: Final = 0.02
"""Seconds between waiters: leases of a second are not to be lost to a crowd that comes at once."""
_AWAY: Final = 600.0
ALIVE: Final = 1
CONFIG: Final[Mapping[str, object]] = {
    "limits": {"http_max_conns_per_client": 2000},
    "autopilot": {"server_stabilization_time": "2s"},
}
"""All takers come from one address, and a server that autopilot removed shall have its vote back soon."""


class Believer(Protocol):
    """A hold, as far as it is looked at here."""

    @property
    def is_held(self) -> bool:
        """Whether its owner relies on it."""
        ...


@dataclass(slots=True)
class Thing:
    """Something that some may hold: who was given it, and for how long it were too many."""

    name: str
    room: int
    holds: list[Believer] = field(default_factory=list[Believer])
    relied_on: int = 0
    taken: int = 0
    overlap: float = 0.0
    _mutex: threading.Lock = field(default_factory=threading.Lock)

    def first(self, hold: Believer) -> None:
        """Take note of who has it before anything happens."""
        self.holds.append(hold)

    def look(self) -> None:
        """Count those who consider themselves holders."""
        self.relied_on = sum(hold.is_held for hold in self.holds)

    def next(self, hold: Believer) -> None:
        """Take note of who got it, and time how long it has too many holders."""
        with self._mutex:
            self.holds.append(hold)
            self.taken += 1
        began = time.monotonic()
        while self._too_many():
            with self._mutex:
                self.overlap = max(self.overlap, time.monotonic() - began, _POLL)
            time.sleep(_POLL)

    def _too_many(self) -> bool:
        with self._mutex:
            return sum(hold.is_held for hold in self.holds) > self.room


@dataclass(frozen=True, slots=True)
class Recipe:
    """How something is held, by ``holders`` at first, and waited for by others."""

    hold: Callable[[Client, str], Believer]
    take: Callable[[Client, str, float], Believer]
    room: int = 1


@dataclass(frozen=True, slots=True)
class _Leading:
    """A leadership with its election, which ends when nobody refers to it."""

    election: LeaderElection
    leadership: Believer

    @property
    def is_held(self) -> bool:
        """Whether it leads."""
        return self.leadership.is_held


def _lead(client: Client, key: str, timeout: float) -> Believer:
    # Whoever has lost an election leaves it to the others for a while.
    election = LeaderElection(client, key, retry_wait=(_AWAY, _AWAY))
    election.start()
    return _Leading(election, election.wait_for_leadership(timeout=timeout))


def _same(get: Callable[[Client, str, float], Believer], room: int = 1) -> Recipe:
    return Recipe(lambda client, key: get(client, key, PATIENCE), get, room)


RECIPES: Final[Mapping[str, Recipe]] = {
    "lock": _same(lambda client, key, timeout: Lock(client, key).acquire(timeout=timeout)),
    "several locks": _same(
        lambda client, key, timeout: MultiLock(client, [f"{key}/a", f"{key}/b"]).acquire(timeout=timeout)
    ),
    "semaphore": _same(
        lambda client, key, timeout: Semaphore(client, key, 2).acquire(timeout=timeout), room=2
    ),
    "writer after writer": _same(
        lambda client, key, timeout: ReadWriteLock(client, key).write.acquire(timeout=timeout)
    ),
    "writer after reader": Recipe(
        lambda client, key: ReadWriteLock(client, key).read.acquire(timeout=PATIENCE),
        lambda client, key, timeout: ReadWriteLock(client, key).write.acquire(timeout=timeout),
    ),
    "election": _same(_lead),
}


class Bed:
    """A cluster, the agent that is to be hurt, and others that nobody hurts."""

    def __init__(self, cluster: RealCluster, agent: RealAgent, others: tuple[RealAgent, ...]) -> None:
        self.cluster = cluster
        self.agent = agent
        self.others = others
        self.mark = f"round {uuid.uuid4().hex[:8]}"
        self.node = f"node-{self.mark}".replace(" ", "-")
        """The coordination node of this round."""
        self.told = ""
        """The outcome of the act, in a few words."""

    def ask(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
        """Ask until there is an answer."""
        data = None if body is None else json.dumps(body).encode()
        deadline = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException, json.JSONDecodeError):
                status, reply = self.others[0].request(method, path, data)
                if status < http.HTTPStatus.INTERNAL_SERVER_ERROR:
                    return json.loads(reply) if reply else None
            if time.monotonic() > deadline:
                raise AgentError(f"no answer to {method} {path}")
            time.sleep(0.1)

    def sessions(self) -> list[str]:
        """Return the sessions of this round's holders."""
        mark = f"{self.mark} holder"
        return [each["ID"] for each in self.ask("GET", "/v1/session/list") if each["Name"].startswith(mark)]

    def is_heard_of(self) -> bool:
        """Return whether each server has heard that this round's holders have no session."""
        mark = f"{self.mark} holder".encode()
        return all(
            mark not in server.request("GET", "/v1/session/list?stale")[1]
            for server in self.cluster.agents
            if server.is_running
        )

    def until(self, what: str, condition: Callable[[], bool], *, within: float = PATIENCE) -> None:
        """Wait for something."""
        deadline = time.monotonic() + within
        while not condition():
            if time.monotonic() > deadline:
                raise AgentError(f"{self.agent.name} {what}: not within {within:g} s")
            time.sleep(0.1)

    def has_failed(self) -> bool:
        """Return whether the members think that the agent has failed."""
        members = self.ask("GET", "/v1/agent/members")
        return all(each["Name"] != self.agent.name or each["Status"] != ALIVE for each in members)


# -- what is done to them


def destroy(bed: Bed) -> None:
    """Destroy every session, as an operator, while its holder hears nothing."""
    bed.agent.pause()
    destroy_and_tell(bed)


def destroy_and_tell(bed: Bed) -> None:
    """Destroy every session, as an operator, and let the holders hear of it."""
    for session in bed.sessions():
        bed.ask("PUT", f"/v1/session/destroy/{session}")


def deregister(bed: Bed) -> None:
    """Remove the agent's node and the coordination node while the holders hear nothing."""
    bed.agent.pause()
    for node in (bed.agent.name, bed.node):
        bed.ask("PUT", "/v1/catalog/deregister", {"Node": node})


def check_critical(bed: Bed) -> None:
    """Make the check of the agent's node critical while the holders hear nothing."""
    bed.agent.pause()
    check = {"CheckID": SERF_HEALTH, "Name": SERF_HEALTH, "Status": "critical"}
    body = {"Node": bed.agent.name, "Address": bed.agent.host, "SkipNodeUpdate": True, "Check": check}
    bed.ask("PUT", "/v1/catalog/register", body)


def check_gone(bed: Bed) -> None:
    """Remove the check of the agent's node while the holders hear nothing."""
    bed.agent.pause()
    bed.ask("PUT", "/v1/catalog/deregister", {"Node": bed.agent.name, "CheckID": SERF_HEALTH})


def force_leave(bed: Bed) -> None:
    """Kill the agent and send it away, as an operator."""
    bed.agent.kill()
    bed.until("was found to have failed", bed.has_failed)
    bed.ask("PUT", f"/v1/agent/force-leave/{bed.agent.name}")


def leave(bed: Bed) -> None:
    """Let the agent leave in good order."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        bed.agent.request("PUT", "/v1/agent/leave")


def kill(bed: Bed) -> None:
    """Kill the agent."""
    bed.agent.kill()


def stop(bed: Bed) -> None:
    """Let the agent stand still."""
    bed.agent.pause()


def kill_server(bed: Bed) -> None:
    """Kill the server that the holders use, and wait until autopilot removes it."""
    bed.agent.kill()
    _autopilot(bed)


def stop_server(bed: Bed) -> None:
    """Let the server that the holders use stand still, and wait until autopilot removes it."""
    bed.agent.pause()
    _autopilot(bed)


def _autopilot(bed: Bed) -> None:
    """Wait until autopilot says in its own log that it removes the server, and its node is gone."""
    began = time.monotonic()
    bed.until("is removed by autopilot", lambda: removed_by_autopilot(bed), within=3 * PATIENCE)
    path = f"/v1/catalog/node/{bed.agent.name}?consistent"
    bed.until("has left the catalog", lambda: bed.ask("GET", path) is None)
    bed.told = f"autopilot removed {bed.agent.name} after {time.monotonic() - began:.1f} s"


def removed_by_autopilot(bed: Bed) -> bool:
    """Return whether a server's log says that autopilot removes this one."""
    lines = (
        line for server in bed.cluster.agents if server is not bed.agent for line in server.log.split("\n")
    )
    return any(
        "autopilot: " in line and AUTOPILOT_REMOVES in line and bed.agent.name in line for line in lines
    )


def new_leader(bed: Bed) -> None:
    """Destroy every session unheard by its holder, and kill the leader while the lock-delays last.

    Each server has heard of it: one that leads before it has would know of no lock-delay.
    """
    destroy(bed)
    bed.until("is without sessions at each server", bed.is_heard_of)
    bed.cluster.kill(bed.cluster.wait_for_leader())


AUTOPILOT_REMOVES: Final = "Attempting removal of failed server node"

ACTS: Final[Mapping[str, Callable[[Bed], None]]] = {
    act.__name__.replace("_", " "): act
    for act in (
        destroy,
        destroy_and_tell,
        deregister,
        check_critical,
        check_gone,
        force_leave,
        leave,
        kill,
        stop,
        kill_server,
        stop_server,
        new_leader,
    )
}
AT_A_SERVER: Final = frozenset({"kill server", "stop server"})
OF_CHECKS: Final = frozenset({"check critical", "check gone"})
"""They concern the sessions with checks only; others see no more of them than of "stop"."""
TOGETHER: Final = (
    ("kill server", "kill", "deregister", "force leave"),
    ("stop server", "stop", "check gone", "leave"),
    ("new leader", "destroy", "destroy and tell", "check critical"),
)
"""Acts that don't disturb each other. One of each row needs a server."""
AGENTS: Final = 1 + max(map(len, TOGETHER))
"""Client agents: one for each of them, and one that nobody hurts."""


# -- a round


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one act came to."""

    act: str
    things: tuple[Thing, ...]
    seconds: float
    told: str = ""
    failed: tuple[str, ...] = ()

    @property
    def overlaps(self) -> dict[str, float]:
        """What two believed in at once, and for how many seconds."""
        return {thing.name: thing.overlap for thing in self.things if thing.overlap}

    @property
    def passed(self) -> bool:
        """Whether everything was taken over, by nobody too early."""
        return not self.overlaps and not self.failed

    def __str__(self) -> str:
        relied_on = sum(thing.relied_on for thing in self.things)
        taken = sum(thing.taken for thing in self.things)
        wanted = sum(thing.room for thing in self.things)
        worst = max(thing.overlap for thing in self.things)
        text = (
            f"{self.act}: {relied_on} held, {taken} of {wanted} taken over, most overlap {worst:.3f} s, "
            f"{self.seconds:.0f} s{self.told and '; '}{self.told}"
        )
        overlaps = (f"{name}: {much:.3f} s" for name, much in self.overlaps.items())
        return "\n  ".join((text, *overlaps, *(f"not taken over: {each}" for each in self.failed)))


def scaled(spec: SessionSpec, scale: float, name: str, node: str) -> SessionSpec:
    """Return a spec with its times, and the servers' default lock-delay, made shorter."""
    ttl = (spec.ttl or DEFAULT_TTL) * scale
    node_of_it = node if spec.register_node else spec.node
    return replace(spec, ttl=ttl, lock_delay=effective_lock_delay(spec) * scale, name=name, node=node_of_it)


class Round:
    """One act, done to the holders of everything."""

    def __init__(self, act: str, bed: Bed, specs: Mapping[str, SessionSpec], scale: float) -> None:
        self.act, self.bed = act, bed
        self._began = time.monotonic()
        chosen = {name: spec for name, spec in specs.items() if act not in OF_CHECKS or spec.node_checks}
        self._specs = {name: scaled(spec, scale, bed.mark, bed.node) for name, spec in chosen.items()}
        self._bound = max(failover_bound(spec, leader_changes=1) for spec in self._specs.values()) + PATIENCE
        self._clients: list[Client] = []
        self._things: list[Thing] = []
        self._threads: list[threading.Thread] = []
        self._failed: list[str] = []

    def hold(self, recipes: Mapping[str, Recipe]) -> None:
        """Hold everything, and have others wait for it."""
        mark = self.bed.mark
        ways = itertools.cycle(self.bed.others)
        for (name, spec), way in zip(self._specs.items(), ways, strict=False):
            holder = self._client(self.bed.agent, replace(spec, name=f"{mark} holder {name}"))
            taker = self._client(way, SessionSpec(name=f"{mark} taker"))
            for kind, recipe in recipes.items():
                thing, key = Thing(f"{kind}, {name}", recipe.room), f"{mark}/{kind}/{name}".replace(" ", "-")
                self._things.append(thing)
                for _ in range(recipe.room):
                    thing.first(recipe.hold(holder, key))
                    arguments = (thing, recipe, taker, key)
                    self._threads.append(threading.Thread(target=self._take, args=arguments, daemon=True))
        for thread in self._threads:
            thread.start()
            time.sleep(_PACE)

    def hurt(self) -> None:
        """Do what is to be done."""
        for thing in self._things:
            thing.look()
        try:
            ACTS[self.act](self.bed)
        except AgentError as error:
            self._failed.append(str(error))

    def wait(self) -> Outcome:
        """Wait until everything is taken over."""
        _join(self._threads, self._bound + PATIENCE)
        seconds = time.monotonic() - self._began
        return Outcome(self.act, tuple(self._things), seconds, self.bed.told, tuple(self._failed))

    def close(self) -> None:
        """Close the clients. The agents must be well again."""
        closing = [threading.Thread(target=each.close, kwargs={"timeout": 5.0}) for each in self._clients]
        for thread in closing:
            thread.start()
        _join(closing, PATIENCE)
        self.bed.ask("PUT", "/v1/catalog/deregister", {"Node": self.bed.node})

    def _client(self, agent: RealAgent, spec: SessionSpec) -> Client:
        client = Client(address=agent.address, session=spec)
        self._clients.append(client)
        return client

    def _take(self, thing: Thing, recipe: Recipe, client: Client, key: str) -> None:
        try:
            thing.next(recipe.take(client, key, self._bound))
        except ConsulCoordError as error:
            self._failed.append(f"{thing.name}: {str(error)[:200]}")


def play(
    cluster: RealCluster,
    *acts: str,
    scale: float,
    specs: Mapping[str, SessionSpec] = SPECS,
    recipes: Mapping[str, Recipe] = RECIPES,
) -> tuple[Outcome, ...]:
    """Hold everything for each act, do them all at once, and see who takes over.

    One client agent and one server are left alone, the leader too unless it is to change.
    """
    until_whole(cluster)
    leader = cluster.wait_for_leader()
    server, hurt, *_ = (agent for index, agent in enumerate(cluster.agents) if index != leader)
    spare, *clients = cluster.clients
    # A small cluster of a test has one client agent, which is the one to be hurt.
    others = (spare, server) if clients else (server,)
    agents = iter(clients or [spare])
    rounds = [
        Round(act, Bed(cluster, hurt if act in AT_A_SERVER else next(agents), others), specs, scale)
        for act in acts
    ]
    with ThreadPoolExecutor(len(rounds)) as together:
        try:
            for each in rounds:
                each.hold(recipes)
            time.sleep(_SETTLE)  # so that they queue; whoever comes later takes all the same
            list(together.map(Round.hurt, rounds))
            return tuple(together.map(Round.wait, rounds))
        finally:
            _heal(cluster, rounds)
            list(together.map(Round.close, rounds))


def _heal(cluster: RealCluster, rounds: Sequence[Round]) -> None:
    for each in rounds:
        each.bed.agent.kill()  # a new start puts a node back that is not in the catalog any more, at once
    cluster.heal()
    cluster.wait_for_leader()


def until_whole(cluster: RealCluster) -> None:
    """Wait until every server has a vote: one that autopilot removed gets it back after a while."""
    deadline = time.monotonic() + 2 * PATIENCE
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException, json.JSONDecodeError):
            leader = cluster.agents[cluster.wait_for_leader()]
            servers = json.loads(leader.request("GET", "/v1/operator/raft/configuration")[1])["Servers"]
            if sum(each["Voter"] for each in servers) == len(cluster.agents):
                return
        if time.monotonic() > deadline:
            raise AgentError("a server has no vote")
        time.sleep(0.2)


def _join(threads: Sequence[threading.Thread], seconds: float) -> None:
    for thread in threads:
        thread.join(seconds)


def play_all(
    *,
    times: int,
    scale: float,
    servers: int,
    acts: Sequence[str] = tuple(ACTS),
    binary: Path | None = None,
) -> Iterator[Outcome]:
    """Play each act as often, in one cluster."""
    rows = [chosen for row in TOGETHER if (chosen := [act for act in row if act in acts])]
    with RealCluster(binary=binary, size=servers, clients=AGENTS, config=CONFIG) as cluster:
        for _ in range(times):
            for row in rows:
                yield from play(cluster, *row, scale=scale)


def main(arguments: Sequence[str]) -> int:
    """Run what the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m proof.believers", description=__doc__)
    parser.add_argument("--times", type=int, default=1, help="how often each act")
    parser.add_argument("--scale", type=float, default=0.1, help="what the specs' times are multiplied by")
    parser.add_argument("--servers", type=int, default=3, help="how many servers the cluster has")
    parser.add_argument("--act", action="append", choices=ACTS, help="only this act; may be repeated")
    given = parser.parse_args(arguments)
    logging.getLogger("consul_coord").setLevel(logging.CRITICAL)
    outcomes: list[Outcome] = []
    for outcome in play_all(
        times=given.times,
        scale=given.scale,
        servers=given.servers,
        acts=given.act or tuple(ACTS),
        binary=find_consul(),
    ):
        sys.stdout.write(f"{outcome}\n")
        sys.stdout.flush()
        outcomes.append(outcome)
    worst = max((much for each in outcomes for much in each.overlaps.values()), default=0.0)
    taken = sum(thing.taken for each in outcomes for thing in each.things)
    sys.stdout.write(f"{len(outcomes)} acts, {taken} takeovers, most overlap {worst:.3f} s\n")
    return int(not all(each.passed for each in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
