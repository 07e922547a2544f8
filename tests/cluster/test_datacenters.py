"""Two real datacenters, joined over the WAN: clients of one use locks of the other."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import pytest

from consul_coord import AcquireTimeout, Client, LeaderElection, Lock, Semaphore, SessionSpec, leader
from consul_coord.testing.agent import RealAgent
from consul_coord.testing.ports import Ports
from tests.integrations import pages
from tests.support.sites import Site, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from consul_coord import Hold

pytestmark = pytest.mark.cluster

HERE, THERE = "dc1", "dcb"
PATIENT: Final = 60.0
TTL: Final = 10.0
HOLDS: Final = 400
HANDOFFS: Final = HOLDS // 2 - 20
"""So many of them at least go from one datacenter to the other.

Four clients in turn make it every hold, or every second one if those of a place queue one behind the other.
The first and the last few are for other orders.
"""


@pytest.fixture(scope="module")
def datacenters(consul_binary: Path) -> Iterator[dict[str, RealAgent]]:
    """Yield a server of each datacenter, by its name."""
    hosts = {HERE: "127.0.0.31", THERE: "127.0.0.41"}
    ports = {name: Ports.free(host) for name, host in hosts.items()}
    wan = [f"{host}:{ports[name].serf_wan}" for name, host in hosts.items()]
    with ExitStack() as running:
        agents = {
            name: running.enter_context(
                RealAgent(
                    binary=consul_binary,
                    host=host,
                    name=f"server-of-{name}",
                    ports=ports[name],
                    config={"datacenter": name, "retry_join_wan": wan, "retry_interval_wan": "200ms"},
                )
            )
            for name, host in hosts.items()
        }
        with Client(agents[HERE].address, datacenter=THERE) as across:
            eventually(lambda: reaches(across), within=PATIENT)
        yield agents


def reaches(client: Client) -> bool:
    try:
        return bool(client.status.leader(timeout=1.0))
    except Exception:  # noqa: BLE001 - not joined yet
        return False


@pytest.fixture
def there(datacenters: dict[str, RealAgent]) -> Iterator[Site]:
    """Yield the datacenter whose locks are used; in the end nothing of the test's may be left."""
    site = Site.at(THERE, datacenters[THERE].address)
    yield site
    assert site.left_behind() == []


@pytest.fixture
def make(datacenters: dict[str, RealAgent], there: Site) -> Iterator[Callable[[str], Client]]:
    """Return how to make a client in one of the datacenters; each uses the locks of the second."""
    node = f"coord-{there.unique}"
    specs = {
        HERE: SessionSpec.coordination(node, ttl=TTL, name=there.unique),
        THERE: SessionSpec(ttl=TTL, lock_delay=TTL, name=there.unique),
    }
    with ExitStack() as running:

        def client(place: str) -> Client:
            address, session = datacenters[place].address, specs[place]
            return running.enter_context(Client(address, datacenter=THERE, session=session))

        yield client
    there.operator.done("PUT", "/v1/catalog/deregister", {"Node": node})


def test_the_session_and_its_node_are_in_the_datacenter_of_the_lock(
    datacenters: dict[str, RealAgent], make: Callable[[str], Client], there: Site
) -> None:
    client = make(HERE)
    with Lock(client, there.key).hold(timeout=PATIENT) as hold:
        assert there.operator.holder(there.key) == hold.session
        assert there.operator.exists(hold.session)
        node = f"coord-{there.unique}"
        assert there.operator.done("GET", f"/v1/catalog/node/{node}")["Node"]["Node"] == node
        own = Site.at(HERE, datacenters[HERE].address).operator
        assert not own.exists(hold.session)
        assert own.done("GET", f"/v1/catalog/node/{node}") is None
        assert own.entry(there.key) is None


def test_locks_semaphores_and_elections_exclude_across_datacenters(
    make: Callable[[str], Client], there: Site
) -> None:
    remote, local = make(HERE), make(THERE)
    for one, other in ((remote, local), (local, remote)):
        with Lock(one, there.key).hold(timeout=PATIENT), pytest.raises(AcquireTimeout):
            Lock(other, there.key).acquire(timeout=0.3)
        slots = f"{there.key}/slots"
        with Semaphore(one, slots, 1).hold(timeout=PATIENT), pytest.raises(AcquireTimeout):
            Semaphore(other, slots, 1).acquire(timeout=0.3)
        key = f"{there.key}/led"
        with LeaderElection(one, key, value="one") as first:
            first.wait_for_leadership(timeout=PATIENT)
            with LeaderElection(other, key) as second:
                with pytest.raises(AcquireTimeout):
                    second.wait_for_leadership(timeout=0.3)
                info = leader(other, key)
                assert info is not None
                assert info.value == b"one"
                first.stop()
                second.wait_for_leadership(timeout=PATIENT)


def test_the_pages_program_locks_in_the_other_datacenter(
    datacenters: dict[str, RealAgent], tmp_path: Path
) -> None:
    (code,) = (text for text in pages.blocks("coordination-node", "python") if THERE in text)
    pages.run(code, folder=tmp_path, address=datacenters[HERE].address)
    held_at = {
        name: Site.at(name, agent.address).operator.entry("jobs/export")
        for name, agent in datacenters.items()
    }
    assert held_at[HERE] is None
    assert held_at[THERE] is not None


class Ledger:
    """Who was inside, and with which fence."""

    def __init__(self) -> None:
        self.fences: list[tuple[int, str]] = []
        self.overlaps = 0
        self.errors: list[BaseException] = []
        self._inside = 0
        self._lock = threading.Lock()

    def enter(self, hold: Hold, place: str) -> None:
        with self._lock:
            self._inside += 1
            self.overlaps += self._inside > 1
            self.fences.append((hold.fence, place))

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1


def hand_over(make: Callable[[str], Client], there: Site, *, times: int) -> Ledger:
    """Have four clients, two of each datacenter, hold one lock in turn, so many times in all."""
    ledger = Ledger()

    def take(client: Client, place: str) -> None:
        try:
            lock = Lock(client, there.key, fair=True)
            for _ in range(times // 4):
                with lock.hold(timeout=PATIENT) as hold:
                    ledger.enter(hold, place)
                    time.sleep(0.001)
                    ledger.leave()
        except BaseException as error:  # noqa: BLE001 - for the test
            ledger.errors.append(error)

    takers = [
        threading.Thread(target=take, args=(make(place), place)) for place in (HERE, THERE, HERE, THERE)
    ]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join()
    return ledger


def test_a_lock_is_handed_over_between_datacenters(make: Callable[[str], Client], there: Site) -> None:
    began = time.monotonic()
    ledger = hand_over(make, there, times=HOLDS)
    fences = [fence for fence, _ in ledger.fences]
    places = [place for _, place in ledger.fences]
    between = sum(one != other for one, other in itertools.pairwise(places))
    took = time.monotonic() - began
    sys.stdout.write(f"\n{HOLDS} holds, {between} handoffs between datacenters, in {took:.1f} s")
    assert ledger.errors == []
    assert ledger.overlaps == 0
    assert len(fences) == HOLDS
    assert fences == sorted(set(fences))
    assert between >= HANDOFFS
