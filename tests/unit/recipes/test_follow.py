"""Users' watches keep to the bound on a client's blocking queries."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import pytest

from consul_coord.errors import NoLeader
from consul_coord.http.endpoints import kv
from consul_coord.http.messages import Response
from consul_coord.http.retry import wait_once
from consul_coord.io import Signal
from consul_coord.recipes.election.leader import LeaderFollower
from consul_coord.recipes.watch.follow import POLL, SHORTEST_WAIT, WAIT, WAY_BACK, Follower, wait_of
from tests.support.fake_io import FakeIO
from tests.support.replies import OTHER, SESSION, entry, ok, pairs, session, txn_done

if TYPE_CHECKING:
    from consul_coord.http.messages import Request
    from consul_coord.io import IO
    from consul_coord.models import KVPair
    from consul_coord.recipes.watch.places import Sharing

PATH = "/v1/kv/k"


class Room:
    """A bound with room for so many queries."""

    ask = staticmethod(wait_once)

    def __init__(self, most: int) -> None:
        self.left = most
        self.seconds = math.inf
        self.running: list[Signal] = []

    async def longest(self, _io: IO, /, *, until: Signal | None) -> float:
        assert until is None or not until.is_set() or self.seconds == math.inf
        return self.seconds

    def query(self, _whose: object, /) -> Signal | None:
        if not self.left:
            return None
        self.left -= 1
        self.running.append(Signal())
        return self.running[-1]

    def end_query(self, stop: Signal) -> None:
        self.left += 1
        self.running.remove(stop)

    @property
    def together(self) -> Sharing:
        raise AssertionError("it follows no group")


def absent(index: int) -> Response:
    return Response(404, {"x-consul-index": str(index)})


def follower(room: Room) -> Follower[KVPair | None]:
    made: Follower[KVPair | None] = Follower(partial(kv.watch, "k"))
    made.bound = room
    return made


def test_a_query_counts_while_it_runs() -> None:
    io, room = FakeIO(), Room(1)
    watched = follower(room)
    seen: list[int] = []
    io.expect("GET", PATH, absent(5))

    def answer(_: Request) -> Response:
        seen.append(room.left)
        return absent(6)

    io.expect("GET", PATH, answer)
    io.run(watched.next(io))
    io.run(watched.next(io))
    assert seen == [0]
    assert room.left == 1
    assert "index" in dict(io.requests[1].params)


def test_a_query_is_answered_before_the_next_renewal() -> None:
    io, room = FakeIO(), Room(1)
    watched = follower(room)
    io.expect("GET", PATH, absent(5), absent(6))
    io.run(watched.next(io))
    room.seconds = 3.4
    io.run(watched.next(io))
    assert io.requests[1].hold_open * 17 / 16 + WAY_BACK == pytest.approx(3.4)


def test_a_query_waits_neither_for_nothing_nor_for_long() -> None:
    assert wait_of(0.0) == SHORTEST_WAIT > 0
    assert wait_of(math.inf) == WAIT


def test_without_room_the_state_is_read_every_second() -> None:
    io, room = FakeIO(), Room(0)
    watched = follower(room)
    io.expect("GET", PATH, absent(5), absent(6))
    io.run(watched.next(io))
    began = io.time
    io.run(watched.next(io))
    assert io.time >= began + POLL
    assert "index" not in dict(io.requests[1].params)


def test_a_query_that_makes_room_is_followed_by_a_reading() -> None:
    io, room = FakeIO(), Room(1)
    watched = follower(room)
    io.expect("GET", PATH, absent(5))
    io.run(watched.next(io))
    stopped = Signal()
    stopped.set()
    room.query = lambda _: stopped  # type: ignore[method-assign]
    room.running.append(stopped)
    io.expect("GET", PATH, absent(7))
    answer = io.run(watched.next(io))
    assert answer is not None
    assert answer.index == 7


@pytest.mark.usefixtures("more_than_asked")
def test_its_end_does_not_wait_for_a_pause_after_a_failure() -> None:
    io, until = FakeIO(), Signal()
    watched: Follower[KVPair | None] = Follower(partial(kv.watch, "k"))
    io.expect("GET", PATH, *[Response(500, {}, b"No cluster leader")] * 12)
    io.at(io.now() + 20.0, until.set)
    assert io.run(watched.change(io, until=until)) is None
    assert io.now() == pytest.approx(1020.0)


def test_it_rests_after_each_failure() -> None:
    io = FakeIO()
    watched: Follower[KVPair | None] = Follower(partial(kv.watch, "k"))
    io.run(watched.pause(io))
    first = io.now() - 1000.0
    io.run(watched.pause(io))
    assert 0.0 < first < io.now() - 1000.0 - first


def test_after_a_failure_it_asks_for_the_present_state() -> None:
    io = FakeIO()
    watched: Follower[KVPair | None] = Follower(partial(kv.watch, "k"))
    io.expect("GET", PATH, absent(5), Response(500, {}, b"No cluster leader"), absent(7))
    assert io.run(watched.next(io)) is not None
    with pytest.raises(NoLeader):
        io.run(watched.next(io))
    io.run(watched.pause(io))
    assert io.run(watched.next(io)) is not None
    asked = [dict(request.params).get("index") for request in io.requests]
    assert asked[1] == "5"
    assert asked[2] == asked[0] != asked[1]


def test_an_answer_ends_the_growing_of_its_rests() -> None:
    io = FakeIO()
    watched: Follower[KVPair | None] = Follower(partial(kv.watch, "k"))
    rests: list[float] = []
    for index in (5, 6, 7):
        began = io.now()
        io.run(watched.pause(io))
        rests.append(io.now() - began)
        io.expect("GET", PATH, absent(index))
        assert io.run(watched.next(io)) is not None
    assert rests == pytest.approx([rests[0]] * 3)


def test_a_leader_is_confirmed_twice_within_the_ttl_of_its_session() -> None:
    io = FakeIO()
    watched = LeaderFollower("k", confirming=True)
    held = pairs(entry("k", index=7), index=7)
    io.expect("GET", PATH, held)
    io.expect("PUT", "/v1/txn", txn_done(entry("k", index=7)))
    io.expect("GET", "/v1/session/info/", ok([session(ttl="6s")]))
    io.expect("GET", PATH, held)
    io.run(watched.next(io))
    io.run(watched.next(io))
    assert io.requests[-1].hold_open == pytest.approx(3.0)


def test_the_ttl_of_a_leader_is_not_that_of_the_one_before_it() -> None:
    """Its session can't be read, so that its own is unknown."""
    io = FakeIO()
    watched = LeaderFollower("k")
    for leader, index, its_session in ((SESSION, 7, session(ttl="6s")), (OTHER, 9, None)):
        held = entry("k", session=leader, index=index)
        io.expect("GET", PATH, pairs(held, index=index))
        io.expect("PUT", "/v1/txn", txn_done(held))
        io.expect("GET", f"/v1/session/info/{leader}", ok([] if its_session is None else [its_session]))
    io.run(watched.next(io))
    assert watched.ttl == 6.0
    io.run(watched.next(io))
    assert watched.ttl is None
