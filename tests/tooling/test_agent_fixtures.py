"""What the agent fixtures do to a test run without a Consul binary, and how their tests are marked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ONE_TEST = ROOT / "tests" / "agent" / "test_real_agent.py::test_a_started_agent_takes_keys_and_sessions"


@pytest.fixture
def nowhere(tmp_path: Path) -> Path:
    """A working folder from which no Consul binary can be found."""
    if any((folder / ".consul" / "consul").exists() for folder in tmp_path.parents):
        pytest.skip("a folder above the temporary one has a Consul binary")
    return tmp_path


def run(nowhere: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("CONSUL_", "PYTEST_"))}
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-c",
            str(ROOT / "pyproject.toml"),
            "-p",
            "no:cacheprovider",
            *arguments,
        ],
        cwd=nowhere,
        env={**inherited, "PATH": str(nowhere), **environment},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.mark.slow
def test_without_a_binary_a_test_is_skipped_and_says_how_to_get_one(nowhere: Path) -> None:
    done = run(nowhere, str(ONE_TEST))
    assert done.returncode == 0, done.stdout
    assert "1 skipped" in done.stdout
    assert "tools/install-consul" in done.stdout


@pytest.mark.slow
def test_where_agents_are_required_it_fails_instead(nowhere: Path) -> None:
    done = run(nowhere, str(ONE_TEST), CONSUL_COORD_REQUIRE_AGENT="1")
    assert done.returncode == 1, done.stdout
    assert "1 error" in done.stdout
    assert "tools/install-consul" in done.stdout


@pytest.mark.parametrize(("expression", "selected"), [("agent", True), ("not agent", False)])
def test_using_an_agent_fixture_marks_a_test(expression: str, selected: bool, nowhere: Path) -> None:
    done = run(nowhere, str(ONE_TEST), "-m", expression, "--collect-only", "-q")
    assert (ONE_TEST.name.partition("::")[2] in done.stdout) is selected, done.stdout
