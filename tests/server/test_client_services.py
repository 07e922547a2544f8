"""The client's calls about services, on the reference server and on a real agent."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from consul_coord import (
    CheckSpec,
    Client,
    HealthCheck,
    InvalidRequest,
    PreparedQuery,
    Registration,
    Service,
    WriteOptions,
)
from consul_coord.server import ReferenceServer
from tests.support.sites import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=["reference", "agent"])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    if request.param == "agent":
        with Client(address=request.getfixturevalue("agent_address")) as client:
            yield client
        return
    with ReferenceServer() as server, Client(address=server.address) as client:
        yield client


@pytest.fixture
def name() -> str:
    return f"web-{uuid.uuid4().hex[:8]}"


def test_a_service_of_the_agent(client: Client, name: str) -> None:
    service = Service(name, f"{name}-1", "10.0.0.1", 80, ("a",), {"k": "v"})
    client.agent.register_service(service, checks=[CheckSpec(name="up", id=f"up-{name}", ttl=60)])
    eventually(lambda: client.health.service(name).value)
    assert client.health.service(name, passing=True).value == ()
    client.agent.pass_check(f"up-{name}")
    eventually(lambda: client.health.service(name, passing=True, tag="A").value)
    (found,) = client.health.service(name).value
    assert (found.service, found.node.name) == (service, client.agent.info().value.node)
    assert {check.id for check in found.checks} >= {"serfHealth", f"up-{name}"}
    (listed,) = client.catalog.service(name).value
    assert (listed.service, listed.node.name, listed.checks) == (service, found.node.name, ())
    client.agent.register_service(service)
    assert f"up-{name}" not in client.agent.checks().value
    client.agent.deregister_service(service.id)
    eventually(lambda: not client.catalog.service(name).value)
    client.agent.deregister_service(service.id)  # once more is fine
    assert client.health.service(name, tag="b").value == ()


def test_a_query_is_executed(client: Client, name: str) -> None:
    for number, status in enumerate(["passing", "warning", "critical"]):
        check = HealthCheck("c", status=status, service_id=f"{name}-{number}")
        client.catalog.register(
            Registration(
                node=f"{name}-{number}",
                address="10.0.0.1",
                service=Service(name, f"{name}-{number}"),
                checks=[check],
            )
        )
    query = client.query.create(PreparedQuery(service=name, name=name))
    found = client.query.execute(name).value
    assert found is not None
    assert (found.service, found.datacenter, found.failovers) == (name, "dc1", 0)
    assert sorted(each.service.id for each in found.instances) == [f"{name}-0", f"{name}-1"]
    limited = client.query.execute(query, limit=1).value
    assert limited is not None
    assert len(limited.instances) == 1
    client.query.delete(query)
    assert client.query.execute(query).value is None
    for number in range(3):
        client.catalog.deregister(f"{name}-{number}")


def test_a_registration_goes_to_the_datacenter_that_is_named(client: Client, name: str) -> None:
    """It is refused where there is no way to it, and not carried out where the agent is."""
    elsewhere = WriteOptions(datacenter="dc9")
    with pytest.raises(InvalidRequest, match="No path to datacenter"):
        client.catalog.register(Registration(node=name, address="10.0.0.1"), options=elsewhere)
    client.catalog.register(Registration(node=name, address="10.0.0.1"))
    with pytest.raises(InvalidRequest, match="No path to datacenter"):
        client.catalog.deregister(name, options=elsewhere)
    assert client.catalog.node(name).value is not None
    client.catalog.deregister(name, options=WriteOptions(datacenter="dc1"))
    assert client.catalog.node(name).value is None
