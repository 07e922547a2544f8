"""Find the Consul program that tests are to run against, and tell its version.

Rules
- A named binary is used or refused. Nothing else is tried in its place, because that would test another
  Consul.
- Without a name, the search goes near the work first, then along PATH.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from consul_coord.errors import ConfigError

_VERSION = re.compile(r"Consul v(\d+)\.(\d+)\.(\d+)")
_PATIENCE = 30.0
"""Seconds that the program may take to tell its version."""


def find_consul() -> Path | None:
    """Return the Consul binary to use, or None when there is none.

    Looked for in this order: the environment variable CONSUL_BIN, ``.consul/consul`` in the current folder or
    one above it, ``consul`` on PATH. An empty CONSUL_BIN counts as unset; one that names no executable file
    raises ``ConfigError``, since falling back would test another Consul than the one that was asked for.
    """
    named = os.environ.get("CONSUL_BIN")
    if named:
        if not _is_executable(Path(named)):
            raise ConfigError(f"CONSUL_BIN names no executable file: {named}")
        return Path(named).absolute()
    here = Path.cwd()
    for folder in (here, *here.parents):
        if _is_executable(binary := folder / ".consul" / "consul"):
            return binary
    on_path = shutil.which("consul")
    return Path(on_path) if on_path else None


@cache
def version_of(binary: Path) -> tuple[int, int, int]:
    """Return a Consul binary's version as three numbers. Raises ConfigError when it tells none."""
    try:
        told = subprocess.run(  # noqa: S603 - the binary is the one that the user named or installed
            [binary, "version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{binary} does not tell its version: {error}") from error
    found = _VERSION.search(told)
    if found is None:
        raise ConfigError(f"{binary} does not tell its version, so it is no Consul: {told[:200]!r}")
    major, minor, patch = (int(part) for part in found.groups())
    return major, minor, patch


def _is_executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
