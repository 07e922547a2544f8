"""``python -m consul_coord`` is ``consul-coord``."""

from __future__ import annotations

import sys

from consul_coord.cli import program

if __name__ == "__main__":
    sys.exit(program())
