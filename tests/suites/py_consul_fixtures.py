"""Stands in for the conftest of py-consul's own tests: they get our servers instead of containers.

Copied beside those tests and run by a pytest of its own; ``test_py_consul.py`` does both. The environment
says which side is tested: CONSUL_COORD_SIDE is ``reference``, or the path of a Consul binary.
"""

from __future__ import annotations

import os
import time
from collections import namedtuple
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests

from consul_coord.server import AclConfig, ReferenceServer, ServerConfig, Token
from consul_coord.testing.agent import RealAgent
from consul_coord.testing.binary import version_of

if TYPE_CHECKING:
    from collections.abc import Iterator

SIDE = os.environ["CONSUL_COORD_SIDE"]
VERSION = "1.8.7" if SIDE == "reference" else ".".join(map(str, version_of(Path(SIDE))))

ROOT = "5d2c7b6a-0000-4000-8000-000000000001"
ACLConsul = namedtuple("ACLConsul", ["instance", "token", "version"])  # noqa: PYI024 - as theirs
ConsulInstance = namedtuple("ConsulInstance", ["port", "version"])  # noqa: PYI024 - as theirs


@pytest.fixture(scope="session")
def running_agent() -> Iterator[RealAgent]:
    with RealAgent(binary=Path(SIDE), config={"enable_script_checks": True}) as agent:
        yield agent


@pytest.fixture
def consul_instance(request: pytest.FixtureRequest) -> Iterator[ConsulInstance]:
    if SIDE == "reference":
        with ReferenceServer(config=ServerConfig(enable_script_checks=True)) as server:
            yield instance(server.address)
        return
    if request.node.name.startswith("test_agent_leave"):  # after which it is no more
        with RealAgent(binary=Path(SIDE)) as own:
            yield instance(own.address)
        return
    agent: RealAgent = request.getfixturevalue("running_agent")
    clean(agent.address)
    yield instance(agent.address)


def instance(address: str) -> ConsulInstance:
    return ConsulInstance(int(address.rpartition(":")[2]), VERSION)


def clean(address: str) -> None:
    """Take away all that a test may have left."""

    def get(path: str) -> Any:
        return requests.get(f"{address}/v1/{path}", timeout=10).json()

    def put(path: str, body: dict[str, str] | None = None) -> None:
        requests.put(f"{address}/v1/{path}", json=body, timeout=10)

    for service in get("agent/services"):
        put(f"agent/service/deregister/{service}")
    for check in get("agent/checks"):
        put(f"agent/check/deregister/{check}")
    for session in get("session/list"):
        put(f"session/destroy/{session['ID']}")
    for query in get("query"):
        requests.delete(f"{address}/v1/query/{query['ID']}", timeout=10)
    own = get("agent/self")["Config"]["NodeName"]
    for node in get("catalog/nodes"):
        if node["Node"] != own:
            put("catalog/deregister", {"Node": node["Node"]})
    requests.delete(f"{address}/v1/kv/?recurse", timeout=10)
    deadline = time.monotonic() + 20
    while any(node["TaggedAddresses"] is None for node in get("catalog/nodes")):  # it is to be written yet
        assert time.monotonic() < deadline, "the agent does not register its node"
        time.sleep(0.05)


@pytest.fixture
def acl_consul(request: pytest.FixtureRequest) -> Iterator[ACLConsul]:
    """A server with ACLs of its own, as they count the tokens in it."""
    if SIDE == "reference":
        acl = AclConfig(tokens={ROOT: Token(management=True)})
        server: RealAgent | ReferenceServer[Any] = ReferenceServer(config=ServerConfig(acl=acl))
    else:
        config = {"acl": {"enabled": True, "default_policy": "deny", "tokens": {"master": ROOT}}}
        server = RealAgent(binary=Path(SIDE), config=config, token=ROOT)
    with server:
        place = instance(server.address)
        yield ACLConsul(import_module("consul").Consul(port=place.port), ROOT, place.version)


@pytest.fixture
def consul_port(consul_instance: ConsulInstance) -> tuple[int, str]:
    return consul_instance.port, consul_instance.version


@pytest.fixture
def consul_obj(consul_port: tuple[int, str]) -> tuple[Any, str]:
    consul = import_module("consul")
    return consul.Consul(port=consul_port[0]), consul_port[1]
