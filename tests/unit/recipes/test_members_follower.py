"""Following a group whose folder one server knows better than another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from consul_coord.models.group import GROUP_FLAGS
from consul_coord.recipes.group.follow import MembersFollower
from consul_coord.recipes.group.members import GroupPlan
from tests.support.fake_io import FakeIO
from tests.support.replies import entry, ok, pairs

if TYPE_CHECKING:
    from consul_coord.http.messages import Request, Response
    from consul_coord.models.group import Members
    from consul_coord.recipes.watch.places import Folder

PLAN = GroupPlan("service/web")
PLACE = f"/v1/kv/{PLAN.directory}"
MEMBER = {**entry(PLAN.key("a"), index=9), "Flags": GROUP_FLAGS}


class Sharing:
    """Tells of one index after another, until the follower has something to read."""

    def __init__(self) -> None:
        self.indexes: list[int] = []
        """Of the folder, as the servers will tell it; 0 while it is empty."""
        self.folder: Folder

    async def change(self, _io: object, folder: Folder, *, until: object) -> bool:
        self.folder = folder
        while not folder.is_new:
            folder.hear(self.indexes.pop(0), 1000.0)
        return True


class Bench:
    """A follower that knows of one member, since index 9."""

    def __init__(self) -> None:
        self.io = FakeIO()
        self.sharing = Sharing()
        self.follower = MembersFollower(PLAN)
        self.follower.bound = self  # type: ignore[assignment]
        self.io.expect("GET", PLACE, ok([f"{PLAN.directory}/"], index=9), pairs(MEMBER, index=9))
        assert [member.id for member in self.seen().joined] == ["a"]

    @property
    def together(self) -> Sharing:
        return self.sharing

    def seen(self) -> Members:
        """Return what the follower sees next."""
        answer = self.io.run(self.follower.next(self.io))
        assert answer is not None
        return answer.value


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_what_a_former_leader_takes_for_empty_is_read_once(bench: Bench) -> None:
    bench.sharing.indexes = [0]
    bench.io.expect("GET", PLACE, pairs(index=5), pairs(MEMBER, index=9))
    seen = bench.seen()
    assert [member.id for member in seen.all] == ["a"]
    assert not seen.left
    assert "consistent" in dict(bench.io.requests[-1].params)
    bench.sharing.indexes = [9, 12]
    bench.io.expect("GET", PLACE, pairs(index=12))
    assert [member.id for member in bench.seen().left] == ["a"]
    assert bench.sharing.indexes == []


def test_members_that_leave_while_they_are_read_are_noticed(bench: Bench) -> None:
    def read(_: Request) -> Response:
        bench.sharing.folder.hear(0, 1000.0)
        return pairs(MEMBER, index=9)

    bench.sharing.indexes = [0]
    bench.io.expect("GET", PLACE, pairs(index=5), read)
    assert not bench.seen().left
    bench.io.expect("GET", PLACE, pairs(index=12), pairs(index=12))
    assert [member.id for member in bench.seen().left] == ["a"]
