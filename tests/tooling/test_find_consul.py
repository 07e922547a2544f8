"""Which Consul binary is used: what is named wins or is refused; what is near comes before PATH."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from consul_coord.errors import ConfigError
from consul_coord.testing.binary import find_consul, version_of

if TYPE_CHECKING:
    from pathlib import Path


def program(path: Path, *, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n", encoding="utf-8")
    path.chmod(mode)
    return path


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder two levels deep in a project, with nothing named and an empty PATH."""
    monkeypatch.delenv("CONSUL_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    work = tmp_path / "project" / "tests" / "deep"
    work.mkdir(parents=True)
    monkeypatch.chdir(work)
    return tmp_path / "project"


def test_without_any_binary_there_is_none(project: Path) -> None:
    assert find_consul() is None


def test_path_is_the_last_resort(project: Path, tmp_path: Path) -> None:
    on_path = program(tmp_path / "bin" / "consul")
    assert find_consul() == on_path
    near = program(project / ".consul" / "consul")
    assert find_consul() == near


def test_the_nearest_folder_wins(project: Path) -> None:
    program(project / ".consul" / "consul")
    nearest = program(project / "tests" / ".consul" / "consul")
    assert find_consul() == nearest


def test_what_is_not_executable_is_passed_over(project: Path) -> None:
    program(project / "tests" / ".consul" / "consul", mode=0o644)
    assert find_consul() is None


def test_consul_bin_wins(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(project / ".consul" / "consul")
    named = program(tmp_path / "named" / "my-consul")
    monkeypatch.setenv("CONSUL_BIN", str(named))
    assert find_consul() == named


def test_a_relative_consul_bin_is_made_absolute(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = program(project / "tests" / "deep" / "my-consul")
    monkeypatch.setenv("CONSUL_BIN", "my-consul")
    assert find_consul() == named


def test_an_empty_consul_bin_counts_as_unset(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    near = program(project / ".consul" / "consul")
    monkeypatch.setenv("CONSUL_BIN", "")
    assert find_consul() == near


@pytest.mark.parametrize("kind", ["missing", "folder", "not executable"])
def test_a_wrong_consul_bin_is_an_error_and_no_fallback(
    kind: str, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(project / ".consul" / "consul")
    wrong = {
        "missing": tmp_path / "nowhere",
        "folder": tmp_path,
        "not executable": program(tmp_path / "plain", mode=0o644),
    }[kind]
    monkeypatch.setenv("CONSUL_BIN", str(wrong))
    with pytest.raises(ConfigError, match="CONSUL_BIN"):
        find_consul()


@pytest.mark.parametrize(
    ("told", "version"),
    [
        ("Consul v1.8.7+dfsg1", (1, 8, 7)),
        ("Consul v1.20.6\nRevision x", (1, 20, 6)),
        ("Consul v2.0.0-dev", (2, 0, 0)),
    ],
)
def test_a_binary_tells_its_version(tmp_path: Path, told: str, version: tuple[int, int, int]) -> None:
    binary = program(tmp_path / "consul")
    binary.write_text(f"#!/bin/sh\necho '{told}'\n", encoding="utf-8")
    assert version_of(binary) == version


def test_what_tells_no_version_is_no_consul(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not tell its version"):
        version_of(program(tmp_path / "consul"))
    with pytest.raises(ConfigError, match="does not tell its version"):
        version_of(tmp_path / "absent")
