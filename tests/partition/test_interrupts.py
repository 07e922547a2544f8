"""Starting and stopping, interrupted wherever CPython may run a signal handler: then all goes on."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from consul_coord import Client, Group, Partitioner
from tests.election.waiting import until
from tests.interrupts.points import strike
from tests.partition.conftest import SPEC

if TYPE_CHECKING:
    from collections.abc import Callable

STEP = 7
"""Of so many places one is struck, another one in each pass."""

# A socket or a coroutine that is dropped as it is made.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

ACTS: dict[str, Callable[[Partitioner], object]] = {"start": Partitioner.start, "stop": Partitioner.stop}


@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize("act", ACTS)
def test_what_was_interrupted_goes_on_and_each_end_is_told(
    reference_address: str, prefix: str, act: str, start: int
) -> None:
    with Client(address=reference_address, session=SPEC) as client, Group(client, prefix) as group:
        for place in itertools.count(start, STEP):
            told: list[str] = []
            partitioner = Partitioner(
                group,
                [f"{act} {place}"],
                settle=0.0,
                on_acquired=lambda _, hold, told=told: told.append("acquired"),  # type: ignore[misc]
                on_released=lambda _, hold, told=told: told.append("released"),  # type: ignore[misc]
            )
            if act != "start":
                partitioner.start()
                until(lambda partitioner=partitioner: partitioner.owned, "it owns")  # type: ignore[misc]
            if not strike(lambda partitioner=partitioner: ACTS[act](partitioner), place).at:  # type: ignore[misc]
                assert place > start
                return
            partitioner.start()
            until(lambda partitioner=partitioner: partitioner.owned, "it owns")  # type: ignore[misc]
            partitioner.stop()
            until(lambda told=told: told[-1:] == ["released"], "the end is told")  # type: ignore[misc]
            assert told == ["acquired", "released"] * (len(told) // 2)
