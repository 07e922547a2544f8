"""End sessions on a real cluster in every way there is, and measure for how long two clients believe.

Rules
- All recipes hold something with each of several specs, side by side, through one agent. That agent, its
  node or its sessions are then hurt, while the holders mostly can't hear of it; others wait at a server that
  lives.
- Whoever gets something counts, at that moment, how many of those that have or had it still consider
  themselves holders. More than there is room for is an overlap, which is timed until it ends.
- Times are those of the specs, times ``scale``: a tenth makes seconds of what takes minutes.

``python -m proof.believers --times 3`` prints a line for each act and each overlap. The exit code is 0
without any overlap, and 1 with one.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import logging
import sys
import threading
import time
import uuid
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
from consul_coord.models.session import DEFAULT_TTL, effective_lock_delay
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
_SETTLE: Final = 3.0
_AWAY: Final = 600.0
ALIVE: Final = 1


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
    taken: int = 0
    overlap: float = 0.0
    _mutex: threading.Lock = field(default_factory=threading.Lock)

    def first(self, hold: Believer) -> None:
        """Take note of who has it before anything happens."""
        self.holds.append(hold)

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


def _lead(client: Client, key: str, timeout: float) -> Believer:
    # Whoever has lost an election leaves it to the others for a while.
    election = LeaderElection(client, key, retry_wait=(_AWAY, _AWAY))
    election.start()
    leadership = election.wait_for_leadership(timeout=timeout)
    _running.append(election)
    return leadership


_running: list[LeaderElection] = []
"""Elections end when nobody refers to them."""


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
    """A cluster, with the agent that is to be hurt and a server that lives."""

    def __init__(self, cluster: RealCluster) -> None:
        self.cluster = cluster
        self.agent: RealAgent = cluster.clients[0]

    def through_a_server(self) -> None:
        """Have the holders at a server that does not lead."""
        leader = self.cluster.wait_for_leader()
        self.agent = self.cluster.agents[(leader + 1) % len(self.cluster.agents)]

    @property
    def living(self) -> RealAgent:
        """A server that is not hurt, and does not lead if there is another."""
        leader = self.cluster.wait_for_leader()
        able = [one for one in self.cluster.agents if one is not self.agent]
        return next((one for one in able if one is not self.cluster.agents[leader]), able[0])

    def ask(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
        """Ask a living server until it answers."""
        data = None if body is None else json.dumps(body).encode()
        deadline = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException, json.JSONDecodeError):
                status, reply = self.living.request(method, path, data)
                if status < http.HTTPStatus.INTERNAL_SERVER_ERROR:
                    return json.loads(reply) if reply else None
            if time.monotonic() > deadline:
                raise AgentError(f"no answer to {method} {path}")
            time.sleep(0.1)

    def sessions(self, mark: str) -> list[str]:
        """Return the sessions of a round."""
        return [each["ID"] for each in self.ask("GET", "/v1/session/list") if each["Name"].startswith(mark)]

    def until_whole(self) -> None:
        """Wait until every server has a vote: one that autopilot removed gets it back after a while."""
        deadline = time.monotonic() + 2 * PATIENCE
        while True:
            servers = self.ask("GET", "/v1/operator/raft/configuration")["Servers"]
            if sum(each["Voter"] for each in servers) == len(self.cluster.agents):
                return
            if time.monotonic() > deadline:
                raise AgentError("a server has no vote")
            time.sleep(0.2)

    def until_failed(self) -> None:
        """Wait until the members think that the agent has failed."""
        deadline = time.monotonic() + PATIENCE
        while any(
            each["Name"] == self.agent.name and each["Status"] == ALIVE
            for each in self.ask("GET", "/v1/agent/members")
        ):
            if time.monotonic() > deadline:
                raise AgentError(f"{self.agent.name} was not found to have failed")
            time.sleep(0.1)


# -- what is done to them


def destroy(bed: Bed, mark: str) -> None:
    """Destroy every session, as an operator, while its holder hears nothing."""
    bed.agent.pause()
    for session in bed.sessions(mark):
        bed.ask("PUT", f"/v1/session/destroy/{session}")


def destroy_and_tell(bed: Bed, mark: str) -> None:
    """Destroy every session, as an operator, and let the holders hear of it."""
    for session in bed.sessions(mark):
        bed.ask("PUT", f"/v1/session/destroy/{session}")


def deregister(bed: Bed, mark: str) -> None:  # noqa: ARG001 - an act's
    """Remove the agent's node and the coordination node while the holders hear nothing."""
    bed.agent.pause()
    for node in (bed.agent.name, "consul-coord"):
        bed.ask("PUT", "/v1/catalog/deregister", {"Node": node})


def force_leave(bed: Bed, mark: str) -> None:  # noqa: ARG001 - an act's
    """Kill the agent and send it away, as an operator."""
    bed.agent.kill()
    bed.until_failed()
    bed.ask("PUT", f"/v1/agent/force-leave/{bed.agent.name}")


def leave(bed: Bed, mark: str) -> None:  # noqa: ARG001 - an act's
    """Let the agent leave in good order."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        bed.agent.request("PUT", "/v1/agent/leave")


def kill(bed: Bed, mark: str) -> None:  # noqa: ARG001 - an act's
    """Kill the agent."""
    bed.agent.kill()


def stop(bed: Bed, mark: str) -> None:  # noqa: ARG001 - an act's
    """Let the agent stand still."""
    bed.agent.pause()


def kill_server(bed: Bed, mark: str) -> None:
    """Kill the server that the holders use; autopilot may remove it."""
    kill(bed, mark)


def stop_server(bed: Bed, mark: str) -> None:
    """Let the server that the holders use stand still; autopilot may remove it."""
    stop(bed, mark)


def new_leader(bed: Bed, mark: str) -> None:
    """Destroy every session unheard, and kill the leader while the lock-delays last."""
    destroy(bed, mark)
    bed.cluster.kill(bed.cluster.wait_for_leader())


ACTS: Final[Mapping[str, Callable[[Bed, str], None]]] = {
    act.__name__.replace("_", " "): act
    for act in (
        destroy,
        destroy_and_tell,
        deregister,
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


# -- a round


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one act came to."""

    act: str
    things: tuple[Thing, ...]
    seconds: float

    @property
    def overlaps(self) -> dict[str, float]:
        """What two believed in at once, and for how many seconds."""
        return {thing.name: thing.overlap for thing in self.things if thing.overlap}

    def __str__(self) -> str:
        taken = sum(thing.taken for thing in self.things)
        wanted = sum(thing.room for thing in self.things)
        worst = max(thing.overlap for thing in self.things)
        text = f"{self.act}: {taken} of {wanted} taken over, most overlap {worst:.3f} s, {self.seconds:.0f} s"
        return "\n  ".join((text, *(f"{name}: {much:.3f} s" for name, much in self.overlaps.items())))


def scaled(spec: SessionSpec, scale: float, name: str) -> SessionSpec:
    """Return a spec with its times, and the servers' default lock-delay, made shorter."""
    ttl = (spec.ttl or DEFAULT_TTL) * scale
    return replace(spec, ttl=ttl, lock_delay=effective_lock_delay(spec) * scale, name=name)


def play(
    cluster: RealCluster,
    act: str,
    *,
    scale: float,
    specs: Mapping[str, SessionSpec] = SPECS,
    recipes: Mapping[str, Recipe] = RECIPES,
) -> Outcome:
    """Hold everything, do one thing to the holders, and see who takes over."""
    bed, began, mark = Bed(cluster), time.monotonic(), f"round {uuid.uuid4().hex[:8]}"
    bed.until_whole()
    if act in AT_A_SERVER:
        bed.through_a_server()
    made = {name: scaled(spec, scale, f"{mark} {name}") for name, spec in specs.items()}
    bound = max(failover_bound(spec, leader_changes=1) for spec in made.values()) + PATIENCE
    holders = [Client(address=bed.agent.address, session=spec) for spec in made.values()]
    takers = [Client(address=bed.living.address, session=spec) for spec in made.values()]
    things: list[Thing] = []
    threads: list[threading.Thread] = []
    failed: list[str] = []

    def take(thing: Thing, recipe: Recipe, client: Client, key: str) -> None:
        try:
            thing.next(recipe.take(client, key, bound))
        except ConsulCoordError as error:
            failed.append(f"{thing.name}: {error}")

    for (spec, holder), taker in zip(zip(made, holders, strict=True), takers, strict=True):
        for name, recipe in recipes.items():
            thing, key = Thing(f"{name}, {spec}", recipe.room), f"{mark.replace(' ', '-')}/{name}/{spec}"
            key = key.replace(" ", "-")
            things.append(thing)
            for _ in range(recipe.room):
                thing.first(recipe.hold(holder, key))
                arguments = (thing, recipe, taker, key)
                threads.append(threading.Thread(target=take, args=arguments, daemon=True))
    try:
        for thread in threads:
            thread.start()
        time.sleep(_SETTLE)  # so that they queue; whoever comes later takes all the same
        ACTS[act](bed, mark)
        _join(threads, bound + PATIENCE)
    finally:
        _close(cluster, (*takers, *holders))
    if failed:
        raise AgentError(f"{act}: not taken over: {'; '.join(failed)}")
    return Outcome(act, tuple(things), time.monotonic() - began)


def _join(threads: Sequence[threading.Thread], seconds: float) -> None:
    for thread in threads:
        thread.join(seconds)


def _close(cluster: RealCluster, clients: Sequence[Client]) -> None:
    cluster.heal()
    cluster.wait_for_leader()
    _running.clear()
    closing = [threading.Thread(target=client.close, kwargs={"timeout": 5.0}) for client in clients]
    for thread in closing:
        thread.start()
    _join(closing, PATIENCE)


def play_all(
    *, times: int, scale: float, servers: int, acts: Sequence[str], binary: Path | None = None
) -> Iterator[Outcome]:
    """Play each act as often, in turn, in one cluster."""
    with RealCluster(binary=binary, size=servers, clients=1) as cluster:
        for _ in range(times):
            for act in acts:
                yield play(cluster, act, scale=scale)


def main(arguments: Sequence[str]) -> int:
    """Run what the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m proof.believers", description=__doc__)
    parser.add_argument("--times", type=int, default=1, help="how often each act")
    parser.add_argument("--scale", type=float, default=0.1, help="what the specs' times are multiplied by")
    parser.add_argument("--servers", type=int, default=3, help="how many servers the cluster has")
    parser.add_argument("--act", action="append", choices=ACTS, help="only this act; may be repeated")
    given = parser.parse_args(arguments)
    logging.getLogger("consul_coord").setLevel(logging.CRITICAL)
    worst, done = 0.0, 0
    for outcome in play_all(
        times=given.times,
        scale=given.scale,
        servers=given.servers,
        acts=given.act or tuple(ACTS),
        binary=find_consul(),
    ):
        sys.stdout.write(f"{outcome}\n")
        sys.stdout.flush()
        worst, done = max(worst, *outcome.overlaps.values(), 0.0), done + 1
    sys.stdout.write(f"{done} acts, most overlap {worst:.3f} s\n")
    return int(worst > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
