"""Following a group whose folder one server knows better than another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from consul_coord.io import Signal
from consul_coord.models.group import GROUP_FLAGS
from consul_coord.recipes.group.follow import LARGE, SPREAD_PER_MEMBER, MembersFollower
from consul_coord.recipes.group.members import BUCKETS, GroupPlan
from tests.support.fake_io import FakeIO
from tests.support.replies import entry, ok, pairs

if TYPE_CHECKING:
    from consul_coord.http.messages import Request, Response
    from consul_coord.io import IO
    from consul_coord.models.group import Members
    from consul_coord.recipes.watch.places import Folder

PLAN = GroupPlan("service/web")
PLACE = f"/v1/kv/{PLAN.directory}"
MEMBER = {**entry(PLAN.key("a"), index=9), "Flags": GROUP_FLAGS}
CROWD = [{**entry(PLAN.key(f"m{number}"), index=9), "Flags": GROUP_FLAGS} for number in range(LARGE)]
NAMES = ok([f"{PLAN.directory}/"], index=9)


BUCKET = f"/v1/kv/{PLAN.bucket(BUCKETS[0])}"


class Sharing:
    """Tells of one index after another, until the follower has something to read."""

    def __init__(self) -> None:
        self.indexes: list[int] = []
        """Of the folder, as the servers will tell it; 0 while it is empty."""
        self.folder: Folder

    async def change(self, io: IO, folder: Folder, *, until: Signal) -> bool:
        self.folder = folder
        while not folder.is_new:
            if not self.indexes:
                await io.wait(until)
                return False
            folder.hear(self.indexes.pop(0), 1000.0)
        return True


class Bench:
    """A follower that knows of some members, since index 9."""

    def __init__(self, *members: dict[str, object]) -> None:
        self.io = FakeIO()
        self.sharing = Sharing()
        self.follower = MembersFollower(PLAN)
        self.follower.bound = self  # type: ignore[assignment]
        self.io.expect("GET", PLACE, NAMES, pairs(*members, index=9))
        assert len(self.seen().joined) == len(members)

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
    return Bench(MEMBER)


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


def test_what_looks_empty_at_the_first_look_is_read_as_the_present_leader_has_it() -> None:
    """An old leader may not know of the first member yet."""
    io = FakeIO()
    io.expect("GET", PLACE, pairs(index=5), pairs(index=5), pairs(MEMBER, index=9))
    seen = io.run(MembersFollower(PLAN).next(io))
    assert seen is not None
    assert [member.id for member in seen.value.joined] == ["a"]
    assert "consistent" in dict(io.requests[-1].params)


def test_what_a_former_leader_shows_for_a_moment_is_made_up_for(bench: Bench) -> None:
    """Its answer makes the follower start again, and the shared query reports no change twice."""
    other = {**entry(PLAN.key("b"), index=12), "Flags": GROUP_FLAGS}

    def old(_: Request) -> Response:
        bench.sharing.folder.hear(12, 1000.0)
        return pairs(MEMBER, index=7)

    def look(request: Request) -> Response:
        return ok([f"{PLAN.directory}/"], index=12 if "consistent" in dict(request.params) else 7)

    def listing(request: Request) -> Response:
        return (
            pairs(MEMBER, other, index=12) if "consistent" in dict(request.params) else pairs(MEMBER, index=7)
        )

    bench.sharing.indexes = [12, 7]
    bench.io.expect("GET", PLACE, pairs(MEMBER, other, index=12), old, look, listing, listing)
    assert [member.id for member in bench.seen().joined] == ["b"]
    assert [member.id for member in bench.seen().left] == ["b"]
    assert [member.id for member in bench.seen().joined] == ["b"]


def test_members_that_leave_while_they_are_read_are_noticed(bench: Bench) -> None:
    def read(_: Request) -> Response:
        bench.sharing.folder.hear(0, 1000.0)
        return pairs(MEMBER, index=9)

    bench.sharing.indexes = [0]
    bench.io.expect("GET", PLACE, pairs(index=5), read)
    assert not bench.seen().left
    bench.io.expect("GET", PLACE, pairs(index=12), pairs(index=12))
    assert [member.id for member in bench.seen().left] == ["a"]


def test_an_answer_ends_the_growing_of_its_rests(bench: Bench) -> None:
    rests: list[float] = []
    for index in (12, 15, 18):
        began = bench.io.now()
        bench.io.run(bench.follower.pause(bench.io))
        rests.append(bench.io.now() - began)
        bench.io.expect("GET", PLACE, NAMES, pairs(MEMBER, index=index))
        bench.seen()
    assert rests == pytest.approx([rests[0]] * 3)


def test_a_crowd_is_looked_at_as_the_present_leader_has_it() -> None:
    """An old leader would show a bucket's index from before the change, and the change would be missed."""
    bench = Bench(*CROWD)
    asked = len(bench.io.requests)
    bench.sharing.indexes = [12]
    unchanged = [ok([BUCKET], index=9)] * len(BUCKETS)
    bench.io.expect("GET", PLACE, ok([f"{PLAN.directory}/"], index=12), *unchanged)
    assert not bench.seen().left
    looks = bench.io.requests[asked:]
    assert len(looks) == 1 + len(BUCKETS)
    assert all("consistent" in dict(look.params) for look in looks)


def test_a_crowd_is_read_as_a_whole_after_a_failure() -> None:
    """A snapshot may have been restored: its parts' indexes went back, and later changes hide that."""
    bench = Bench(*CROWD)
    bench.io.run(bench.follower.pause(bench.io))
    bench.io.expect("GET", PLACE, ok([f"{PLAN.directory}/"], index=12), pairs(*CROWD[1:], index=12))
    assert [member.id for member in bench.seen().left] == ["m0"]


def test_a_crowd_whose_indexes_say_nothing_is_read_as_a_whole_also_after_an_interrupt() -> None:
    """That of its folder went back, and its parts may hide who has left."""
    bench = Bench(*CROWD)
    bench.sharing.indexes = [12]
    unchanged = [ok([BUCKET], index=9)] * len(BUCKETS)
    bench.io.expect("GET", PLACE, ok([f"{PLAN.directory}/"], index=12), *unchanged)
    bench.seen()

    def interrupted(_: Request) -> Response:
        raise KeyboardInterrupt

    bench.sharing.indexes = [10]
    bench.io.expect("GET", PLACE, interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.seen()
    bench.io.expect("GET", PLACE, pairs(*CROWD[1:], index=10))
    assert len(bench.seen().left) == 1


HANGS = 50.0
"""Seconds that a reply takes."""
ENDS = 1.0
"""Seconds after which the watch is to end."""


@pytest.mark.parametrize(
    ("members", "answered", "hangs"),
    [
        pytest.param([MEMBER], [], pairs(MEMBER, index=12), id="all members"),
        pytest.param([MEMBER], [pairs(index=5)], pairs(MEMBER, index=12), id="again, consistently"),
        pytest.param(CROWD, [], NAMES, id="the folder of a crowd"),
        pytest.param(CROWD, [NAMES], ok([BUCKET], index=12), id="a bucket"),
        pytest.param(CROWD, [NAMES, ok([BUCKET], index=12)], pairs(index=12), id="its members"),
        pytest.param(
            CROWD, [NAMES, ok([BUCKET], index=12), pairs(index=5)], pairs(index=12), id="again, of a bucket"
        ),
    ],
)
def test_a_watch_ends_at_once_whatever_it_asks(
    members: list[dict[str, object]], answered: list[Response], hangs: Response
) -> None:
    bench, until = Bench(*members), Signal()
    bench.sharing.indexes = [12]
    bench.io.expect("GET", PLACE, *answered)
    bench.io.expect("GET", PLACE, hangs, takes=HANGS)
    ends = bench.io.time + ENDS
    bench.io.at(ends, until.set)
    assert bench.io.run(bench.follower.next(bench.io, until=until)) is None
    assert bench.io.time == ends
    assert not bench.io.steps


def test_a_watch_without_a_change_ends_at_once(bench: Bench) -> None:
    until = Signal()
    bench.io.at(1000.0 + ENDS, until.set)
    assert bench.io.run(bench.follower.next(bench.io, until=until)) is None
    assert bench.io.time == 1000.0 + ENDS


def test_a_watch_of_a_crowd_ends_at_once_before_it_asks() -> None:
    bench, until = Bench(*CROWD), Signal()
    bench.sharing.indexes = [12]
    ends = bench.io.time + SPREAD_PER_MEMBER * LARGE / 4
    bench.io.at(ends, until.set)
    assert bench.io.run(bench.follower.next(bench.io, until=until)) is None
    assert bench.io.time == ends


@pytest.mark.parametrize("random", [0.0, 0.5, 0.99])
def test_the_followers_of_a_crowd_read_it_at_random_times_within_their_pause(random: float) -> None:
    bench = Bench(*CROWD)
    bench.io.randomness, began = random, bench.io.time
    bench.sharing.indexes = [12]
    bench.io.expect("GET", PLACE, NAMES, *[ok([BUCKET], index=9)] * len(BUCKETS))
    asked = len(bench.io.sent_at)
    bench.seen()
    longest = SPREAD_PER_MEMBER * LARGE
    assert bench.io.sent_at[asked] - began == pytest.approx(longest * (0.5 + random / 2))


def test_a_watch_that_has_just_begun_ends_at_once() -> None:
    io, until = FakeIO(), Signal()
    io.expect("GET", PLACE, NAMES, takes=HANGS)
    io.at(io.time + ENDS, until.set)
    assert io.run(MembersFollower(PLAN).next(io, until=until)) is None
    assert io.time == 1000.0 + ENDS
