"""The stock of a semaphore's sessions: which of them is given out, and for how long one is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from consul_coord.errors import RequestTimeout
from consul_coord.models import LOCK_FLAGS, KVPair, LossReason, ReleaseOutcome, SessionSpec
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.rwlock.kind import RwKind
from consul_coord.recipes.session.pool import IDLE, PooledSession, SessionPool
from tests.support.fake_io import FakeIO, Spawned
from tests.support.replies import entry, lost, ok, txn_done, unreachable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from consul_coord.io import IO

TTL = 15.0


class Stock:
    """A pool, and the sessions that were made for it."""

    def __init__(self) -> None:
        self.io = FakeIO()
        self.core = ClientState(self.io, spec=SessionSpec(ttl=TTL), timeout=10.0)
        self.pool = SessionPool(self.core.sessions, SessionSpec(ttl=TTL))
        self._made = 0

    def get(self) -> PooledSession:
        """Ask for a session; it may be made for that."""
        self._made += 1
        self.io.expect("PUT", "/v1/session/create", ok({"ID": f"{self._made}"}))
        try:
            claimed: list[PooledSession] = []
            found = self.io.run(self.pool.get(self.io, claimed.append, deadline=self.io.time + 5.0))
        finally:
            self.io.steps.clear()
        assert claimed[-1] is found, "nobody would answer for it"
        return found

    @property
    def made_ahead(self) -> int:
        """How many are about to be made."""
        return sum(each.name == "create a session" for each in self.io.spawned)

    def is_live(self, session: PooledSession) -> bool:
        return self.core.sessions.get(session.id) is not None


@pytest.fixture
def stock() -> Stock:
    return Stock()


def test_one_that_was_put_back_is_given_out_again(stock: Stock) -> None:
    session = stock.get()
    assert stock.get() is not session, "it is in use"
    stock.pool.put_back(session)
    assert stock.get() is session


def test_one_whose_lease_is_too_short_to_begin_anything_is_replaced(stock: Stock) -> None:
    session = stock.get()
    stock.pool.put_back(session)
    while session.kept.lease.is_fit(stock.io.time):
        stock.io.time += 0.5
    assert session.kept.lease.is_valid(stock.io.time)
    assert stock.get() is not session
    assert not stock.is_live(session)


class Busy(FakeIO):
    """One whose background does not come to make a session in time."""

    ends: float

    def __init__(self) -> None:
        super().__init__()
        self.late: list[Spawned] = []

    async def begin(self, program: Callable[[IO], Awaitable[object]], *, name: str, deadline: float) -> None:
        self.ends = deadline
        self.late.append(Spawned(name, program))


@pytest.mark.parametrize(("patience", "ends"), [(2.0, 1002.0), (600.0, 1010.0)])
def test_one_that_is_not_made_is_waited_for_until_the_deadline_and_for_the_clients_time_at_most(
    patience: float, ends: float
) -> None:
    io = Busy()
    core = ClientState(io, spec=SessionSpec(ttl=TTL), timeout=10.0)
    pool = SessionPool(core.sessions, SessionSpec(ttl=TTL))
    with pytest.raises(RequestTimeout, match="no session in time"):
        io.run(pool.get(io, lambda _: None, deadline=io.time + patience))
    assert io.time == io.ends == ends


def test_those_that_are_made_too_late_are_not_all_kept() -> None:
    """The agent had no room for a while, and each of several calls has given up on one."""
    io = Busy()
    core = ClientState(io, spec=SessionSpec(ttl=TTL), timeout=10.0)
    pool = SessionPool(core.sessions, SessionSpec(ttl=TTL))
    for _ in range(3):
        with pytest.raises(RequestTimeout, match="no session in time"):
            io.run(pool.get(io, lambda _: None, deadline=io.time))
    io.spawned += io.late
    for number in range(3):
        io.expect("PUT", "/v1/session/create", ok({"ID": f"{number}"}))
        io.run_spawned("create a session")
    assert [session.id for session in core.sessions if session.lease.ended_by is None] == ["0"]


@pytest.mark.parametrize("why", ["a request without an answer", "its end"])
def test_one_that_can_not_be_used_again_is_given_up(stock: Stock, why: str) -> None:
    session = stock.get()
    if why == "its end":
        stock.core.sessions.end(session.kept, LossReason.SESSION_GONE)
    else:
        session.settled = False
    stock.pool.put_back(session)
    assert not stock.is_live(session)
    assert stock.get() is not session


@pytest.mark.parametrize(("first", "again"), [(unreachable(), True), (lost(), False)], ids=repr)
def test_one_whose_place_was_given_back_is_used_again_unless_a_copy_may_come_late(
    stock: Stock, first: Exception, *, again: bool
) -> None:
    session, io = stock.get(), stock.io
    kind = RwKind("k", stock.pool, session, "read", owner=None)
    pair = KVPair("k/.rw/.wait/1", session=session.id, modify_index=7, lock_index=1)
    handle = stock.core.holds.grant(pair, kept=session.kept, value=b"", flags=LOCK_FLAGS, kind=kind)
    io.expect("PUT", "/v1/txn", first, txn_done(entry(pair.key)))
    ending = io.run(kind.give_back(io, handle.grant, deadline=io.time + 5.0))
    assert ending.outcome is ReleaseOutcome.RELEASED
    assert stock.is_live(session) is again


@pytest.mark.parametrize(
    ("index", "named", "again"), [(8, False, True), (7, False, False), (6, False, False), (8, True, False)]
)
def test_one_that_had_a_slot_rests_until_a_newer_record_does_not_name_it(
    stock: Stock, index: int, *, named: bool, again: bool
) -> None:
    session = stock.get()
    session.taken_at = 7
    stock.pool.put_back(session)
    stock.pool.saw(index, [session.id] if named else [])
    assert (stock.get() is session) is again


@pytest.mark.parametrize("taken_at", [0, 7])
def test_one_that_is_idle_for_a_while_is_destroyed(stock: Stock, taken_at: int) -> None:
    """Whether it may be used again at once, or rests."""
    session, began = stock.get(), stock.io.time
    stock.io.time += 1.0
    session.taken_at = taken_at
    stock.pool.put_back(session)
    stock.io.at(began + IDLE + 0.9, lambda: states.append(stock.is_live(session)))
    states: list[bool] = []
    stock.io.run_spawned("idle sessions")
    assert states == [True]
    assert stock.io.time == began + 1.0 + IDLE
    assert not stock.is_live(session)
    assert stock.core.reaper.pending == 1
    stock.pool.saw(taken_at + 1, [])
    assert stock.get() is not session


def test_each_idle_one_has_its_own_time(stock: Stock) -> None:
    first, second = stock.get(), stock.get()
    began, ends = stock.io.time, list[float]()
    for session in (first, second):
        session.kept.over.subscribe(lambda: ends.append(stock.io.time - began))
    stock.pool.put_back(first)
    stock.io.time += 10.0
    stock.pool.put_back(second)
    stock.io.run_spawned("idle sessions")
    assert ends == [IDLE, IDLE + 10.0]


def test_one_is_made_ahead_only_where_none_is_in_stock(stock: Stock) -> None:
    session = stock.get()
    stock.pool.put_back(session)
    stock.pool.prepare()
    assert stock.made_ahead == 0
    stock.get()
    stock.pool.prepare()
    assert stock.made_ahead == 1
    stock.core.closing.set()
    stock.pool.prepare()
    assert stock.made_ahead == 1


def test_one_is_made_ahead_at_a_time_though_the_background_comes_to_it_late(stock: Stock) -> None:
    stock.get()
    for _ in range(3):
        stock.pool.prepare()
    assert stock.made_ahead == 1
    stock.io.expect("PUT", "/v1/session/create", unreachable())
    stock.io.run_spawned("create a session")
    stock.pool.prepare()
    assert stock.made_ahead == 1, "the one before has failed"
