"""Paths and methods that lead nowhere, and the purity of the modules that a simulator drives."""

from __future__ import annotations

import subprocess
import sys

import pytest

from consul_coord.server.wire import Reply, Request
from tests.server.driver import Driver


@pytest.fixture
def agent() -> Driver:
    return Driver()


@pytest.mark.parametrize(
    ("method", "target", "status", "text"),
    [
        ("GET", "/v1/nonsense", 404, ""),
        ("PUT", "/v1/session/create/", 404, ""),
        ("POST", "/v1/session/list", 405, "method POST not allowed"),
        ("HEAD", "/v1/kv/k", 405, "method HEAD not allowed"),
        ("GET", "/v1/kv", 301, '<a href="/v1/kv/">Moved Permanently</a>.\n\n'),
        ("PUT", "/v1/session/info", 301, ""),
        ("PUT", "/v1/acl/bootstrap", 401, "ACL support disabled"),
        ("PUT", "/v1/acl/role", 501, "The reference server does not have /v1/acl/role:"),
        ("PUT", "/v1/acl/nonsense", 404, ""),
        ("GET", "/v1/connect/ca/roots", 501, "The reference server does not have /v1/connect/ca/roots:"),
    ],
)
def test_paths_that_lead_nowhere(agent: Driver, method: str, target: str, status: int, text: str) -> None:
    reply = agent.ask(method, target)
    assert reply.status == status
    assert reply.text.startswith(text)
    assert bool(reply.text) == bool(text)


def test_the_allow_header_names_the_methods(agent: Driver) -> None:
    for method, status in (("OPTIONS", 200), ("POST", 405)):
        reply = agent.service.handle(Request.make(method, "/v1/session/create"), agent.now)
        assert isinstance(reply, Reply)
        assert reply.status == status
        assert reply.header("allow") == "OPTIONS,PUT"


def test_pretty_output_ends_with_a_newline(agent: Driver) -> None:
    assert agent.ask("PUT", "/v1/kv/k?pretty", b"v").body == b"true\n"
    assert b'\n        "LockIndex": 0,' in agent.ask("GET", "/v1/kv/k?pretty").body


def test_the_pure_modules_import_nothing_heavy() -> None:
    code = (
        "import sys, consul_coord.server.service, consul_coord.server.state\n"
        "print(*sorted({'asyncio', 'uvicorn', 'httpx', 'threading', 'ssl'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert run.stdout.split() in ([], ["threading"])
