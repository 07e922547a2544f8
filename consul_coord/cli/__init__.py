"""The ``consul-coord`` command. ``main`` is its entry point.

Rules
- One module per verb. ``codes`` is the table of exit codes, ``child`` the command that is run, ``output``
  what is said.
- stdout belongs to the command that is run, or holds a verb's answer; everything else goes to stderr.
- Without the extra ``cli`` this module still imports, and ``main`` says what to install.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.cli.extras import report
from consul_coord.extras import MissingExtra, needs

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, by default with the process's own arguments, and return the exit code."""
    try:
        with needs("cli"):
            from consul_coord.cli.app import run
    except MissingExtra as error:
        return report(error)
    return run(arguments)
