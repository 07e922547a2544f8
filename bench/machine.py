"""The machine and the versions that a report's figures belong to."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Self

from bench.results import Machine

if TYPE_CHECKING:
    from bench.bed import Bed

_ROOT = Path(__file__).parent.parent
_PACKAGES = ("consul-coord", "httpx", "httpcore", "anyio", "py-consul")


@dataclass(frozen=True, slots=True)
class Start:
    """When a run began, and how busy the machine was."""

    time: datetime
    load: tuple[float, float, float]

    @classmethod
    def now(cls) -> Self:
        """Look at the clock and the load averages."""
        return cls(datetime.now(UTC), os.getloadavg())

    def describe(self, bed: Bed) -> Machine:
        """Describe the machine at the end of the run."""
        return Machine(
            began=self.time.strftime("%Y-%m-%d %H:%M UTC"),
            system=f"{platform.system()} {platform.machine()}",
            cores=os.cpu_count() or 0,
            python=platform.python_version(),
            consul=str(bed.agent()["Config"]["Version"]),
            go=_said("go", "env", "GOVERSION").removeprefix("go"),
            commit=_commit(),
            packages={name: found for name in _PACKAGES if (found := _version(name))},
            load_before=self.load,
            load_after=os.getloadavg(),
        )


def _commit() -> str:
    changed = _said("git", "status", "--porcelain", "--untracked-files=no", "consul_coord", "bench")
    return _said("git", "rev-parse", "--short", "HEAD") + ("+" if changed else "")


def _said(*command: str) -> str:
    """Return what a command says, run in the project's folder; nothing where it fails or is not there."""
    try:
        done = subprocess.run(  # noqa: S603 - git and Go
            command, check=True, capture_output=True, text=True, cwd=_ROOT, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
