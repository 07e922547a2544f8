"""The kinds of harm that a run does, one function each, in one table.

Rules
- A function picks its target by chance, does the harm, and returns how to take it back; or None when it can't
  be done now. It never waits for anything to recover.
- What is harmed already is left alone until that is over. Of the servers, one may be left.
- Force is only used while no server is harmed, so that it is answered.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from proof.chaos.force import UNANSWERED, Force, Operator
from proof.chaos.proxy import Harm

if TYPE_CHECKING:
    import random
    from typing import Any

    from consul_coord.testing.agent import RealAgent
    from proof.chaos.bed import Bed, Place
    from proof.chaos.links import Links

_LEAVE: Final = 5.0
"""Seconds that an agent has to leave, and its node to be gone from the catalog."""
_RESTART: Final = 3.0
"""Seconds that an agent has to end when it is asked to."""


@dataclass(frozen=True, slots=True)
class Harmed:
    """A harm that was done: to what, and how to take it back."""

    targets: tuple[str, ...]
    undo: Callable[[], object] | None = None
    note: str = ""


class Hands:
    """Who does the harm, and remembers what is harmed and what was done by force."""

    def __init__(self, bed: Bed, chance: random.Random) -> None:
        self.bed = bed
        self.chance = chance
        self.harmed: set[str] = set()
        self.forces: list[Force] = []

    # -- whom

    def server(self) -> RealAgent | None:
        """Return a server that may be harmed, the leader as often as not."""
        servers = {each.name: each for each in self.bed.cluster.agents}
        if len(self.harmed & servers.keys()) >= len(servers) - 1:
            return None
        whole = [each for name, each in servers.items() if name not in self.harmed]
        leader = self.bed.cluster.leader() if self.chance.random() < 1 / 2 else None
        chosen = None if leader is None else self.bed.cluster.agents[leader]
        return chosen if chosen in whole else self.chance.choice(whole)

    def client(self) -> RealAgent | None:
        """Return a client agent that may be harmed."""
        whole = [each for each in self.bed.cluster.clients if each.name not in self.harmed]
        return self.chance.choice(whole) if whole else None

    def place(self) -> Place | None:
        """Return a worker process that may be harmed."""
        whole = [each for each in self.bed.places if each.name not in self.harmed and each.process]
        return self.chance.choice(whole) if whole else None

    def operator(self) -> Operator | None:
        """Return somebody at the leader, while no server is harmed."""
        if self.harmed & {each.name for each in self.bed.cluster.agents}:
            return None
        leader = self.bed.cluster.leader()
        return None if leader is None else Operator(self.bed.cluster.agents[leader])

    # -- by force

    def force(self, act: Callable[[], object], what: Force) -> None:
        """Do something by force: written down before, and again when it was answered."""
        self.force_at(act, what)
        self.forces[-1] = replace(self.forces[-1], done=self.bed.clock.now())

    def force_at(self, act: Callable[[], object], what: Force) -> None:
        """Do something by force that names the index it applies to: an answer tells nothing more."""
        self.forces.append(replace(what, at=self.bed.clock.now()))
        act()


Fault = Callable[[Hands], Harmed | None]


# -- agents


def _killed(agent: RealAgent | None) -> Harmed | None:
    if agent is None:
        return None
    agent.kill()
    return Harmed((agent.name,), agent.launch)


def _stopped(agent: RealAgent | None) -> Harmed | None:
    if agent is None:
        return None
    agent.pause()
    return Harmed((agent.name,), agent.resume)


def _restarted(agent: RealAgent | None) -> Harmed | None:
    if agent is None:
        return None
    agent.terminate(timeout=_RESTART)
    return Harmed((agent.name,), agent.launch)


# -- links


def _cut(links: Links, pairs: list[tuple[str, str]], targets: tuple[str, ...]) -> Harmed:
    for pair in pairs:
        links.cut(*pair)

    def undo() -> None:
        for pair in pairs:
            links.mend(*pair)

    return Harmed(targets, undo, note=", ".join(f"{source} to {target}" for source, target in pairs))


def _server_cut_off(hands: Hands) -> Harmed | None:
    """Cut a server off from all other agents, in one direction or in both."""
    if (links := hands.bed.links) is None or (server := hands.server()) is None:
        return None
    own = server.host
    others = [each.host for each in (*hands.bed.cluster.agents, *hands.bed.cluster.clients)]
    both = [pair for each in others if each != own for pair in ((own, each), (each, own))]
    ways = {"both": both, "out": both[::2], "in": both[1::2]}
    return _cut(links, ways[hands.chance.choice(sorted(ways))], (server.name,))


def _link_cut(hands: Hands) -> Harmed | None:
    """Cut the link between two servers, in both directions: both go on for all others."""
    if (links := hands.bed.links) is None or (server := hands.server()) is None:
        return None
    other = hands.chance.choice([each for each in hands.bed.cluster.agents if each is not server])
    if other.name in hands.harmed:
        return None
    one, another = server.host, other.host
    return _cut(links, [(one, another), (another, one)], (server.name, other.name))


def _client_cut_off(hands: Hands) -> Harmed | None:
    """Cut a client agent off from all servers."""
    if (links := hands.bed.links) is None or (client := hands.client()) is None:
        return None
    servers = [each.host for each in hands.bed.cluster.agents]
    own = client.host
    return _cut(links, [pair for each in servers for pair in ((own, each), (each, own))], (client.name,))


# -- workers and their connections


def _worker_killed(hands: Hands) -> Harmed | None:
    place = hands.place()
    if place is None:
        return None
    hands.bed.kill_worker(place)
    return Harmed((place.name,), lambda: hands.bed.start_worker(place))


def _worker_stopped(hands: Hands) -> Harmed | None:
    place = hands.place()
    if place is None:
        return None
    hands.bed.signal_worker(place, signal.SIGSTOP)
    return Harmed((place.name,), lambda: hands.bed.signal_worker(place, signal.SIGCONT))


def _proxy(harm: Harm) -> Fault:
    def fault(hands: Hands) -> Harmed | None:
        place = hands.place()
        if place is None:
            return None
        hands.bed.proxies.set(place.proxy, harm)
        return Harmed((place.name,), lambda: hands.bed.proxies.set(place.proxy, Harm.NONE))

    return fault


# -- force


def _session_destroyed(hands: Hands) -> Harmed | None:
    operator = hands.operator()
    sessions = operator.sessions(hands.bed.plan.prefix) if operator else []
    if operator is None or not sessions:
        return None
    session = hands.chance.choice(sorted(sessions))
    hands.force(lambda: operator.destroy(session), Force(session=session))
    return Harmed(("operator",), note=session)


def _node_deregistered(hands: Hands) -> Harmed | None:
    operator, client = hands.operator(), hands.client()
    if operator is None or client is None:
        return None
    node = client.name
    there = tuple(place.name for place in hands.bed.places if place.agent == node)
    removed: list[dict[str, Any]] = []

    def act() -> None:
        if (found := operator.deregister(node)) is not None:
            removed.append(found)

    hands.force(act, Force(processes=there))

    def undo() -> None:
        for each in removed:
            _insist(hands, lambda operator: operator.register(each))  # noqa: B023 - called at once

    return Harmed((node,), undo)


def _client_left(hands: Hands) -> Harmed | None:
    """Let a client agent leave, as one does at SIGTERM: its node leaves the catalog with all sessions."""
    operator, client = hands.operator(), hands.client()
    if operator is None or client is None:
        return None
    there = tuple(place.name for place in hands.bed.places if place.agent == client.name)

    def act() -> None:
        with suppress(*UNANSWERED):
            client.request("PUT", "/v1/agent/leave", timeout=_LEAVE)
        client.kill()  # it ends by itself, some seconds later
        deadline = time.monotonic() + _LEAVE
        while operator.read(f"/v1/catalog/node/{client.name}?consistent") and time.monotonic() < deadline:
            time.sleep(0.1)

    hands.force(act, Force(processes=there))
    return Harmed((client.name,), client.launch)


def _insist(hands: Hands, act: Callable[[Operator], object]) -> None:
    """Do something at the leader, as soon as there is one that answers."""
    deadline = time.monotonic() + 2 * _RESTART
    while time.monotonic() < deadline:
        leader = hands.bed.cluster.leader()
        try:
            if leader is not None:
                act(Operator(hands.bed.cluster.agents[leader]))
                return
        except UNANSWERED:
            pass
        time.sleep(0.1)


def _held(hands: Hands, operator: Operator, kind: str) -> dict[str, Any] | None:
    """Return a key of a kind that somebody has locked."""
    found = [each for each in operator.under(f"{hands.bed.plan.prefix}/{kind}/") if each.get("Session")]
    found = [each for each in found if "/.wait/" not in each["Key"]]
    return hands.chance.choice(found) if found else None


def _key_released(hands: Hands) -> Harmed | None:
    operator = hands.operator()
    entry = _held(hands, operator, hands.chance.choice(("lock", "lead"))) if operator else None
    if operator is None or entry is None:
        return None
    key, session, index = entry["Key"], entry["Session"], entry["ModifyIndex"]
    hands.force_at(lambda: operator.release(key, session, index), Force(key=key, session=session, upto=index))
    return Harmed(("operator",), note=key)


def _key_deleted(hands: Hands) -> Harmed | None:
    """Delete a locked key: of a lock, of an election, or the place of somebody at a semaphore."""
    operator = hands.operator()
    kind = hands.chance.choice(("lock", "lead", "slots"))
    entry = _held(hands, operator, kind) if operator else None
    if operator is None or entry is None:
        return None
    name, session, index = entry["Key"], entry["Session"], entry["ModifyIndex"]
    key = name.rpartition("/")[0] if kind == "slots" else name
    # A place was last written at its holder's take, which his fence comes from: no later hold of the session
    # is up to it.
    hands.force_at(lambda: operator.delete(name, index), Force(key=key, session=session, upto=index))
    return Harmed(("operator",), note=name)


def _record_deleted(hands: Hands) -> Harmed | None:
    """Delete a semaphore's record: everybody there loses his slot."""
    operator = hands.operator()
    key = hands.chance.choice(sorted(hands.bed.plan.limits))
    entry = operator.entry(f"{key}/.lock") if operator else None
    if operator is None or entry is None:
        return None
    index = entry["ModifyIndex"]
    hands.force_at(lambda: operator.delete(entry["Key"], index), Force(key=key, upto=index))
    return Harmed(("operator",), note=key)


def _key_overwritten(hands: Hands) -> Harmed | None:
    operator = hands.operator()
    entry = _held(hands, operator, hands.chance.choice(("lock", "lead"))) if operator else None
    if operator is None or entry is None:
        return None
    operator.overwrite(entry["Key"])
    return Harmed(("operator",), note=entry["Key"])


def _place_deleted(hands: Hands) -> Harmed | None:
    """Delete the place of somebody who waits for a lock."""
    operator = hands.operator()
    if operator is None:
        return None
    waiting = [each for each in operator.under(f"{hands.bed.plan.prefix}/lock/") if "/.wait/" in each["Key"]]
    if not waiting:
        return None
    entry = hands.chance.choice(waiting)
    operator.delete(entry["Key"], entry["ModifyIndex"])
    return Harmed(("operator",), note=entry["Key"])


FAULTS: Final[dict[str, tuple[int, Fault]]] = {
    "server killed": (3, lambda hands: _killed(hands.server())),
    "server stopped": (3, lambda hands: _stopped(hands.server())),
    "server restarted": (2, lambda hands: _restarted(hands.server())),
    "server cut off": (4, _server_cut_off),
    "link cut": (2, _link_cut),
    "client agent killed": (2, lambda hands: _killed(hands.client())),
    "client agent stopped": (3, lambda hands: _stopped(hands.client())),
    "client agent restarted": (1, lambda hands: _restarted(hands.client())),
    "client agent cut off": (3, _client_cut_off),
    "worker killed": (2, _worker_killed),
    "worker stopped": (4, _worker_stopped),
    "connections delayed": (2, _proxy(Harm.DELAY)),
    "connections held": (4, _proxy(Harm.HOLD)),
    "connections swallowed": (3, _proxy(Harm.SWALLOW)),
    "connections cut": (3, _proxy(Harm.CUT)),
    "connections reset": (2, _proxy(Harm.RESET)),
    "session destroyed": (3, _session_destroyed),
    "node deregistered": (1, _node_deregistered),
    "client agent left": (1, _client_left),
    "key released": (2, _key_released),
    "key deleted": (2, _key_deleted),
    "key overwritten": (2, _key_overwritten),
    "record deleted": (1, _record_deleted),
    "place deleted": (2, _place_deleted),
}
"""Every kind of harm: how often it is drawn, in relation to the others, and what it does."""
