"""Fifty workers on a cluster that is being broken; and a run that finds workers with a fault.

Where histories, registers and a picture of a run are kept: in the test's temporary folder, or in a new one
under the folder that CONSUL_COORD_KEEP names.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from proof.chaos.faults import FAULTS
from proof.chaos.journal import read_all

if TYPE_CHECKING:
    from consul_coord.testing.history import Record


def run(folder: Path, binary: Path, *options: str, timeout: float) -> tuple[int, str, list[Record]]:
    """Run the driver as a program of its own, which may have a network of its own; return what it tells."""
    kept = Path(os.environ.get("CONSUL_COORD_KEEP", folder)) / f"{folder.name}-history"
    environ = {**os.environ, "CONSUL_BIN": str(binary)}
    command = [sys.executable, "-m", "proof.chaos", f"--keep={kept}", *options]
    process = subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        out, errors = process.communicate(timeout=timeout)
    finally:
        process.kill()
        process.wait()
    sys.stdout.write(out)
    assert not errors, errors
    return process.returncode, out, read_all(kept)


def kinds_of_harm(records: list[Record]) -> Counter[str]:
    return Counter(record.detail for record in records if record.kind == "fault")


@pytest.mark.search
@pytest.mark.cluster
@pytest.mark.timeout(240)
def test_nothing_goes_wrong_in_a_minute_of_harm(
    consul_binary: Path, tmp_path: Path, search_seed: int
) -> None:
    seed = f"--seed={11 + search_seed}"
    code, out, records = run(tmp_path, consul_binary, "--seconds=60", seed, timeout=220)
    assert code == 0, out
    kinds = Counter(record.kind for record in records)
    assert kinds["acquired"] > 100
    assert kinds["elected"] > 5
    assert kinds["write"] > 200
    assert len(kinds_of_harm(records)) >= 8


@pytest.mark.cluster
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_nothing_goes_wrong_in_a_quarter_of_an_hour_of_harm(consul_binary: Path, tmp_path: Path) -> None:
    code, out, records = run(
        tmp_path, consul_binary, "--seconds=900", "--seed=12", "--drain=80", timeout=1750
    )
    assert code == 0, out
    cuts = {"server cut off", "link cut", "client agent cut off"}
    possible = set(FAULTS) if "with cut links" in out else FAULTS.keys() - cuts
    assert kinds_of_harm(records).keys() == possible


@pytest.mark.cluster
@pytest.mark.long
@pytest.mark.timeout(600)
def test_workers_that_do_not_look_at_their_lease_are_found(consul_binary: Path, tmp_path: Path) -> None:
    """A process has to be stopped while one of its workers holds something that others then contend for."""
    options = ("--seconds=60", "--pace=2.5", "--longest=16", "--only=worker stopped")
    worker = "--worker=tests.cluster.overconfident"
    told: list[str] = []
    for seed in range(1, 4):
        _, out, _ = run(tmp_path / str(seed), consul_binary, *options, worker, f"--seed={seed}", timeout=180)
        told.append(out)
        if re.search(r"^exclusion of ", out, re.MULTILINE):
            return
    pytest.fail("\n".join(told))


@pytest.mark.parametrize(
    ("binary", "option", "told"),
    [("", "--keep={folder}", "{folder} exists already"), ("/absent", "--seed=1", "CONSUL_BIN names no")],
)
def test_arguments_that_can_not_be_used_are_told(binary: str, option: str, told: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "proof.chaos", option.format(folder=tmp_path)],
        env={**os.environ, "CONSUL_BIN": binary},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 2
    assert ended.stderr.endswith("\n")
    assert told.format(folder=tmp_path) in ended.stderr.splitlines()[-1]
