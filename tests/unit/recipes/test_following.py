"""A leader that was seen long ago is not known to lead any more, and that is told."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import pytest

from consul_coord.errors import PermissionDenied
from consul_coord.io import Signal
from consul_coord.models import LeaderInfo, SessionSpec
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.contend.changes import Changes
from consul_coord.recipes.election.following import FOLLOWING_WAIT, Following
from consul_coord.recipes.election.leader import leader
from consul_coord.recipes.watch.follow import WAIT
from tests.support.fake_io import FakeIO
from tests.support.replies import OTHER, SESSION, entry, ok, pairs, refusal, session, txn_done

if TYPE_CHECKING:
    from consul_coord.http.messages import Request, Response
    from consul_coord.recipes.hold.grant import Grant

OWN_TTL, ITS_TTL = 15.0, 60.0
LEADER = LeaderInfo(b"", OTHER, "node1", 7, 7)


@dataclass
class Own:
    """A leadership of the candidate's own."""

    granted_at: float
    session: str = SESSION
    fence: int = 20
    value: bytes = b""
    last_index: int = 20
    over: bool = False

    def is_held(self, _: float) -> bool:
        return not self.over


class Seen:
    """What one candidate sees of a leader, and tells."""

    def __init__(self) -> None:
        self.io = FakeIO()
        self.told: list[tuple[float, LeaderInfo | None]] = []
        self.failed: list[BaseException] = []
        self.stopping, self.changes = Signal(), Changes()
        self.own: Own | None = None
        self.following = Following(
            ClientState(self.io, spec=SessionSpec(ttl=OWN_TTL), timeout=10.0),
            "k",
            own=lambda: cast("Grant | None", self.own),
            changes=self.changes,
            stopping=self.stopping,
            tell=lambda leader: self.told.append((self.io.time, leader)),
            failed=self.failed.append,
        )
        self.following._saw(LEADER, ITS_TTL)

    def leader(self) -> LeaderInfo | None:
        return self.following.leader(self.io.time)


def test_a_leader_counts_for_the_ttl_of_its_own_session() -> None:
    seen = Seen()
    seen.io.time += ITS_TTL - 0.1
    assert seen.leader() == LEADER
    seen.io.time += 0.1
    assert seen.leader() is None
    assert seen.following.age(seen.io.time) == pytest.approx(ITS_TTL)


def test_a_look_that_shows_no_node_leaves_what_is_known_of_the_session() -> None:
    seen = Seen()
    seen.io.time += 10.0
    seen.following.saw_in_queue(replace(LEADER, node=None))
    seen.io.time += ITS_TTL - 0.1
    assert seen.leader() == LEADER, "it counts from the latest look, for the same time"


def test_another_leader_counts_for_this_clients_own_ttl_until_more_is_known() -> None:
    seen = Seen()
    other = replace(LEADER, session="another", node=None)
    seen.following.saw_in_queue(other)
    seen.io.time += OWN_TTL - 0.1
    assert seen.leader() == other
    seen.io.time += 0.1
    assert seen.leader() is None


def test_that_nobody_is_known_to_lead_any_more_is_told_at_that_time() -> None:
    seen = Seen()
    seen.following._tell_change(seen.io)
    began = seen.io.time
    seen.following.begin()
    looks, watches = [each.program for each in seen.io.spawned]
    assert looks is not watches

    def end() -> None:
        seen.stopping.set()
        seen.changes.tell()

    seen.io.at(began + ITS_TTL + 1.0, end)

    async def watch() -> None:
        await watches(seen.io)

    seen.io.run(watch())
    assert seen.told == [(began, LEADER), (began + ITS_TTL, None)]


def test_a_look_that_is_refused_is_reported_and_one_that_was_not_served_is_not() -> None:
    seen = Seen()
    seen.following.begin()

    def last(_: Request) -> Response:
        seen.stopping.set()
        return refusal(500)

    seen.io.expect("GET", "/v1/kv/k", refusal(500), refusal(403, "Permission denied"), last)
    looks = seen.io.spawned[0].program

    async def look() -> None:
        await looks(seen.io)

    seen.io.run(look())
    assert [type(error) for error in seen.failed] == [PermissionDenied]


@pytest.mark.parametrize("before", [None, LEADER], ids=["nobody", "another"])
def test_a_leader_that_is_seen_later_is_told_to_be_unknown_after_its_own_time(
    before: LeaderInfo | None,
) -> None:
    seen, its_ttl, at = Seen(), ITS_TTL / 4, 1002.0
    other = replace(LEADER, session="another")
    seen.following._saw(before, ITS_TTL)
    seen.following._tell_change(seen.io)
    seen.following.begin()

    def look() -> None:
        seen.following._saw(other, its_ttl)
        seen.following._tell_change(seen.io)

    def end() -> None:
        seen.stopping.set()
        seen.changes.tell()

    seen.io.at(at, look)
    seen.io.at(at + its_ttl + 1.0, end)
    watches = seen.io.spawned[1].program

    async def watch() -> None:
        await watches(seen.io)

    seen.io.run(watch())
    assert seen.told[1:] == [(at, other), (at + its_ttl, None)]


def test_its_own_leadership_is_told_once_though_its_node_is_known_later() -> None:
    seen = Seen()
    seen.own = Own(granted_at=seen.io.time)
    seen.following._tell_change(seen.io)
    seen.following._saw(LeaderInfo(b"", SESSION, "node1", 20, 20))
    seen.following._tell_change(seen.io)
    assert [told and told.session for _, told in seen.told] == [SESSION]
    assert seen.leader() == LeaderInfo(b"", SESSION, "node1", 20, 20)


@pytest.mark.parametrize("answered_late", [False, True])
def test_a_leader_before_ones_own_leadership_is_not_the_leader_after_it(*, answered_late: bool) -> None:
    seen = Seen()
    asked_at = seen.io.time
    seen.io.time += 1.0
    seen.own = Own(granted_at=seen.io.time)
    seen.following._tell_change(seen.io)
    if answered_late:
        seen.io.time += 1.0
        seen.following._saw(LEADER, ITS_TTL, asked_at)
    seen.own.over = True
    assert seen.leader() is None
    seen.following._tell_change(seen.io)
    assert [told and told.session for _, told in seen.told] == [SESSION, None]


@pytest.mark.parametrize(("term", "asked_after"), [(30, False), (3, True)], ids=["next", "rebuilt"])
def test_a_leader_after_ones_own_leadership_is_shown(term: int, *, asked_after: bool) -> None:
    """Also one that was asked for before, and one whose term is low because the cluster was rebuilt."""
    seen = Seen()
    asked_at = seen.io.time
    seen.io.time += 1.0
    seen.own = Own(granted_at=seen.io.time, over=True)
    seen.io.time += 1.0
    after = replace(LEADER, term=term)
    seen.following._saw(after, ITS_TTL, seen.io.time if asked_after else asked_at)
    assert seen.leader() == after


def test_what_was_asked_for_before_ones_own_leadership_is_not_told_after_it() -> None:
    """Though it is answered after that: the answer began with a reading from before."""
    seen = Seen()
    seen.following.begin()
    looks = seen.io.spawned[0].program

    def lead(_: object) -> Response:
        seen.own = Own(granted_at=seen.io.time, over=True)
        return pairs(entry("k", session=OTHER, index=9), index=9)

    def end(_: object) -> Response:
        seen.stopping.set()
        return ok([])

    seen.io.expect("GET", "/v1/kv/k", lead, takes=1.0)
    seen.io.expect("PUT", "/v1/txn", txn_done(entry("k", session=OTHER, index=9)), takes=1.0)
    seen.io.expect("GET", "/v1/session/info/", ok([session(OTHER)]))
    seen.io.expect("GET", "/v1/kv/k", end)

    async def look() -> None:
        await looks(seen.io)

    seen.io.run(look())
    assert [leader for _, leader in seen.told] == [None]


@pytest.mark.parametrize("shown", ["nobody", "nothing else"])
def test_an_old_leader_of_the_servers_does_not_bring_back_a_leader_from_before_ones_own_leadership(
    shown: str,
) -> None:
    """It may show that leader again, or go on showing it."""
    seen = Seen()
    seen.following.begin()
    looks = seen.io.spawned[0].program
    held, known = (
        pairs(entry("k", session=OTHER, index=9), index=9),
        txn_done(entry("k", session=OTHER, index=9)),
    )

    def lead(_: object) -> Response:
        seen.own = Own(granted_at=seen.io.time, over=True)
        return pairs(entry("k", session=None, index=21), index=21) if shown == "nobody" else held

    def end(_: object) -> Response:
        seen.stopping.set()
        return held

    seen.io.expect("GET", "/v1/kv/k", held, takes=1.0)
    seen.io.expect("PUT", "/v1/txn", known)
    seen.io.expect("GET", "/v1/session/info/", ok([session(OTHER)]))
    seen.io.expect("GET", "/v1/kv/k", lead, held, takes=1.0)
    if shown == "nobody":
        seen.io.expect("PUT", "/v1/txn", txn_done(entry("k", session=None, index=21)))
    seen.io.expect("GET", "/v1/kv/k", end)

    async def look() -> None:
        await looks(seen.io)

    seen.io.run(look())
    assert [leader and leader.session for _, leader in seen.told] == [OTHER, None]


@pytest.mark.parametrize("may_read", [True, False])
def test_who_leads_is_asked_of_the_present_leader_in_each_request(*, may_read: bool) -> None:
    """Also where the token may not read what tells more: a transaction leaves that out."""
    io = FakeIO()
    client = ClientState(io, spec=SessionSpec(ttl=OWN_TTL), timeout=10.0)
    held = entry("k", session=OTHER, index=9)
    if may_read:
        io.expect("PUT", "/v1/txn", txn_done(held))
        io.expect("GET", "/v1/session/info/", ok([session(OTHER)]))
    else:
        io.expect("PUT", "/v1/txn", txn_done())
        io.expect("GET", "/v1/kv/k", pairs(held))
    found = io.run(leader(io, client, "k"))
    assert found == LeaderInfo(b"", OTHER, "node1" if may_read else None, 9, 9)
    assert all("consistent" in dict(request.params) for request in io.requests)


@pytest.mark.parametrize(
    ("ttl", "begun", "lasts"),
    [
        (OWN_TTL, True, OWN_TTL / 2),
        (4 * FOLLOWING_WAIT, True, FOLLOWING_WAIT),
        (None, True, FOLLOWING_WAIT),
        (OWN_TTL, False, WAIT),
        (None, False, WAIT),
    ],
)
def test_a_query_that_shows_the_leader_lasts_no_longer_than_that_is_to_be_known(
    ttl: float | None, lasts: float, *, begun: bool
) -> None:
    seen = Seen()
    seen.following._client.sessions.spec = SessionSpec(ttl=ttl, allow_unbounded=ttl is None)
    if begun:
        seen.following.begin()
    assert seen.following.wait == lasts


@pytest.mark.parametrize(
    ("failure", "reports"), [(refusal(500, "No cluster leader"), 0), (refusal(403, "Permission denied"), 1)]
)
def test_a_failed_look_does_not_end_the_following(failure: Response, reports: int) -> None:
    """The next leader is heard of, also after a refusal: a token may get its rights later."""
    seen = Seen()
    seen.following.begin()
    looks = seen.io.spawned[0].program
    held = pairs(entry("k", index=9), index=9)

    def end(_: object) -> Response:
        seen.stopping.set()
        return held

    seen.io.expect("GET", "/v1/kv/k", failure, held)
    seen.io.expect("PUT", "/v1/txn", txn_done(entry("k", index=9)))
    seen.io.expect("GET", "/v1/session/info/", ok([session(ttl="6s")]))
    seen.io.expect("GET", "/v1/kv/k", end)

    async def look() -> None:
        await looks(seen.io)

    seen.io.run(look())
    assert [None if leader is None else leader.session for _, leader in seen.told] == [SESSION]
    assert len(seen.failed) == reports, "a refusal is reported, and an outage is waited out"
