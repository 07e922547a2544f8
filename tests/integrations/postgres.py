"""A PostgreSQL server of the tests' own, for as long as a ``with`` block lasts.

Rules
- It listens on a socket in its own temporary folder and on no network.
- It never runs as root, which it refuses: root starts it as ``nobody``.
- The programs come from where Debian puts them, else from the package ``pgserver``, which carries them.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Iterator

_NOBODY = 65534
_PATIENCE = 90.0


class _Identity(TypedDict, total=False):
    user: int
    group: int
    extra_groups: list[int]


def programs() -> Path | None:
    """Return the folder with ``initdb`` and ``postgres``, the newest version first; None without one."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    spec = importlib.util.find_spec("pgserver")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "pginstall" / "bin"
    return folder if folder.is_dir() else None


@contextmanager
def serving(folder_of_programs: Path) -> Iterator[str]:
    """Make a database server and yield its address, as ``psycopg`` takes it."""
    with tempfile.TemporaryDirectory(prefix="postgres-", dir="/tmp") as name:  # a socket's path must be short
        folder = Path(name)
        identity: _Identity = {}
        if os.getuid() == 0:
            os.chown(folder, _NOBODY, _NOBODY)
            identity = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}
        data = str(folder / "data")
        subprocess.run(
            [str(folder_of_programs / "initdb"), "-D", data, "-U", "test", "-A", "trust", "--no-sync"],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=_PATIENCE,
            **identity,
        )
        with (folder / "log").open("w") as log:
            settings = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={folder}", "-F"]
            server = subprocess.Popen(
                [str(folder_of_programs / "postgres"), "-D", data, *settings],
                cwd=folder,
                stdout=log,
                stderr=log,
                **identity,
            )
        try:
            _wait_until_it_serves(folder_of_programs, folder, server)
            yield f"host={folder} user=test dbname=postgres"
        finally:
            server.terminate()
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
            shutil.rmtree(folder / "data", ignore_errors=True)


def _wait_until_it_serves(programs: Path, folder: Path, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        asked = subprocess.run(
            [str(programs / "pg_isready"), "-q", "-h", str(folder), "-U", "test"],
            check=False,
            timeout=_PATIENCE,
        )
        if asked.returncode == 0:
            return
        log = (folder / "log").read_text(encoding="utf-8", errors="replace")
        assert server.poll() is None, log
        assert time.monotonic() < deadline, log
        time.sleep(0.05)
