"""The test bed itself, seen through plain HTTP: agents start, stop and lose or keep data as they promise."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import socket
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from consul_coord.testing.agent import AgentError, Ports, PortsTakenError, RealAgent
from proof.cluster import RealCluster

if TYPE_CHECKING:
    from pathlib import Path

# Proxies of the environment have no business between a test and its agent.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def call(address: str, method: str, path: str, body: bytes | None = None, *, timeout: float = 5.0) -> bytes:
    request = urllib.request.Request(address + path, method=method, data=body)
    with _opener.open(request, timeout=timeout) as reply:
        return bytes(reply.read())


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def with_taken_http_port(holder: RealAgent) -> Ports:
    taken = int(holder.address.rpartition(":")[2])
    return dataclasses.replace(Ports.free("127.0.0.1"), http=taken)


def test_a_started_agent_takes_keys_and_sessions(agent_address: str) -> None:
    assert call(agent_address, "PUT", "/v1/kv/bed/started", b"yes").strip() == b"true"
    assert call(agent_address, "GET", "/v1/kv/bed/started?raw") == b"yes"
    session = json.loads(call(agent_address, "PUT", "/v1/session/create", b'{"TTL": "10s"}'))["ID"]
    (info,) = json.loads(call(agent_address, "GET", f"/v1/session/info/{session}"))
    assert info["NodeChecks"] == ["serfHealth"]
    assert call(agent_address, "PUT", f"/v1/session/destroy/{session}").strip() == b"true"


def test_a_session_of_half_a_second_expires(agent_address: str) -> None:
    body = b'{"TTL": "500ms", "NodeChecks": [], "LockDelay": "0s"}'
    session = json.loads(call(agent_address, "PUT", "/v1/session/create", body))["ID"]
    created = time.monotonic()
    watched = f"/v1/session/info/{session}"
    # Consul waits for twice the TTL. The blocking query returns on the change, so nothing is timed by
    # sleeping.
    index = 1
    while json.loads(call(agent_address, "GET", f"{watched}?index={index}&wait=5s", timeout=10.0)):
        index += 1
        assert time.monotonic() - created < 10.0
    assert time.monotonic() - created >= 0.9


def test_a_paused_agent_answers_nothing_until_it_is_resumed(consul_binary: Path) -> None:
    with RealAgent(binary=consul_binary) as agent:
        agent.pause()
        assert agent.is_running
        with pytest.raises(TimeoutError):
            call(agent.address, "GET", "/v1/status/leader", timeout=0.3)
        agent.resume()
        assert json.loads(call(agent.address, "GET", "/v1/status/leader"))


def test_a_paused_agent_can_be_terminated(consul_binary: Path) -> None:
    with RealAgent(binary=consul_binary) as agent:
        pid = agent.pid
        agent.pause()
        agent.terminate()
        assert not is_alive(pid)
        assert "signal=terminated" in agent.log


@pytest.mark.slow
def test_a_persistent_agent_keeps_keys_and_sessions_when_killed(consul_binary: Path, tmp_path: Path) -> None:
    with RealAgent(binary=consul_binary, data_dir=tmp_path / "data") as agent:
        address, pid = agent.address, agent.pid
        call(address, "PUT", "/v1/kv/bed/kept", b"still here")
        session = json.loads(call(address, "PUT", "/v1/session/create", b'{"TTL": "60s"}'))["ID"]
        agent.kill()
        assert not agent.is_running
        assert not is_alive(pid)
        agent.restart()
        assert agent.address == address
        assert agent.pid != pid
        assert call(address, "GET", "/v1/kv/bed/kept?raw") == b"still here"
        assert json.loads(call(address, "GET", f"/v1/session/info/{session}"))[0]["ID"] == session


def test_settings_are_merged_into_the_own_ones(consul_binary: Path) -> None:
    config = {"datacenter": "elsewhere", "limits": {"http_max_conns_per_client": 3}}
    with RealAgent(binary=consul_binary, name="given", config=config) as agent:
        self = json.loads(call(agent.address, "GET", "/v1/agent/self"))
        assert self["Config"]["Datacenter"] == "elsewhere"
        assert self["Config"]["NodeName"] == "given"
        assert self["DebugConfig"]["HTTPMaxConnsPerClient"] == 3
        assert self["DebugConfig"]["SessionTTLMin"] == "200ms"


def test_an_agent_with_acls_starts_with_a_token_and_does_not_show_it(consul_binary: Path) -> None:
    token = "11111111-2222-3333-4444-555555555555"
    acl = {"enabled": True, "default_policy": "deny", "tokens": {"master": token}}
    with RealAgent(binary=consul_binary, config={"acl": acl}, token=token) as agent:
        assert agent.request("PUT", "/v1/kv/bed/acl", b"x")[0] == 200
        assert token not in repr(agent)
        assert token not in agent.log


def test_a_bad_setting_fails_at_once_and_shows_consuls_own_words(consul_binary: Path) -> None:
    agent = RealAgent(binary=consul_binary, config={"no_such_setting": 1})
    began = time.monotonic()
    with pytest.raises(AgentError, match="no_such_setting"):
        agent.start()
    assert time.monotonic() - began < 10.0
    assert not agent.is_running


def test_given_ports_that_are_taken_are_an_error_of_their_own(
    consul_binary: Path, real_agent: RealAgent
) -> None:
    with pytest.raises(PortsTakenError):
        RealAgent(binary=consul_binary, ports=with_taken_http_port(real_agent)).start()


def test_a_start_that_loses_the_race_for_its_ports_takes_others(
    consul_binary: Path, real_agent: RealAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = Ports.free("127.0.0.1")
    offers = iter([with_taken_http_port(real_agent), free])
    monkeypatch.setattr(Ports, "free", lambda _host: next(offers))
    with RealAgent(binary=consul_binary) as agent:
        assert agent.address == f"http://127.0.0.1:{free.http}"


def test_starting_a_running_agent_is_refused_and_leaves_it_running(real_agent: RealAgent) -> None:
    pid = real_agent.pid
    with pytest.raises(AgentError, match="stop it first"):
        real_agent.start()
    assert real_agent.pid == pid


def test_an_agent_that_nobody_refers_to_is_ended_and_cleaned_up(consul_binary: Path) -> None:
    agent = RealAgent(binary=consul_binary)
    agent.start()
    pid = agent.pid
    del agent
    gc.collect()
    assert not is_alive(pid)


def test_a_forked_child_leaves_its_parents_agent_alone(real_agent: RealAgent) -> None:
    pid = real_agent.pid
    child = os.fork()
    if child == 0:
        # Neither the child's own close nor the clean-up at its exit may reach the parent's process.
        code = 1
        try:
            real_agent.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert real_agent.pid == pid
    assert json.loads(call(real_agent.address, "GET", "/v1/status/leader"))
    assert real_agent.log


@pytest.mark.cluster
def test_a_cluster_outlives_its_leader_and_takes_it_back(consul_binary: Path) -> None:
    with RealCluster(binary=consul_binary) as cluster:
        first = cluster.wait_for_leader()
        others = [i for i in range(3) if i != first]
        assert len(set(cluster.addresses)) == 3
        call(cluster.addresses[others[0]], "PUT", "/v1/kv/bed/cluster", b"1")
        cluster.kill(first)
        second = cluster.wait_for_leader()
        assert second in others
        call(cluster.addresses[second], "PUT", "/v1/kv/bed/cluster", b"2", timeout=20.0)
        cluster.start(first)
        assert call(cluster.addresses[first], "GET", "/v1/kv/bed/cluster?raw&consistent") == b"2"


def test_a_reply_that_breaks_off_leaves_no_connection_behind() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        ports = dataclasses.replace(Ports.free("127.0.0.1"), http=server.getsockname()[1])
        asked = pool.submit(RealAgent(ports=ports).request, "GET", "/v1/agent/self", timeout=0.5)
        peer, _ = server.accept()
        with peer:
            peer.settimeout(5)
            while not peer.recv(65_536).endswith(b"\r\n\r\n"):
                pass
            peer.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 9\r\n\r\nhalf")
            # The error refers to the frames of the call: nothing is closed for want of references.
            error = asked.exception(5)
            assert isinstance(error, TimeoutError)
            assert peer.recv(1) == b""
