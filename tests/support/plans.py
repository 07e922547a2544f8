"""Plans that tests of several recipes share."""

from __future__ import annotations

from typing import Final

from consul_coord.recipes.group.members import GroupPlan
from consul_coord.recipes.partition.partitioning import PartitionPlan

GROUP: Final = GroupPlan("g")
PARTITIONS: Final = PartitionPlan(
    group=GROUP,
    partitions=("a",),
    settle=1.0,
    handover=1.0,
    bound=None,
    weight=None,
    on_acquired=None,
    on_released=None,
)
