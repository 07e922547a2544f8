"""The harness itself: it strikes where CPython would, and nowhere else."""

from __future__ import annotations

from typing import Any

from tests.interrupts.points import strike

SOURCE = """
from threading import Lock

passed = []
lock = Lock()

def callee():
    passed.append("appended")

def act():
    with lock:
        number = 1 + 1
    callee()
    for number in (1, 2):
        other = number
    return other
"""
"""Its places: both entries, the end of the block, the append, and two ways back to the loop's head."""


def program() -> dict[str, Any]:
    namespace: dict[str, Any] = {}
    exec(compile(SOURCE, "somewhere.py", "exec"), namespace)
    return namespace


def test_it_strikes_once_at_every_place_and_at_no_other() -> None:
    places = strike(program()["act"], None).places
    assert places == 6
    struck = []
    for at in range(places):
        namespace = program()
        strike_ = strike(namespace["act"], at)
        assert strike_.raised
        assert not namespace["lock"].locked()  # no place is between the entry of the block and its body
        struck.append(strike_.at)
    assert [at.partition(" < ")[0] for at in struck] == [
        "somewhere.py:10 act",
        "somewhere.py:11 act",
        "somewhere.py:7 callee",
        "somewhere.py:8 callee",
        "somewhere.py:15 act",
        "somewhere.py:15 act",
    ]
    assert not strike(program()["act"], places).raised
