"""A partitioner waits until its group has settled, but not for ever."""

from __future__ import annotations

import pytest

from consul_coord.models import SessionSpec
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.group.members import GroupPlan
from consul_coord.recipes.partition.partitioning import MOST_SETTLING, Partitioning, PartitionPlan
from tests.support.fake_io import FakeIO

SETTLE = 1.0


@pytest.mark.parametrize(
    ("changes", "waited"), [(0, SETTLE), (1, 1.5 * SETTLE), (3, 2.5 * SETTLE), (50, MOST_SETTLING * SETTLE)]
)
def test_it_waits_until_the_group_has_not_changed_for_a_moment_and_no_longer_than_some(
    changes: int, waited: float
) -> None:
    io = FakeIO()
    core = ClientState(io, spec=SessionSpec(), timeout=10.0)
    plan = PartitionPlan(
        group=GroupPlan("g"),
        partitions=("a",),
        settle=SETTLE,
        handover=1.0,
        bound=None,
        weight=None,
        on_acquired=None,
        on_released=None,
    )
    sharing = Partitioning(core, plan, lambda: "me", None, keeps=None)  # type: ignore[arg-type]
    for number in range(changes):
        io.at(io.time + 0.5 * SETTLE * (number + 1), sharing.changes.tell)
    began = io.time
    io.run(sharing._settle(io))
    assert io.time - began == pytest.approx(waited)
