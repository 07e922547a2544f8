"""Programs that tests start take signals, also when pytest was started in the background, ignoring some."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.docs.blocks import ROOT

ASK = "import signal; print([int(n) for n in (1, 2, 3, 15) if signal.getsignal(n) is signal.SIG_IGN])"


def test_a_child_ignores_no_signal() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASK], capture_output=True, text=True, timeout=110, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_child_ignores_no_signal_when_pytest_was_started_ignoring_them(workers: str) -> None:
    this = f"{__file__}::{test_a_child_ignores_no_signal.__name__}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"-n{workers}", this]
    done = subprocess.run(
        ["sh", "-c", "trap '' HUP INT QUIT TERM; exec \"$@\"", "sh", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout
