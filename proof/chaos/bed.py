"""What a run breaks: a cluster with client agents, worker processes, and a proxy before each of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from consul_coord.clock import SystemClock
from consul_coord.testing.history import Record
from proof.chaos.journal import Journal
from proof.chaos.proxy import Harm, Proxies, Proxy
from proof.cluster import RealCluster

if TYPE_CHECKING:
    from collections.abc import Container
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from proof.chaos.links import Links
    from proof.chaos.plan import Plan

CLIENTS: Final = 2
_CONFIG: Final = {
    "limits": {"http_max_conns_per_client": 0},
    "leave_on_terminate": False,
    "autopilot": {"cleanup_dead_servers": False},
}
"""A restart is no departure, neither for the agent's node and its sessions nor for the servers' quorum."""
ENDED: Final = "agent ended by itself"
_START: Final = 60.0


@dataclass(slots=True, eq=False)
class Place:
    """One worker process, and the one that comes after it when it is killed."""

    number: int
    agent: str
    proxy: Proxy
    process: subprocess.Popen[bytes] | None = None
    life: int = 0

    @property
    def name(self) -> str:
        """The name of its process in the history."""
        return f"worker{self.number}"


class Bed:
    """Everything that a run has started; a context manager."""

    def __init__(self, plan: Plan, folder: Path, *, links: Links | None) -> None:
        self.plan = plan
        self.folder = folder
        self.links = links
        """The links between addresses, where they can be cut."""
        self.clock = SystemClock()
        self.cluster = RealCluster(clients=CLIENTS, config=_CONFIG, start_timeout=_START)
        self.proxies = Proxies()
        self.places: list[Place] = []
        self.codes: dict[str, int] = {}
        """How worker processes ended that nobody had killed."""
        self._journal = Journal(folder / "history-driver.jsonl")
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self._journal.close)
            stack.enter_context(self.cluster)
            stack.enter_context(self.proxies)
            # The last place has no agent of its own, and talks to a server.
            agents = [*self.cluster.clients, self.cluster.agents[0]]
            for number in range(self.plan.processes):
                last = number == self.plan.processes - 1
                agent = agents[-1] if last else agents[number % CLIENTS]
                proxy = self.proxies.before(agent.address)
                self.places.append(Place(number, agent.name, proxy))
            stack.callback(self._kill_workers)
            for place in self.places:
                self.start_worker(place)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def say(self, kind: str, process: str, *, detail: str = "") -> None:
        """Write down what happened to a process or an agent, at this moment."""
        self._journal.add(Record(at=self.clock.now(), process=process, kind=kind, detail=detail))

    # -- workers

    def start_worker(self, place: Place) -> None:
        """Start a worker process, with a new life."""
        place.life += 1
        part = self.plan.part(
            place.number, life=place.life, address=place.proxy.address, folder=str(self.folder)
        )
        environ = {name: value for name, value in os.environ.items() if not name.startswith("CONSUL_")}
        with (self.folder / f"stderr-{place.name}-{place.life}.txt").open("wb") as errors:
            place.process = subprocess.Popen(  # noqa: S603 - the plan's own module
                [sys.executable, "-m", self.plan.worker, part.to_json()],
                env=environ,
                stdin=subprocess.DEVNULL,
                stderr=errors,
            )
        self.say("started", place.name)

    def kill_worker(self, place: Place) -> None:
        """Kill a worker process as a crash would."""
        if place.process is not None:
            place.process.kill()
            place.process.wait()
            place.process = None
            self.say("died", place.name)

    def signal_worker(self, place: Place, number: signal.Signals) -> None:
        """Send a signal to a worker process."""
        if place.process is not None:
            place.process.send_signal(number)

    def stop_workers(self, *, timeout: float) -> None:
        """Let all worker processes end by themselves; those that don't are killed, which their code says."""
        for place in self.places:
            self.signal_worker(place, signal.SIGTERM)
        deadline = self.clock.now() + timeout
        for place in self.places:
            if place.process is not None:
                try:
                    code = place.process.wait(max(0.1, deadline - self.clock.now()))
                except subprocess.TimeoutExpired:
                    self.kill_worker(place)
                    code = -signal.SIGKILL
                self.codes[f"{place.name}-{place.life}"] = code
                place.process = None

    def _kill_workers(self) -> None:
        for place in self.places:
            self.kill_worker(place)

    # -- all of it

    def revive(self, *, apart_from: Container[str]) -> int:
        """Start agents again that have ended by themselves, and keep their logs; returns how many."""
        agents = [*self.cluster.agents, *self.cluster.clients]
        ended = [each for each in agents if not each.is_running and each.name not in apart_from]
        for agent in ended:
            at = self.clock.now()
            (self.folder / f"ended-{agent.name}-{at:.0f}.log").write_text(agent.log, encoding="utf-8")
            self.say("fault", agent.name, detail=ENDED)
            agent.launch()
            self.say("healed", agent.name, detail=ENDED)
        return len(ended)

    def heal(self) -> None:
        """Take every harm back: all agents and workers run, and all bytes pass."""
        for place in self.places:
            self.proxies.set(place.proxy, Harm.NONE)
        self.cluster.heal()
        self.cluster.wait_for_leader(timeout=_START)
        for place in self.places:
            self.signal_worker(place, signal.SIGCONT)
            if place.process is None:
                self.start_worker(place)
