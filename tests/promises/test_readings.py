"""A former leader knows only the past, so a client asks the present one before it says or decides anything.

Consul's other readings can come from such a server. Each row is a call of users, and no request of it that
only reads may go without ``consistent``. Watches may: what they tell is checked, or tells only when to look.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord import (
    Client,
    ConsulCoordError,
    Group,
    LeaderElection,
    Lock,
    Once,
    Partitioner,
    ReadWriteLock,
    Semaphore,
    SessionSpec,
    leader,
)
from consul_coord.recipes.watch import engine
from tests.promises.conftest import SPEC, TTL
from tests.promises.test_time import TAKES
from tests.support.sites import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from consul_coord.clock import SystemClock
    from consul_coord.server import ReferenceServer
    from tests.promises.conftest import MakeClient
    from tests.support.proxy import FaultProxy, Passed
    from tests.support.sites import Operator


def only_reads(request: Passed) -> bool:
    """Return whether a request changes nothing; also a transaction, of which each operation has a name."""
    if request.path.startswith("/v1/txn"):
        return b'"get' in request.body and not any(
            f'"{verb}'.encode() in request.body
            for verb in ("set", "cas", "lock", "unlock", "delete", "check")
        )
    return request.method == "GET" and not request.path.startswith(("/v1/status/", "/v1/agent/"))


def old_readings(requests: list[Passed]) -> list[str]:
    """Return what an old leader could have answered."""
    return [
        f"{each.method} {each.path}"
        for each in requests
        if only_reads(each) and "consistent" not in each.path and "index=" not in each.path
    ]


@pytest.fixture
def busy(server: ReferenceServer[SystemClock], key: str) -> Iterator[Client]:
    """Yield a client that holds, leads and is a member of all there is to be looked at."""
    with Client(server.address, session=SPEC) as client, ExitStack() as stack:
        Lock(client, f"{key}/lock").acquire(timeout=5)
        ReadWriteLock(client, f"{key}/rw", session=SPEC).read.acquire(timeout=5)
        Semaphore(client, f"{key}/semaphore", 2).acquire(timeout=5)
        Once(client, f"{key}/once").run(lambda _: b"done", slot="today")
        group = stack.enter_context(Group(client, f"{key}/group"))
        stack.enter_context(Partitioner(group, ["a"], settle=0.0))
        stack.enter_context(LeaderElection(client, f"{key}/leader")).wait_for_leadership(timeout=10)
        yield client


LOOKS: dict[str, Callable[[Client, str], object]] = {
    "a lock's holder": lambda client, key: Lock(client, f"{key}/lock").holder(),
    "a lock's queue": lambda client, key: Lock(client, f"{key}/lock").contenders(),
    "readers": lambda client, key: ReadWriteLock(client, f"{key}/rw", session=SPEC).holders(),
    "a queue of readers": lambda client, key: ReadWriteLock(client, f"{key}/rw", session=SPEC).contenders(),
    "holders of slots": lambda client, key: Semaphore(client, f"{key}/semaphore", 2).holders(),
    "a semaphore's queue": lambda client, key: Semaphore(client, f"{key}/semaphore", 2).contenders(),
    "the leader": lambda client, key: leader(client, f"{key}/leader"),
    "candidates": lambda client, key: LeaderElection(client, f"{key}/leader").candidates(),
    "members": lambda client, key: Group(client, f"{key}/group").members(),
    "owners": lambda client, key: Partitioner(Group(client, f"{key}/group"), ["a"]).owners(),
    "a job's record": lambda client, key: Once(client, f"{key}/once").last(),
}


@pytest.mark.usefixtures("busy")
def test_what_a_client_tells_is_what_the_present_leader_knows(
    proxy: FaultProxy, client: Client, key: str
) -> None:
    for what, look in LOOKS.items():
        before = len(proxy.requests)
        look(client, key)
        made = proxy.requests[before:]
        assert any(only_reads(each) for each in made), what
        assert old_readings(made) == [], what


def of(key: str, requests: list[Passed]) -> list[Passed]:
    """Return the requests about what is below a key."""
    return [each for each in requests if key in each.path or key.encode() in each.body]


@pytest.mark.parametrize("kind", TAKES)
def test_a_hold_is_verified_with_the_present_leader(
    proxy: FaultProxy, client: Client, key: str, kind: str
) -> None:
    hold = TAKES[kind](client, key)
    before = len(proxy.requests)
    assert hold.verify()
    made = of(key, proxy.requests[before:])
    assert made
    assert old_readings(made) == []


@pytest.mark.parametrize("kind", TAKES)
def test_a_loss_is_made_sure_of_with_the_present_leader(
    proxy: FaultProxy, operator: Operator, client: Client, key: str, kind: str
) -> None:
    hold = TAKES[kind](client, key)
    before = len(proxy.requests)
    for each in operator.under(key):
        operator.delete(each)
    assert hold.lost.wait(10)
    assert old_readings(of(key, proxy.requests[before:])) == []


def overwritten(operator: Operator, hold: Any) -> None:
    """Write the key of a hold as a stranger does, who does not know of locks."""
    operator.put(hold.key, b"a stranger's")


ACTS: dict[str, Callable[[Any], object]] = {
    "write": lambda hold: hold.put(b"mine"),
    "release": lambda hold: hold.release(),
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("kind", ["lock", "read", "write"])
def test_what_was_refused_is_read_from_the_present_leader(  # noqa: PLR0917 - fixtures and a table
    proxy: FaultProxy, operator: Operator, client: Client, key: str, kind: str, act: str
) -> None:
    hold = TAKES[kind](client, key)
    before = len(proxy.requests)
    overwritten(operator, hold)
    with suppress(ConsulCoordError):  # another program's record is not a valid one
        ACTS[act](hold)
    made = of(key, proxy.requests[before:])
    assert any(only_reads(each) for each in made)
    assert old_readings(made) == []


def test_a_session_that_is_said_to_be_gone_is_asked_of_the_present_leader(
    proxy: FaultProxy, operator: Operator, client: Client, key: str
) -> None:
    hold = Lock(client, key).acquire(timeout=5)
    before = len(proxy.requests)
    operator.destroy(hold.session)
    with suppress(ConsulCoordError):
        hold.ensure(0.94 * TTL)
    assert hold.lost.wait(10)
    made = of(hold.session, proxy.requests[before:])
    assert made
    assert old_readings(made) == []


@pytest.mark.parametrize(("lock_delay", "asked"), [(TTL, "/v1/health/node/"), (1.0, "/v1/catalog/node/")])
def test_a_coordination_node_is_looked_for_at_the_present_leader(  # noqa: PLR0917 - the same
    proxy: FaultProxy, operator: Operator, make_client: MakeClient, key: str, lock_delay: float, asked: str
) -> None:
    node = key.replace("/", "-")
    operator.done("PUT", "/v1/catalog/register", {"Node": node, "Address": "192.0.2.1"})
    client = make_client(session=SessionSpec.coordination(node, ttl=TTL, lock_delay=lock_delay))
    assert Lock(client, key).acquire(timeout=5).is_held
    made = [each for each in proxy.requests if node in each.path]
    assert any(each.path.startswith(asked) for each in made)
    assert old_readings(made) == []


def test_whether_the_session_that_the_caller_gave_has_the_key_is_asked_of_the_present_leader(
    proxy: FaultProxy, client: Client, key: str
) -> None:
    """It is, while another thread of this client is first; whoever has the key acts beside that one."""
    session = client.session.create(SPEC)
    with ThreadPoolExecutor(1) as another:
        first = another.submit(Lock(client, key).acquire).result()
        before = len(proxy.requests)
        assert Lock(client, key, session=session).try_acquire() is None
        made = [each for each in of(key, proxy.requests[before:]) if only_reads(each)]
        assert first.is_held
    assert made
    assert old_readings(made) == []


def test_an_heir_is_one_that_the_present_leader_knows(
    proxy: FaultProxy, busy: Client, client: Client, key: str
) -> None:
    place = f"{key}/heirs"
    with LeaderElection(client, place) as first:
        me = first.wait_for_leadership(timeout=10)
        with LeaderElection(busy, place) as second:
            heir = eventually(second.candidates)[0]
            before = len(proxy.requests)
            first.transfer_to(heir.session)
            assert second.wait_for_leadership(timeout=10).is_held
            assert not me.is_held
            made = [each for each in of(f"{place}/.wait/", proxy.requests[before:]) if "recurse" in each.path]
            assert made
            assert old_readings(made[:1]) == []


def test_a_low_priority_candidate_makes_sure_of_a_vacancy_with_the_present_leader(
    proxy: FaultProxy, client: Client, key: str
) -> None:
    with LeaderElection(client, key, priority_delay=0.05) as election:
        assert election.wait_for_leadership(timeout=10).is_held
    # The first reading begins a watch; the second one, after the delay, decides.
    first, second = [each for each in proxy.requests if only_reads(each) and key in each.path][:2]
    assert old_readings([first])
    assert old_readings([second]) == []


@pytest.mark.parametrize("kind", TAKES)
def test_what_a_hold_depends_on_is_watched_at_the_present_leader(
    proxy: FaultProxy, operator: Operator, client: Client, key: str, kind: str
) -> None:
    hold = TAKES[kind](client, key)
    before = len(proxy.requests)

    def watches() -> list[Passed]:
        return [each for each in of(key, proxy.requests[before:]) if only_reads(each)]

    eventually(watches)
    seen = len(watches())
    overwritten(operator, hold)
    eventually(lambda: len(watches()) > seen)
    assert [each.path for each in watches() if "consistent" not in each.path] == []


def test_where_all_is_quiet_the_keys_beside_a_permit_are_watched_at_the_present_leader(
    proxy: FaultProxy, client: Client, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "LONGEST_HELD", 0.1)  # of a query for one key
    hold = Semaphore(client, key, 1).acquire(timeout=5)

    def watches() -> list[Passed]:
        return [each for each in of(key, proxy.requests) if "recurse" in each.path and "index=" in each.path]

    eventually(watches)
    assert [each.path for each in watches() if "consistent" not in each.path] == []
    assert hold.is_held
