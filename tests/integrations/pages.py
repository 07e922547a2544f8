"""The how-to pages as the tests see them: blocks by language, run as programs of their own.

A page shows whole programs; what they need besides Consul (a database, a server, a cluster's YAML) comes from
the test, through the environment. So what the reader copies is what was run.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.programs import Program

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
HOWTO = ROOT / "docs" / "howto"
PATIENCE = 90.0
"""Seconds that a page's program may take."""

_FENCE = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def text_of(page: str) -> str:
    """Return a page."""
    return (HOWTO / f"{page}.md").read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    """Return a page's blocks in one language, in order."""
    return blocks_in(text_of(page), language)


def blocks_in(text: str, language: str) -> list[str]:
    """Return a text's blocks in one language, in order."""
    return [match["text"] for match in _FENCE.finditer(text) if match["language"] == language]


def sections(page: str) -> dict[str, str]:
    """Return a page's sections by their headings."""
    parts = text_of(page).split("\n## ")[1:]
    return {heading: text for heading, _, text in (part.partition("\n") for part in parts)}


def environment(address: str, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment, pointed at one Consul and at nothing else of Consul's."""
    settings = {name: value for name, value in os.environ.items() if not name.startswith("CONSUL_")}
    scripts = str(Path(sys.executable).parent)
    return (
        settings
        | {"CONSUL_HTTP_ADDR": address, "PATH": f"{scripts}{os.pathsep}{settings.get('PATH', '')}"}
        | dict(more or {})
    )


def run(code: str, *, folder: Path, address: str, more: Mapping[str, str] | None = None) -> str:
    """Run a program to its end, warnings being errors; return what it printed. Fails if it fails."""
    file = folder / "program.py"
    file.write_text(code, encoding="utf-8")
    with Program(["-W", "error", str(file)], env=environment(address, more), cwd=folder) as program:
        out, err = program.communicate(PATIENCE)
        assert program.wait() == 0, err
    return out
