"""The session keeper: renewed at two fifths, in jeopardy when that fails, over at the deadline, not later."""

from __future__ import annotations

import itertools
import json
import logging
import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord.errors import (
    BrokenReply,
    ClientClosed,
    NoLeader,
    NotFound,
    RequestTimeout,
    ServerError,
    SessionNotFound,
    UnsafeSession,
)
from consul_coord.events import (
    Cleaned,
    Failed,
    Jeopardy,
    Lost,
    OutageBegan,
    OutageEnded,
    Renewed,
    SessionDiffers,
    ShortHorizon,
    logger,
)
from consul_coord.io import Signal
from consul_coord.models import LOCK_FLAGS, HoldState, KVPair, LossReason, SessionSpec
from consul_coord.models.session import effective_lock_delay
from consul_coord.recipes.cleanup.tasks import LAST_LOOKS, Listing, StraySession
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.lock.keys import Keys, LockKind
from consul_coord.recipes.session import handling
from consul_coord.recipes.session import keeping as sessions
from consul_coord.recipes.session.outage import Outages
from tests.support.fake_io import FakeIO
from tests.support.replies import OTHER, SESSION, expect_gone, lost, ok, refusal, renewed, unreachable
from tests.support.replies import session as session_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.http.messages import Request, Response
    from consul_coord.recipes.hold.grant import Grant
    from consul_coord.recipes.session.keeping import KeptSession

CREATE, RENEW, DESTROY = "/v1/session/create", "/v1/session/renew/", "/v1/session/destroy/"
LIST = "/v1/session/list"
TTL = 15.0


class Bench:
    """A client with one session made at 1000, and one hold."""

    def __init__(self, spec: SessionSpec | None = None, *, io: FakeIO | None = None) -> None:
        self.io = io or FakeIO()
        self.spec = spec or SessionSpec(ttl=TTL)
        self.core = ClientState(self.io, spec=self.spec, timeout=10.0)
        self.io.expect("PUT", CREATE, ok({"ID": SESSION}))
        self.kept = self.live()
        self.hold = self.grant(self.kept)

    def live(self, *, deadline: float = 10.0) -> KeptSession:
        return self.io.run(self.core.sessions.shared.live(self.io, deadline=self.io.time + deadline))

    def grant(self, kept: KeptSession) -> Grant:
        pair = KVPair("k", session=kept.id, modify_index=7, lock_index=1)
        kind = LockKind(Keys(self.core, ["k"], LOCK_FLAGS, "me"))
        self.handle = self.core.holds.grant(pair, kept=kept, value=b"", flags=LOCK_FLAGS, kind=kind)
        return self.handle.grant

    def keep(self) -> None:
        self.io.run_spawned("keep session")

    def end_at(self, time: float) -> None:
        """End the session by hand, so that the keeper's program ends."""
        self.io.at(time, lambda: self.core.sessions.end(self.kept, LossReason.CLIENT_CLOSED))

    def state_at(self, time: float, states: dict[float, HoldState]) -> None:
        self.io.at(time, lambda: states.update({time: self.hold.look(self.io.time)[0]}))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_lease_begins_before_the_create_was_sent(bench: Bench) -> None:
    assert bench.kept.lease.valid_until == pytest.approx(1000.0 + 0.95 * TTL)
    assert [each.name for each in bench.io.spawned if each.name.startswith("keep")] == [
        f"keep session {SESSION}"
    ]


def test_a_session_that_ends_as_its_outage_begins_does_not_keep_that_from_ending(bench: Bench) -> None:
    """As where another thread closes it just then."""

    class Closing(Outages):
        def failed(self, session: str, *, since: float) -> bool:
            bench.core.sessions.end(bench.kept, LossReason.CLIENT_CLOSED)
            return super().failed(session, since=since)

    bench.core.sessions.outages = Closing(bench.io.mutex())
    bench.io.expect("PUT", RENEW, unreachable())
    bench.keep()
    bench.io.expect("PUT", CREATE, ok({"ID": OTHER}))
    bench.live()
    assert [len(bench.io.seen(kind)) for kind in (OutageBegan, OutageEnded)] == [1, 1]


def test_the_end_of_a_session_ends_its_keeper_at_once_and_all_waits_for_its_renewal(bench: Bench) -> None:
    """With nothing that depends on it, the keeper would look again when the next renewal is due."""
    bench.kept.dependents.clear()
    renewed = bench.kept.renewed
    bench.end_at(1001.0)
    bench.keep()
    assert bench.io.time == 1001.0
    assert renewed.is_set()
    assert bench.kept.over.is_set()


def test_everybody_shares_one_session(bench: Bench) -> None:
    assert bench.live() is bench.kept
    assert bench.io.paths == [CREATE]


def test_it_is_renewed_after_each_two_fifths(bench: Bench) -> None:
    bench.io.expect("PUT", RENEW, *[renewed()] * 4)
    bench.end_at(1027.0)
    bench.keep()
    assert bench.io.sent_at[1:] == pytest.approx([1006.0, 1012.0, 1018.0, 1024.0])
    assert bench.kept.lease.valid_until == pytest.approx(1024.0 + 0.95 * TTL)
    assert len(bench.io.seen(Renewed)) == 4


class Suspended(FakeIO):
    """A machine that is suspended as soon as its program waits: its waits last longer by that time."""

    suspended = 0.0

    async def wait(self, signal: Signal, *, deadline: float | None = None) -> bool:
        gone, self.suspended = self.suspended, 0.0
        self.time += gone
        return await super().wait(signal, deadline=None if deadline is None else deadline + gone)


@pytest.mark.parametrize("gone", [20.0, 3000.0])
def test_a_machine_that_was_suspended_for_too_long_soon_says_that_its_holds_are_lost(gone: float) -> None:
    io = Suspended()
    bench = Bench(io=io)
    io.suspended = gone
    ended: list[float] = []
    bench.hold.lost.subscribe(lambda: ended.append(bench.io.time))
    bench.keep()
    assert ended == pytest.approx([1000.0 + gone + sessions.WATCH_SLICE])
    assert bench.hold.reason is LossReason.EXPIRED


def test_renewals_of_clients_that_began_together_fall_out_of_step() -> None:
    sent = []
    for random in (0.0, 0.5, 0.99):
        bench = Bench()
        bench.io.randomness = random
        bench.io.expect("PUT", RENEW, *[renewed()] * 2)
        bench.end_at(1014.0)
        bench.keep()
        sent.append(bench.io.sent_at[2])
    assert sent == sorted(set(sent))
    assert sent[-1] <= 1000.0 + 2 * TTL * (0.4 + 0.03), "late by a small part of the lease at most"


def test_the_time_a_renewal_takes_is_not_counted_as_lease(bench: Bench) -> None:
    bench.io.expect("PUT", RENEW, renewed(), takes=2.0)
    bench.end_at(1009.0)
    bench.keep()
    assert bench.kept.lease.valid_until == pytest.approx(1006.0 + 0.95 * TTL)


def test_a_query_lasts_until_the_next_renewal(bench: Bench) -> None:
    assert way(bench) == pytest.approx(6.0)
    bench.io.time = 1004.0
    assert way(bench) == pytest.approx(2.0)


def way(bench: Bench, *, until: Signal | None = None, deadline: float = math.inf) -> float:
    return bench.io.run(bench.core.sessions.give_way(bench.io, until=until, deadline=deadline))


def test_a_query_that_would_begin_just_before_a_renewal_has_that_made_first(bench: Bench) -> None:
    bench.io.time = 1005.7
    bench.io.at(1005.8, lambda: bench.kept.end_renewal(1011.8))
    assert way(bench) == pytest.approx(6.0)


def test_a_hastened_renewal_is_made_at_once_and_once(bench: Bench) -> None:
    bench.io.expect("PUT", RENEW, renewed(), renewed())
    bench.io.at(1003.0, bench.kept.hasten)
    bench.end_at(1010.0)
    bench.keep()
    assert bench.io.sent_at[1:] == pytest.approx([1003.0, 1009.0])


@pytest.mark.parametrize("end", ["deadline", "until"])
def test_a_query_does_not_wait_for_a_renewal_for_longer_than_it_may(bench: Bench, end: str) -> None:
    bench.io.time = 1005.7
    over = Signal()
    bench.io.at(1005.8, over.set)
    way(bench, until=over) if end == "until" else way(bench, deadline=1005.8)
    assert bench.io.time == pytest.approx(1005.8)


@pytest.mark.parametrize("failed", [False, True])
def test_queries_that_begin_leave_a_renewal_that_has_failed_its_pause(bench: Bench, *, failed: bool) -> None:
    """A refusal comes at once. So the queries of a busy client would ask again hundreds of times a second."""
    bench.io.time = 1005.7
    bench.kept.lease.in_contact = not failed
    way(bench, deadline=1005.8)
    assert bench.kept.next_try(1006.0, bench.io.time) == (1006.0 if failed else bench.io.time)


def test_what_is_due_before_long_is_renewed_along(bench: Bench) -> None:
    bench.io.time = 1004.0
    bench.io.expect("PUT", CREATE, ok({"ID": OTHER}))
    other = bench.io.run(bench.core.sessions.create(bench.io, bench.spec))
    bench.io.time = 1009.5
    bench.kept.due = 1012.0
    bench.io.at(1009.6, lambda: bench.kept.end_renewal(1015.6))
    bench.io.at(1009.6, lambda: other.end_renewal(1015.6))
    assert way(bench) == pytest.approx(6.0)


def test_with_many_sessions_queries_do_without(bench: Bench) -> None:
    bench.io.expect("PUT", CREATE, *[ok({"ID": f"{OTHER[:-1]}{n}"}) for n in range(sessions.TOGETHER)])
    for _ in range(sessions.TOGETHER):
        bench.io.run(bench.core.sessions.create(bench.io, bench.spec))
    assert way(bench) == math.inf


def test_the_connection_of_a_renewal_is_kept_while_holds_depend_on_it(bench: Bench) -> None:
    bench.io.expect("PUT", RENEW, renewed(), renewed())
    bench.io.at(1008.0, bench.kept.dependents.clear)
    bench.end_at(1013.0)
    bench.keep()
    assert [request.keep for request in bench.io.requests[1:]] == [None, 0.0]


@pytest.mark.parametrize(
    "trouble",
    [
        *(lost(), unreachable(), refusal(500, "No cluster leader"), refusal(500, "rpc error"), refusal(429)),
        *(refusal(403, "Permission denied"), refusal(503), ok({"strange": 1}), ok([]), ZeroDivisionError()),
    ],
    ids=repr,
)
def test_trouble_is_jeopardy_and_ridden_out(bench: Bench, trouble: Exception) -> None:
    states: dict[float, HoldState] = {}
    bench.io.expect("PUT", RENEW, *[trouble] * 3, renewed())
    bench.state_at(1006.001, states)
    bench.end_at(1010.0)
    bench.keep()
    assert states == {1006.001: HoldState.JEOPARDY}
    jeopardy = bench.io.seen(Jeopardy)
    assert len(jeopardy) == 3
    assert jeopardy[0].remaining == pytest.approx(0.95 * TTL - 6.0, abs=0.01)
    assert [each.repeated for each in jeopardy] == [False, True, True]
    assert [each.silent for each in jeopardy] == pytest.approx([6.0, 6.0, 6.1], abs=0.11)
    assert [(each.session, each.keys) for each in jeopardy] == [(SESSION, ("k",))] * 3
    assert [each.recovered for each in bench.io.seen(Renewed)] == [True]
    assert bench.kept.lease.in_contact
    assert len(bench.io.seen(Failed)) == (3 if isinstance(trouble, ZeroDivisionError) else 0)


@pytest.mark.parametrize(
    ("ttl", "longest"), [(TTL, 0.95 * TTL / 20), (300.0, 15.0 * 0.95 / 20), (0.5, 0.05)], ids=str
)
@pytest.mark.usefixtures("more_than_asked")
def test_pauses_between_renewals_that_fail_grow_to_a_small_part_of_the_lease(
    ttl: float, longest: float
) -> None:
    """It holds up nobody else's requests, and leaves time for many tries until the lease is over."""
    bench = Bench(SessionSpec(ttl=ttl, lock_delay=15.0))
    bench.io.randomness = 0.999999
    bench.io.expect("PUT", RENEW, *[unreachable()] * 30)
    bench.keep()
    pauses = [later - sooner for sooner, later in pairwise(bench.io.sent_at[1:])]
    assert pauses == pytest.approx([min(longest, 0.05 * 2**n) for n in range(len(pauses))], rel=0.01)
    assert max(pauses) == pytest.approx(longest, rel=0.01)


def test_after_a_renewal_that_succeeds_the_pauses_begin_anew(bench: Bench) -> None:
    bench.io.randomness = 0.999999
    bench.io.expect("PUT", RENEW, *[unreachable()] * 4, renewed(), *[unreachable()] * 2, renewed())
    bench.end_at(1018.0)
    bench.keep()
    at = bench.io.sent_at[1:]
    pauses = [later - sooner for sooner, later in pairwise(at[:5])]
    assert pauses == pytest.approx([0.05 * 2**n for n in range(4)], rel=0.01)
    again = [later - sooner for sooner, later in pairwise(at[5:])]
    assert again == pytest.approx([0.05, 0.1], rel=0.01)


def test_an_outage_is_logged_by_its_beginning_and_its_end(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "consul_coord")
    bench.io.expect("PUT", RENEW, renewed(), *[unreachable()] * 3, renewed())
    bench.end_at(1015.0)
    bench.keep()
    for event in bench.io.events:
        logger.log(event.rank, "%s", event.describe())
    first, last, end = (f"{entry.levelname} {entry.message}" for entry in caplog.records)
    assert first.startswith("WARNING no contact with Consul for 6.0 s (")
    assert first.endswith("k stays held for another 8.2 s unless contact comes back")
    assert last.startswith("INFO contact with Consul is back after 6.")
    assert "k stays held for another 14." in last
    assert end.startswith("WARNING lost k"), "the test ends the session"


def test_an_outage_has_lasted_since_the_last_contact_with_whichever_session(bench: Bench) -> None:
    bench.io.expect("PUT", CREATE, ok({"ID": OTHER}))
    bench.io.run(bench.io.sleep(4.0))
    other = bench.io.run(bench.core.sessions.create(bench.io, SessionSpec(ttl=TTL)))
    first_handle, _ = bench.handle, bench.grant(other)  # a hold that nobody refers to is given back
    bench.io.expect("PUT", RENEW, *[unreachable()] * 3)
    bench.end_at(bench.kept.lease.sent_at + 6.1)
    bench.keep()
    (began,) = bench.io.seen(OutageBegan)
    (first, *_) = bench.io.seen(Jeopardy)
    assert other.lease.sent_at == 1004.0
    assert began.silent == pytest.approx(2.0)
    assert began.remaining == pytest.approx(first_handle.grant.valid_until - 1006.0, abs=0.2)
    assert first_handle.grant.valid_until < other.lease.valid_until - 3.0
    assert first.silent == pytest.approx(6.0)


@pytest.mark.parametrize("failed", list(itertools.product([False, True], repeat=3)), ids=repr)
def test_contact_of_one_session_hastens_the_renewals_of_all_others_that_failed(
    bench: Bench, failed: tuple[bool, ...]
) -> None:
    others: list[KeptSession] = []
    for number, fails in enumerate(failed):
        bench.io.expect("PUT", CREATE, ok({"ID": f"{number}{OTHER[1:]}"}))
        others.append(bench.io.run(bench.core.sessions.create(bench.io, SessionSpec(ttl=TTL))))
        others[-1].lease.in_contact = not fails
    bench.io.expect("PUT", RENEW, unreachable(), renewed())
    later = bench.io.time + 60.0
    due: list[float] = []
    bench.io.at(1006.1, lambda: due.extend([one.next_try(later, 0.0) for one in others]))
    bench.end_at(1006.2)
    bench.keep()
    assert due == [0.0 if fails else later for fails in failed]


def test_an_outage_that_costs_the_session_ends_with_the_next_one(bench: Bench) -> None:
    bench.io.expect("PUT", RENEW, *[unreachable()] * 30)
    bench.keep()
    bench.io.steps.clear()
    assert bench.hold.look(bench.io.time) == (HoldState.LOST, LossReason.EXPIRED)
    (began,) = bench.io.seen(OutageBegan)
    assert began.keys == ("k",)
    assert bench.io.seen(OutageEnded) == []
    bench.io.run(bench.io.sleep(20.0))
    bench.io.expect("PUT", CREATE, ok({"ID": OTHER}))
    bench.live()
    (ended,) = bench.io.seen(OutageEnded)
    assert ended.describe().startswith("contact with Consul is back after 3")
    assert ended.describe().endswith(" s: this client holds nothing")


@pytest.mark.parametrize("answer", [renewed(), unreachable()], ids=repr)
def test_a_renewal_that_is_answered_after_the_end_is_no_news(bench: Bench, answer: Exception) -> None:
    bench.io.expect("PUT", RENEW, answer, takes=1.0)
    bench.end_at(1006.5)
    bench.keep()
    assert bench.io.seen(Renewed) == []
    assert bench.io.seen(Jeopardy) == []


@pytest.mark.parametrize("looks", [True, False], ids=["seen as lost", "not looked at"])
def test_a_reply_that_is_read_after_the_end_of_the_lease_does_not_bring_the_session_back(
    bench: Bench, *, looks: bool
) -> None:
    """The process was paused while the reply was on its way."""

    def read_late(_: Request) -> Response:
        bench.io.time = bench.kept.valid_until + 0.5
        if looks:
            assert bench.hold.is_lost(bench.io.time)
        return renewed()

    bench.io.expect("PUT", RENEW, read_late)
    bench.io.expect("PUT", DESTROY, ok(value=True))
    bench.keep()
    assert bench.hold.look(bench.io.time) == (HoldState.LOST, LossReason.EXPIRED)
    assert bench.io.seen(Renewed) == []
    bench.io.run_spawned("reaper")
    assert bench.io.paths[-1] == DESTROY + SESSION, "the key stays locked for nobody"


def test_a_404_is_the_end_at_once(bench: Bench) -> None:
    expect_gone(bench.io)
    bench.keep()
    assert bench.io.time == pytest.approx(1006.0)
    assert bench.hold.look(bench.io.time) == (HoldState.LOST, LossReason.SESSION_GONE)
    assert bench.kept.over.is_set()
    assert [event.reason for event in bench.io.seen(Lost)] == [LossReason.SESSION_GONE]
    assert bench.core.reaper.pending == 0


@pytest.mark.parametrize("read", [ok([session_json()]), ok([]), refusal(403, "Permission denied")])
def test_a_404_of_a_leader_that_has_not_caught_up_is_not(bench: Bench, read: Response) -> None:
    bench.io.expect("PUT", RENEW, refusal(404, "Session id 'x' not found"))
    bench.io.expect("GET", "/v1/session/info/", read)
    bench.io.expect("PUT", RENEW, renewed())
    bench.end_at(1007.0)
    bench.keep()
    assert ("consistent", "") in bench.io.requests[2].params
    assert [event.reason for event in bench.io.seen(Lost)] == [LossReason.CLIENT_CLOSED]
    assert len(bench.io.seen(Renewed)) == 1


@pytest.mark.parametrize("page", ["", "<html>404 Not Found</html>"])
def test_a_404_that_is_not_consuls_is_no_end_also_right_after_a_consistent_reading(
    bench: Bench, page: str
) -> None:
    """As of a proxy that has just lost its agent, while another of the holds is lost."""
    bench.io.expect("PUT", RENEW, refusal(404, page))
    bench.io.expect("GET", "/v1/session/info/", ok([session_json()]))
    bench.io.expect("PUT", RENEW, refusal(404, page))
    with pytest.raises(NotFound):
        bench.io.run(bench.core.sessions.confirm(bench.io, bench.kept, deadline=bench.io.time + 5.0))
    assert bench.hold.look(bench.io.time) == (HoldState.HELD, None)


def test_a_404_is_no_end_though_a_reading_was_consistent_just_before(bench: Bench) -> None:
    """The servers may have a new leader since, which has not caught up."""
    bench.io.expect("PUT", RENEW, refusal(404, "Session id 'x' not found"))
    bench.io.expect("GET", "/v1/session/info/", ok([session_json()]))
    bench.io.expect("PUT", RENEW, renewed())
    bench.io.run(bench.core.sessions.confirm(bench.io, bench.kept, deadline=bench.io.time + 5.0))
    assert bench.hold.look(bench.io.time) == (HoldState.HELD, None)


def test_a_404_is_no_end_while_no_leader_has_caught_up(bench: Bench) -> None:
    bench.io.expect("PUT", RENEW, refusal(404, "Session id 'x' not found"))
    bench.io.expect("GET", "/v1/session/info/", refusal(500, "Not ready to serve consistent reads"))
    bench.io.expect("PUT", RENEW, renewed())
    bench.end_at(1007.0)
    bench.keep()
    assert len(bench.io.seen(Jeopardy)) == 1
    assert bench.io.seen(Renewed)


@pytest.mark.usefixtures("more_than_asked")
def test_it_is_over_at_the_deadline_not_later(bench: Bench) -> None:
    bench.io.expect("PUT", RENEW, *[unreachable()] * 200)
    bench.keep()
    deadline = 1000.0 + 0.95 * TTL
    assert deadline - 0.051 <= bench.io.time <= deadline
    assert bench.hold.look(bench.io.time) == (HoldState.LOST, LossReason.EXPIRED)
    assert all(sent < deadline for sent in bench.io.sent_at)


@pytest.mark.usefixtures("more_than_asked")
def test_a_silent_agent_does_not_delay_the_end(bench: Bench) -> None:
    bench.io.expect("PUT", RENEW, *[renewed()] * 10, takes=3600.0)
    bench.keep()
    deadline = 1000.0 + 0.95 * TTL
    assert deadline - 0.051 <= bench.io.time <= deadline
    assert bench.hold.lost.is_set()
    assert len(bench.io.requests) >= 3, "one hanging renewal left no time for another"


def test_an_expired_session_is_destroyed_by_the_reaper_without_being_asked_for_its_keys(bench: Bench) -> None:
    bench.io.expect("PUT", RENEW, *[unreachable()] * 200)
    bench.keep()
    assert bench.core.reaper.pending == 1
    bench.io.steps.clear()
    bench.io.expect("PUT", DESTROY, ok(value=True))
    bench.io.run_spawned("reaper")
    assert bench.core.reaper.pending == 0


def test_its_end_is_told_once_and_first_to_its_holds(bench: Bench) -> None:
    bench.kept.over.subscribe(lambda: order.append(bench.hold.lost.is_set()))
    order: list[bool] = []
    bench.core.sessions.end(bench.kept, LossReason.SESSION_GONE)
    bench.core.sessions.end(bench.kept, LossReason.EXPIRED)
    assert order == [True]
    assert len(bench.io.seen(Lost)) == 1
    assert bench.core.reaper.pending == 0


def test_nobody_hears_of_one_loss_and_sees_another_hold_still_held(bench: Bench) -> None:
    """All holds of a session are lost before any loss is announced."""
    handle, other = bench.handle, bench.grant(bench.kept)
    seen: list[bool] = []
    for each in (handle.grant, other):
        bench.core.holds.on_lost(
            each, lambda _: seen.append(handle.grant.lost.is_set() and other.lost.is_set())
        )
    bench.core.sessions.end(bench.kept, LossReason.SESSION_GONE)
    assert seen == [True, True]


@pytest.mark.parametrize("reason", [LossReason.SESSION_GONE, LossReason.CLIENT_CLOSED])
def test_nobody_is_woken_by_one_loss_and_finds_another_hold_not_lost(
    bench: Bench, reason: LossReason
) -> None:
    """Otherwise the outer one of two nested blocks could be interrupted first."""
    holds = bench.handle.grant, bench.grant(bench.kept)
    seen: list[list[LossReason | None]] = []
    for each in holds:
        each.lost.subscribe(lambda: seen.append([hold.reason for hold in holds]))
    if reason is LossReason.CLIENT_CLOSED:
        bench.core.begin_close()
    else:
        bench.core.sessions.end(bench.kept, reason)
    assert seen == [[reason] * 2] * 2


def test_callbacks_of_a_loss_come_in_the_order_in_which_they_were_given(bench: Bench) -> None:
    told: list[int] = []
    for number in range(4):
        bench.core.holds.on_lost(bench.hold, lambda _, number=number: told.append(number))  # type: ignore[misc]
    bench.core.sessions.end(bench.kept, LossReason.SESSION_GONE)
    assert told == [0, 1, 2, 3]


def test_nobody_waits_for_a_session_for_longer_than_a_request_may_take(bench: Bench) -> None:
    """Whatever has become of the program that was to make it."""
    bench.core.sessions.end(bench.kept, LossReason.SESSION_GONE)
    source = bench.core.sessions.shared
    creations = [source]

    def meanwhile(_: object) -> Exception:
        with pytest.raises(RequestTimeout, match="no session in time"):
            bench.io.run(source.live(bench.io, deadline=math.inf))
        creations.clear()
        return lost(CREATE)

    bench.io.expect("PUT", CREATE, meanwhile)
    began = bench.io.time
    with pytest.raises(Exception, match="connection ended"):
        bench.live(deadline=100.0)
    assert not creations
    assert bench.io.time == began + 10.0


def test_a_limit_that_comes_before_what_was_planned_is_not_slept_through(bench: Bench) -> None:
    holds, io = bench.core.holds, bench.io
    holds.limit(bench.hold, 30.0)
    handle = bench.grant(bench.kept), bench.handle
    other, lost_at = handle[0], list[float]()
    other.over.subscribe(lambda: lost_at.append(io.time))
    io.at(io.time + 0.1, lambda: holds.limit(other, 0.1))
    began = io.time
    bench.end_at(began + 5.0)
    io.run_spawned("limits of holds")
    assert lost_at == [pytest.approx(began + 0.2)]


def test_a_session_made_elsewhere_is_used_until_the_key_of_a_stuck_hold_is_given_back() -> None:
    """By then nobody here has it, though its user goes on to refer to the hold: it is left to its owner."""
    bench = Bench()
    io, core = bench.io, bench.core
    bench.end_at(io.time)
    bench.keep()
    io.expect("PUT", f"/v1/session/renew/{OTHER}", ok([session_json(OTHER)]))
    source = core.source(OTHER)
    kept = io.run(source.live(io, deadline=io.time + 10.0))
    hold = bench.grant(kept)
    core.holds.limit(hold, 1.0)
    del source
    lost_at = io.time + 1.0
    io.at(lost_at + kept.lock_delay - 0.1, lambda: left.append(kept.is_left))
    left = list[bool]()
    io.run_spawned("limits of holds")
    assert hold.reason is LossReason.MAX_HOLD
    assert (left, kept.is_left) == ([False], True)


def test_where_connections_are_refused_a_query_leaves_time_for_the_renewal() -> None:
    bench = Bench(SessionSpec(ttl=4.0, lock_delay=4.0))
    watches, patience = bench.core.watches, bench.kept.lease.longest / sessions.TRIES_PER_LEASE

    def longest() -> float:
        return bench.io.run(watches.longest(bench.io, until=None))

    assert longest() > patience
    assert watches.is_new_trouble()
    assert not watches.is_new_trouble()
    assert longest() == pytest.approx(patience)


def test_the_next_need_gets_a_new_session(bench: Bench) -> None:
    bench.core.sessions.end(bench.kept, LossReason.SESSION_GONE)
    bench.io.expect("PUT", CREATE, ok({"ID": OTHER}))
    assert bench.live().id == OTHER
    assert bench.hold.look(bench.io.time)[0] is HoldState.LOST


def test_the_servers_ttl_is_adopted(bench: Bench) -> None:
    longer = renewed(ttl="30s", LockDelay=30_000_000_000)
    bench.io.expect("PUT", RENEW, longer, longer)
    bench.end_at(1022.0)
    bench.keep()
    assert bench.io.sent_at[1:] == pytest.approx([1006.0, 1018.0])
    assert bench.kept.lease.longest == pytest.approx(0.95 * 30)
    assert [(e.setting, e.asked, e.got) for e in bench.io.seen(SessionDiffers)] == [("ttl", "15.0", "30.0")]


def test_the_servers_lock_delay_is_adopted_where_it_is_left_to_them(bench: Bench) -> None:
    assert bench.spec.lock_delay is None
    bench.io.expect("PUT", RENEW, renewed(LockDelay=6_000_000_000))
    bench.end_at(1007.0)
    bench.keep()
    assert bench.kept.lease.longest == pytest.approx(0.95 * 6)
    assert bench.kept.lease.valid_until == pytest.approx(1006.0 + 0.95 * 6)
    assert bench.io.seen(SessionDiffers) == []


@pytest.mark.parametrize(
    ("settings", "lease"),
    [
        ({"ttl": 60.0}, 14.25),
        ({"ttl": 60.0, "lock_delay": 60.0}, 57.0),
        ({"ttl": 30.0, "lock_delay": 5.0}, 4.75),
        ({"ttl": 10.0, "lock_delay": 0.0, "allow_unbounded": True}, 9.5),
    ],
)
def test_the_lock_delay_paces_lease_and_renewals(settings: dict[str, Any], lease: float) -> None:
    spec = SessionSpec(**settings)
    bench = Bench(spec)
    assert bench.kept.lease.valid_until == pytest.approx(1000.0 + lease), "at creation"
    echo = renewed(ttl=f"{spec.ttl:g}s", LockDelay=int(effective_lock_delay(spec) * 1e9))
    bench.io.expect("PUT", RENEW, echo, echo)
    horizon = lease / 0.95
    bench.end_at(1000.0 + 0.9 * horizon)
    bench.keep()
    assert bench.io.sent_at[1:] == pytest.approx([1000.0 + 0.4 * horizon, 1000.0 + 0.8 * horizon])
    assert bench.kept.lease.valid_until == pytest.approx(bench.io.sent_at[-1] + lease), "at each renewal"


def test_a_stuck_hold_is_given_back_after_the_lock_delay_that_the_server_has(bench: Bench) -> None:
    bench.io.expect("PUT", RENEW, renewed(LockDelay=7_000_000_000))
    bench.io.run(sessions.renew(bench.io, bench.core.sessions, bench.kept, deadline=1010.0))
    bench.core.holds.limit(bench.hold, 1.0)
    bench.io.run_spawned("limits of holds")
    assert bench.hold.reason is LossReason.MAX_HOLD
    assert 1008.0 <= bench.io.time <= 1009.0, "after the limit and the lock-delay, and a look"


@pytest.mark.usefixtures("more_than_asked")
def test_a_lock_delay_that_the_server_has_lost_extends_no_lease(bench: Bench) -> None:
    bench.io.expect("PUT", RENEW, *[renewed(LockDelay=0)] * 200)
    bench.keep()
    assert bench.hold.look(bench.io.time) == (HoldState.LOST, LossReason.EXPIRED)
    assert "lock-delay is 0" in bench.io.seen(Jeopardy)[0].error


def test_a_short_horizon_is_warned_of_once() -> None:
    bench = Bench(SessionSpec(ttl=TTL, lock_delay=0.6))
    bench.io.expect("PUT", RENEW, *[renewed(LockDelay=600_000_000)] * 2)
    bench.end_at(1000.7)
    bench.keep()
    bench.io.expect("PUT", CREATE, ok({"ID": OTHER}))
    bench.live()
    (warned,) = bench.io.seen(ShortHorizon)
    assert (warned.session, warned.horizon, warned.rank) == (SESSION, 0.6, logging.WARNING)


def test_a_short_lease_is_refreshed_before_it_is_used(bench: Bench) -> None:
    bench.io.time = 1012.0
    bench.io.expect("PUT", RENEW, renewed())
    assert bench.live() is bench.kept
    assert bench.kept.lease.remaining(1012.0) == pytest.approx(0.95 * TTL)


def test_a_session_whose_create_took_most_of_its_lease_is_refreshed_before_it_is_used() -> None:
    """Its request may have waited for a connection, at an agent that had no room for one."""
    bench = Bench(SessionSpec(ttl=10.0, lock_delay=10.0))
    bench.core.sessions.end(bench.kept, LossReason.SESSION_GONE)
    bench.io.expect("PUT", CREATE, ok({"ID": OTHER}), takes=9.0)
    answer = renewed(ID=OTHER, TTL="10s", LockDelay=10_000_000_000)
    bench.io.expect("PUT", f"/v1/session/renew/{OTHER}", answer)
    made = bench.live()
    assert made.id == OTHER
    assert made.lease.remaining(bench.io.time) == pytest.approx(0.95 * 10.0)


def test_a_short_lease_that_cannot_be_refreshed_is_used_while_it_lasts(bench: Bench) -> None:
    bench.io.time = 1012.0
    bench.io.expect("PUT", RENEW, unreachable())
    assert bench.live() is bench.kept


def test_a_refresh_without_an_answer_takes_no_longer_than_the_lease_lasts(bench: Bench) -> None:
    bench.io.time = 1012.0
    bench.io.expect("PUT", RENEW, lost(), takes=60.0)
    bench.io.expect("PUT", CREATE, ok({"ID": OTHER}))
    left = bench.kept.lease.remaining(bench.io.time)
    assert bench.live(deadline=10.0).id == OTHER
    assert bench.io.time == pytest.approx(1012.0 + left)


def test_a_renewal_that_failed_is_next_due_after_its_pause(bench: Bench) -> None:
    due: list[float] = []
    bench.kept.renewed.subscribe(lambda: due.append(bench.kept.due - bench.io.time))
    bench.io.expect("PUT", RENEW, unreachable())
    expect_gone(bench.io)
    bench.keep()
    assert due[0] > 0


def test_a_session_found_gone_at_the_refresh_is_replaced(bench: Bench) -> None:
    bench.io.time = 1012.0
    expect_gone(bench.io)
    bench.io.expect("PUT", CREATE, ok({"ID": OTHER}))
    assert bench.live().id == OTHER


def test_who_waits_for_anothers_create_gets_what_comes_of_it(bench: Bench) -> None:
    bench.core.sessions.end(bench.kept, LossReason.SESSION_GONE)
    source = bench.core.sessions.shared
    found: list[str] = []

    def meanwhile(_: object) -> Exception:
        # While the create for the first is under way, a second comes and waits for it until its own deadline.
        with pytest.raises(RequestTimeout, match="no session in time"):
            bench.io.run(source.live(bench.io, deadline=bench.io.time + 1.0))
        found.append("waited")
        return lost(CREATE)

    bench.io.expect("PUT", CREATE, meanwhile, ok({"ID": OTHER}))
    with pytest.raises(Exception, match="connection ended"):
        bench.live()
    assert found == ["waited"]
    assert bench.live().id == OTHER


def outside(reply: Callable[[Bench], None]) -> tuple[Bench, KeptSession]:
    bench = Bench()
    reply(bench)
    return bench, used(bench, bench.core.source(OTHER))


def used(bench: Bench, source: sessions.SessionSource) -> KeptSession:
    return bench.io.run(source.live(bench.io, deadline=bench.io.time + 5))


def test_an_outside_session_is_renewed_first_and_never_destroyed() -> None:
    bench, kept = outside(lambda b: b.io.expect("PUT", RENEW, ok([session_json(OTHER, ttl="10s")])))
    assert kept.lease.longest == pytest.approx(9.5)
    assert [each.recovered for each in bench.io.seen(Renewed)] == [False], "there was no trouble"
    assert bench.io.seen(SessionDiffers) == [], "nobody here has asked for its settings"
    bench.core.sessions.end(kept, LossReason.EXPIRED)
    assert bench.core.reaper.pending == 0


def test_an_outside_session_is_left_to_its_owner_once_nobody_uses_it() -> None:
    bench = Bench()
    renewals = [ok([session_json(OTHER, ttl="10s")])] * 3
    bench.io.expect("PUT", RENEW, *renewals)
    users = [bench.core.source(OTHER), bench.core.source(OTHER)]
    kept = used(bench, users[0])
    assert used(bench, users[1]) is kept, "one session, whoever gives its id"
    bench.io.at(1005.0, users.pop)
    bench.io.at(1009.0, users.clear)
    bench.io.run_spawned(f"keep session {OTHER}")
    assert bench.io.sent_at[1:] == pytest.approx([1000.0, 1004.0, 1008.0])
    assert kept.lease.ended_by is LossReason.CLIENT_CLOSED
    assert bench.core.reaper.pending == 0, "it is not this client's to destroy"


def test_an_outside_session_is_renewed_for_its_holds_whatever_has_made_them() -> None:
    bench, kept = outside(lambda b: b.io.expect("PUT", RENEW, *[ok([session_json(OTHER, ttl="10s")])] * 3))
    hold = bench.grant(kept)
    bench.io.at(1009.0, lambda: bench.core.holds.forget(hold))
    bench.io.run_spawned(f"keep session {OTHER}")
    assert bench.io.sent_at[1:] == pytest.approx([1000.0, 1004.0, 1008.0])
    assert kept.lease.ended_by is LossReason.CLIENT_CLOSED


def test_an_outside_session_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SessionNotFound) as told:
        outside(lambda b: expect_gone(b.io))
    assert told.value.session == OTHER


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"TTL": ""}, "it has no TTL"),
        ({"LockDelay": 0}, "its lock-delay is 0"),
        ({"NodeChecks": ["serfHealth"], "LockDelay": 0}, "its lock-delay is 0"),
        ({"TTL": "", "NodeChecks": ["x"]}, "it has no TTL"),
    ],
)
def test_an_outside_session_without_a_bound_is_refused(fields: dict[str, object], cause: str) -> None:
    reply = session_json(OTHER) | fields
    with pytest.raises(UnsafeSession, match=OTHER) as refused:
        outside(lambda b: b.io.expect("PUT", RENEW, ok([reply])))
    assert cause in str(refused.value)


def test_the_lock_delay_of_an_outside_session_is_read_from_the_server() -> None:
    reply = session_json(OTHER, ttl="60s") | {"LockDelay": 90_000_000_000}
    _, kept = outside(lambda b: b.io.expect("PUT", RENEW, ok([reply])))
    assert kept.lease.longest == pytest.approx(57.0), "a lock-delay is a minute at most"


@pytest.mark.parametrize("seconds", [3.0, 40.0])
def test_a_stuck_hold_of_an_outside_session_has_the_lock_delay_of_that(seconds: float) -> None:
    reply = session_json(OTHER, ttl="60s") | {"LockDelay": int(seconds * 1e9)}
    _, kept = outside(lambda b: b.io.expect("PUT", RENEW, ok([reply])))
    assert kept.lock_delay == seconds


def test_a_session_without_a_ttl_is_kept_but_never_renewed() -> None:
    bench = Bench(SessionSpec(ttl=None, allow_unbounded=True))
    bench.end_at(9000.0)
    bench.keep()
    assert bench.io.paths == [CREATE]
    assert bench.io.time == pytest.approx(9000.0)


def test_a_failed_create_says_why(bench: Bench) -> None:
    bench.core.sessions.end(bench.kept, LossReason.SESSION_GONE)
    bench.io.expect("PUT", CREATE, refusal(500, "No cluster leader"))
    with pytest.raises(NoLeader):
        bench.live()


def unanswered_create(bench: Bench, answer: Response | Exception) -> str:
    """Let a create fail, and return the name of the session that it may have made."""
    bench.core.sessions.end(bench.kept, LossReason.SESSION_GONE)
    names: list[str] = []

    def no_answer(request: Request) -> Response | Exception:
        names.append(json.loads(request.body or b"")["Name"])
        return answer

    bench.io.expect("PUT", CREATE, no_answer)
    with pytest.raises((BrokenReply, ServerError)):
        bench.live()
    return names[0]


@pytest.mark.parametrize("answer", [lost(CREATE), refusal(500, "rpc error making call: EOF")], ids=repr)
def test_what_an_unanswered_create_has_made_is_found_by_its_name_and_destroyed(
    bench: Bench, answer: Response | Exception
) -> None:
    name = unanswered_create(bench, answer)
    assert bench.core.reaper.pending == 1
    listed = [session_json(OTHER, Name="other"), session_json(SESSION, Name=name)]
    bench.io.expect("GET", LIST, ok([listed[0]]), ok(listed))
    bench.io.expect("PUT", DESTROY + SESSION, ok(value=True))
    began = bench.io.time
    bench.io.run_spawned("reaper")
    assert [at - began for at in bench.io.sent_at[-3:]] == pytest.approx([1.0, 5.0, 5.0])
    assert ("consistent", "") in bench.io.requests[-2].params
    assert [(each.session, each.found) for each in bench.io.seen(Cleaned)] == [(SESSION, True)]
    assert bench.core.reaper.pending == 0


def test_who_is_interrupted_while_waiting_leaves_a_session_for_the_next(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by Ctrl-C."""
    bench.core.sessions.end(bench.kept, LossReason.SESSION_GONE)

    async def interrupted(*_: object, **__: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(bench.io, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bench.live()
    bench.io.expect("PUT", CREATE, ok({"ID": OTHER}))
    bench.io.run_spawned("create a session")
    assert bench.live().id == OTHER
    assert bench.io.paths == [CREATE, CREATE]
    assert bench.core.reaper.pending == 0


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_session_that_is_made_after_its_user_has_given_up_is_destroyed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, *, interrupted: bool
) -> None:
    """Nobody knows it, so nobody would ever close it."""

    async def in_vain(*_: object, **__: object) -> bool:
        if interrupted:
            raise KeyboardInterrupt
        return False

    with monkeypatch.context() as patch:
        patch.setattr(bench.io, "wait", in_vain)
        with pytest.raises(KeyboardInterrupt if interrupted else RequestTimeout):
            bench.io.run(handling.open_session(bench.io, bench.core.sessions, bench.spec, resume=None))
    bench.io.expect("PUT", CREATE, ok({"ID": OTHER}))
    bench.io.run_spawned("create a session")
    assert list(bench.core.sessions) == [bench.kept]
    bench.io.expect("PUT", DESTROY + OTHER, ok(value=True))
    bench.io.run(bench.core.reaper.finish(bench.io, deadline=bench.io.time + 5))
    assert bench.core.reaper.pending == 0


def test_a_create_that_the_end_of_the_background_cuts_short_is_looked_after_too(bench: Bench) -> None:
    bench.core.sessions.end(bench.kept, LossReason.SESSION_GONE)

    def cancelled(_: object) -> Exception:
        raise KeyboardInterrupt

    bench.io.expect("PUT", CREATE, cancelled)
    with pytest.raises(KeyboardInterrupt):
        bench.live()
    assert bench.core.reaper.pending == 1


def test_what_is_made_while_the_client_closes_is_destroyed(bench: Bench) -> None:
    bench.core.sessions.end(bench.kept, LossReason.SESSION_GONE)

    def closing(_: object) -> Response:
        bench.core.begin_close()
        return ok({"ID": OTHER})

    bench.io.expect("PUT", CREATE, closing)
    bench.io.run(bench.core.sessions.shared._make(bench.io))
    bench.io.expect("PUT", DESTROY + OTHER, ok(value=True))
    bench.io.run(bench.core.reaper.finish(bench.io, deadline=bench.io.time + 5))
    assert bench.core.reaper.pending == 0
    assert list(bench.core.sessions) == []


@pytest.mark.parametrize("answer", [unreachable(CREATE), refusal(403, "Permission denied")], ids=repr)
def test_a_create_that_was_surely_not_applied_leaves_nothing_to_do(
    bench: Bench, answer: Response | Exception
) -> None:
    bench.core.sessions.end(bench.kept, LossReason.SESSION_GONE)
    bench.io.expect("PUT", CREATE, answer)
    with pytest.raises(Exception, match=r"refused|denied"):
        bench.live()
    assert bench.core.reaper.pending == 0


@pytest.mark.parametrize("listing", [ok([]), refusal(403, "Permission denied")], ids=repr)
def test_what_is_not_found_within_a_minute_is_left_to_its_ttl(bench: Bench, listing: Response) -> None:
    unanswered_create(bench, lost(CREATE))
    bench.io.expect("GET", LIST, *[listing] * 4)
    began = bench.io.time
    bench.io.run_spawned("reaper")
    assert [at - began for at in bench.io.sent_at[-4:]] == pytest.approx([1.0, 5.0, 15.0, 60.0])
    assert bench.core.reaper.pending == 0


def test_a_list_that_was_asked_for_before_says_nothing_of_a_create_that_was_given_up_since(
    bench: Bench,
) -> None:
    listing = Listing()
    first, later = (
        StraySession(name, has_ttl=True, listing=listing, given_up_at=bench.io.time + since)
        for name, since in (("first", 0.0), ("later", 0.5))
    )
    bench.io.expect("GET", LIST, ok([]), takes=1.0)
    assert bench.io.run(first.step(bench.io, deadline=2000.0))
    bench.io.expect("GET", LIST, ok([session_json(OTHER, Name="later")]))
    bench.io.expect("PUT", DESTROY + OTHER, ok(value=True))
    assert bench.io.run(later.step(bench.io, deadline=2000.0)) is None
    assert not bench.io.steps


def test_all_that_is_looked_for_is_looked_for_in_one_list(bench: Bench) -> None:
    names = []
    for _ in range(10):
        names.append(unanswered_create(bench, lost(CREATE)))
        bench.io.time += 0.1
    found = [session_json(OTHER, Name=names[7])]
    bench.io.expect("GET", LIST, ok(found))
    bench.io.expect("PUT", DESTROY + OTHER, ok(value=True))
    bench.io.expect("GET", LIST, ok([]), ok([]), ok([]))
    bench.io.run_spawned("reaper")
    assert bench.core.reaper.pending == 0


def test_closing_asks_for_one_list_at_a_time_however_many_it_looks_for_and_long_it_takes(
    bench: Bench,
) -> None:
    for _ in range(10):
        unanswered_create(bench, lost(CREATE))
    bench.core.begin_close()
    bench.io.expect("GET", LIST, *[ok([])] * (1 + len(LAST_LOOKS)), takes=0.1)
    bench.io.run(bench.core.reaper.finish(bench.io, deadline=bench.io.time + 5.0))
    assert not bench.io.steps
    assert bench.core.reaper.pending == 0


def test_a_list_that_fails_is_asked_for_again_once_for_all_that_look_for_something(bench: Bench) -> None:
    for _ in range(10):
        unanswered_create(bench, lost(CREATE))
    bench.io.expect("GET", LIST, *[lost(LIST)] * 6, *[ok([])] * 4)
    began = bench.io.time
    bench.io.run_spawned("reaper")
    looks = [at - began for at in bench.io.sent_at[-10:]]
    pauses = [later - at for at, later in pairwise(looks[:7])]
    assert all(later > 1.5 * pause for pause, later in pairwise(pauses))
    assert bench.core.reaper.pending == 0


@pytest.mark.parametrize(("ttl", "left"), [(TTL, 0), (None, 1)])
def test_closing_looks_for_a_second_and_leaves_the_rest_to_a_ttl_or_tells(
    ttl: float | None, left: int
) -> None:
    bench = Bench(SessionSpec(ttl=ttl, allow_unbounded=True))
    unanswered_create(bench, lost(CREATE))
    bench.io.expect("GET", LIST, *[ok([])] * 5)
    began = bench.io.time
    bench.io.run(bench.core.reaper.finish(bench.io, deadline=began + 5))
    assert [at - began for at in bench.io.sent_at[-5:]] == pytest.approx([0.0, 0.05, 0.2, 0.5, 1.0])
    assert bench.core.reaper.pending == left


@pytest.mark.usefixtures("more_than_asked")
def test_closing_looks_once_for_what_was_looked_for_before(bench: Bench) -> None:
    unanswered_create(bench, lost(CREATE))
    bench.io.expect("GET", LIST, ok([]), ok([]))
    (stray,) = bench.core.reaper.tasks
    assert isinstance(stray, StraySession)
    bench.io.run(stray.step(bench.io, deadline=bench.io.time + 1))
    bench.io.run(bench.core.reaper.finish(bench.io, deadline=bench.io.time + 5))
    assert bench.core.reaper.pending == 0


def test_one_renewal_is_sent_once(bench: Bench) -> None:
    bench.io.expect("PUT", RENEW, lost(RENEW))
    with pytest.raises(Exception, match="connection ended"):
        bench.io.run(sessions.renew(bench.io, bench.core.sessions, bench.kept, deadline=1010.0))
    assert len(bench.io.requests) == 2


def test_an_answered_list_ends_the_growth_of_the_pauses(bench: Bench) -> None:
    unanswered_create(bench, lost(CREATE))
    bench.io.expect("GET", LIST, *[lost(LIST)] * 5, ok([]), lost(LIST), *[ok([])] * 3)
    bench.io.run_spawned("reaper")
    gaps = [later - at for at, later in pairwise(bench.io.sent_at[-10:])]
    assert gaps[3] > 4 * gaps[0]
    assert gaps[6] == pytest.approx(gaps[0])


def test_who_waits_for_anothers_renewal_waits_for_his_own_time_at_most(bench: Bench) -> None:
    bench.core.sessions._confirming[SESSION] = Signal()
    began = bench.io.time
    with pytest.raises(RequestTimeout, match="no renewal of session"):
        bench.io.run(bench.core.sessions.confirm(bench.io, bench.kept, deadline=began + 3.0))
    assert bench.io.time == began + 3.0


@pytest.mark.parametrize(
    ("seconds", "failure", "says"),
    [
        (1.0, "", ""),
        (1.0, "connection refused", "; connection refused"),
        (10.0, "", "; no answer from Consul for 10 s"),
        (10.0, "connection refused", "; no answer from Consul for 10 s: connection refused"),
    ],
)
def test_who_waits_in_vain_for_a_session_hears_what_is_known_of_the_contact(
    bench: Bench, seconds: float, failure: str, says: str
) -> None:
    contact = bench.io.contact
    contact.heard()
    contact.asked()
    contact.hindered(failure)
    with pytest.raises(RequestTimeout) as told:
        bench.io.run(sessions.Creation().wait(bench.io, deadline=bench.io.time + seconds))
    assert str(told.value).endswith(f"the request to create one{says}")


@pytest.mark.parametrize(
    ("result", "raised"), [(RuntimeError("a bug"), RuntimeError), (None, ClientClosed)], ids=repr
)
def test_who_waits_for_a_session_hears_of_a_bug_in_its_making_or_that_the_client_closes(
    bench: Bench, result: Exception | None, raised: type[Exception]
) -> None:
    creation = sessions.Creation()
    if result is None:
        creation.done.set()
    else:
        creation.settle(result)
    with pytest.raises(raised):
        bench.io.run(creation.wait(bench.io, deadline=bench.io.time + 3.0))
