"""A partitioner waits until its group has settled, but not for ever; a failure does not end its watch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from consul_coord.events import Failed
from consul_coord.models import SessionSpec
from consul_coord.models.group import GROUP_FLAGS
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.group.members import GroupPlan
from consul_coord.recipes.partition.partitioning import MOST_SETTLING, Partitioning, PartitionPlan
from tests.support.fake_io import FakeIO, run_at_once
from tests.support.replies import entry, ok, pairs, refusal

if TYPE_CHECKING:
    from consul_coord.http.messages import Response

SETTLE = 1.0
GROUP = GroupPlan("g")


def partitioning(io: FakeIO) -> Partitioning:
    """Return one that has not begun."""
    plan = PartitionPlan(
        group=GROUP,
        partitions=("a",),
        settle=SETTLE,
        handover=1.0,
        bound=None,
        weight=None,
        on_acquired=None,
        on_released=None,
    )
    core = ClientState(io, spec=SessionSpec(), timeout=10.0)
    return Partitioning(core, plan, lambda: "me", None, keeps=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "waited"), [(0, SETTLE), (1, 1.5 * SETTLE), (3, 2.5 * SETTLE), (50, MOST_SETTLING * SETTLE)]
)
def test_it_waits_until_the_group_has_not_changed_for_a_moment_and_no_longer_than_some(
    changes: int, waited: float
) -> None:
    io = FakeIO()
    sharing = partitioning(io)
    for number in range(changes):
        io.at(io.time + 0.5 * SETTLE * (number + 1), sharing.changes.tell)
    began = io.time
    io.run(sharing._settle(io))
    assert io.time - began == pytest.approx(waited)


@pytest.mark.parametrize(
    ("failure", "reports"), [(refusal(500, "No cluster leader"), 0), (refusal(403, "Permission denied"), 1)]
)
def test_members_are_seen_though_an_earlier_look_has_failed(failure: Response, reports: int) -> None:
    io = FakeIO()
    sharing, folder = partitioning(io), f"/v1/kv/{GROUP.directory}"
    member = {**entry(GROUP.key("me"), index=9), "Flags": GROUP_FLAGS}
    io.expect("GET", folder, failure, ok([f"{GROUP.directory}/"], index=9), pairs(member, index=9))
    with sharing.changes.watching() as changed:
        changed.subscribe(sharing.stopping.set)
        io.run(sharing._follow(io))
    assert changed.is_set()
    assert not io.steps
    assert len(io.seen(Failed)) == reports
    assert io.time > 1000.0, "after a pause"


def test_the_watch_of_the_members_ends_with_the_client() -> None:
    io = FakeIO()
    sharing = partitioning(io)

    def close() -> None:
        sharing.client.closing.set()
        run_at_once(sharing.run(io))

    io.at(io.time + 5.0, close)
    io.expect("GET", f"/v1/kv/{GROUP.directory}", ok([], index=9), takes=60.0)
    began = io.time
    io.run(sharing._follow(io))
    assert io.time == began + 5.0
