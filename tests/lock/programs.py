"""Programs that a test runs in an interpreter of its own: for signals, forks, exits and other processes.

Each gets the address, the key and the session name as ``ADDRESS``, ``KEY`` and ``NAME``, with the package's
public names imported, a ``client`` and a ``lock`` made. What it prints is what the test compares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.support.programs import Program

if TYPE_CHECKING:
    from tests.support.sites import Site

PROLOGUE: Final = """
import logging, os, signal, sys, threading, time
from consul_coord import *
logging.getLogger().addHandler(logging.NullHandler())
ADDRESS, KEY, NAME = sys.argv[1:4]
client = Client(address=ADDRESS, session=SessionSpec(ttl=10, lock_delay=0, name=NAME, allow_unbounded=True))
lock = Lock(client, KEY)
def say(*words):
    print(*words, flush=True)
"""
TIMEOUT: Final = 30.0


def start(program: str, site: Site, *, address: str | None = None) -> Program:
    """Start a program; the caller waits for it, and its stdin ends when he does."""
    command = ["-W", "error", "-c", PROLOGUE + program, address or site.address]
    return Program([*command, site.key, site.unique])


def finish(process: Program) -> list[str]:
    """Wait for a program to end by itself, without a word on stderr; return the lines it printed."""
    out, err = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, err) == (0, ""), (process.returncode, err)
    return out.splitlines()


def run(program: str, site: Site, *, address: str | None = None) -> list[str]:
    """Run a program to its end; return the lines it printed."""
    return finish(start(program, site, address=address))
