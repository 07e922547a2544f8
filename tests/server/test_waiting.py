"""Who waits for a prefix: found without trying what nobody waits for."""

from __future__ import annotations

from consul_coord.server.endpoints.kv import UNDER
from consul_coord.server.store import KV
from consul_coord.server.waiting import Waiter, WaitingRoom
from consul_coord.server.wire import Reply


def test_a_long_key_costs_no_more_than_the_prefixes_that_are_waited_for() -> None:
    room = WaitingRoom(spurious=False)

    def wait_for(ticket: int, prefix: str) -> None:
        room.add(ticket, Waiter(lambda _: Reply(), lambda _: Reply(), ((UNDER, prefix),), 10.0))

    for ticket, prefix in enumerate(("", "a/", "a/", "b/", "a/b/c")):
        wait_for(ticket, prefix)
    key = "a/" + "x" * 1_000_000
    assert list(room._reached((KV, key))) == [(KV, key), (UNDER, ""), (UNDER, "a/"), (UNDER, "a/xxx")]
    assert [ticket for ticket, _ in room.tell([(KV, key)], 1.0)] == [0, 1, 2]
    room.drop(4)
    assert list(room._reached((KV, key))) == [(KV, key), (UNDER, "a/")]
    room.drop(3)
    assert list(room._reached((KV, key))) == [(KV, key)]


def test_a_request_that_waits_on_is_found_by_what_it_waits_for_by_then() -> None:
    room, answer = WaitingRoom(spurious=False), Reply(204)

    def give_up(_: float) -> Reply:
        return Reply()

    later = Waiter(lambda _: answer, give_up, ((KV, "b"),), 10.0)
    room.add(0, Waiter(lambda _: later, give_up, ((KV, "a"),), 10.0))
    assert room.tell([(KV, "a")], 1.0) == []
    assert room.tell([(KV, "a")], 2.0) == []
    assert room.tell([(KV, "b")], 3.0) == [(0, answer)]
    assert len(room) == 0
    assert room.expire(11.0) is None
