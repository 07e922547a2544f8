"""The machine and the versions that a report's figures belong to."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Self

from bench.results import Machine

if TYPE_CHECKING:
    from bench.bed import Bed

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
            packages={name: found for name in _PACKAGES if (found := _version(name))},
            load_before=self.load,
            load_after=os.getloadavg(),
        )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
