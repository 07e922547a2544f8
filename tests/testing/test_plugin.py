"""The pytest plugin as an application meets it: a test run of its own, with nothing configured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from consul_coord import Lock
from consul_coord.clock import VirtualClock
from consul_coord.server import Effect, Fault, ReferenceServer
from consul_coord.testing.agent import RealAgent
from consul_coord.testing.fixtures import client_of, emptied
from tests.support.sites import Operator

if TYPE_CHECKING:
    from pathlib import Path

pytest_plugins = ["pytester"]

APPLICATION = """
import httpx
import pytest

from consul_coord import AsyncLock, Lock
from consul_coord.server import Effect, Fault


@pytest.mark.parametrize("number", range(4))
def test_each_test_has_empty_state(consul_server, consul_client, number):
    assert not consul_server.state.kv
    assert not consul_server.state.sessions
    consul_client.kv.put("mine", str(number))
    Lock(consul_client, "lock").acquire(timeout=5)


def test_one_clock_for_all(consul_server, consul_client):
    hold = Lock(consul_client, "lock").acquire(timeout=5)
    before = consul_client.now()
    consul_server.clock.advance(3600)
    assert consul_client.now() == before + 3600
    assert not hold.is_held
    assert not consul_server.state.sessions


def test_left_without_a_leader(consul_server, consul_client):
    Lock(consul_client, "lock").acquire(timeout=5)
    consul_server.lose_leader()


@pytest.mark.parametrize("effect", list(Effect))
def test_left_with_a_fault(consul_server, consul_client, effect):
    Lock(consul_client, "lock").acquire(timeout=5)
    consul_server.faults.add(Fault(effect=effect, delay=7.0))


@pytest.mark.anyio
async def test_an_async_client(consul_server, async_consul_client):
    async with AsyncLock(async_consul_client, "lock").hold(timeout=5) as hold:
        assert consul_server.state.kv["lock"].session == hold.session
    hold = await AsyncLock(async_consul_client, "other").acquire(timeout=5)
    consul_server.clock.advance(3600)
    assert not hold.is_held


@pytest.mark.anyio
async def test_an_async_client_left_with_a_fault(consul_server, async_consul_client):
    await AsyncLock(async_consul_client, "lock").acquire(timeout=5)
    consul_server.faults.add(Fault(effect=Effect.LOSE_REQUEST))


class TestConfigured:
    @pytest.fixture
    def consul_server_config(self):
        from consul_coord.server import ServerConfig

        return ServerConfig(kv_max_value_size=3)

    def test_its_settings(self, consul_server):
        assert httpx.put(f"{consul_server.address}/v1/kv/k", content=b"long").status_code == 413
"""
COUNT = 4 + 1 + 1 + 10 + 2 + 2 + 1

REAL = """
import pytest

from consul_coord import Client


@pytest.mark.parametrize("way", ["run on", "pause", "kill"])
def test_each_test_has_an_empty_agent(real_consul, way):
    with Client(address=real_consul.address) as client:
        assert client.kv.list("").value == ()
        assert client.session.list().value == ()
    client = Client(address=real_consul.address)
    client.kv.put("left", "behind")
    client.session.create()
    {"run on": str, "pause": real_consul.pause, "kill": real_consul.kill}[way]()
    client.close(timeout=0.1)
"""
REAL_COUNT = 3

HEAVY = {"httpx", "httpcore", "asyncio", "ssl", "uvicorn", "httptools", "trio", "anyio", "tenacity"}


@pytest.fixture
def nowhere(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """An application's folder, from which no Consul binary is found."""
    if any((folder / ".consul" / "consul").exists() for folder in pytester.path.parents):
        pytest.skip("a folder above the temporary one has a Consul binary")
    for name in [name for name in os.environ if name.startswith(("CONSUL_", "PYTEST_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(pytester.path))
    return pytester


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess("-W", "error", "-p", "no:cacheprovider", *arguments, timeout=110)


@pytest.mark.parametrize("effect", [None, *Effect])
def test_a_client_gives_back_all_it_has_whatever_its_server_was_left_in(effect: Effect | None) -> None:
    with ReferenceServer(clock=VirtualClock()) as server:
        with client_of(server) as client:
            Lock(client, "lock").acquire(timeout=5)
            if effect is None:
                server.lose_leader()
            else:
                server.faults.add(Fault(effect=effect, delay=7.0))
        assert not server.state.sessions
        assert server.state.kv["lock"].session == ""


LEFT: dict[str, tuple[str, object, str]] = {
    "a key": ("/v1/kv/left", b"behind", "/v1/kv/?keys"),
    "a session": ("/v1/session/create", {"TTL": "10s"}, "/v1/session/list"),
    "a service": ("/v1/agent/service/register", {"Name": "web"}, "/v1/agent/services"),
    "a check": ("/v1/agent/check/register", {"Name": "mem", "TTL": "10s"}, "/v1/agent/checks"),
    "a node": ("/v1/catalog/register", {"Node": "n2", "Address": "a"}, "/v1/catalog/nodes"),
    "a query": ("/v1/query", {"Name": "q", "Service": {"Service": "web"}}, "/v1/query"),
}
"""What a test may leave at an agent: the request that makes it, and where it is listed."""


@pytest.mark.parametrize("then", ["runs on", "stands still", "was killed"])
def test_a_real_agent_is_emptied_of_all_that_a_test_has_left(consul_binary: Path, then: str) -> None:
    with RealAgent(binary=consul_binary) as agent:
        operator = Operator(agent.address)

        def listed() -> dict[str, int]:
            found = {what: operator.ask("GET", place) for what, (_, _, place) in LEFT.items()}
            return {
                what: len(json.loads(text)) if status == 200 else 0 for what, (status, text) in found.items()
            }

        before = listed()
        for what, (path, body, _) in LEFT.items():
            assert operator.ask("POST" if what == "a query" else "PUT", path, body)[0] == 200
        assert listed() == {what: count + 1 for what, count in before.items()}
        if then == "stands still":
            agent.pause()
        elif then == "was killed":
            agent.kill()
        assert emptied(agent) is agent
        assert listed() == before


@pytest.mark.slow
@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_an_applications_tests(pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    pytester.makepyfile(APPLICATION)
    run(pytester, *workers).assert_outcomes(passed=COUNT)


@pytest.mark.slow
def test_a_real_agent_for_each_worker(
    pytester: pytest.Pytester, consul_binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONSUL_BIN", str(consul_binary))
    pytester.makepyfile(REAL)
    run(pytester, "-n", "2").assert_outcomes(passed=REAL_COUNT)


@pytest.mark.slow
def test_without_a_binary_tests_are_skipped_and_say_why(nowhere: pytest.Pytester) -> None:
    nowhere.makepyfile(REAL)
    result = run(nowhere, "-rs")
    result.assert_outcomes(skipped=REAL_COUNT)
    result.stdout.fnmatch_lines(["*no Consul binary: set CONSUL_BIN*"])


@pytest.mark.slow
def test_where_an_agent_is_required_they_fail(
    nowhere: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONSUL_COORD_REQUIRE_AGENT", "1")
    nowhere.makepyfile(REAL)
    result = run(nowhere)
    result.assert_outcomes(errors=REAL_COUNT)
    result.stdout.fnmatch_lines(["*forbids skipping*"])


def test_a_run_that_wants_none_of_it_loads_next_to_nothing() -> None:
    program = "import sys, pytest; before = set(sys.modules); import pytest_consul_coord; "
    program += "print(*sorted(set(sys.modules) - before))"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30
    ).stdout.split()
    assert "pytest_consul_coord" in loaded
    assert HEAVY.isdisjoint(loaded)
    assert not [name for name in loaded if name.startswith("consul_coord")]


@pytest.mark.slow
def test_without_the_extra_a_fixture_names_it(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("import sys; sys.modules['uvicorn'] = None")
    pytester.makepyfile("def test(consul_client): pass")
    result = run(pytester)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*uvicorn is not installed: pip install 'consul-coord[[]server]'*"])
