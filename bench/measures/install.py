"""What an installation of this package takes on disk, beside httpx alone: into an empty folder, with pip."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bench.bed import Unavailable
from bench.results import Figure, Outcome, Skipped, Spread

if TYPE_CHECKING:
    from bench.bed import Bed

_ROOT = Path(__file__).parent.parent.parent
OURS = "consul-coord"
HTTPX = "httpx"
PACKAGES = {OURS: str(_ROOT), HTTPX: "httpx"}
SIZE = "size on disk"
COUNT = "distributions"
_TIMEOUT = 180.0
_SHOWN = 200


def run(bed: Bed) -> Outcome:
    """Install each into a folder of its own. Left out of the quick form: it needs a package index."""
    found: list[Figure] = []
    skipped: list[Skipped] = []
    notes: list[str] = []
    for name, package in PACKAGES.items():
        try:
            folder = _install(bed, name, package)
        except Unavailable as error:
            skipped.append(Skipped(name, str(error)))
            continue
        names = sorted(each.name.partition("-")[0] for each in folder.glob("*.dist-info"))
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        notes.append(f"{name}: {', '.join(names)}.")
        found.append(Figure(contender=name, what=SIZE, unit="KiB", value=Spread.of([size / 1024])))
        found.append(Figure(contender=name, what=COUNT, unit="", value=Spread.of([len(names)])))
    return Outcome(
        measure="install",
        title="Base installation",
        figures=tuple(found),
        skipped=tuple(skipped),
        notes=(*notes, "Without extras, as installed: pip's compiled files included."),
    )


def _install(bed: Bed, name: str, package: str) -> Path:
    """Install and return the folder. Raises Unavailable."""
    if bed.quick:
        raise Unavailable("it takes long, so that the quick form does without")
    folder = bed.folder / f"install-{name}"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), package]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT)  # noqa: S603 - pip
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"pip failed: {str(error.stderr).strip()[:_SHOWN]}") from error
    except subprocess.TimeoutExpired:
        raise Unavailable(f"pip took more than {_TIMEOUT:.0f} s") from None
    return folder
