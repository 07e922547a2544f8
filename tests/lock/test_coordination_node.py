"""Sessions on a coordination node: a node in the catalog that no agent owns."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord import (
    Client,
    InvalidRequest,
    LeaderElection,
    Lock,
    LossReason,
    PermissionDenied,
    ReadWriteLock,
    Semaphore,
    SessionSpec,
    UnsafeSession,
)
from consul_coord.server import Rule
from tests.support import guarded
from tests.support.guarded import SESSIONS
from tests.support.sites import eventually, without_node

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.guarded import Guarded, Rules
    from tests.support.sites import Operator, Site

PATIENT = 10.0
NODE = "consul-coord"
KEYS = Rule("key", "", "write", prefix=True)
REGISTER = Rule("node", NODE, "write")
SEE = Rule("node", "", "read", prefix=True)

USES: Rules = (SESSIONS, KEYS)
REGISTERS: Rules = (SESSIONS, KEYS, REGISTER)
SEES: Rules = (SESSIONS, KEYS, SEE)


@pytest.fixture
def node(site: Site) -> Iterator[str]:
    """Yield the name of a node that is not registered yet, and remove it in the end."""
    name = f"coord-{site.unique}"
    yield name
    site.operator.done("PUT", "/v1/catalog/deregister", {"Node": name})


def registered(operator: Operator, node: str) -> dict[str, Any] | None:
    found: dict[str, Any] | None = operator.done("GET", f"/v1/catalog/node/{node}")
    return None if found is None else found["Node"]


def node_of(operator: Operator, session: str) -> str:
    (found,) = operator.done("GET", f"/v1/session/info/{session}")
    return str(found["Node"])


def spec(site: Site, node: str, **changes: Any) -> SessionSpec:
    return SessionSpec.coordination(node, name=site.unique, **changes)


def test_the_first_need_registers_it_and_all_recipes_use_it(site: Site, node: str) -> None:
    with Client(address=site.address, session=spec(site, node)) as client:
        assert registered(site.operator, node) is None
        with (
            Lock(client, site.key).hold(timeout=PATIENT) as hold,
            Semaphore(client, f"{site.unique}/slots", 2).hold(timeout=PATIENT) as permit,
            ReadWriteLock(client, f"{site.unique}/rw").read.hold(timeout=PATIENT) as place,
            LeaderElection(client, f"{site.unique}/lead") as election,
        ):
            leadership = election.wait_for_leadership(timeout=PATIENT)
            for session in (hold.session, permit.session, place.session, leadership.session):
                assert node_of(site.operator, session) == node
    found = registered(site.operator, node)
    assert found is not None
    assert "consul-coord" in found["Meta"]
    assert "external-node" not in found["Meta"]
    assert site.left_behind() == []


def test_a_node_that_is_there_is_left_as_it_is(site: Site, node: str) -> None:
    entry = {"Node": node, "Address": "10.0.0.9", "NodeMeta": {"made": "by hand"}}
    site.operator.done("PUT", "/v1/catalog/register", entry)
    before = registered(site.operator, node)
    with Client(address=site.address, session=spec(site, node)) as client, Lock(client, site.key):
        assert registered(site.operator, node) == before


def test_its_holds_outlive_the_agents_own_node(site: Site, node: str) -> None:
    agent = site.operator.done("GET", "/v1/agent/self")["Config"]["NodeName"]
    with (
        Client(address=site.address, session=spec(site, node, lock_delay=1.0)) as lasting,
        Client(address=site.address, session=SessionSpec(lock_delay=1.0, name=site.unique)) as usual,
    ):
        kept = Lock(lasting, site.key).acquire(timeout=PATIENT)
        lost = Lock(usual, f"{site.key}2").acquire(timeout=PATIENT)
        assert kept.remaining() > 13.0, "a horizon of the whole TTL"
        assert lost.remaining() < 1.0
        with without_node(site.operator, agent):
            assert lost.lost.wait(PATIENT)
            assert lost.reason is LossReason.SESSION_GONE
        assert kept.verify()
        kept.ensure(14.0)
        kept.release()


def test_removing_it_is_told_and_the_next_need_registers_it_again(site: Site, node: str) -> None:
    with Client(address=site.address, session=spec(site, node, lock_delay=0.1)) as client:
        lock = Lock(client, site.key)
        first = lock.acquire(timeout=PATIENT)
        site.operator.done("PUT", "/v1/catalog/deregister", {"Node": node})
        assert first.lost.wait(PATIENT)
        assert first.reason is LossReason.SESSION_GONE
        with lock.hold(timeout=PATIENT) as second:
            assert second.fence > first.fence
            assert node_of(site.operator, second.session) == node


def test_an_agents_node_is_refused(site: Site) -> None:
    agent = site.operator.done("GET", "/v1/agent/self")["Config"]["NodeName"]
    with Client(address=site.address, session=spec(site, agent)) as client:
        with pytest.raises(UnsafeSession, match=f"node '{agent}'.*serfHealth"):
            Lock(client, site.key).acquire(timeout=PATIENT)
        eventually(lambda: site.left_behind() == [], within=PATIENT)


def test_another_node_that_is_absent_is_named(site: Site) -> None:
    absent = SessionSpec(node="nobody-knows", name=site.unique)
    with (
        Client(address=site.address, session=absent) as client,
        pytest.raises(InvalidRequest, match="node 'nobody-knows' is not registered"),
    ):
        Lock(client, site.key).acquire(timeout=PATIENT)
    assert registered(site.operator, "nobody-knows") is None


def test_a_session_that_moved_to_it_keeps_its_own_horizon(site: Site, node: str) -> None:
    usual = SessionSpec(ttl=15.0, lock_delay=2.0, name=site.unique)
    with Client(address=site.address) as client:
        exported = client.keep_session(usual).export()
        # It was made on the agent's node, whatever the spec now says.
        with client.keep_session(spec(site, node, lock_delay=2.0), resume=exported) as resumed:
            assert resumed.remaining() <= 2.0


@pytest.fixture(scope="module", params=["reference", pytest.param("agent", marks=pytest.mark.agent)])
def consul(request: pytest.FixtureRequest) -> Iterator[Guarded]:
    sets = [USES, REGISTERS, SEES]
    with contextlib.ExitStack() as stack:
        if request.param == "reference":
            yield stack.enter_context(guarded.reference(sets))
        else:
            binary: Path = request.getfixturevalue("consul_binary")
            yield stack.enter_context(guarded.agent(binary, sets))


@pytest.fixture
def unregistered(consul: Guarded) -> Guarded:
    consul.root.done("PUT", "/v1/catalog/deregister", {"Node": NODE})
    return consul


def client_with(consul: Guarded, rules: Rules, **changes: Any) -> Client:
    return Client(
        address=consul.address, token=consul.tokens[rules], session=SessionSpec.coordination(**changes)
    )


def test_the_right_to_register_is_named_and_nothing_else_is_used(unregistered: Guarded) -> None:
    with client_with(unregistered, USES) as client, pytest.raises(PermissionDenied) as denied:
        Lock(client, "k").acquire(timeout=PATIENT)
    assert denied.value.needed == (f'node:write on node "{NODE}"',)
    assert registered(unregistered.root, NODE) is None
    assert unregistered.root.done("GET", "/v1/session/list") == []


def test_once_it_is_registered_session_write_is_enough(unregistered: Guarded) -> None:
    with client_with(unregistered, REGISTERS) as first, Lock(first, "k"):
        pass
    with client_with(unregistered, USES) as later, Lock(later, "k").hold(timeout=PATIENT) as hold:
        assert hold.remaining() > 13.0


def test_who_can_not_see_the_node_needs_a_lock_delay_that_covers_the_lease(unregistered: Guarded) -> None:
    with client_with(unregistered, REGISTERS, lock_delay=5.0) as first, Lock(first, "k") as hold:
        assert hold.remaining() > 13.0, "whoever registers it knows it"
    with client_with(unregistered, USES, lock_delay=5.0) as blind:
        with pytest.raises(UnsafeSession, match=f'node:read on node "{NODE}"'):
            Lock(blind, "k").acquire(timeout=PATIENT)
        eventually(lambda: unregistered.root.done("GET", "/v1/session/list") == [], within=PATIENT)
    with (
        client_with(unregistered, SEES, lock_delay=5.0) as seeing,
        Lock(seeing, "k").hold(timeout=PATIENT) as hold,
    ):
        assert hold.remaining() > 13.0
