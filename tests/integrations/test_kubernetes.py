"""The page on Kubernetes: its program run as a pod would run it, its manifest held against the program."""

from __future__ import annotations

import re
import sys
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from consul_coord import Client, LeaderElection, leader
from consul_coord.server import Effect, Fault, ReferenceServer, ServerConfig
from consul_coord.sync.runner import CLOSE_TIMEOUT
from tests.integrations import pages
from tests.integrations.programs import PATIENCE, Served, eventually, serving

if TYPE_CHECKING:
    from pathlib import Path

PAGE = "kubernetes"
KEY = "service/billing/leader"
PYTHON = [sys.executable, "billing.py"]


@pytest.fixture
def pod(tmp_path: Path) -> Path:
    (tmp_path / "billing.py").write_text(pages.blocks(PAGE, "python")[0], encoding="utf-8")
    return tmp_path


def probe(server: Served) -> int:
    port = server.wait_for(r"probes on port (\d+)")[1]
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=PATIENCE) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code


def test_sigterm_hands_over_within_the_grace(address: str, pod: Path) -> None:
    more = {"POD_NAME": "billing-1", "POD_IP": "10.0.0.7", "PROBE_PORT": "0"}
    with Client(address=address) as client, serving(PYTHON, folder=pod, address=address, more=more) as server:
        server.wait_for("leading, term")
        found = leader(client, KEY)
        assert found is not None
        assert found.text == "10.0.0.7"
        session = client.session.info(found.session).value
        assert session is not None
        assert session.name is not None
        assert session.name.startswith("billing-1")
        assert probe(server) == 200
        with LeaderElection(client, KEY) as successor:
            eventually(lambda: successor.candidates() or None)
            assert server.end() == 0, "".join(server.said)
            # No lock-delay: that would be 15 s.
            assert successor.wait_for_leadership(timeout=10).term > found.term
        assert client.session.info(found.session).value is None


@pytest.mark.slow
def test_liveness_fails_before_the_lease_ends(pod: Path) -> None:
    more = {"LEASE_TTL": "6", "PROBE_PORT": "0"}
    with (
        ReferenceServer(config=ServerConfig(session_ttl_min=1)) as consul,
        serving(PYTHON, folder=pod, address=consul.address, more=more) as server,
    ):
        server.wait_for("leading, term")
        assert probe(server) == 200
        consul.faults.add(Fault(effect=Effect.LOSE_REQUEST, path="/v1/session/renew/.*"))
        eventually(lambda: True if probe(server) == 503 else None)
        assert "lost key" not in "".join(server.said)
        consul.faults.clear()


@pytest.fixture
def manifest() -> Any:
    (text,) = pages.blocks(PAGE, "yaml")
    return yaml.safe_load(text)


def test_the_manifest_fits_the_program(manifest: Any) -> None:
    spec = manifest["spec"]["template"]["spec"]
    assert manifest["spec"]["selector"]["matchLabels"].items() <= (
        manifest["spec"]["template"]["metadata"]["labels"].items()
    )
    (container,) = spec["containers"]
    given = {variable["name"] for variable in container["env"]}
    read = set(re.findall(r'environ\.get\("(\w+)"', pages.blocks(PAGE, "python")[0]))
    assert {"POD_NAME", "POD_IP"} <= given & read
    (port,) = re.findall(r'"PROBE_PORT", "(\d+)"', pages.blocks(PAGE, "python")[0])
    assert container["ports"] == [{"containerPort": int(port)}]
    assert container["livenessProbe"]["httpGet"] == {"path": "/live", "port": int(port)}
    assert container["readinessProbe"]["httpGet"] == {"path": "/ready", "port": int(port)}
    (mount,) = container["volumeMounts"]
    assert {volume["name"] for volume in spec["volumes"]} == {mount["name"]}
    values = {variable["name"]: variable.get("value", "") for variable in container["env"]}
    assert values["CONSUL_HTTP_TOKEN_FILE"].startswith(mount["mountPath"])
    assert spec["terminationGracePeriodSeconds"] > CLOSE_TIMEOUT


def test_the_probe_sees_a_failing_lease_and_no_healthy_one(manifest: Any) -> None:
    liveness = manifest["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]
    ttl = 15.0
    slack = ttl / 3
    lease = 0.95 * ttl
    assert liveness["periodSeconds"] * liveness["failureThreshold"] < slack < lease * 2 / 3


def test_the_settings_of_the_manifest_are_understood(
    manifest: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("from-the-secret\n")
    for variable in manifest["spec"]["template"]["spec"]["containers"][0]["env"]:
        if "value" in variable:
            value = variable["value"].replace("$(HOST_IP)", "192.0.2.7")
            monkeypatch.setenv(variable["name"], str(token) if value.startswith("/") else value)
    client = Client()
    assert repr(client) == "<Client of http://192.0.2.7:8500>"
    assert client._runner._settings.credentials.headers(now=0.0)["X-Consul-Token"] == "from-the-secret"
