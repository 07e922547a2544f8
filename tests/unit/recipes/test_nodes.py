"""The node that a session is refused for: who is asked for it, where, and what comes of the answer."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from consul_coord.errors import InvalidRequest, NodeNotRegistered, UnsafeSession
from consul_coord.models import SessionSpec
from consul_coord.recipes.session import nodes
from tests.support.fake_io import FakeIO
from tests.support.replies import ok, refusal

REFUSED = NodeNotRegistered("missing node", method="PUT", path="/v1/session/create", status=500)
NODE: dict[str, Any] = {"ID": "", "Node": "n", "Address": "192.0.2.1", "Datacenter": "dc1"}


@dataclass
class Known:
    """What a client knows of nodes."""

    datacenter: str | None = None
    coordination_nodes: set[str] = field(default_factory=set[str])


def provide(io: FakeIO, known: Known, spec: SessionSpec) -> None:
    io.run(nodes.provide(io, known, spec, REFUSED, deadline=io.time + 10))


def vet(io: FakeIO, known: Known, spec: SessionSpec) -> None:
    io.run(nodes.vet(io, known, spec, deadline=io.time + 10))


def asks(io: FakeIO) -> list[dict[str, str]]:
    """Return the parameters of the requests so far."""
    return [dict(request.params) for request in io.requests]


def test_the_agents_own_node_is_not_asked_for() -> None:
    with pytest.raises(NodeNotRegistered) as raised:
        provide(FakeIO(), Known(), SessionSpec())
    assert str(raised.value) == str(REFUSED)


@pytest.mark.parametrize("is_there", [True, False])
def test_another_node_is_looked_for_at_the_present_leader(*, is_there: bool) -> None:
    io, spec = FakeIO(), SessionSpec(node="n")
    io.expect("GET", "/v1/catalog/node/n", ok({"Node": NODE, "Services": {}} if is_there else None))
    if is_there:
        provide(io, Known(), spec)
    else:
        with pytest.raises(InvalidRequest, match="'n' is not registered") as raised:
            provide(io, Known(), spec)
        assert raised.value.__cause__ is REFUSED
        assert (raised.value.status, raised.value.path) == (REFUSED.status, REFUSED.path)
    assert "consistent" in asks(io)[0]


@pytest.mark.parametrize("datacenter", [None, "dc2"])
def test_a_coordination_node_is_registered_where_the_client_asks(datacenter: str | None) -> None:
    io, known = FakeIO(), Known(datacenter)
    io.expect("PUT", "/v1/catalog/register", ok(True))
    provide(io, known, SessionSpec.coordination("n"))
    assert asks(io)[0].get("dc") == datacenter
    assert json.loads(io.requests[0].body or b"")["SkipNodeUpdate"], "another may have given its address"
    assert known.coordination_nodes == {"n"}
    vet(io, known, SessionSpec.coordination("n"))
    assert len(io.requests) == 1, "a node that this client made is not looked at"


@pytest.mark.parametrize(
    ("ttl", "lock_delay", "seen"), [(15.0, 15.0, False), (15.0, 14.9, True), (10.0, 15.0, False)]
)
def test_a_node_that_can_not_be_seen_is_taken_where_the_lock_delay_covers_the_lease(
    ttl: float, lock_delay: float, *, seen: bool
) -> None:
    """``seen``: whether the catalog is asked, which does not show it."""
    io, known = FakeIO(), Known()
    io.expect("GET", "/v1/health/node/n", refusal(403, "Permission denied"))
    spec = SessionSpec.coordination("n", ttl=ttl, lock_delay=lock_delay)
    if seen:
        io.expect("GET", "/v1/catalog/node/n", ok(None))
        with pytest.raises(UnsafeSession, match="can't be seen"):
            vet(io, known, spec)
    else:
        vet(io, known, spec)
    assert known.coordination_nodes == (set() if seen else {"n"})
    assert not io.steps
    assert all("consistent" in each for each in asks(io))


def test_a_node_of_an_agent_is_refused_each_time() -> None:
    io, known, spec = FakeIO(), Known(), SessionSpec.coordination("n")
    check = {"Node": "n", "CheckID": "serfHealth", "Name": "", "Status": "passing", "ServiceID": ""}
    for _ in range(2):
        io.expect("GET", "/v1/health/node/n", ok([check]))
        with pytest.raises(UnsafeSession, match="it has an agent"):
            vet(io, known, spec)
    assert known.coordination_nodes == set()
