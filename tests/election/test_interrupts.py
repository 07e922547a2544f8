"""Starting, resigning and stopping, interrupted wherever CPython may run a signal handler: all goes on."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from consul_coord import Client, LeaderElection, LossReason
from tests.election.conftest import QUICK, SPEC
from tests.election.waiting import PATIENCE, until
from tests.interrupts.points import strike

if TYPE_CHECKING:
    from collections.abc import Callable

STEP = 13
"""Of so many places one is struck, another one in each pass."""

# A socket or a coroutine that is dropped as it is made.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

ACTS: dict[str, Callable[[LeaderElection], object]] = {
    "start": LeaderElection.start,
    "stop": LeaderElection.stop,
    "resign": LeaderElection.resign,
}


@pytest.mark.slow
@pytest.mark.parametrize("start", [0, 4, 9])
@pytest.mark.parametrize("act", ACTS)
def test_what_was_interrupted_goes_on_and_each_end_is_told(
    reference_address: str, key: str, act: str, start: int
) -> None:
    with Client(address=reference_address, session=SPEC) as client:
        for place in itertools.count(start, STEP):
            told: list[object] = []
            election = LeaderElection(
                client,
                f"{key}/{place}",
                retry_wait=QUICK,
                on_elected=lambda me, told=told: told.append(me.term),  # type: ignore[misc]
                on_lost=told.append,
            )
            if act != "start":
                election.start()
                election.wait_for_leadership(timeout=PATIENCE)
            if not strike(lambda election=election: ACTS[act](election), place).at:  # type: ignore[misc]
                assert place > start
                return
            election.start()
            election.wait_for_leadership(timeout=PATIENCE)
            election.stop()
            until(lambda told=told: told[-1:] == [LossReason.RESIGNED], "the end is told")  # type: ignore[misc]
            assert told[1::2] == [LossReason.RESIGNED] * (len(told) // 2), "in turn"
            assert told[::2] == sorted(told[::2])  # type: ignore[type-var]
