"""What a reading of a group means, and what is new in it: pure rules."""

from __future__ import annotations

import pytest

from consul_coord import GROUP_FLAGS, InvalidArgument, InvalidKey, KVPair, Member
from consul_coord.recipes.group.members import BUCKETS, GroupPlan, bucket_of, compared

PLAN = GroupPlan("workers")


def pair(key: str, *, session: str | None = "s", flags: int = GROUP_FLAGS, since: int = 1) -> KVPair:
    return KVPair(key, b"v", flags, session, since, since, 1)


def test_members_are_in_the_order_in_which_they_joined() -> None:
    pairs = [pair(PLAN.key("a"), since=9), pair(PLAN.key("b"), since=7)]
    assert PLAN.read(pairs) == (Member("b", b"v", "s", 7), Member("a", b"v", "s", 9))


@pytest.mark.parametrize(
    "other",
    [
        pair(PLAN.key("a"), session=None),
        pair(PLAN.key("a"), flags=0),
        pair(PLAN.key("a") + "/b"),
        pair("workers/members/a"),
        pair(f"workers/members/{'f' if bucket_of('a') == '0' else '0'}/a"),
        pair("workers/membership"),
    ],
    ids=["nobody holds it", "other flags", "below a member", "no bucket", "another bucket", "another folder"],
)
def test_what_is_no_member_is_not_shown(other: KVPair) -> None:
    assert PLAN.read([other]) == ()


def test_a_state_says_who_joined_left_and_changed() -> None:
    stays, goes, comes = (
        Member("stays", b"", "s", 1),
        Member("goes", b"", "s", 2),
        Member("comes", b"", "s", 3),
    )
    told = compared((stays, goes), (Member("stays", b"new", "s", 1), comes))
    assert (told.joined, told.left) == ((comes,), (goes,))
    assert told.changed == (Member("stays", b"new", "s", 1),)


def test_who_went_and_came_back_between_two_looks_is_in_both() -> None:
    before, after = Member("a", b"", "s", 1), Member("a", b"", "t", 5)
    told = compared((before,), (after,))
    assert (told.joined, told.left, told.changed) == ((after,), (before,), ())


def test_the_buckets_are_those_of_every_release() -> None:
    """Members of different releases see each other: what this gives must never change."""
    assert [bucket_of(member) for member in ("a", "b", "host-1", "ü")] == list("da43")
    assert {bucket_of(str(number)) for number in range(200)} == set(BUCKETS)


@pytest.mark.parametrize("member", ["", "a/b"])
def test_an_id_that_is_no_name_is_refused(member: str) -> None:
    with pytest.raises(InvalidArgument, match="a member's id"):
        PLAN.key(member)


@pytest.mark.parametrize(("prefix", "match"), [("workers/", "leave out the"), ("/workers", "starts with")])
def test_a_prefix_that_is_none_is_refused(prefix: str, match: str) -> None:
    with pytest.raises(InvalidKey, match=match):
        GroupPlan(prefix)
