"""The page on injecting locks: its last block is a test, and is run as one. The others are programs."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.integrations import pages

if TYPE_CHECKING:
    from pathlib import Path


def test_the_test_of_the_page_passes(tmp_path: Path) -> None:
    (tmp_path / "test_page.py").write_text(pages.blocks("injecting", "python")[-1], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=pages.PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
