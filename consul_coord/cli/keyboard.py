"""Keys as they are pressed, without Enter and unseen; where there is no terminal there are none.

A key is its character, or a name in capitals for those that have none: ``UP``, ``ESCAPE``.
The terminal is as it was before when the block is left.
"""

from __future__ import annotations

import os
import re
import select
import sys
import termios
import threading
import tty
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from consul_coord.cli.inbox import Pressed

if TYPE_CHECKING:
    from collections.abc import Generator

    from consul_coord.cli.inbox import Inbox

_KEY = re.compile(r"\x1b[\[O][0-9;]*[~A-Za-z]|.", re.DOTALL)
_LETTERS = {"A": "UP", "B": "DOWN", "H": "HOME", "F": "END"}
_NAMES = {
    **{f"\x1b{mark}{letter}": name for mark in "[O" for letter, name in _LETTERS.items()},
    "\x1b[5~": "PAGE UP",
    "\x1b[6~": "PAGE DOWN",
    "\x1b[1~": "HOME",
    "\x1b[4~": "END",
    "\x1b": "ESCAPE",
    "\r": "ENTER",
    "\n": "ENTER",
    "\x7f": "BACKSPACE",
    "\b": "BACKSPACE",
}


@contextmanager
def keys(inbox: Inbox) -> Generator[None]:
    """Put pressed keys into the inbox meanwhile."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    ended, end = os.pipe()
    reader = threading.Thread(
        target=_read, args=(terminal, ended, inbox), name="consul-coord-keys", daemon=True
    )
    tty.setcbreak(terminal)
    try:
        reader.start()
        yield
    finally:
        os.close(end)
        reader.join()
        os.close(ended)
        with suppress(termios.error):  # the terminal has gone
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _read(terminal: int, ended: int, inbox: Inbox) -> None:
    while True:
        ready, _, _ = select.select([terminal, ended], [], [])
        if ended in ready:
            return
        try:
            pressed = os.read(terminal, 64)
        except OSError:
            pressed = b""
        if not pressed:  # the terminal has gone
            return
        for key in named(pressed.decode(errors="replace")):
            inbox.put(Pressed(key))


def named(typed: str) -> list[str]:
    """Return the keys that a terminal has sent in one go."""
    return [_NAMES.get(key, key if key[0] != "\x1b" else "") for key in _KEY.findall(typed)]
