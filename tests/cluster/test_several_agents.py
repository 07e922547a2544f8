"""A client with the addresses of two agents of one cluster, of which one dies, stops or is restarted."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import pytest

from consul_coord import Client, LeaderElection, Lock, SessionSpec
from consul_coord.events import FailedOver
from proof.cluster import RealCluster
from tests.support.sites import Site, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from consul_coord.events import Event
    from consul_coord.testing.agent import RealAgent

pytestmark = pytest.mark.cluster

HOLDS: Final = 20
ELECTIONS: Final = 5
WAITERS: Final = 10
PROMPT: Final = 2.0
"""Seconds within which everything goes on through the other agent."""
PATIENT: Final = 40.0


@pytest.fixture(scope="module")
def two_agents(consul_binary: Path) -> Iterator[RealCluster]:
    with RealCluster(binary=consul_binary, clients=2) as cluster:
        yield cluster


@pytest.fixture
def cluster(two_agents: RealCluster) -> RealCluster:
    two_agents.heal()
    two_agents.wait_for_leader()
    return two_agents


@pytest.fixture
def by_server(cluster: RealCluster) -> Iterator[Site]:
    site = Site.at("server", cluster.agents[0].address)
    yield site
    assert site.left_behind() == []


class Events:
    """What clients report."""

    def __init__(self) -> None:
        self.seen: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.seen.append(event)

    @property
    def moves(self) -> set[tuple[str, str]]:
        return {(event.old, event.new) for event in self.seen if isinstance(event, FailedOver)}


class Waiter:
    """A process that waits for one lock, holds it for a moment, and tells when."""

    def __init__(self, client: Client, key: str, got: list[Waiter]) -> None:
        self.at = 0.0
        self.error: Exception | None = None
        self._lock = Lock(client, key, fair=True)
        self._got = got
        self._thread = threading.Thread(target=self._wait)
        self._thread.start()

    def _wait(self) -> None:
        try:
            with self._lock.hold(timeout=PATIENT) as hold:
                self.at = time.monotonic()
                self._got.append(self)
                self.session = hold.session
        except Exception as error:  # noqa: BLE001 - for the test
            self.error = error

    def join(self) -> None:
        self._thread.join(PATIENT)
        assert self.error is None


def tell(text: str) -> None:
    """Show a measurement."""
    sys.stdout.write(f"\n{text}")


def killed(agent: RealAgent) -> None:
    agent.kill()


def stopped(agent: RealAgent) -> None:
    agent.pause()


@pytest.mark.parametrize(("harm", "lease"), [(killed, 15.0), (stopped, 6.0)])
def test_nothing_is_lost_when_an_agent_dies(
    cluster: RealCluster, by_server: Site, harm: Callable[[RealAgent], None], lease: float
) -> None:
    first, second = (agent.address for agent in cluster.clients)
    node = f"coord-{by_server.unique}"
    spec = SessionSpec.coordination(node, ttl=lease, name=by_server.unique)
    events, got = Events(), list[Waiter]()
    with ExitStack() as running:

        def client() -> Client:
            return running.enter_context(Client([first, second], session=spec, observer=events))

        holder, candidate, waiting = client(), client(), [client() for _ in range(WAITERS)]
        holds = [Lock(holder, f"{by_server.key}/{number}").acquire() for number in range(HOLDS)]
        elections = [
            running.enter_context(LeaderElection(candidate, f"{by_server.key}/led/{number}"))
            for number in range(ELECTIONS)
        ]
        terms = [election.wait_for_leadership(timeout=PATIENT).term for election in elections]
        queue = Lock(holder, f"{by_server.key}/0")
        waiters: list[Waiter] = []
        for number, each in enumerate(waiting):
            waiters.append(Waiter(each, queue.key, got))
            eventually(lambda: len(queue.contenders()) == number + 1, within=PATIENT)  # noqa: B023 - now
        places = [contender.session for contender in queue.contenders()]
        assert events.moves == set()

        harm(cluster.clients[0])
        began = time.monotonic()
        if harm is stopped:
            eventually(lambda: (first, second) in events.moves, within=lease)
        assert all(hold.verify() for hold in holds)
        assert [contender.session for contender in queue.contenders()] == places
        holds.pop(0).release()
        eventually(lambda: got, within=PATIENT)
        took = got[0].at - began
        for waiter in waiters:
            waiter.join()
        done = time.monotonic() - began
        tell(f"{harm.__name__}: first handoff after {took:.2f} s, all after {done:.2f} s")
        assert [waiter.session for waiter in got] == places, "they kept their places"
        if harm is killed:
            assert took < PROMPT
        time.sleep(lease)  # nothing may be left that only seemed to go on
        assert all(hold.is_held and hold.verify() for hold in holds)
        assert [election.term for election in elections] == terms
        assert events.moves == {(first, second)}
        cluster.heal()
    by_server.operator.done("PUT", "/v1/catalog/deregister", {"Node": node})
