"""Tours of other languages' clients: the same steps on both sides, with the same results.

They are fetched from their registries, pinned. Where the runtime is missing, the tour says so and skips.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from consul_coord.server import ReferenceServer
from consul_coord.testing.agent import RealAgent

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE: Final = Path(__file__).parent
NODE_PACKAGE: Final = "consul@2.0.1"
TIMEOUT: Final = 120.0


@pytest.fixture(scope="module")
def node_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if (npm := shutil.which("npm")) is None or shutil.which("node") is None:
        pytest.skip("no Node.js here")
    folder = tmp_path_factory.mktemp("node")
    done = subprocess.run(
        [npm, "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", NODE_PACKAGE],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    if done.returncode and not os.environ.get("CI"):
        pytest.skip(f"no package index: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr
    yield folder
    shutil.rmtree(folder)


def tour(node_modules: Path, address: str) -> dict[str, Any]:
    host, _, port = address.removeprefix("http://").rpartition(":")
    done = subprocess.run(
        ["node", str(HERE / "node_tour.mjs"), str(node_modules), host, port],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines())


@pytest.mark.timeout(300)
def test_the_node_client(node_modules: Path, consul_binary: Path) -> None:
    with ReferenceServer() as server:
        ours = tour(node_modules, server.address)
    with RealAgent(binary=consul_binary) as agent:
        theirs = tour(node_modules, agent.address)
    assert ours == theirs
    assert ours["get"] == "value"
    assert ours["watch"] == "new"
    assert len(ours) == len(theirs) > 15
