"""The page on the Go client: its Go program, built with the official client, beside its Python program."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from consul_coord import AcquireTimeout, Client, Lock
from tests.integrations import pages
from tests.integrations.programs import PATIENCE, Served

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE = "migrating-from-go"
MODULE = pages.ROOT / "bench" / "peers" / "go"
KEY = "jobs/invoices"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the page's Go program, from what the machine has of the client already; else skip."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("no Go")
    folder = tmp_path_factory.mktemp("go")
    for name in ("go.mod", "go.sum"):
        shutil.copy(MODULE / name, folder)
    (folder / "main.go").write_text(pages.blocks(PAGE, "go")[0], encoding="utf-8")
    built = subprocess.run(
        [go, "build", "-o", "program", "."],
        cwd=folder,
        env=os.environ | {"GOPROXY": "off", "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    if "GOPROXY=off" in built.stderr:
        pytest.skip("the official Go client is not in the module cache: build bench/peers/go once")
    assert built.returncode == 0, built.stderr
    return folder / "program"


@pytest.fixture
def go(program: Path, address: str) -> Iterator[Served]:
    process = subprocess.Popen(
        [program],
        env=pages.environment(address),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield Served(process)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.mark.slow
def test_they_exclude_each_other(go: Served, address: str, tmp_path: Path) -> None:
    with Client(address=address) as client:
        lock = Lock(client, KEY)
        go.wait_for("held")
        holder = lock.holder()
        assert holder is not None
        assert holder.value == b"from Go"
        with pytest.raises(AcquireTimeout) as held:
            lock.acquire(timeout=0.5)
        assert held.value.blocker.session == holder.session
        assert go.process.stdin is not None
        go.process.stdin.write("\n")
        go.process.stdin.flush()
        assert go.process.wait(PATIENCE) == 0, go.said
        said = pages.run(pages.blocks(PAGE, "python")[0], folder=tmp_path, address=address)
        assert int(said.removeprefix("held, fence ")) > holder.fence
