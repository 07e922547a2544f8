"""The command line's report of a missing extra: a line and an exit code, no traceback.

Imports nothing that is optional itself.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from consul_coord.cli.codes import ExitCode

if TYPE_CHECKING:
    from consul_coord.extras import MissingExtra


def report(missing: MissingExtra) -> int:
    """Say so on stderr, and return the exit code."""
    print(f"consul-coord: {missing}", file=sys.stderr)
    return ExitCode.CONFIG
