"""A client with the addresses of two agents of one cluster, of which one dies, stops or is restarted."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import pytest

from consul_coord import Client, ConnectFailed, LeaderElection, Lock, ReleaseOutcome, SessionSpec
from consul_coord.events import FailedOver
from consul_coord.testing.agent import RealAgent
from proof.cluster import RealCluster
from tests.integrations import pages
from tests.support.sites import Site, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from consul_coord.events import Event

pytestmark = pytest.mark.cluster

HOLDS: Final = 20
ELECTIONS: Final = 5
WAITERS: Final = 10
PROMPT: Final = 2.0
"""Seconds within which everything goes on through the other agent."""
RENEWED_AFTER: Final = 0.4
"""The part of the lease after which it is renewed."""
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


class Users:
    """Holds, leaderships and a queue of waiters, each waiter with a client of its own."""

    def __init__(self, running: ExitStack, addresses: list[str], site: Site, *, lease: float) -> None:
        spec = SessionSpec.coordination(f"coord-{site.unique}", ttl=lease, name=site.unique)
        self.events, self.got = Events(), list[Waiter]()

        def client() -> Client:
            return running.enter_context(Client(addresses, session=spec, observer=self.events))

        holder, candidate = client(), client()
        self.holds = [Lock(holder, f"{site.key}/{number}").acquire() for number in range(HOLDS)]
        self.elections = [
            running.enter_context(LeaderElection(candidate, f"{site.key}/led/{number}"))
            for number in range(ELECTIONS)
        ]
        self.terms = [election.wait_for_leadership(timeout=PATIENT).term for election in self.elections]
        self.queue = Lock(holder, f"{site.key}/0")
        self.waiters: list[Waiter] = []
        for number in range(WAITERS):
            self.waiters.append(Waiter(client(), self.queue.key, self.got))
            eventually(lambda: len(self.queue.contenders()) == number + 1, within=PATIENT)  # noqa: B023 - now
        self.places = self.in_line()

    def in_line(self) -> list[str]:
        return [contender.session for contender in self.queue.contenders()]

    def assert_nothing_is_lost(self) -> None:
        assert all(hold.verify() for hold in self.holds)
        assert [election.term for election in self.elections] == self.terms

    def release(self) -> float:
        """Release the first lock, for which all wait; return the seconds that it took."""
        began = time.monotonic()
        assert self.holds.pop(0).release() is ReleaseOutcome.RELEASED
        return time.monotonic() - began

    def handed_over(self) -> float:
        """Wait until all waiters have held it in turn; return when the first one did."""
        for waiter in self.waiters:
            waiter.join()
        assert [waiter.session for waiter in self.got] == self.places, "they kept their places"
        return self.got[0].at


@pytest.fixture
def node(by_server: Site) -> Iterator[None]:
    """Remove the test's coordination node in the end."""
    yield
    by_server.operator.done("PUT", "/v1/catalog/deregister", {"Node": f"coord-{by_server.unique}"})


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize(("harm", "lease"), [(killed, 6.0), (stopped, 6.0)])
def test_nothing_is_lost_when_an_agent_dies(
    cluster: RealCluster, by_server: Site, harm: Callable[[RealAgent], None], lease: float
) -> None:
    first, second = (agent.address for agent in cluster.clients)
    with ExitStack() as running:
        users = Users(running, [first, second], by_server, lease=lease)
        assert users.events.moves == set()
        harm(cluster.clients[0])
        began = time.monotonic()
        released = users.release()
        took = users.handed_over() - began
        done = time.monotonic() - began
        tell(
            f"{harm.__name__}: released within {released:.2f} s, first handoff after {took:.2f} s, "
            f"all after {done:.2f} s"
        )
        assert released < PROMPT
        # A waiter that sleeps at an agent which stands still notices it at its next renewal.
        assert took < (PROMPT if harm is killed else RENEWED_AFTER * lease + PROMPT)
        users.assert_nothing_is_lost()
        time.sleep(lease)  # nothing may be left that only seemed to go on
        users.assert_nothing_is_lost()
        assert users.events.moves == {(first, second)}
        cluster.heal()


def restarted(agent: RealAgent) -> None:
    """Let it leave, as a client agent does at SIGTERM, and come back."""
    agent.restart()


def crashed_and_started(agent: RealAgent) -> None:
    agent.kill()
    agent.launch()
    agent.wait_ready()


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("how", [restarted, crashed_and_started])
def test_nothing_is_lost_when_the_only_agent_is_back_within_the_lease(
    cluster: RealCluster, by_server: Site, how: Callable[[RealAgent], None]
) -> None:
    agent = cluster.clients[0]
    with ExitStack() as running:
        users = Users(running, [agent.address], by_server, lease=60.0)
        began = time.monotonic()
        how(agent)
        tell(f"{how.__name__}: {time.monotonic() - began:.2f} s")
        eventually(lambda: users.in_line() == users.places, within=PATIENT)
        users.assert_nothing_is_lost()
        users.release()
        users.handed_over()
        users.assert_nothing_is_lost()


def test_the_pages_program_locks_though_its_first_agent_is_dead(cluster: RealCluster, tmp_path: Path) -> None:
    (code,) = pages.blocks("several-agents", "python")
    first, second = (agent.address for agent in cluster.clients)
    theirs = ("unix:///run/consul/http.sock", "http://10.0.0.2:8500", "http://10.0.0.3:8500")
    for their, ours in zip(theirs, (first, second, cluster.agents[0].address), strict=True):
        assert their in code
        code = code.replace(their, ours)
    cluster.clients[0].kill()
    pages.run(code, folder=tmp_path, address="http://127.0.0.1:1")  # it goes by its own addresses
    cluster.heal()
    left = Site.at("second", second).operator.entry("jobs/replicate")
    assert left is not None, "it was held"
    assert "Session" not in left, "it is free"


def test_an_agent_of_another_real_cluster_is_refused(
    cluster: RealCluster, by_server: Site, consul_binary: Path
) -> None:
    good, events = cluster.clients[0], Events()
    with RealAgent(binary=consul_binary) as foreign:
        addresses = [good.address, foreign.address]
        spec = SessionSpec(name=by_server.unique)
        with Client(addresses, session=spec, observer=events, timeout=2.0) as client:
            hold = Lock(client, by_server.key).acquire(timeout=PATIENT)
            good.kill()
            with pytest.raises(ConnectFailed, match=f"{foreign.address} belongs to another cluster"):
                client.kv.put(f"{by_server.key}/written", "1")
            good.launch()
            good.wait_ready()
            eventually(hold.verify, within=PATIENT)
            hold.release()
        assert events.moves == set()
        assert Site.at("foreign", foreign.address).operator.under(by_server.unique) == []
