"""A program that is stopped at any line of it ends at once: none waits for what it was told just before."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord.recipes.election import candidacy, following
from consul_coord.recipes.partition import partitioning
from tests.support.amid import each_line
from tests.support.fake_io import FakeIO
from tests.unit.recipes.test_candidacy import Scripted
from tests.unit.recipes.test_following import Seen
from tests.unit.recipes.test_partitioning_program import partitioning as partitioner

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tests.support.amid import Line

LATE = 60.0
"""Seconds after which it is stopped in any case."""


def stopped_at(
    line: Line, io: FakeIO, program: Coroutine[Any, Any, object], stop: Callable[[], object]
) -> None:
    """Run a program, and stop it at one line."""
    stopped: list[float] = []

    def act() -> None:
        stopped.append(io.time)
        stop()

    io.at(io.time + LATE, stop)
    line.run(partial(io.run, program), act=act)
    assert not stopped or io.time == stopped[0], (
        f"stopped at {line.reached}, it goes on for {io.time - stopped[0]} s"
    )


def test_a_partitioner_with_nothing_to_do() -> None:
    for line in each_line(partitioning):
        io = FakeIO()
        sharing = partitioner(io)
        sharing._members = sharing._acted_on = ()
        stopped_at(line, io, sharing.run(io), sharing.stop)


def test_a_partitioner_whose_group_settles() -> None:
    for line in each_line(partitioning):
        io = FakeIO()
        sharing = partitioner(io)
        stopped_at(line, io, sharing._settle(io), sharing.stop)


@pytest.mark.parametrize(("healthy", "aside"), [(False, 0.0), (False, 90.0), (True, 90.0)])
def test_a_candidate_that_is_kept_aside(*, healthy: bool, aside: float) -> None:
    for line in each_line(candidacy):
        io = FakeIO()
        candidate = Scripted(io)
        candidate._healthy = healthy
        candidate.stand_aside(aside)
        stopped_at(line, io, candidate.run(io), candidate.stop)


def test_a_follower_of_the_leader() -> None:
    for line in each_line(following):
        seen = Seen()

        def stop(seen: Seen = seen) -> None:
            seen.stopping.set()
            seen.changes.tell()

        stopped_at(line, seen.io, seen.following._watch_age(seen.io), stop)
