"""install-consul without a network: it leaves a working binary alone, and says why when it can't get one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "install-consul"
TOOLS = (
    "awk",
    "bash",
    "cat",
    "dirname",
    "env",
    "flock",
    "id",
    "mkdir",
    "mktemp",
    "readlink",
    "rm",
    "sed",
    "sort",
)
ARCHIVE = "http://mirror.invalid/debian"


def program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A folder to be the whole PATH: everyday tools, but no apt-get and no dpkg."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        if found is None:
            pytest.skip(f"the script is for Debian; this machine has no {tool}")
        (folder / tool).symlink_to(found)
    return folder


def install(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SCRIPT), *arguments],
        env={"PATH": str(path)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def _identity(file: Path) -> tuple[int, int, int]:
    """Return what changes when a file is replaced or written; not its time of access, which reading moves."""
    found = file.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def test_a_working_binary_is_left_alone(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "has one"
    program(folder / "consul", "echo Consul v1.8.7")
    before = _identity(folder / "consul")
    done = install(path, str(folder))
    assert done.returncode == 0, done.stderr
    assert _identity(folder / "consul") == before


def test_without_apt_it_says_what_to_do(path: Path, tmp_path: Path) -> None:
    done = install(path, str(tmp_path / "folder"))
    assert done.returncode == 1
    assert "no apt-get" in done.stderr
    assert "CONSUL_BIN" in done.stderr


def test_a_broken_binary_is_not_taken_for_a_working_one(path: Path, tmp_path: Path) -> None:
    program(tmp_path / "folder" / "consul", "exit 1")
    assert install(path, str(tmp_path / "folder")).returncode == 1


@pytest.mark.skipif(
    not Path("/usr/share/keyrings/debian-archive-keyring.gpg").exists(), reason="needs Debian's archive keys"
)
@pytest.mark.parametrize(
    ("listed", "tried"),
    [
        pytest.param(f"'{ARCHIVE}/dists/bookworm/InRelease' name 0", ARCHIVE, id="a Debian archive"),
        pytest.param(f"'{ARCHIVE}//dists/stable/InRelease' name 0", ARCHIVE, id="a trailing slash"),
        pytest.param("'http://vendor.invalid/apt/dists/stable/InRelease' name 0", None, id="only a vendor's"),
        pytest.param("", None, id="no sources"),
    ],
)
def test_a_failed_download_names_the_archive_and_leaves_nothing(
    listed: str, tried: str | None, path: Path, tmp_path: Path
) -> None:
    program(path / "dpkg", "exit 1")
    program(path / "apt-get", f'case "$*" in *--print-uris*) echo "{listed}" ;; *) exit 100 ;; esac')
    folder = tmp_path / "folder"
    done = install(path, str(folder))
    assert done.returncode == 1
    expected = "the download failed" if tried else "no Debian archive"
    assert expected in done.stderr
    assert (f"from {tried}\n" in done.stderr) == (tried is not None)
    assert [file.name for file in folder.iterdir()] == [".install.lock"]


def test_wrong_usage_prints_the_manual(path: Path) -> None:
    done = install(path, "--help")
    assert done.returncode == 2
    assert "tools/install-consul [FOLDER]" in done.stderr
