"""The harness for atheris runs, and finds nothing within its budget."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

_SECONDS = 120


@pytest.mark.long
@pytest.mark.timeout(2 * _SECONDS + 60)
def test_guided_by_coverage_nothing_is_found(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris is not installed: it has no build for every Python")
    # No limit for the whole: a child begins with its parent's highest figure, and the models' is a gigabyte.
    told = subprocess.run(
        [
            sys.executable,
            *(
                "-m",
                "tests.fuzz.harness",
                f"-max_total_time={_SECONDS}",
                "-rss_limit_mb=0",
                "-malloc_limit_mb=64",
                "-max_len=2000",
            ),
            f"-artifact_prefix={tmp_path}/",
        ],
        capture_output=True,
        text=True,
        timeout=2 * _SECONDS,
        check=False,
    )
    assert told.returncode == 0, told.stderr[-4000:]
    sys.stdout.write(told.stderr[-300:])
