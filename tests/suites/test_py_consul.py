"""py-consul's own tests, from its source distribution, against the reference server and a real agent.

Rules
- Which of them fail is written down here, each with the reason; any other failure is one of ours, and
  one that no longer fails has to go from the list.
- Some of them look 40 ms after a change, or at once, for what an agent brings about in its own time. On an
  agent, what fails without a reason written down is run once more, and counts if it fails again.
- What the reference server's page says is out of scope is not run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as ET

import pytest

from consul_coord.testing.binary import version_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

FIXTURES: Final = Path(__file__).parent / "py_consul_fixtures.py"
SOURCE: Final = "py-consul==1.8.0"
PLUGIN: Final = "pytest-asyncio==1.5.0"
TIMEOUT: Final = 240.0

OUT_OF_SCOPE: Final = {
    "tests/api/test_acl_templated_policy.py": "policies from templates, of later versions",
    "tests/api/test_config.py": "/v1/config",
    "tests/api/test_connect.py": "/v1/connect",
    "tests/api/test_discovery_chain.py": "/v1/discovery-chain",
    "tests/api/test_operator.py": "/v1/operator",
}
OF_1_8: Final = {
    "test_agent_checks": "looks for the agent at port 8500",
    "test_service_multi_check": "looks for the agent at port 8500",
    "test_agent_metrics": "in Prometheus' format: 1.8 refuses it with 415 unless it is configured",
    "test_agent_self": "expects the debug information of later versions",
    "test_agent_service_register_kind_proxy_locality": "a field of later versions",
    "test_health_service_peer": "peers came later",
    "test_catalog_filter": "expects 400 for a bad filter, as later versions answer",
    "test_catalog_gateway_services": "expects an empty list, where 1.8 answers null",
    "test_agent_services": "expects the fields of later versions",
    "test_acl_token_list": "expects the descriptions of later versions",
    "test_acl_token_read_self": "expects the descriptions of later versions",
    "test_acl_token_create": "expects secrets in the list of tokens, as later versions show them",
    "test_acl_token_create_templated": "policies from templates came later",
    "test_acl_policy_delete": "expects later versions' answer for an unknown policy",
    "test_agent_token_set": "tokens are set on an agent with ACLs of later versions",
}
"""What fails on Consul 1.8 as well."""
HERE_ONLY: Final = {
    "test_agent_service_connect": "sidecar proxies are not registered",
    "test_acl_token_service_identities": "identities are out of scope",
    "test_acl_token_update": "identities are out of scope",
    "test_acl_token_expiration_ttl": "tokens do not expire",
    "test_acl_role_crud": "roles are out of scope",
    "test_acl_role_permission_denied": "roles are out of scope",
    "test_acl_auth_method_crud": "authentication methods are out of scope",
    "test_acl_binding_rule_crud": "authentication methods are out of scope",
    "test_agent_leave": "an agent that has left goes on answering",
    "test_agent_token_permission_denied": "/v1/agent/token is out of scope",
    "test_agent_monitor_rejects_invalid_loglevel": "/v1/agent/monitor is out of scope",
}


def pip(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--quiet", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode and not os.environ.get("CI"):
        pytest.skip(f"no package index: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Their tests, with our conftest, and what they need besides."""
    folder = tmp_path_factory.mktemp("py_consul")
    pip("download", "--no-deps", "--no-binary", ":all:", "--dest", str(folder), SOURCE)
    pip("install", "--no-deps", "--target", str(folder / "extra"), PLUGIN)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (unpacked,) = folder.glob("py_consul-*/")
    shutil.copy(FIXTURES, unpacked / "conftest.py")
    (unpacked / "tests" / "conftest.py").unlink()
    shutil.rmtree(unpacked / "consul")  # the installed one is tested
    yield unpacked
    shutil.rmtree(folder)


def failures(suite: Path, side: str, only: AbstractSet[str] = frozenset()) -> tuple[set[str], int]:
    """Run their tests, or ``only`` those; return the names of those that fail, and how many ran."""
    report = suite / f"report-{'reference' if side == 'reference' else 'agent'}.xml"
    ignored = [f"--ignore={path}" for path in OUT_OF_SCOPE]
    options = ["-q", "-o", "addopts=", "-p", "no:cacheprovider", "-p", "no:xdist", f"--junitxml={report}"]
    options += ["-k", " or ".join(sorted(only))] if only else []
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CONSUL_HTTP")}
    environment |= {"CONSUL_COORD_SIDE": side, "PYTHONPATH": str(suite.parent / "extra")}
    with (suite / "out.txt").open("w") as out:
        subprocess.run(
            [sys.executable, "-m", "pytest", *options, *ignored, "tests"],
            cwd=suite,
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT,
            check=False,
        )
    cases = list(ET.parse(report).iter("testcase"))
    bad = {
        case.attrib["name"].partition("[")[0]
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    }
    return bad, len(cases)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_their_tests_on_the_reference_server(suite: Path) -> None:
    bad, ran = failures(suite, "reference")
    assert (bad, ran > 100) == ({*OF_1_8, *HERE_ONLY}, True), (suite / "out.txt").read_text()[-5_000:]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_their_tests_on_a_real_agent(suite: Path, consul_binary: Path) -> None:
    agent = str(consul_binary.resolve())
    bad, ran = failures(suite, agent)
    if new := bad - set(OF_1_8):
        bad -= new - failures(suite, agent, new)[0]
    is_1_8 = version_of(consul_binary)[:2] == (1, 8)
    as_known = bad == set(OF_1_8) if is_1_8 else bad <= set(OF_1_8)  # later versions pass more of them
    assert (as_known, ran > 100) == (True, True), (suite / "out.txt").read_text()[-5_000:]
