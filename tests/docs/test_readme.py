"""The README's first steps in a shell, but for the installation, which has been made here already."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from consul_coord.testing.ports import Ports
from tests.docs.blocks import ROOT

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
MOST_LINES = 100
PATIENCE = 100.0


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) <= MOST_LINES


def test_what_it_points_to_is_there() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        assert (ROOT / target).exists(), target


def test_a_lock_of_ones_own_in_a_shell() -> None:
    found = re.search(r"^```sh\n(\. \.venv/bin/activate\n.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert found is not None
    activate, *commands = found[1].splitlines()
    assert activate == ". .venv/bin/activate"
    port = str(Ports.free("127.0.0.1").http)
    script = "\n".join(commands).replace("8500", port)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CONSUL_")}
    shell = subprocess.Popen(
        ["sh", "-c", script],
        env=environ
        | {
            "PATH": f"{Path(sys.executable).parent}:{environ['PATH']}",
            "CONSUL_HTTP_ADDR": f"127.0.0.1:{port}",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert shell.stdout is not None
    try:
        shell.wait(timeout=PATIENCE)
    finally:
        os.killpg(shell.pid, signal.SIGTERM)  # the server, which the reader keeps
        out, err = shell.communicate(timeout=PATIENCE)
    assert re.search(r"^mine, fence \d+$", out, re.MULTILINE), (out, err)
    assert shell.returncode == 0
