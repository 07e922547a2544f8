"""The history of a run with locks: as values, as lines of a file, and as a picture.

Rules
- A history is plain data. Nothing here talks to Consul, knows a clock, or needs the run still to go on.
"""

from __future__ import annotations

from consul_coord.testing.history.record import KINDS, BadHistory, Record, dump, load, merge, to_line
from consul_coord.testing.history.timeline import html, svg

__all__ = [
    "KINDS",
    "BadHistory",
    "Record",
    "dump",
    "html",
    "load",
    "merge",
    "svg",
    "to_line",
]
