"""Tours of other languages' clients: the same steps on both sides, with the same results.

Rules
- A client is fetched from its registry, pinned. Where its runtime is missing, the tour says which and skips.
  In CI a client that npm can't fetch fails; of the other registries a build may know nothing.
- The clients that have to be built are toured in CI's own step (``long``): their building takes a minute.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from consul_coord.server import AclConfig, ReferenceServer, ServerConfig, Token
from consul_coord.testing.agent import RealAgent
from consul_coord.testing.binary import version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Command = Callable[[str, str, str], list[str]]

HERE: Final = Path(__file__).parent
NODE_PACKAGE: Final = "consul@2.0.1"
TIMEOUT: Final = 120.0
BUILD_TIMEOUT: Final = 900.0
# As the agents of tests are configured.
CONFIG: Final = ServerConfig(session_ttl_min=0.2, enable_script_checks=True)
ROOT: Final = "5d2c7b6a-0000-4000-8000-000000000001"
GUARDED: Final = ServerConfig(session_ttl_min=0.2, acl=AclConfig(tokens={ROOT: Token(management=True)}))


def need(*programs: str) -> None:
    """Skip where one of a runtime's programs is missing."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"no {program} on the PATH: this tour needs {' and '.join(programs)}")


def fetch(*command: str, folder: Path, timeout: float = TIMEOUT) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout, check=False)
    said = f"{command[0]} can't get the client: {(done.stderr or done.stdout)[-300:]}"
    if done.returncode and not (command[0] == "npm" and os.environ.get("CI")):
        pytest.skip(said)
    assert done.returncode == 0, said


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    need("node", "npm")
    folder = tmp_path_factory.mktemp("node")
    options = ("--silent", "--no-audit", "--no-fund", "--ignore-scripts")
    fetch("npm", "install", *options, NODE_PACKAGE, folder=folder)
    yield lambda host, port, _: ["node", str(HERE / "node" / "tour.mjs"), str(folder), host, port]
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    need("mvn", "javac", "java")
    folder = tmp_path_factory.mktemp("java")
    shutil.copytree(HERE / "java", folder, dirs_exist_ok=True)
    list_jars = ("dependency:build-classpath", "-Dmdep.outputFile=jars")
    fetch("mvn", "--quiet", "--batch-mode", *list_jars, folder=folder, timeout=BUILD_TIMEOUT)
    jars = os.pathsep.join((str(folder), (folder / "jars").read_text()))
    subprocess.run(["javac", "-nowarn", "-cp", jars, "Tour.java"], cwd=folder, timeout=TIMEOUT, check=True)
    yield lambda host, port, guarded: ["java", "-cp", jars, "Tour", host, port, guarded, ROOT]
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def rust(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    need("cargo")
    folder = tmp_path_factory.mktemp("rust")
    shutil.copytree(HERE / "rust", folder, dirs_exist_ok=True)
    fetch("cargo", "build", "--quiet", "--target-dir", str(folder), folder=folder, timeout=BUILD_TIMEOUT)
    yield lambda host, port, guarded: [
        str(folder / "debug" / "tour"),
        f"http://{host}:{port}",
        f"http://{host}:{guarded}",
        ROOT,
    ]
    shutil.rmtree(folder)


def tour(command: Command, address: str, guarded: str) -> dict[str, Any]:
    host, _, port = address.removeprefix("http://").rpartition(":")
    words = command(host, port, guarded.rpartition(":")[2])
    done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines())


def on_both_sides(command: Command, consul_binary: Path) -> dict[str, Any]:
    """Make a tour of the reference server and of an agent, and return the results, which are the same.

    Each has one with ACLs beside it. The reference server answers as the agent's version.
    """
    version = ".".join(map(str, version_of(consul_binary)))
    with (
        ReferenceServer(config=replace(CONFIG, version=version)) as server,
        ReferenceServer(config=replace(GUARDED, version=version)) as guarded,
    ):
        ours = tour(command, server.address, guarded.address)
    acl = {"enabled": True, "default_policy": "deny", "tokens": {"master": ROOT}}
    with (
        RealAgent(binary=consul_binary, config={"enable_script_checks": True}) as agent,
        RealAgent(binary=consul_binary, config={"acl": acl}, token=ROOT) as guarded_agent,
    ):
        theirs = tour(command, agent.address, guarded_agent.address)
    if version.startswith("1.8."):
        assert ours == theirs
    else:  # they may show more: the names of fields, and of what is there from the start
        assert ours.keys() == theirs.keys()
        assert [step for step in ours if not is_among(ours[step], theirs[step])] == []
    return ours


def is_among(ours: object, theirs: object) -> bool:
    """Return whether a result is the same, or has lists of strings with fewer of them."""
    if isinstance(ours, list) and isinstance(theirs, list):
        if ours and all(isinstance(each, str) for each in (*ours, *theirs)):
            return set(ours) <= set(theirs)
        return len(ours) == len(theirs) and all(map(is_among, ours, theirs))
    return ours == theirs


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_node_client(node: Command, consul_binary: Path) -> None:
    said = on_both_sides(node, consul_binary)
    assert (said["get"], said["watch"]) == ("value", "new")
    assert len(said) > 30


@pytest.mark.long
@pytest.mark.timeout(1_500)
def test_the_java_client(java: Command, consul_binary: Path) -> None:
    said = on_both_sides(java, consul_binary)
    assert said["check cache"] == [True, False]
    assert len(said) > 50


@pytest.mark.long
@pytest.mark.timeout(1_500)
def test_the_rust_client(rust: Command, consul_binary: Path) -> None:
    said = on_both_sides(rust, consul_binary)
    assert said["released"] == ["rust/lock", True]
    assert len(said) > 20
