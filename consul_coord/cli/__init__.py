"""The ``consul-coord`` command. ``program`` is its entry point, and ``main`` the same within another program.

Rules
- One module per verb. ``codes`` is the table of exit codes, ``child`` the command that is run, ``output``
  what is said.
- stdout belongs to the command that is run, or holds a verb's answer; everything else goes to stderr.
- Without the extra ``cli`` this module still imports, and ``main`` says what to install.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from consul_coord.cli.extras import report
from consul_coord.extras import MissingExtra, needs

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main", "program"]

GARBAGE_AFTER = 50_000
"""So many new objects are looked through for garbage, not 700 as by default. A short command makes 37,000,
nearly all of them by imports; none is garbage."""


def program() -> int:
    """Run the command line as a process that has nothing else to do, and return the exit code.

    Looking for garbage would take a sixth of the time that a short command takes.
    """
    gc.set_threshold(GARBAGE_AFTER)
    try:
        return main()
    finally:
        gc.freeze()  # all memory goes back at once, so the interpreter need not look for garbage at its end


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, by default with the process's own arguments, and return the exit code."""
    try:
        with needs("cli"):
            from consul_coord.cli.app import run
    except MissingExtra as error:
        return report(error)
    except KeyboardInterrupt:  # loading takes most of a short command's time
        return 130
    return run(arguments)
