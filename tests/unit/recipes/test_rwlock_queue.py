"""What one reading of a read-write lock's queue means for one of its contenders."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consul_coord.models import KVPair
from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.contend.queue import Rejoin
from consul_coord.recipes.rwlock.queue import Behind, Enter, Verdict, judge, marked

BASE = "jobs/nightly/.rw"


def contender(name: str, mode: str, *, dead: bool = False) -> KVPair:
    """Return the contender of a session, which joined at ten times its number and wrote it once more."""
    session = f"{name:0>8}-abcd-0000-beef-000000000000"
    value = marked("read" if mode == "r" else "write", b"")
    return KVPair(
        f"{BASE}/.wait/{session}",
        value=value,
        session=None if dead else session,
        create_index=int(name) * 10,
        modify_index=int(name) * 10 + 3,
    )


R1, R2, W3, R4, W5 = (contender(name, mode) for name, mode in zip("12345", "rrwrw", strict=True))
DEAD_W3, DEAD_R2 = contender("3", "w", dead=True), contender("2", "r", dead=True)


@pytest.mark.parametrize(
    ("queue", "own", "verdict"),
    [
        pytest.param([R1, R2], R2, Enter(R2), id="readers share"),
        pytest.param([R1, R2, W3], W3, Behind(W3, R2, 2), id="a writer waits for the nearest reader"),
        pytest.param([W3], W3, Enter(W3), id="a writer alone"),
        pytest.param([R1, R2, W3, R4], R4, Behind(R4, W3, 3), id="a reader waits for a waiting writer"),
        pytest.param([R1, W3, R4, W5], W5, Behind(W5, R4, 3), id="a writer waits for a waiting reader"),
        pytest.param([R1, W3, R4, W5], R1, Enter(R1), id="who is in stays in"),
        pytest.param([DEAD_W3, R4], R4, Behind(R4, DEAD_W3, 0), id="a dead writer that was in keeps out"),
        pytest.param([DEAD_R2, W3], W3, Behind(W3, DEAD_R2, 0), id="a dead reader that was in keeps out"),
        pytest.param([R1, W3], R2, Rejoin(), id="no contender"),
        pytest.param([R1, replace(R2, create_index=99)], R2, Rejoin(), id="the contender of another join"),
    ],
)
def test_place_and_mode_decide(queue: list[KVPair], own: KVPair, verdict: Verdict) -> None:
    look = waitqueue.read(BASE, queue)
    session = waitqueue.session_of(own)
    assert (
        judge(look, session, "read" if own.value[:1] == b"r" else "write", born=own.create_index) == verdict
    )
