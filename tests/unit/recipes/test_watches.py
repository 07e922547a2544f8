"""Waiting for keys: a query each up to a number, shared readings beyond; and what ends a wait."""

from __future__ import annotations

import math
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord.errors import ConsulCoordError
from consul_coord.http.endpoints import kv
from consul_coord.io import Signal
from consul_coord.models import SessionSpec
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.watch import engine
from consul_coord.recipes.watch.follow import POLL, Follower, wait_of
from tests.support.counted import Counted
from tests.support.fake_io import FakeIO
from tests.support.replies import (
    SESSION,
    entry,
    lost,
    ok,
    pairs,
    refusal,
    session,
    txn_done,
    txn_failed,
    unreachable,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.models import KVPair, Result
    from consul_coord.recipes.session.keeping import KeptSession
    from tests.support.fake_io import Answer

TXN = "/v1/txn"


class Waits:
    """One client's waits."""

    def __init__(self) -> None:
        self.io = FakeIO()
        self.core = ClientState(self.io, spec=SessionSpec(ttl=15.0), timeout=10.0)
        self.waits = self.core.watches

    def change(
        self,
        key: str = "k",
        *,
        until: Signal | None = None,
        deadline: float = math.inf,
        first: bool = False,
    ) -> Result[KVPair | None] | None:
        """Wait for ``key``, which was last seen at index 7."""
        return self.io.run(self.waits.change(self.io, key, 7, until=until, deadline=deadline, first=first))

    def read_at(self, time: float) -> None:
        """Let the background read once the clock gets there."""
        self.io.at(time, lambda: self.io.run_spawned("shared readings"))


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Waits:
    """Return waits that share readings from the first on."""
    monkeypatch.setattr(engine, "MOST", 0)
    return Waits()


def test_a_wait_has_a_blocking_query_of_its_own() -> None:
    waits = Waits()
    waits.io.expect("GET", "/v1/kv/k", pairs(entry("k", index=9)))
    found = waits.change()
    assert found is not None
    assert found.value is not None
    assert found.value.modify_index == 9
    assert ("index", "7") in waits.io.requests[-1].params


@pytest.mark.parametrize("end", ["until", "deadline"])
def test_a_wait_that_begins_just_before_a_renewal_ends_in_time_all_the_same(end: str) -> None:
    """The renewal is made first, and may take long."""
    waits, over = Waits(), Signal()
    waits.io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    kept = waits.io.run(waits.core.sessions.shared.live(waits.io, deadline=1010.0))
    waits.io.time = kept.due - 0.01
    ends = waits.io.time + 0.5
    if end == "until":
        waits.io.at(ends, over.set)
    assert waits.change(until=over, deadline=ends if end == "deadline" else math.inf) is None
    assert waits.io.time == pytest.approx(ends)
    assert waits.io.paths == ["/v1/session/create"]


class Held:
    """The key of a hold."""

    def __init__(self, key: str, *, is_member: bool, kept: KeptSession) -> None:
        self.key, self.is_member, self.kept = key, is_member, kept
        self.over = Signal()
        self.along: list[Held] = []
        self.read: list[object] = []

    async def seen(self, _: object, result: Result[KVPair | None], *, consistent: bool) -> None:
        """Take note of a reading."""
        self.read.append((None if result.value is None else result.value.key, consistent))


@pytest.mark.parametrize("is_member", [True, False])
def test_a_member_of_a_group_has_no_query_of_its_own(*, is_member: bool) -> None:
    waits = Waits()
    waits.io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    kept = waits.io.run(waits.core.sessions.shared.live(waits.io, deadline=1010.0))
    watched: Any = Held("g/m", is_member=is_member, kept=kept)
    before = len(waits.io.spawned)
    waits.waits.watch(waits.io, watched)
    (spawned,) = waits.io.spawned[before:]
    assert spawned.name == ("changes of groups" if is_member else "watch g/m")


def test_waits_beyond_the_queries_share_a_reading_until_the_key_has_changed(shared: Waits) -> None:
    shared.io.expect("PUT", TXN, txn_done(entry("k", index=7)), txn_done(entry("k", index=9)))
    shared.read_at(1000.2)
    found = shared.change()
    assert found is not None
    assert found.value is not None
    assert found.value.modify_index == 9
    assert shared.io.paths == [TXN, TXN]
    assert shared.io.time >= 1000.2 + 2 * engine.SHORTEST


def test_a_wait_for_a_folder_shares_readings_until_the_folder_has_changed(shared: Waits) -> None:
    shared.io.expect("GET", "/v1/kv/s/", pairs(entry("s/a"), index=7), pairs(entry("s/a"), index=9))
    shared.read_at(1000.2)
    until = Signal()
    shared.io.at(1020.0, until.set)  # if no reading is news
    found = shared.io.run(shared.waits.change_below(shared.io, "s/", 7, until=until, deadline=2000.0))
    assert found is not None
    assert found.index == 9
    assert not shared.io.steps


def test_all_who_wait_for_a_folder_share_its_readings(shared: Waits) -> None:
    others = [engine._TreeWait(7, "s/") for _ in range(3)]
    for other in others:
        other.over = Signal()
        shared.waits.waits[other] = None
    shared.io.expect("GET", "/v1/kv/s/", pairs(entry("s/a"), index=9))
    shared.read_at(1000.2)
    found = shared.io.run(shared.waits.change_below(shared.io, "s/", 7, until=None, deadline=1005.0))
    assert found is not None
    assert [other.seen for other in others] == [found] * len(others)
    assert all(other.over.is_set() for other in others)
    assert shared.io.paths == ["/v1/kv/s/"]


def test_a_hold_that_shares_readings_has_all_of_its_keys_read(shared: Waits) -> None:
    shared.io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    kept = shared.io.run(shared.core.sessions.shared.live(shared.io, deadline=1010.0))
    own, other = (Held(key, is_member=False, kept=kept) for key in ("s/a", "s/.lock"))
    own.along.append(other)
    watched: Any = own
    shared.waits.watch(shared.io, watched)
    shared.io.expect("PUT", TXN, txn_done(entry("s/a"), entry("s/.lock")))
    shared.io.at(shared.io.time + 1.5 * engine.SHORTEST, own.over.set)
    shared.io.run_spawned("shared readings")
    assert own.read == [("s/a", False)]
    assert other.read == [("s/.lock", False)]


def test_a_key_that_has_gone_has_changed(shared: Waits) -> None:
    shared.io.expect("PUT", TXN, txn_failed((0, 'key "k" doesn\'t exist')))
    shared.read_at(1000.2)
    found = shared.change()
    assert found is not None
    assert found.value is None


def test_a_reading_without_an_answer_ends_nothing(shared: Waits) -> None:
    shared.core.timeout = 0.05  # no time for a second try
    shared.io.expect("PUT", TXN, lost(TXN), refusal(500), txn_done(entry("k", index=9)))
    shared.read_at(1000.2)
    assert shared.change() is not None


def test_a_refused_reading_sends_who_waits_to_ask_himself(shared: Waits) -> None:
    shared.io.expect("PUT", TXN, refusal(403, "Permission denied"))
    shared.read_at(1000.2)
    assert shared.change() is None


def test_a_shared_wait_ends_with_its_session(shared: Waits) -> None:
    over = Signal()
    shared.io.at(1000.5, over.set)
    assert shared.change(until=over) is None
    assert shared.io.time == pytest.approx(1000.5)


def test_a_shared_wait_ends_at_its_deadline_and_is_not_read_any_more(shared: Waits) -> None:
    assert shared.change(deadline=1003.0) is None
    assert shared.io.time == pytest.approx(1003.0)
    shared.io.run_spawned("shared readings")
    assert shared.io.paths == []


def test_with_many_others_make_room_and_who_is_first_in_a_queue_keeps_a_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "MOST", 1)
    waits = Waits()
    other = waits.waits.query(object())
    assert other is not None
    found: list[Result[KVPair | None] | None] = []

    def first_in_a_queue() -> None:
        assert other.is_set(), "it goes on"
        waits.waits.end_query(other)
        waits.io.expect("GET", "/v1/kv/q", pairs(entry("q", index=9)))
        found.append(waits.change("q", first=True))

    waits.io.at(1000.5, first_in_a_queue)
    assert waits.change(deadline=1001.0) is None
    assert len(found) == 1
    assert waits.io.paths == ["/v1/kv/q"]


def test_when_few_are_left_who_shares_readings_is_sent_to_look_and_gets_a_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "MOST", 2)
    waits = Waits()
    others = [waits.waits.query(object()), waits.waits.query(object())]

    def others_end() -> None:
        for other in others:
            assert other is not None
            waits.waits.end_query(other)
        waits.io.run_spawned("shared readings")

    waits.io.at(1000.5, others_end)
    assert waits.change() is None
    assert waits.io.paths == []
    waits.io.expect("GET", "/v1/kv/k", pairs(entry("k", index=9)))
    assert waits.change() is not None


def test_while_the_agent_refuses_connections_all_but_one_share_readings() -> None:
    waits = Waits()
    assert waits.waits.is_new_trouble()
    assert not waits.waits.is_new_trouble(), "reported once"
    assert waits.waits.query(object()) is not None
    assert waits.waits.query(object()) is None
    waits.io.expect("PUT", TXN, txn_done(entry("k", index=7)), txn_done(entry("k", index=9)))
    waits.read_at(1000.2)
    assert waits.change(deadline=1010.0) is not None
    assert waits.io.paths == [TXN, TXN]
    assert waits.io.time >= 1000.2 + 2 * engine.SHORTEST_WHEN_CROWDED
    waits.io.time += engine.CROWDED
    assert waits.waits.query(object()) is not None


def test_when_few_are_left_a_hold_has_a_query_again_whoever_waits_beside_it(
    shared: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the waits that begin next share readings with it, which end as few are left, and so on."""
    shared.io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    kept = shared.io.run(shared.core.sessions.shared.live(shared.io, deadline=1010.0))
    watched: Any = Held("h", is_member=False, kept=kept)
    shared.waits.watch(shared.io, watched)
    monkeypatch.setattr(engine, "MOST", 4)
    shared.read_at(1000.2)
    assert shared.change(deadline=1005.0) is None, "it ends for nothing, and its caller looks again"
    assert shared.io.time < 1001.0
    assert any(one.name == "watch h" for one in shared.io.spawned)
    shared.io.expect("GET", "/v1/kv/k", pairs(entry("k", index=9)))
    assert shared.change(deadline=1005.0) is not None
    assert ("index", "7") in shared.io.requests[-1].params


def test_a_wait_that_begins_while_few_are_left_is_not_overlooked(shared: Waits) -> None:
    """Another thread is about to share readings just when everything gets its own query again."""

    class Late(dict[Any, None]):
        def __setitem__(self, wait: Any, value: None) -> None:
            shared.waits._part(shared.io)
            super().__setitem__(wait, value)

    shared.waits.waits = Late()
    shared.io.expect("PUT", TXN, txn_done(entry("k", index=9)))
    shared.read_at(1000.2)
    assert shared.change(deadline=1005.0) is not None


WAITS: dict[str, tuple[str, bool, int, set[tuple[str, str]]]] = {
    "a key": ("k", False, 7, {("index", "7")}),
    "a key, to its end": ("k", True, 7, {("index", "7"), ("recurse", "")}),
    "a folder": ("k/", False, 7, {("index", "7"), ("recurse", "")}),
    "an empty folder": ("k/", False, 0, {("index", "1"), ("recurse", "")}),  # 0 would be answered at once
}
"""By case: the key or folder, whether a deletion's index is wanted, the index, and the query's parameters."""


def waiting(waits: Waits, name: str, *, deadline: float) -> object:
    what, to_the_end, index, _ = WAITS[name]
    begin: Any = waits.waits.change_below if what.endswith("/") else waits.waits.change
    given = {"to_the_end": True} if to_the_end else {}
    return waits.io.run(begin(waits.io, what, index, until=None, deadline=deadline, **given))


@pytest.mark.parametrize("name", WAITS)
def test_each_wait_asks_for_its_own_thing(name: str) -> None:
    waits = Waits()
    what, _, _, asked = WAITS[name]
    waits.io.expect("GET", f"/v1/kv/{what}", pairs(entry(what.rstrip("/"), index=9), index=9))
    assert waiting(waits, name, deadline=2000.0) is not None
    (request,) = waits.io.requests
    assert {each for each in request.params if each[0] in {"index", "recurse"}} == asked
    assert request.hold_open == pytest.approx(wait_of(math.inf), abs=1.0)


@pytest.mark.parametrize("name", WAITS)
@pytest.mark.parametrize(
    ("changed", "ends"), [("k", ("k",)), ("k/", ("k/",)), ("k/a", ("k/",)), ("k2", ()), ("", ()), ("a/k", ())]
)
def test_an_own_change_ends_the_shared_waits_for_it_at_once(
    shared: Waits, name: str, changed: str, ends: tuple[str, ...]
) -> None:
    shared.io.at(1000.5, lambda: shared.waits.changed_here(changed))
    assert waiting(shared, name, deadline=1003.0) is None
    assert shared.io.time == (1000.5 if WAITS[name][0] in ends else 1003.0)


def test_who_waits_for_a_folder_keeps_a_query_beside_those_that_share_readings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "MOST", 1)
    waits = Waits()
    other = waits.waits.query(object())
    assert other is not None
    found: list[object] = []

    def below() -> None:
        waits.waits.end_query(other)
        waits.io.expect("GET", "/v1/kv/k/", pairs(entry("k/a", index=9), index=9))
        found.append(waiting(waits, "a folder", deadline=2000.0))

    waits.io.at(1000.5, below)
    assert waits.change(deadline=1001.0) is None
    assert found != [None]
    assert waits.io.paths == ["/v1/kv/k/"]


@pytest.mark.parametrize("may_end", [False, True])
@pytest.mark.parametrize("while_", ["a renewal goes first", "its query is under way"])
def test_a_wait_that_is_told_to_make_room_goes_on(
    monkeypatch: pytest.MonkeyPatch, while_: str, may_end: bool
) -> None:
    monkeypatch.setattr(engine, "MOST", 1)
    waits, renewed = Waits(), while_ != "a renewal goes first"

    async def longest(io: FakeIO, *, until: Signal | None, deadline: float) -> float:
        if not renewed:
            await io.wait(Signal() if until is None else until, deadline=deadline)
        return 600.0

    def make_room() -> None:
        nonlocal renewed
        assert waits.waits.query(object()) is None
        renewed = True

    waits.waits.longest = longest  # type: ignore[method-assign, assignment]
    waits.io.at(1000.5, make_room)
    if renewed:
        waits.io.expect("GET", "/v1/kv/k", pairs(entry("k", index=9)), takes=50.0)
    waits.io.expect("GET", "/v1/kv/k", pairs(entry("k", index=9)), takes=1.0)
    assert waits.change(until=Signal() if may_end else None, deadline=1100.0) is not None
    assert waits.io.time == pytest.approx(1001.5)
    assert not waits.io.steps, "a query was begun that was to make room"


# -- how many queries, and how long


def test_users_watches_beyond_the_bound_do_without_a_query_until_half_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each that asked for one would otherwise end those of all others, at each of its looks."""
    monkeypatch.setattr(engine, "MOST", 4)
    waits, watches = Waits(), [object() for _ in range(5)]

    def ask(some: list[object]) -> list[Signal]:
        waits.io.time += POLL
        return [stop for stop in map(waits.waits.query, some) if stop is not None]

    stops = ask(watches)
    assert len(stops) == 4
    assert all(stop.is_set() for stop in stops)
    for stop in stops:
        waits.waits.end_query(stop)
    assert [ask(watches) for _ in range(5)] == [[]] * 5
    assert [ask(watches[:3]) for _ in range(5)] == [[]] * 5, "more than half are left"
    ask(watches[:2])
    ask(watches[:2])
    assert len(ask(watches[:2])) == 2
    assert not any(stop.is_set() for stop in ask([object()])), "the others keep theirs"


@pytest.mark.parametrize(
    ("others", "are_shared", "has_query"),
    [(3, False, True), (4, False, False), (1, True, True), (2, True, False)],
)
def test_who_is_first_has_a_query_unless_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch, others: int, are_shared: bool, has_query: bool
) -> None:
    monkeypatch.setattr(engine, "MOST", 4)
    monkeypatch.setattr(engine, "FEW", 2)
    waits = Waits()
    for _ in range(others):
        assert waits.waits.query(object()) is not None
    if are_shared:
        waits.waits.waits[engine._KeyWait(7, "other", to_the_end=False)] = None
    if has_query:
        waits.io.expect("GET", "/v1/kv/k", pairs(entry("k", index=9)))
    assert (waits.change(deadline=1001.0, first=True) is not None) == has_query
    assert not waits.io.steps


def test_a_query_is_short_while_the_agent_refuses_connections() -> None:
    """Other requests wait for the end of the query."""
    waits = Waits()

    def longest() -> float:
        return waits.io.run(waits.waits.longest(waits.io, until=None))

    assert longest() > engine.LONGEST_WHEN_CROWDED
    waits.waits.is_new_trouble()
    assert longest() == engine.LONGEST_WHEN_CROWDED
    waits.io.time += engine.CROWDED
    assert longest() > engine.LONGEST_WHEN_CROWDED


# -- the keys of one hold


class KeyOfHold:
    """A key of a hold, of which readings are noted: the index, 0 for none, and whether it is for certain."""

    is_member = False
    index = 7

    def __init__(self, key: str, *along: KeyOfHold, directory: str | None = None) -> None:
        self.key, self.along, self.directory = key, along, directory
        self.listened_to = Counted()
        self.over: Signal = self.listened_to
        self.kept: Any = None
        self.seen_as: list[tuple[int, bool]] = []

    async def seen(self, io: object, result: Any, /, *, consistent: bool) -> None:
        self.seen_as.append((0 if result.value is None else result.value.modify_index, consistent))


def followed(waits: Waits, hold: KeyOfHold) -> None:
    """Have a hold watched until it is over."""
    waits.waits.watch(waits.io, hold)
    waits.io.run_spawned(f"watch {hold.key}")
    assert not waits.io.steps, "a request was not made"
    assert {
        request.path for request in waits.io.requests if ("consistent", "") not in request.params
    } == set()
    assert not hold.listened_to.listening, "each watch would leave one more"


def test_the_other_keys_of_a_hold_are_looked_at_whenever_its_query_has_ended() -> None:
    waits, other, gone, over = Waits(), KeyOfHold("k/b"), KeyOfHold("k/c"), KeyOfHold("k/d")
    over.over.set()
    hold = KeyOfHold("k/a", other, over, gone)

    def last(_: object) -> Any:
        hold.over.set()
        return pairs()

    for number in (8, 9):
        waits.io.expect("GET", "/v1/kv/k/a", pairs(entry("k/a", index=7), index=number), takes=0.5)
        waits.io.expect("GET", "/v1/kv/k/b", pairs(entry("k/b", index=number)), takes=0.5)
        waits.io.expect("GET", "/v1/kv/k/c", pairs() if number == 8 else last)
    followed(waits, hold)
    assert hold.seen_as == [(7, True)] * 2
    assert other.seen_as == [(8, True), (9, True)]
    assert gone.seen_as == [(0, True)] * 2
    assert over.seen_as == []


def _waits_for_a_key(waits: Waits, answer: Answer) -> None:
    waits.io.expect("GET", "/v1/kv/k", answer)
    waits.change(deadline=1005.0)


def _watches_a_hold(waits: Waits, answer: Answer) -> None:
    hold = KeyOfHold("k")

    def last(_: object) -> Answer:
        hold.over.set()
        return answer

    waits.io.expect("GET", "/v1/kv/k", last)
    followed(waits, hold)


def _watches_for_a_user(waits: Waits, answer: Answer) -> None:
    follower: Follower[Any] = Follower(partial(kv.watch, "k"), index=7)
    follower.bound = waits.waits
    waits.io.expect("GET", "/v1/kv/k", answer)
    waits.io.run(follower.next(waits.io))


@pytest.mark.parametrize(
    "answer",
    [pairs(entry("k", index=9)), refusal(500), unreachable("/v1/kv/k", method="GET")],
    ids=["answered", "refused", "unreachable"],
)
@pytest.mark.parametrize("use", [_waits_for_a_key, _watches_a_hold, _watches_for_a_user])
def test_what_had_a_query_gives_its_place_back_however_it_ended(
    monkeypatch: pytest.MonkeyPatch, use: Callable[[Waits, Answer], None], answer: Answer
) -> None:
    monkeypatch.setattr(engine, "MOST", 1)
    waits = Waits()
    with suppress(ConsulCoordError):
        use(waits, answer)
    assert waits.waits.query(object()) is not None


def test_one_query_for_all_keys_of_a_quiet_hold_shows_each_of_them() -> None:
    waits, other, gone = Waits(), KeyOfHold("k/b"), KeyOfHold("k/c")
    hold = KeyOfHold("k/a", other, gone, directory="k/")

    def asked_for(request: Any) -> Any:
        io, path = waits.io, request.path.removeprefix("/v1/kv/")
        if path == "k/":
            below.append((io.time, request.hold_open))
            io.time += request.hold_open
            if len(below) == 3:
                hold.over.set()
            else:
                io.expect("GET", "/v1/kv/k/", asked_for)
            return pairs(entry("k/a"), entry("k/b", index=8), index=8)
        following = {"k/a": "k/b", "k/b": "k/c", "k/c": "k/a"}[path]
        io.time += request.hold_open
        if path == "k/c" and io.time > 1000.0 + engine.LONGEST_HELD:
            following = "k/"
        io.expect("GET", f"/v1/kv/{following}", asked_for)
        return pairs() if path == "k/c" else pairs(entry(path))

    below: list[tuple[float, float]] = []
    waits.io.expect("GET", "/v1/kv/k/a", asked_for)
    followed(waits, hold)
    assert below[0][0] == pytest.approx(1000.0 + engine.LONGEST_HELD, abs=engine.LONGEST_HELD)
    assert below[0][1] == 0.0, "the present state comes first"
    assert below[1][1] == pytest.approx(engine.LONGEST_HELD, rel=0.1)
    assert hold.seen_as[-3:] == [(7, False)] * 3, "a suspicion only"
    assert other.seen_as[-3:] == [(8, False)] * 3
    assert gone.seen_as[-3:] == [(0, False)] * 3
    assert all(consistent for _, consistent in hold.seen_as[:-3])


# -- what shares readings


def test_one_reading_ends_all_waits_whose_keys_have_changed(shared: Waits) -> None:
    found: list[object] = []
    shared.io.at(1000.1, lambda: found.append(shared.change("k2", deadline=1005.0)))
    shared.io.expect("PUT", TXN, txn_done(entry("k", index=9), entry("k2", index=9)))
    shared.read_at(1000.2)
    assert shared.change("k", deadline=1006.0) is not None
    assert found != [None]
    assert shared.io.time < 1001.0


LASTS = 3.0
"""Seconds until the next renewal."""


def test_a_few_sessions_whose_holds_share_readings_have_a_query_and_make_room_for_others(
    shared: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    def watched() -> list[str]:
        return [each.name for each in shared.io.spawned if each.name.startswith("watch session")]

    async def longest(*_: object, **__: object) -> float:
        return LASTS

    monkeypatch.setattr(shared.waits, "longest", longest)
    sessions = [SimpleNamespace(id=str(number), over=Counted()) for number in range(4)]
    for number, kept in enumerate([*sessions[:3], sessions[0]]):
        hold = KeyOfHold(f"k{number}")
        hold.kept = kept
        shared.waits.watch(shared.io, hold)
    assert watched() == ["watch session 0", "watch session 1"]
    shared.io.expect("GET", "/v1/session/info/0", ok([session("0")], index=7), takes=LASTS)
    shared.io.expect("GET", "/v1/session/info/0", ok([session("0")], index=7), takes=50.0)
    shared.io.at(1010.0, sessions[0].over.set)
    shared.io.run_spawned("watch session 0")
    assert shared.io.time == 1010.0
    assert LASTS / 2 < shared.io.requests[-1].hold_open <= LASTS
    assert not sessions[0].over.listening
    last = KeyOfHold("k9")
    last.kept = sessions[3]
    shared.waits.watch(shared.io, last)
    assert watched() == ["watch session 1", "watch session 3"]


def test_the_query_for_a_session_gives_its_place_back(shared: Waits, monkeypatch: pytest.MonkeyPatch) -> None:
    hold = KeyOfHold("k")
    hold.kept = SimpleNamespace(id="0", over=Counted())
    shared.waits.watch(shared.io, hold)
    shared.io.expect("GET", "/v1/session/info/0", ok([session("0")], index=7))
    shared.io.expect("GET", "/v1/session/info/0", ok([session("0")], index=7), takes=50.0)
    shared.io.at(1010.0, hold.kept.over.set)
    shared.io.run_spawned("watch session 0")
    hold.over.set()
    shared.io.run_spawned("shared readings")
    monkeypatch.setattr(engine, "MOST", 1)
    assert shared.waits.query(object()) is not None
