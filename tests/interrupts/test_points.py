"""The harness itself: it strikes where CPython would, and nowhere else."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from consul_coord.threads import Mutex
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
BETWEEN = sys.version_info >= (3, 14)
"""Whether there is one more, between the entry of the block and its body: then the lock stays locked."""


def program(source: str = SOURCE) -> dict[str, Any]:
    namespace: dict[str, Any] = {}
    exec(compile(source, "somewhere.py", "exec"), namespace)
    return namespace


def is_free(mutex: Mutex) -> bool:
    """Return whether another thread gets it."""
    with ThreadPoolExecutor(1) as other:
        return other.submit(mutex.acquire, blocking=False).result()


def test_it_strikes_once_at_every_place_and_at_no_other() -> None:
    places = strike(program()["act"], None).places
    assert places == 6 + BETWEEN
    struck = []
    for at in range(places):
        namespace = program()
        strike_ = strike(namespace["act"], at)
        assert strike_.raised
        assert namespace["lock"].locked() is (BETWEEN and at == 1)
        struck.append(strike_.at)
    assert [at.partition(" < ")[0] for at in struck] == [
        "somewhere.py:10 act",
        *["somewhere.py:11 act"] * (1 + BETWEEN),
        "somewhere.py:7 callee",
        "somewhere.py:8 callee",
        "somewhere.py:15 act",
        "somewhere.py:15 act",
    ]
    assert not strike(program()["act"], places).raised


def test_a_mutex_is_free_wherever_its_block_is_interrupted() -> None:
    namespace = program(
        SOURCE.replace("lock = Lock()", "lock = None").replace("with lock:", "with lock, lock:")
    )
    act = namespace["act"]
    namespace["lock"] = Mutex()
    for at in range(strike(act, None).places):
        namespace["lock"] = Mutex()
        assert strike(act, at).raised
        assert is_free(namespace["lock"]), at
